"""The numbers of a map: for each point the times of each policy, which one is shortest, and how clear that is."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sa_atp.lab.maps.axes import Axis
from sa_atp.lab.maps.points import Key, Wanted, others_of
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.report import comparing

PLACES = 6  # decimal places of seconds and shares
TIMES = {"iteration": "iteration_s", "accuracy": "time_to_accuracy_s"}
SAME = {"iteration": comparing.SAME, "accuracy": comparing.SAME_TRAINING}


def numbers(wanted: Wanted, results: Mapping[Key, Mapping[str, Any]]) -> dict[str, Any]:
    """The content of map.json. Args: results: of each run, as `reproduce.points.measure` returns them."""
    plan = wanted.prepared.plan
    names, seeds = list(plan.run.policies), wanted.numbers_of_seeds
    points = []
    for y, of_y in enumerate(wanted.y.values):
        for x, of_x in enumerate(wanted.x.values):
            runs = {name: [results[x, y, name, seed][name] for seed in seeds] for name in names}
            times = {name: [_round(run[TIMES[wanted.quantity]]) for run in of] for name, of in runs.items()}
            bounds = [run["fluid_bound_s"] for run in runs[names[0]] if run["fluid_bound_s"]]
            points.append(
                {
                    "x": of_x,
                    "y": of_y,
                    "times_s": times,
                    **judged(times, wanted.quantity),
                    "fluid_bound_s": _round(sum(bounds) / len(bounds)) if bounds else None,
                }
            )
    return {
        "schema": 1,
        "plan": wanted.prepared.name,
        "quantity": wanted.quantity,
        "target_accuracy": _target(wanted),
        "x": _axis(wanted.x, plan),
        "y": _axis(wanted.y, plan),
        "policies": names,
        "incomplete": {name: list(of) for name, of in others_of(plan, names).items()},
        "seeds": seeds,
        "steps": plan.run.steps,
        "settings": _settings(wanted),
        "points": points,
        "sums_wrong": sum(run["sums_wrong"] for of in results.values() for run in of.values()),
    }


def _target(wanted: Wanted) -> float | None:
    """The accuracy to which times are; None: it is an axis, or times are of steps."""
    moves = "run.target_accuracy" in (wanted.x.name, wanted.y.name)
    return None if moves or wanted.quantity != "accuracy" else wanted.prepared.plan.run.target_accuracy


def _axis(axis: Axis, plan: Plan) -> dict[str, Any]:
    return {"name": axis.name, "title": axis.title(plan), "labels": [axis.label(value) for value in axis.values]}


def _settings(wanted: Wanted) -> dict[str, Any]:
    """Settings that pictures and sentences name."""
    plan, moved = wanted.prepared.plan, {wanted.x.name, wanted.y.name}
    found = {
        "topology.workers": None if "workers" in moved else plan.topology.workers,
        "job.model": plan.job.model,
        "straggler.pattern": plan.straggler.pattern,
        "topology.kind": plan.topology.kind,
    }
    return {key: value for key, value in found.items() if value is not None and key not in moved}


def judged(times: Mapping[str, Sequence[float | None]], quantity: str) -> dict[str, Any]:
    """Compares the times of policies at a point of a map.

    Args: times: times of each policy, one for each seed; None: a run did not reach the accuracy.

    Returns:
    best: the policy with the shortest mean time, the first of equal ones; None: no policy has a mean.
    rivals: the policies whose times are not clearly longer than the best one's, in the order of their means.
    next: the policy with the shortest mean of the others.
    lead: share of the time of `next` by which the best is shorter.
    against_baseline: share of the time of the first policy by which the best is shorter.
    """
    found = {name: list(map(float, of)) for name, of in times.items() if None not in of}  # type: ignore[arg-type]
    means = {name: round(sum(of) / len(of), PLACES) for name, of in found.items()}
    order = sorted(means, key=lambda name: means[name])
    best = order[0] if order else None
    if best is None or not means[best]:
        return {"best": best, "rivals": [], "next": None, "lead": None, "against_baseline": None}
    rivals = [name for name in order[1:] if not _is_longer(found[best], found[name], SAME[quantity])]
    after = next((name for name in order[1:] if name not in rivals), None)
    baseline = next(iter(times))
    return {
        "best": best,
        "rivals": rivals,
        "next": after,
        "lead": None if after is None else _round(1 - means[best] / means[after]),
        "against_baseline": _round(1 - means[best] / means[baseline]) if baseline in means else None,
    }


def _is_longer(best: Sequence[float], other: Sequence[float], same: float) -> bool:
    """Whether a policy's times are clearly longer; runs with the same seed are pairs."""
    pairs = [1 - one / two for one, two in zip(best, other, strict=True)]
    return comparing.compare(1 - sum(best) / sum(other), pairs, same, by_chance=True).is_clear


def _round(number: float | None) -> float | None:
    return None if number is None else round(number, PLACES)


def as_json(found: Mapping[str, Any]) -> str:
    """Returns the numbers of a map as JSON, in which each point has a line."""
    head = {key: value for key, value in found.items() if key != "points"}
    points = ",\n".join(f"  {json.dumps(point, allow_nan=False)}" for point in found["points"])
    rows = [f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in head.items()]
    return "{\n" + ",\n".join([*rows, f' "points": [\n{points}\n ]']) + "\n}\n"


def as_csv(found: Mapping[str, Any]) -> str:
    """A row for each point, policy and seed; an empty time: the accuracy was not reached."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([found["x"]["name"], found["y"]["name"], "policy", "seed", TIMES[found["quantity"]]])
    for point in found["points"]:
        at = [json.dumps(point[axis]) for axis in ("x", "y")]
        for policy, times in point["times_s"].items():
            for seed, time in zip(found["seeds"], times, strict=True):
                writer.writerow([*at, policy, seed, "" if time is None else f"{time:.{PLACES}f}"])
    return out.getvalue()
