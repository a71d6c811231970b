"""The figure and the numbers of a sweep: quantities over the values of one key, a line for each policy."""

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics.words import plural
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.report import stats
from sa_atp.lab.report.drawing import style
from sa_atp.lab.report.drawing.style import SCREEN, Style
from sa_atp.lab.report.files import write_text
from sa_atp.lab.report.stats import PolicyStats
from sa_atp.lab.report.summary import sums
from sa_atp.lab.report.text import NBSP, in_words, policy_name, reached
from sa_atp.lab.runs.records import RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Interval = tuple[float, float] | None
HEIGHT_IN = 3.6
BOUND_LABEL = "fluid bound (all work / all speed)"
LOGARITHMIC_FROM = 12.0  # ratio of the largest value to the smallest
CLOSEST = 1 / 14  # share of the axis; if values are closer, all are spaced evenly instead


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity of a policy that a panel shows, with a value for each repetition."""

    title: str
    of: Callable[[PolicyStats, Plan], Sequence[float | None]]
    """Returns the value of each repetition, or None for a repetition without one; then the point has no mean."""
    is_time: bool = False
    highest: float | None = None
    has_bound: bool = False
    """Whether the panel shows the fluid bound, too."""


def _ratios(policy: PolicyStats, above: str, below: Sequence[str]) -> list[float]:
    """A count of fragments over others, of all jobs of a repetition together."""
    found = []
    for repetition in sorted({run.repetition for run in policy.runs}):
        runs = [run.fragments for run in policy.runs if run.repetition == repetition]
        whole = sum(counts.get(name, 0) for counts in runs for name in below)
        if whole:
            found.append(sum(counts.get(above, 0) for counts in runs) / whole)
    return found


ITERATION_TIME = Quantity(
    "mean iteration time", lambda policy, _: list(policy.repetition_means_s().values()), is_time=True, has_bound=True
)
QUANTITIES = {
    "iteration-time": (ITERATION_TIME,),
    "aggregation": (
        Quantity(
            "share of sums that the switch completed",
            lambda policy, _: _ratios(policy, "in_switch", ("in_switch", "at_ps")),
            highest=1.0,
        ),
        Quantity(
            "packets added by the server, per fragment sent", lambda policy, _: _ratios(policy, "collisions", ("sent",))
        ),
    ),
    "accuracy": (
        Quantity(
            "time to the target accuracy",
            lambda policy, plan: policy.times_to_accuracy_s(plan.run.target_accuracy),
            is_time=True,
        ),
    ),
    "fairness": (
        Quantity("Jain's index of the jobs' speeds", lambda policy, _: policy.fairness(), highest=1.0),
        ITERATION_TIME,
    ),
}
"""The panels of each figure of a plan; sweep.json and the terminal have the first quantity."""

SEEDS = "run.seed"
KEYS = {
    SEEDS: "seeds",
    "topology.workers": "number of workers",
    "straggler.slowdown": "slow-down",
    "straggler.slowdown_range": "range of slow-downs",
    "straggler.workers": "slow workers",
    "straggler.probability": "probability of a pause",
    "straggler.tail": "p99 over median",
    "switch.slots": "slots of the switch",
    "switch.slots_per_job": "slots of each job",
    "network.loss": "packets lost by each link",
    "topology.delay_us": "one-way delay of each link in us",
    "job.micro_batches": "micro-batches of a shard",
    "job.jobs": "jobs at once",
}
"""Names of the keys that the project's own plans sweep."""


def table(plan: Plan, results: Sequence[tuple[Any, RunResult]]) -> dict[str, Any]:
    """The numbers of a sweep, ready for JSON.

    Args: plan: with its sweep; results: (value, result) of each point.
    """
    quantities = QUANTITIES[plan.sweep.figure]
    rows = []
    for value, result in results:
        policies = {}
        for policy in stats.policies(result):
            shown = {quantity.title: _numbers(quantity.of(policy, result.plan)) for quantity in quantities}
            policies[policy.policy] = {
                **shown[quantities[0].title],
                "quantities": shown,
                "iteration_time_s": policy.mean_s,
                "fluid_bound_s": policy.fluid_bound_s,
                "sums_checked": sum(run.sums_checked for run in policy.runs),
                "sums_wrong": sum(run.sums_wrong for run in policy.runs),
                "fragments": sums(run.fragments for run in policy.runs),
                "help": sums(run.help for run in policy.runs),
            }
        rows.append({"value": value, "policies": policies})
    found = {
        "schema": 1,
        "key": plan.sweep.key,
        "figure": plan.sweep.figure,
        "quantity": quantities[0].title,
        "points": rows,
    }
    return {**found, "all": _over_seeds(rows)} if plan.sweep.key == SEEDS else found


def _over_seeds(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By policy, the mean over seeds; a seed with repetitions counts with their mean."""
    found: dict[str, Any] = {}
    for policy in dict.fromkeys(name for row in rows for name in row["policies"]):
        parts = [row["policies"][policy]["quantities"] for row in rows if policy in row["policies"]]
        shown = {title: _numbers([part[title]["mean"] for part in parts], "seeds") for title in parts[0]}
        found[policy] = {**next(iter(shown.values())), "quantities": shown}
    return found


def _numbers(found: Sequence[float | None], counted: str = "repetitions") -> dict[str, Any]:
    """The mean of values and its interval, both None if a value is missing; how many values are known, and of how many.

    Args: counted: what there is a value for each of.
    """
    known = [value for value in found if value is not None]
    interval = stats.interval95(known) if len(known) == len(found) else None
    return {"mean": stats.mean_of_all(found), "ci95": interval, counted: len(known), "of": len(found)}


def missing(numbers: dict[str, Any]) -> list[str]:
    """Returns a sentence for each point without a mean, which says how many of its repetitions have a value."""
    rows = [(f"{numbers['key']} = {label(point['value'], numbers['key'])}", point["policies"], "repetitions")
            for point in numbers["points"]]  # fmt: skip
    rows += [("all", numbers["all"], "seeds")] if "all" in numbers else []
    return [
        f"–: {where}, {policy_name(policy)}: {numbers['quantity']}: {reached(each[counted], each['of'], counted)}."
        for where, policies, counted in rows
        for policy, each in policies.items()
        if "of" in each and each["of"] > each[counted]  # sweeps of earlier versions do not say of how many
    ]


def write(plan: Plan, numbers: dict[str, Any], folder: Path) -> Path:
    """Writes sweep.json."""
    return write_text(folder / "sweep.json", json.dumps(numbers, indent=2) + "\n")


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw(plan: Plan, numbers: dict[str, Any], folder: Path) -> Path:
    """Draws sweep.png. Args: numbers: of `table`. Raises: MissingPartError without matplotlib; UserError."""
    return style.save(figure(plan, numbers), folder / "sweep.png")


def figure(plan: Plan, numbers: dict[str, Any], look: Style = SCREEN) -> "Figure":
    """The figure, to be shown or saved: Axes for each quantity. Raises: MissingPartError without matplotlib."""
    quantities = QUANTITIES[plan.sweep.figure]

    def draw_on(*panels: "Axes") -> float:
        for axes, quantity in zip(panels, quantities, strict=True):
            panel(axes, quantity, plan, numbers)
        return HEIGHT_IN

    first = quantities[0].title
    title = f"{first[0].upper()}{first[1:]} over {name_of(plan.sweep.key)}: {settings(plan)}"
    title += "; no point where not all reached it" if missing(numbers) else ""
    return style.drawn(draw_on, lambda: title, look, panels=len(quantities))


def panel(axes: "Axes", quantity: Quantity, plan: Plan, numbers: dict[str, Any]) -> None:
    """Draws a quantity over the values of the key, a line for each policy with its 95 % intervals."""
    points = numbers["points"]
    places, labels, is_log = _places([point["value"] for point in points], plan.sweep.key)
    measured = [_of(point, policy, quantity) for point in points for policy in plan.run.policies]
    longest = max((value for each in measured for value in (each["mean"] or 0.0, *(each["ci95"] or ()))), default=0.0)
    unit = style.time_axis(axes, "y", 1.08 * longest, quantity.title) if quantity.is_time else 1.0
    for policy in plan.run.policies:
        found = [(x, _of(point, policy, quantity)) for x, point in zip(places, points, strict=True)]
        shown = [(x, n["mean"], n["ci95"] or (n["mean"], n["mean"])) for x, n in found if n["mean"] is not None]
        if shown:
            half = [(high - low) / 2 / unit for _, _, (low, high) in shown]
            axes.errorbar(
                [x for x, _, _ in shown], [mean / unit for _, mean, _ in shown], yerr=half, label=policy_name(policy),
                color=style.policy_colour(policy), marker="o", capsize=3, elinewidth=1.1,
            )  # fmt: skip
    if quantity.has_bound and plan.straggler.by != "congestion":
        _bound(axes, places, points, plan.run.policies[0], unit)
    if plan.sweep.key == SEEDS:
        _means(axes, quantity, numbers["all"], unit)
    if is_log:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(places, labels)
    axes.set_xlabel(f"{name_of(plan.sweep.key)} ({plan.sweep.key})" if plan.sweep.key in KEYS else plan.sweep.key)
    if not quantity.is_time:
        axes.set_ylabel(quantity.title)
        # intervals of few repetitions may be much larger than the values
        axes.set_ylim(0, 1.05 * quantity.highest if quantity.highest else 1.08 * longest or 1.0)
        axes.grid(axis="y")


def _means(axes: "Axes", quantity: Quantity, policies: dict[str, Any], unit: float) -> None:
    """Draws the mean over all seeds as a line, and its interval as a band. Args: unit: of the axis."""
    for policy, found in policies.items():
        shown = found["quantities"][quantity.title]
        if shown["mean"] is not None:
            axes.axhline(shown["mean"] / unit, color=style.policy_colour(policy), lw=1.0, ls=":")
        if shown["ci95"]:
            low, high = shown["ci95"]
            axes.axhspan(low / unit, high / unit, color=style.policy_colour(policy), alpha=0.15, lw=0)


def _of(point: dict[str, Any], policy: str, quantity: Quantity) -> dict[str, Any]:
    nothing = {"mean": None, "ci95": None}
    return dict(point["policies"].get(policy, {}).get("quantities", {}).get(quantity.title, nothing))


def _bound(axes: "Axes", places: list[float], points: Sequence[dict[str, Any]], policy: str, unit: float) -> None:
    """Draws the fluid bound: all work over all speed, without communication. Args: unit: of the axis, in seconds."""
    bounds = [point["policies"].get(policy, {}).get("fluid_bound_s") for point in points]
    shown = [(x, bound / unit) for x, bound in zip(places, bounds, strict=True) if bound]
    if shown:
        axes.plot(*zip(*shown, strict=True), color=style.BOUND_COLOUR, lw=1.2, ls="--", label=BOUND_LABEL)


def name_of(key: str) -> str:
    return KEYS.get(key, key)


def settings(plan: Plan) -> str:
    """Names the settings that all points have in common: none that follows from the key of the sweep."""
    topology, repetitions, key = plan.topology, plan.run.repetitions, plan.sweep.key
    jobs = f"{in_words(plan.job.jobs)} jobs of " if plan.job.jobs > 1 and key != "job.jobs" else ""
    each = " in each job" if key == "job.jobs" else ""
    has_links = plan.run.backend != "local" and topology.link_mbps < 10_000 and not topology.worker_mbps
    facts = {  # each with the keys that it follows from
        f"{jobs}{plural(topology.workers, 'worker')}{each}": ("topology.workers",),
        f"{topology.kind} topology": ("topology.kind", "topology.file"),
        f"{topology.link_mbps:g} Mbit/s links" * has_links: (
            "topology.link_mbps", "topology.worker_mbps", "topology.kind", "topology.file", "run.backend",
        ),
        plan.job.model: ("job.model",),
        plural(plan.run.steps, "step"): ("run.steps",),
        f"{repetitions} repetitions with 95 % intervals of the mean" * (repetitions > 1): ("run.repetitions",),
    }  # fmt: skip
    seeds = "; dotted: mean over seeds, with its 95 % interval" if key == SEEDS else ""
    return f"{', '.join(fact for fact, keys in facts.items() if fact and key not in keys)}{seeds}"


def _places(values: Sequence[Any], key: str) -> tuple[list[float], list[str], bool]:
    """Returns: positions of the values on the axis, their labels, and whether the axis is logarithmic."""
    labels = [label(value, key) for value in values]
    if key == SEEDS:
        return [float(n) for n in range(len(values))], labels, False  # values that are not numbers
    places = [float(v) if isinstance(v, int | float) and not isinstance(v, bool) else math.nan for v in values]
    evenly = [float(n) for n in range(len(values))]
    if not all(map(math.isfinite, places)) or len(places) < 2:
        return evenly, labels, False
    if min(places) > 0 and max(places) / min(places) > LOGARITHMIC_FROM:
        return places, labels, True
    ordered = sorted(places)
    closest = min(after - before for before, after in itertools.pairwise(ordered))
    if closest < CLOSEST * (ordered[-1] - ordered[0]):
        return evenly, labels, False
    return places, labels, False


def label(value: Any, key: str) -> str:
    """The label of a value."""
    if isinstance(value, list | tuple):
        between = " to " if key.endswith("_range") else ", "
        return between.join(label(each, "") for each in value) or "none"
    if key == "network.loss" and isinstance(value, int | float):
        return f"{100 * value:g}{NBSP}%"
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
