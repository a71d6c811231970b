"""What runs of policies whose parameters are on a server leave: the check of every update, and records as of other runs."""

import math
import queue
import threading
from hashlib import blake2b
from typing import Any

import numpy as np

from sa_atp import policies
from sa_atp.arrays import Values
from sa_atp.parameters.replay import Replay
from sa_atp.parameters.rules import Rules
from sa_atp.parameters.server import Snapshot, Taken
from sa_atp.testbed.plan import Plan
from sa_atp.testbed.records import Evaluation, Interval, Iteration, PolicyRun
from sa_atp.testbed.tasks import straggler_pattern


def digest(update: Values) -> str:
    """By which the pusher and the server name the same update."""
    return blake2b(update.tobytes(), digest_size=8).hexdigest()


class UpdateChecker:
    """Replays each update that the server has taken, and compares the parameters bit for bit."""

    def __init__(self, rules: Rules, initial: Values) -> None:
        terms = rules.terms
        self.taken: list[tuple[int, int, str, int]] = []
        """(number, rank, digest, staleness) of each update, in order."""
        self.wrong: list[int] = []
        """Numbers of updates after which the parameters were not those of the replay, or with a task that was there."""
        self._replay = Replay(
            initial, rule=rules.rule, rate=rules.rate, world_size=terms.world_size, micro_batches=terms.micro_batches
        )

    def take(self, taken: Taken) -> None:
        is_new = self._replay.take(taken.clock, taken.tasks, taken.update)
        if not is_new or self._replay.values.tobytes() != taken.values.tobytes():
            self.wrong.append(taken.number)
        self.taken.append((taken.number, taken.rank, digest(taken.update), taken.staleness))


class CheckingThread:
    """The same in a thread of its own, so that nobody waits for it."""

    def __init__(self, checker: UpdateChecker) -> None:
        self._checker = checker
        self._work: queue.SimpleQueue[Taken | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sa-atp-checker", daemon=True)
        self._thread.start()

    def take(self, taken: Taken) -> None:
        self._work.put(taken)

    def finish(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (taken := self._work.get()) is not None:
            self._checker.take(taken)


def describe_server(checker: UpdateChecker, snapshots: list[Snapshot]) -> dict[str, Any]:
    """What the server of a job has to tell, as JSON-able data."""
    return {
        "ends_us": [snapshot.at_us for snapshot in snapshots],
        "taken": checker.taken,
        "wrong": checker.wrong,
    }


def collect(
    plan: Plan, policy: str, repetition: int, workers: list[dict[str, Any]], server: dict[str, Any], job: int = 0
) -> PolicyRun:
    """Args:
    workers: of each rank its records, and what it has pushed, as (number, digest).
    server: what `describe_server` says, and evaluations.
    """
    run = PolicyRun(policy, repetition, job=job)
    begun_us = [record["start_us"] for worker in workers for record in worker["records"]]
    origin_us = min(begun_us, default=min(server["ends_us"]))
    for worker in workers:
        for record in worker["records"]:
            run.iterations.append(_iteration(worker["rank"], record, origin_us))
            for kind, start, end, label in record["activities"]:
                run.intervals.append(
                    Interval(worker["rank"], record["step"], kind, start - origin_us, end - origin_us, label)
                )
    run.step_ends_s = [(end_us - origin_us) / 1e6 for end_us in server["ends_us"]]
    run.evaluations = [
        Evaluation(step, run.step_ends_s[step], loss, accuracy) for step, loss, accuracy in server["evaluations"]
    ]
    run.sums_checked, run.sums_wrong = check(workers, server)
    records = [record for worker in workers for record in worker["records"]]
    run.help = {
        "helped_steps": len({(r["step"]) for r in records if r["helped"]}),
        "micro_batches": sum(r["helped"] for r in records),
    }
    pattern = straggler_pattern(plan)
    shards = policies.find(policy).shards(plan)
    shard_us = plan.job.batch_size * plan.job.compute_us_per_sample * shards / plan.topology.workers
    steps = range(min(plan.run.warm_up, plan.run.steps - 1), plan.run.steps)
    run.fluid_bound_s = sum(pattern.fluid_bound_us(step, shard_us) for step in steps) / len(steps) / 1e6
    return run


def check(workers: list[dict[str, Any]], server: dict[str, Any]) -> tuple[int, int]:
    """Every update: that the server took what its worker pushed, and that the parameters are those of the replay.

    Returns: how many updates were checked, and how many were wrong.
    """
    pushed = {number: (worker["rank"], name) for worker in workers for number, name in worker["pushed"]}
    wrong = set(server["wrong"])
    for number, rank, name, _ in server["taken"]:
        if pushed.pop(number, None) != (rank, name):
            wrong.add(number)
    return len(server["taken"]), len(wrong | pushed.keys())


def _iteration(rank: int, record: dict[str, Any], origin_us: int) -> Iteration:
    seconds: dict[str, float] = dict.fromkeys(("compute", "pause", "help", "send"), 0.0)
    for kind, start, end, _ in record["activities"]:
        seconds[kind] = seconds.get(kind, 0.0) + (end - start) / 1e6
    total = (record["end_us"] - record["start_us"]) / 1e6
    compute, help_, send = seconds["compute"] + seconds["pause"], seconds["help"], seconds["send"]
    return Iteration(
        step=record["step"],
        worker=rank,
        compute_s=compute,
        help_s=help_,
        send_s=send,
        wait_s=max(0.0, total - compute - help_ - send),
        iteration_s=total,
        loss=float("nan") if record["loss"] is None else record["loss"],
        slowdown=record["slowdown"],
        micro_batches=record["micro_batches"],
        helped=record["helped"],
        end_s=(record["end_us"] - origin_us) / 1e6,
    )


def staleness(server: dict[str, Any]) -> float:
    """Mean over updates: how many others the server had taken since the pusher got its parameters."""
    return float(np.mean([late for *_, late in server["taken"]])) if server["taken"] else math.nan
