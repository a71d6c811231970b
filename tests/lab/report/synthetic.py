"""Made-up runs whose numbers fit together, as if a testbed had measured them.

ATP: every worker computes its shard, sends it, and waits for the slowest. SA-ATP: every worker claims its micro-batches
from the head; a worker without any takes those that slower workers have not begun, from the tail, so that all end at
about the same time. The loss falls with the step under every policy, because the sums are the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sa_atp.lab.plans.plan import HelpPlan, JobPlan, Plan, RunPlan, StragglerPlan, TopologyPlan
from sa_atp.lab.runs.records import Evaluation, Interval, IntervalKind, Iteration, PolicyRun, RunResult
from sa_atp.lab.runs.tasks import straggler_pattern

SEND_US = 4_000
LATENCY_US = 1_500  # from the last contribution to the sum
PATIENCE_US = 6_000


def plan(
    *,
    policies: Sequence[str] = ("atp", "sa-atp"),
    workers: int = 4,
    steps: int = 40,
    warm_up: int = 3,
    repetitions: int = 1,
    straggler: StragglerPlan | None = None,
    micro_batches: int = 16,
    target: float = 0.9,
) -> Plan:
    return Plan(
        run=RunPlan(
            policies=tuple(policies), steps=steps, warm_up=warm_up, repetitions=repetitions, target_accuracy=target
        ),
        topology=TopologyPlan(workers=workers),
        job=JobPlan(micro_batches=micro_batches, compute_us_per_sample=2000),
        straggler=straggler or StragglerPlan(workers=(workers - 1,)),
        help=HelpPlan(),
    )


def result(wanted: Plan | None = None, *, evaluate: bool = True, **settings: object) -> RunResult:
    """A run of a plan, or of `plan(**settings)`. Policies other than "atp" and "none" help each other."""
    wanted = wanted or plan(**settings)  # type: ignore[arg-type]
    runs = [
        _Simulation(wanted, policy, repetition, evaluate).run()
        for repetition in range(wanted.run.repetitions)
        for policy in wanted.run.policies
    ]
    return RunResult(wanted, "topologies/demo.toml", "local", "embedded", manifest(wanted), runs)


def manifest(wanted: Plan) -> dict[str, object]:
    return {
        "command": ["sa-atp", "run", "topologies/demo.toml", "--set", "help.grade=steal"],
        "plan_path": "topologies/demo.toml",
        "seed": wanted.run.seed,
        "commit": "5c1ad0f3e2b14977a1c0d6c1a2f08a7b7b0f9f11",
        "python": "3.11.9",
        "kernel": "6.8.0",
        "machine": "x86_64",
        "cpus": 2,
        "versions": {"sa_atp": "0.1.0", "numpy": "2.4.6", "torch": "2.13.0"},
        "device_speed": "emulated",
    }


@dataclass
class _Worker:
    """A worker within a step: its activities, and when it will be idle."""

    free_us: int
    spans: list[tuple[IntervalKind, int, int, str]] = field(default_factory=list)
    own: int = 0
    helped: int = 0

    def do(self, kind: IntervalKind, us: int, label: str = "") -> None:
        self.spans.append((kind, self.free_us, self.free_us + us, label))
        self.free_us += us


class _Simulation:
    def __init__(self, wanted: Plan, policy: str, repetition: int, evaluate: bool) -> None:
        self.plan, self.helps, self.evaluate = wanted, policy not in ("atp", "none"), evaluate
        self.out, self.pattern = PolicyRun(policy, repetition), straggler_pattern(wanted)
        # policies of a repetition have different disturbances, as in reality
        self.rng = np.random.default_rng([wanted.run.seed, repetition, len(policy)])

    def run(self) -> PolicyRun:
        at_us, helped_steps, bounds = 0, 0, []
        workers, m = self.plan.topology.workers, self.plan.job.micro_batches
        for step in range(self.plan.run.steps):
            done = self._step(step, at_us)
            end_us = max(w.free_us for w in done) + LATENCY_US
            for rank, worker in enumerate(done):
                worker.do("wait", end_us - worker.free_us)
                self._record(step, rank, worker, at_us, end_us)
            helped_steps += any(w.helped for w in done)
            at_us = end_us
            if self.evaluate:
                score = 1 - 0.9 * math.exp(-step / 9) - 0.02
                self.out.evaluations.append(Evaluation(step, at_us / 1e6, 2.3 * math.exp(-step / 9) + 0.08, score))
            shard_s = self.plan.job.batch_size * self.plan.job.compute_us_per_sample / 1e6
            speed = sum(1 / self.pattern.slowdown_of(step, rank) for rank in range(workers))
            bounds.append(workers * shard_s / speed)
        counted = bounds[self.plan.run.warm_up :] or bounds
        self.out.fluid_bound_s = sum(counted) / len(counted)
        fragments = 90 * workers * self.plan.run.steps
        self.out.sums_checked = workers * self.plan.run.steps
        self.out.fragments = {
            "sent": fragments, "retransmitted": fragments // 4000, "in_switch": fragments // workers, "at_ps": 0,
            "collisions": 0,
        }  # fmt: skip
        moved = sum(i.helped for i in self.out.iterations)
        self.out.help = {"helped_steps": helped_steps, "micro_batches": moved, "backups": 0}
        assert sum(i.micro_batches + i.helped for i in self.out.iterations) == workers * m * self.plan.run.steps
        return self.out

    def _step(self, step: int, at_us: int) -> list[_Worker]:
        """The activities of a step up to each worker's last contribution."""
        ranks = range(self.plan.topology.workers)
        done = [_Worker(at_us) for _ in ranks]
        left = [list(range(self.plan.job.micro_batches)) for _ in ranks]
        sent = [False for _ in ranks]
        while not all(sent):
            rank = min((r for r in ranks if not sent[r]), key=lambda r: done[r].free_us)
            worker, took = done[rank], self._took_us(step, rank)
            if left[rank]:
                if self.pattern.pause_us_of(step, rank) and worker.own == self.plan.job.micro_batches // 2:
                    worker.do("pause", self.pattern.pause_us_of(step, rank))
                worker.do("compute", took, f"shard {rank}, micro-batch {left[rank].pop(0)}")
                worker.own += 1
            elif self.helps and (slowest := self._slowest(step, rank, took, done, left)) is not None:
                if not worker.helped:
                    worker.do("send", SEND_US)
                    worker.do("wait", PATIENCE_US)
                worker.do("help", took, f"shard {slowest}, micro-batch {left[slowest].pop()}")
                worker.helped += 1
            else:
                if not worker.helped:
                    worker.do("send", SEND_US)
                sent[rank] = True
        return done

    def _slowest(self, step: int, rank: int, took: int, done: list[_Worker], left: list[list[int]]) -> int | None:
        """The worker that would finish last, if help makes it finish sooner."""
        ends = {
            r: done[r].free_us
            + len(left[r]) * self._took_us(step, r, exact=True)
            + self.pattern.pause_us_of(step, r) * (done[r].own <= self.plan.job.micro_batches // 2)
            for r in range(len(done))
            if r != rank and left[r]
        }
        last = max(ends, key=lambda r: ends[r], default=None)
        return last if last is not None and done[rank].free_us + took < ends[last] else None

    def _took_us(self, step: int, rank: int, *, exact: bool = False) -> int:
        job = self.plan.job
        exact_us = (
            job.batch_size // job.micro_batches * job.compute_us_per_sample * self.pattern.slowdown_of(step, rank)
        )
        return int(exact_us * (1 if exact else 1 + self.rng.exponential(0.03)))

    def _record(self, step: int, rank: int, worker: _Worker, start_us: int, end_us: int) -> None:
        seconds = dict.fromkeys(("compute", "help", "send", "wait", "pause"), 0.0)
        for kind, begin, end, label in worker.spans:
            seconds[kind] += (end - begin) / 1e6
            self.out.intervals.append(Interval(rank, step, kind, begin, end, label))
        self.out.iterations.append(
            Iteration(
                step=step,
                worker=rank,
                compute_s=seconds["compute"] + seconds["pause"],
                help_s=seconds["help"],
                send_s=seconds["send"],
                wait_s=seconds["wait"],
                iteration_s=(end_us - start_us) / 1e6,
                loss=2.3 * math.exp(-step / 9) + 0.1 if worker.own + worker.helped else math.nan,
                slowdown=self.pattern.slowdown_of(step, rank),
                micro_batches=worker.own,
                helped=worker.helped,
                end_s=end_us / 1e6,
            )
        )
