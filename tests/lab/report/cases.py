"""Runs of every kind that reports have to handle."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sa_atp.lab.plans.plan import Plan, RunPlan, StragglerPlan, TopologyPlan
from sa_atp.lab.runs.records import Evaluation, Interval, Iteration, PolicyRun, RunResult

from . import synthetic


def iteration(step: int, worker: int, iteration_s: float, **fields: float) -> Iteration:
    """An iteration that only computes, unless other parts are given."""
    known: dict[str, float] = {
        "compute_s": iteration_s, "help_s": 0.0, "send_s": 0.0, "wait_s": 0.0, "loss": 1.0, "slowdown": 1.0,
        "micro_batches": 2, "helped": 0,
    }  # fmt: skip
    return Iteration(step=step, worker=worker, iteration_s=iteration_s, **{**known, **fields})  # type: ignore[arg-type]


def timed(took: Mapping[str, Sequence[Sequence[float]]], backend: str = "sim") -> RunResult:
    """A run of one worker. Args: took: by policy, for each repetition, the time of each step."""
    (shape,) = {(len(each), len(each[0])) for each in took.values()}
    repetitions, steps = shape
    run = RunPlan(policies=tuple(took), steps=steps, warm_up=0, repetitions=repetitions)
    plan = Plan(run=run, topology=TopologyPlan(workers=1), straggler=StragglerPlan(pattern="none"))
    runs = []
    for repetition in range(repetitions):
        for policy, each in took.items():
            ends = itertools.accumulate(each[repetition])
            rows = [
                iteration(n, 0, s, end_s=end) for n, (s, end) in enumerate(zip(each[repetition], ends, strict=True))
            ]
            runs.append(PolicyRun(policy, repetition, rows, sums_checked=steps))
    return RunResult(plan, "plan.toml", backend, "embedded", {}, runs)


def small(*, warm_up: int = 1) -> RunResult:
    """Two policies, two workers, three steps, two repetitions; small enough to work out by hand.

    Iteration times: ATP 9, 4, 6 and 9, 4, 8 s; SA-ATP 5, 2, 2 and 5, 2, 4 s.
    """
    plan = Plan(
        run=RunPlan(steps=3, warm_up=warm_up, repetitions=2, target_accuracy=0.5),
        topology=TopologyPlan(workers=2),
        straggler=StragglerPlan(workers=(1,), slowdown=2.0),
    )
    runs = []
    for policy, repetition, times in (
        ("atp", 0, (9, 4, 6)),
        ("sa-atp", 0, (5, 2, 2)),
        ("atp", 1, (9, 4, 8)),
        ("sa-atp", 1, (5, 2, 4)),
    ):
        run = PolicyRun(policy, repetition, fluid_bound_s=1.5 if repetition else 0.5)
        at = 0.0
        for step, seconds in enumerate(times):
            at += seconds
            run.iterations.append(
                iteration(step, 0, seconds - 1.0, compute_s=1.0, wait_s=seconds - 2.0, helped=1, end_s=at)
            )
            run.iterations.append(iteration(step, 1, float(seconds), slowdown=2.0, micro_batches=1, loss=4.0, end_s=at))
            run.evaluations.append(Evaluation(step, at, loss=3.0 - step, accuracy=0.25 * (step + 1)))
        run.sums_checked, run.fragments, run.help = 6, {"sent": 10, "retransmitted": repetition}, {"helped_steps": 2}
        runs.append(run)
    return RunResult(plan, "plan.toml", "local", "embedded", {"commit": "abc"}, runs)


def _cancelled() -> RunResult:
    found = synthetic.result(steps=8)
    for run in found.runs:
        run.intervals = [
            Interval(i.worker, i.step, "help", i.start_us, i.end_us, "shard 3, micro-batch 1, cancelled")
            if i.kind == "wait"
            else i
            for i in run.intervals
        ]
    return found


def gaps() -> RunResult:
    """A run as on a real machine: workers begin at different times, with 20 ms and more between a worker's steps."""
    found = synthetic.result(steps=8)
    for run in found.runs:
        run.intervals = [
            replace(i, start_us=i.start_us + late_us, end_us=i.end_us + late_us)
            for i in run.intervals
            for late_us in [20_000 * i.step + 3_000 * i.worker]
        ]
        run.iterations = [replace(i, end_s=i.end_s + 0.02 * i.step + 0.003 * i.worker) for i in run.iterations]
    return found


def late_worker() -> RunResult:
    """A run without synchronisation, in which a slow worker finished no counted step."""
    found = synthetic.result(steps=8)
    run = found.runs[1]
    run.iterations = [i for i in run.iterations if i.worker != 3 or i.step == 0]
    return found


def _no_intervals() -> RunResult:
    found = synthetic.result(steps=6)
    for run in found.runs:
        run.intervals.clear()
    return found


def _alike() -> RunResult:
    """Equal repetitions, with times whose mean is not exact in binary."""
    found = small()
    for run in found.runs:
        run.iterations = [iteration(i.step, i.worker, 0.1 + i.step / 8) for i in run.iterations]
        run.repetition = 0 if run in found.runs[:2] else 1
    more = [replace(run, repetition=2) for run in found.runs[:2]]
    found.runs += more
    return found


def _no_losses() -> RunResult:
    found = small()
    for run in found.runs:
        run.evaluations.clear()
        run.iterations = [iteration(i.step, i.worker, i.iteration_s, loss=math.nan) for i in run.iterations]
    return found


def _no_times() -> RunResult:
    found = synthetic.result(steps=4)
    for run in found.runs:
        run.iterations = [iteration(i.step, i.worker, 0.0) for i in run.iterations]
        run.intervals = [Interval(i.worker, i.step, i.kind, 0, 0) for i in run.intervals]
        run.evaluations = [Evaluation(e.step, 0.0, e.loss, e.accuracy) for e in run.evaluations]
    return found


def _nothing() -> RunResult:
    found = small()
    found.runs = []
    return found


def _empty_runs() -> RunResult:
    found = small()
    found.runs = [PolicyRun("atp", 0), PolicyRun("sa-atp", 0)]
    return found


def _baseline_is_missing() -> RunResult:
    found = synthetic.result(steps=5)
    found.runs = [run for run in found.runs if run.policy != "atp"]
    return found


def _diverged() -> RunResult:
    found = synthetic.result(steps=5)
    for run in found.runs:
        run.evaluations = [Evaluation(e.step, e.time_s, math.nan, 0.1) for e in run.evaluations]
        run.evaluations[-1] = Evaluation(4, run.evaluations[-1].time_s, math.inf, 0.1)
    return found


def _straggler(**fields: object) -> Callable[[], RunResult]:
    return lambda: synthetic.result(straggler=StragglerPlan(**fields), steps=16)  # type: ignore[arg-type]


def slow_cpu(by: str) -> RunResult:
    """A worker whose host has less CPU time than the others'."""
    found = synthetic.result(steps=8)
    found.plan = replace(
        found.plan, straggler=replace(found.plan.straggler, by=by), job=replace(found.plan.job, device="cpu")
    )
    found.backend = "mininet"
    return found


def links_of_a_file() -> RunResult:
    """A run on a network of a file, with two slow links."""
    found = slow_links("rate")
    found.plan = replace(found.plan, topology=TopologyPlan(kind="file", file="topology.json"))
    found.backend = "mininet"
    found.manifest["worker_mbps"] = [1000.0, 500.0, 1000.0, 100.0]
    return found


def slow_links(by: str = "congestion") -> RunResult:
    """A worker with a slow link, by the plan or by other traffic, and a device as fast as the others'."""
    found = synthetic.result(straggler=StragglerPlan(pattern="none"), steps=8)
    straggler = {
        "congestion": StragglerPlan(by="congestion"),
        "contention": StragglerPlan(pattern="contention", spell_s=(0.05, 0.1), calm_s=(0.05, 0.1)),
        "rate": StragglerPlan(pattern="none"),
    }[by]
    rates = (1000.0, 1000.0, 1000.0, 100.0) if by == "rate" else ()
    found.plan = replace(found.plan, straggler=straggler, topology=replace(found.plan.topology, worker_mbps=rates))
    found.backend = "sim"
    return found


# names as long as any policy's
TEN = ("atp", "sa-atp", "ps", "gloo", "sync-opt", *(f"unheard-of {n}" for n in "ABCDE"))


def unequal_work() -> RunResult:
    """A run in which one policy's updates have fewer shards, and so another fluid bound."""
    found = synthetic.result(policies=("atp", "sync-opt", "sa-atp"), steps=8)
    for run in found.runs:
        if run.policy == "sync-opt":
            run.fluid_bound_s *= 0.75
    return found


CASES: dict[str, Callable[[], RunResult]] = {
    "demo": synthetic.result,
    "small": small,
    "one policy": lambda: synthetic.result(policies=("atp",), steps=8),
    "three policies": lambda: synthetic.result(policies=("atp", "sa-atp", "unheard-of"), steps=8),
    "ten policies": lambda: synthetic.result(policies=TEN, steps=12, micro_batches=8),
    "ten policies, eight workers": lambda: synthetic.result(policies=TEN, workers=8, steps=6, micro_batches=4),
    "updates of unequal work": unequal_work,
    "baseline is faster": lambda: synthetic.result(policies=("sa-atp", "atp"), steps=8),
    "one worker": lambda: synthetic.result(workers=1, steps=6, straggler=StragglerPlan(pattern="none")),
    "two workers": lambda: synthetic.result(workers=2, steps=8),
    "sixteen workers": lambda: synthetic.result(workers=16, micro_batches=4, steps=8),
    "one step": lambda: synthetic.result(steps=1),
    "many steps": lambda: synthetic.result(steps=600, micro_batches=4),
    "repetitions": lambda: synthetic.result(repetitions=3, steps=8),
    "no straggler": _straggler(pattern="none"),
    "random straggler": _straggler(pattern="random"),
    "pauses": _straggler(pattern="pause"),
    "congested link": slow_links,
    "contended link": lambda: slow_links("contention"),
    "slow link": lambda: slow_links("rate"),
    "links of a file": links_of_a_file,
    "CPU quota": lambda: slow_cpu("cpu-quota"),
    "CPU shared": lambda: slow_cpu("hog"),
    "extreme straggler": _straggler(slowdown=100.0),
    "all are slow": _straggler(workers=(0, 1, 2, 3)),
    "no evaluations": lambda: synthetic.result(evaluate=False, steps=6),
    "cancelled work": _cancelled,
    "gaps between steps": gaps,
    "late worker": late_worker,
    "no intervals": _no_intervals,
    "repetitions are alike": _alike,
    "no losses": _no_losses,
    "no times": _no_times,
    "nothing": _nothing,
    "empty runs": _empty_runs,
    "baseline is missing": _baseline_is_missing,
    "diverged": _diverged,
}
