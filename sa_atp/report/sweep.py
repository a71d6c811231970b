"""The figure of a sweep: one quantity over the values of one key, a line for each policy; and its numbers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sa_atp.report import stats, style
from sa_atp.report.files import write_text
from sa_atp.report.stats import PolicyStats
from sa_atp.report.text import axis_unit, policy_name
from sa_atp.testbed.plan import Plan
from sa_atp.testbed.records import RunResult

Interval = tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a figure shows of a policy: per repetition, so that intervals can be drawn."""

    title: str
    of: Callable[[PolicyStats, Plan], list[float]]
    """One value for each repetition that has one."""
    is_time: bool = False
    highest: float | None = None


def _iteration_time(policy: PolicyStats, plan: Plan) -> list[float]:
    return [float(times.mean()) for times in policy.times_s if len(times)]


def _aggregation(policy: PolicyStats, plan: Plan) -> list[float]:
    found = []
    for run in policy.runs:
        in_switch, elsewhere = run.fragments.get("in_switch", 0), run.fragments.get("at_ps", 0)
        if in_switch + elsewhere:
            found.append(in_switch / (in_switch + elsewhere))
    return found


def _accuracy(policy: PolicyStats, plan: Plan) -> list[float]:
    return [time for time in policy.times_to_accuracy_s(plan.run.target_accuracy) if time is not None]


def _fairness(policy: PolicyStats, plan: Plan) -> list[float]:
    """Jain's index of the jobs' speeds, for each repetition: 1 if all are as fast, 1/n if one has everything."""
    jobs = plan.job.jobs
    speeds: dict[int, list[float]] = {}
    for run, times in zip(policy.runs, policy.times_s, strict=True):
        if len(times):
            speeds.setdefault(run.repetition // jobs, []).append(1 / float(times.mean()))
    return [sum(s) ** 2 / (len(s) * sum(x * x for x in s)) for s in speeds.values() if len(s) == jobs]


QUANTITIES = {
    "iteration-time": Quantity("mean iteration time", _iteration_time, is_time=True),
    "aggregation": Quantity("share of sums that the switch completed", _aggregation, highest=1.0),
    "accuracy": Quantity("time to the target accuracy", _accuracy, is_time=True),
    "fairness": Quantity("Jain's fairness index of the jobs' speeds", _fairness, highest=1.0),
}


def table(plan: Plan, results: Sequence[tuple[Any, RunResult]]) -> dict[str, Any]:
    """The numbers of a sweep, ready for JSON.

    Args: plan: with its sweep; results: (value, result) of each point.
    """
    quantity = QUANTITIES[plan.sweep.figure]
    rows = []
    for value, result in results:
        policies = {}
        for policy in stats.policies(result):
            found = quantity.of(policy, result.plan)
            policies[policy.policy] = {
                "mean": sum(found) / len(found) if found else None,
                "ci95": stats.interval95(found),
                "repetitions": len(found),
                "iteration_time_s": policy.mean_s,
                "fluid_bound_s": policy.fluid_bound_s,
                "sums_checked": sum(run.sums_checked for run in policy.runs),
                "sums_wrong": sum(run.sums_wrong for run in policy.runs),
                "fragments": _sum(run.fragments for run in policy.runs),
                "help": _sum(run.help for run in policy.runs),
            }
        rows.append({"value": value, "policies": policies})
    return {"schema": 1, "key": plan.sweep.key, "figure": plan.sweep.figure, "quantity": quantity.title, "points": rows}


def _sum(counts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return total


def draw(plan: Plan, numbers: dict[str, Any], folder: Path) -> Path:
    """Draws sweep.png. Args: numbers: of `table`. Raises: MissingPartError without matplotlib; UserError."""
    style.require_matplotlib()
    quantity = QUANTITIES[plan.sweep.figure]
    points = numbers["points"]
    places, labels, is_log = _places([point["value"] for point in points])
    known = [p["mean"] for point in points for p in point["policies"].values() if p["mean"] is not None]
    factor, unit = axis_unit(max(known, default=1.0)) if quantity.is_time else (1.0, "")
    with style.applied():
        made = style.figure(4.2, f"{quantity.title.capitalize()} over {plan.sweep.key}", subtitle(plan))
        axes = made.subplots()
        for policy in plan.run.policies:
            shown = [
                (place, point["policies"][policy])
                for place, point in zip(places, points, strict=True)
                if point["policies"].get(policy, {}).get("mean") is not None
            ]
            if not shown:
                continue
            x = [place for place, _ in shown]
            y = [each["mean"] / factor for _, each in shown]
            low = [(each["mean"] - each["ci95"][0]) / factor if each["ci95"] else 0.0 for _, each in shown]
            high = [(each["ci95"][1] - each["mean"]) / factor if each["ci95"] else 0.0 for _, each in shown]
            axes.errorbar(
                x, y, yerr=[low, high], color=style.policy_colour(policy), label=policy_name(policy),
                marker="o", ms=5, lw=2, capsize=3, elinewidth=1.1,
            )  # fmt: skip
        if is_log:
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks(places, labels)
        axes.set_xlabel(plan.sweep.key)
        axes.set_ylabel(f"{quantity.title}{f' ({unit})' if unit else ''}")
        axes.set_ylim(0, quantity.highest and quantity.highest * 1.05)
        axes.grid(axis="y")
        axes.legend()
        return style.save(made, folder / "sweep.png")


def write(plan: Plan, numbers: dict[str, Any], folder: Path) -> Path:
    """Writes sweep.json."""
    import json

    return write_text(folder / "sweep.json", json.dumps(numbers, indent=2) + "\n")


def subtitle(plan: Plan) -> str:
    again = f", {plan.run.repetitions} repetitions with 95 % intervals" if plan.run.repetitions > 1 else ""
    return (
        f"{plan.topology.workers} workers, {plan.topology.kind} topology, {plan.topology.link_mbps:g} Mbit/s links, "
        f"{plan.run.steps} steps{again}; what is swept aside"
    )


def _places(values: Sequence[Any]) -> tuple[list[float], list[str], bool]:
    """Where the values are on the axis, what is written there, and whether the axis is logarithmic."""
    labels = [f"{v:g}" if isinstance(v, int | float) and not isinstance(v, bool) else str(v) for v in values]
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values):
        return [float(n) for n in range(len(values))], labels, False
    places = [float(v) for v in values]
    return places, labels, min(places) > 0 and max(places) / min(places) > 12
