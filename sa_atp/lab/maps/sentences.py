"""Sentences on a map, worked out from its numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sa_atp.basics.words import join, plural
from sa_atp.lab import policies
from sa_atp.lab.report.text import percent, policy_name

LEAST_CLEAR = 3  # points of a policy from which on its part of the map is described
UNEVEN = 0.25  # difference of shares between two halves of a map that is worth a sentence

Point = Mapping[str, Any]


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Sentences on who wins where, and by how much. Args: found: the content of map.json."""
    points = [point for point in found["points"] if point["best"] is not None]
    whole = len(found["points"])
    said = [_on_nothing(whole - len(points), found)] if len(points) < whole else []
    if not points:
        return said
    clear = [point for point in points if is_clear(point)]
    return [
        *said,
        _who_wins(clear, points, found),
        *_ties(points),
        _good_enough(points, found),
        *_where(clear, found),
        *_largest(points, found),
        *_against_baseline(points, found),
        *_incomplete(found),
    ]


def is_clear(point: Point) -> bool:
    """Whether one policy is clearly the best of a point."""
    return point["lead"] is not None and not point["rivals"]


def time_of(found: Mapping[str, Any]) -> str:
    """The quantity that is compared."""
    if found["quantity"] == "accuracy":
        target = found["target_accuracy"]
        return "time to accuracy" if target is None else f"time to {100 * target:g} % accuracy"
    return "step"


def place(point: Point, found: Mapping[str, Any]) -> str:
    """Describes the place of a point, as "severity 4, computing time over sending time 8"."""
    index = found["points"].index(point)
    columns = len(found["x"]["labels"])
    labels = ((found["x"], index % columns), (found["y"], index // columns))
    return ", ".join(f"{axis['name']} {axis['labels'][n]}" for axis, n in labels)


def _on_nothing(count: int, found: Mapping[str, Any]) -> str:
    return f"In {count} of {plural(len(found['points']), 'point')} no policy has a {time_of(found)} with every seed."


def _who_wins(clear: Sequence[Point], points: Sequence[Point], found: Mapping[str, Any]) -> str:
    wins = Counter(point["best"] for point in clear)
    of = plural(len(points), "point")
    if not wins:
        return f"No single policy clearly has the shortest {time_of(found)} in any of {of}."
    first, *others = wins.most_common()
    rest = "".join(f", {policy_name(name)} in {count}" for name, count in others)
    return f"{policy_name(first[0])} clearly has the shortest {time_of(found)} in {first[1]} of {of}{rest}."


def _ties(points: Sequence[Point]) -> list[str]:
    ties = [point for point in points if point["rivals"]]
    if not ties:
        return []
    groups = Counter(tuple(sorted((point["best"], *point["rivals"]))) for point in ties)
    largest, count = min(groups.items(), key=lambda each: (-each[1], each[0]))
    names = join(map(policy_name, largest))
    more = f"; most often ({count}) these are {names}" if len(groups) > 1 else f": {names}"
    return [
        f"In {len(ties)} the difference between the shortest and another is within the spread over seeds, or too small to "
        f"count{more}."
    ]


def _good_enough(points: Sequence[Point], found: Mapping[str, Any]) -> str:
    """The policy that is the best, or as good, in the most points; and by how much it is longer elsewhere."""
    among = Counter(name for point in points for name in (point["best"], *point["rivals"]))
    name = max(found["policies"], key=lambda policy: among[policy])
    lost = [
        (point, loss)
        for point in points
        if name not in (point["best"], *point["rivals"]) and (loss := _loss(point, name)) is not None
    ]
    text = f"{policy_name(name)} is the shortest, or not clearly longer, in {among[name]}"
    missing = len(points) - among[name] - len(lost)
    if lost:
        worst, loss = max(lost, key=lambda each: each[1])
        text += f"; elsewhere it is up to {percent(loss)} longer than the shortest (at {place(worst, found)})"
    if missing:
        text += f", and in {missing} it has none"
    return f"{text}."


def _loss(point: Point, name: str) -> float | None:
    """By how much a policy is longer than the best; None: it has no time."""
    times, best = point["times_s"][name], point["times_s"][point["best"]]
    return None if None in times or not sum(best) else sum(times) / sum(best) - 1


def _where(clear: Sequence[Point], found: Mapping[str, Any]) -> list[str]:
    """Where the policies with the most points have them: in which half of an axis, if it makes a difference."""
    said = []
    for name, count in Counter(point["best"] for point in clear).most_common(3):
        if count < LEAST_CLEAR:
            continue
        halves = []
        for which, axis in enumerate((found["x"], found["y"])):
            low, high, edge = _halves(found, which, name, clear)
            if abs(high[0] / high[1] - low[0] / low[1]) >= UNEVEN:
                above = f"{high[0]} of {high[1]} points with {axis['name']} {edge} or more"
                halves.append(f"{above}, {low[0]} of {low[1]} with less")
        if halves:
            said.append(f"Of its points, {policy_name(name)} has {'; '.join(halves)}.")
    return said


def _halves(
    found: Mapping[str, Any], which: int, name: str, clear: Sequence[Point]
) -> tuple[tuple[int, int], tuple[int, int], str]:
    """(points that a policy wins, all points) of the lower and the upper half of an axis, and the label between them."""
    columns, labels = len(found["x"]["labels"]), (found["x"], found["y"])[which]["labels"]
    middle = len(labels) // 2
    won, whole = [0, 0], [0, 0]
    wins = {id(point) for point in clear if point["best"] == name}
    for index, point in enumerate(found["points"]):
        at = index // columns if which else index % columns
        whole[at >= middle] += 1
        won[at >= middle] += id(point) in wins
    return (won[0], whole[0]), (won[1], whole[1]), labels[middle]


def _largest(points: Sequence[Point], found: Mapping[str, Any]) -> list[str]:
    """The largest leads over the next policy that is clearly longer."""
    said = []
    ahead = [point for point in points if point["lead"]]
    for name, _ in Counter(point["best"] for point in ahead).most_common(3):
        most = max((point for point in ahead if point["best"] == name), key=lambda point: point["lead"])
        alike = [policy_name(each) for each in (name, *most["rivals"])]
        said.append(
            f"{join(alike)} {'are' if most['rivals'] else 'is'} {percent(most['lead'])} shorter than "
            f"{policy_name(most['next'])} at {place(most, found)}"
        )
    return [f"The largest differences to the next policy that is clearly longer: {'; '.join(said)}."] if said else []


def _against_baseline(points: Sequence[Point], found: Mapping[str, Any]) -> list[str]:
    known = sorted(
        (point for point in points if point["against_baseline"] is not None),
        key=lambda point: point["against_baseline"],
    )
    if not known:
        return []
    least, middle, most = known[0], known[len(known) // 2], known[-1]
    return [
        f"Against {policy_name(found['policies'][0])} the shortest {time_of(found)} is "
        f"{percent(least['against_baseline'])} to {percent(most['against_baseline'])} shorter (most at "
        f"{place(most, found)}), in the median point {percent(middle['against_baseline'])}."
    ]


def _incomplete(found: Mapping[str, Any]) -> list[str]:
    if found["quantity"] == "accuracy":
        return []
    vary = {name for name in found["incomplete"] if name in policies.names() and policies.find(name).shards_vary}
    return [
        f"An update of {policy_name(name)} has {'at least ' if name in vary else ''}{shards} of {workers} shards, so its "
        "step is less work."
        for name, (shards, workers) in found["incomplete"].items()
    ]
