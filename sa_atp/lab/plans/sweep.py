"""Sweeps: a plan whose [sweep] names a key becomes one plan for each of the key's values."""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import meant
from sa_atp.lab import policies
from sa_atp.lab.plans.plan import Plan, SweepPlan
from sa_atp.lab.plans.plan_files import changed
from sa_atp.lab.plans.used import check_axis

START_S = 15.0  # of a run: processes, namespaces, imports, figures
SENDING_S = 0.1  # sending in a step


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a sweep: one value of the key, with its plan."""

    value: Any
    plan: Plan
    folder: str
    """Name of its folder, which sorts in the points' order."""


def points(plan: Plan, path: str) -> list[Point]:
    """The plans of a sweep. Args: path: the plan's. Raises: UserError: the key does not exist, or does not take a value."""
    key = plan.sweep.key
    tables = plan.as_dict() | {table: dataclasses.asdict(kind()) for table, kind in policies.settings().items()}
    known = [f"{table}.{name}" for table, keys in tables.items() for name in keys if table != "sweep"]
    if key not in known:
        raise UserError(
            f"{path}: sweep.key = {key!r}: expected a key of this file, like topology.workers{meant(key, known)}"
        )
    check_axis(plan, key, f"{path}: sweep.key")
    alone = dataclasses.replace(plan, sweep=SweepPlan())
    found = []
    for number, value in enumerate(plan.sweep.values):
        legible = re.sub(r"[^A-Za-z0-9.+-]+", "-", str(value)).strip("-")
        found.append(
            Point(value, changed(alone, {key: value}, path, f", sweep.values[{number}]"), f"{number}-{legible}")
        )
    return found


def seconds_left(done: Sequence[tuple[Plan, float]], to_do: Sequence[Plan]) -> float | None:
    """Estimates the time of the remaining points from that of finished ones; None: there are none yet.

    Args: done: finished plans, with the seconds that each took.
    """
    expected = sum(_weight(plan) for plan, _ in done)
    if not expected:
        return None
    return sum(_weight(plan) for plan in to_do) * sum(seconds for _, seconds in done) / expected


def _weight(plan: Plan) -> float:
    """A rough estimate of a run's seconds, for proportions: start, compute, and a constant for sending."""
    shard_s = plan.job.shard_us / 1e6
    straggler = plan.straggler
    low, high = straggler.slowdown_range
    slow = {"constant": straggler.slowdown, "random": (low + high) / 2}.get(straggler.pattern, 1.0)
    slow = slow if straggler.workers or straggler.pattern == "random" else 1.0
    if straggler.pattern == "trace":
        slow = max([1.0, *(row[2] for row in straggler.rows)])
    slow = max([slow, *(slow / speed for speed in plan.job.speeds)])
    pause_s = straggler.pause_s / straggler.every if straggler.pattern == "pause" else 0.0
    if straggler.pattern == "random-pause":
        anybody = 1 - (1 - straggler.probability) ** plan.topology.workers
        pause_s = anybody * sum(straggler.pause_range) / 2 * shard_s
    steps = plan.run.steps * plan.run.repetitions
    stretches = [policies.find(policy).expected_stretch(plan, slow) for policy in plan.run.policies]
    return START_S + steps * sum(SENDING_S + pause_s + shard_s * stretch for stretch in stretches)
