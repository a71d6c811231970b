"""Numbers and circumstances of a run in words, for tables, figures and pages."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from sa_atp.basics.words import join
from sa_atp.lab import policies
from sa_atp.lab.runs.records import RunResult
from sa_atp.lab.runs.tasks import straggler_pattern

NBSP = "\u00a0"  # between a number and its unit, so that they stay on one line

MOST_SHOWN = 16  # entries of a list in a plan, such as a trace; manifest.json has all

_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def policy_name(policy: str) -> str:
    """The name of a policy in tables and figures."""
    return policies.title(policy)


def in_words(count: int) -> str:
    """A small number as a word."""
    return _COUNTS[count] if 0 <= count < len(_COUNTS) else number(count)


def number(value: int) -> str:
    """An integer with a space between thousands: 14 400."""
    return f"{value:,}".replace(",", NBSP)


def digits(value: float, significant: int = 3) -> str:
    """A number to so many significant digits, never in scientific notation: 0.0123, 1.23, 12.3, 123, 1230 -> 1230."""
    value = float(f"{value:.{significant}g}")
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    places = max(0, significant - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(places, 9)}f}"


def duration(seconds: float | None, *, short: bool = False) -> str:
    """A time with its unit: 157 ms, 1.50 s. Args: seconds: None gives a dash. short: 1.5 s, for settings."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds == 0:
        return f"0{NBSP}s"
    for scale, unit in _UNITS:
        # 0.99996 is a second, not 1000 ms
        if float(f"{abs(seconds):.3g}") >= scale:
            value = digits(seconds / scale)
            return f"{value.rstrip('0').rstrip('.') if short and '.' in value else value}{NBSP}{unit}"
    return f"{digits(seconds / 1e-6)}{NBSP}µs"


def axis_unit(longest_s: float) -> tuple[float, str]:
    """The unit of a time axis with this end: (seconds in one unit, its name)."""
    if longest_s > 2.0:
        return _UNITS[0]
    return _UNITS[1] if longest_s > 2e-3 else _UNITS[2]


def percent(share: float | None) -> str:
    """A share in per cent: 68 %, 3.4 %, 0.07 %."""
    if share is None or not math.isfinite(share):
        return "–"
    value = 100 * share
    size = abs(value)
    if size == 0 or 10 <= size < 90 or size >= 99.95:
        text = f"{value:.0f}"
    elif size >= 90:
        text = f"{value:.1f}".removesuffix(".0")
    else:
        text = digits(value, 2 if size >= 0.01 else 1)
    return f"{text}{NBSP}%"


def factor(value: float | None) -> str:
    """A ratio: 3.2×."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{digits(value, 3 if value >= 10 or 0.9 < value < 1.1 else 2)}×"


def slower(slowdown: float, significant: int = 3) -> str:
    """4× slower."""
    return f"{_short(slowdown, significant)}× slower"


def plural(count: int, noun: str) -> str:
    return f"{number(count)}{NBSP}{noun}{'' if count == 1 else 's'}"


def setting(value: object) -> str:
    """A value of a plan as it is shown, lists without most of their entries if they are long; None gives a dash."""
    if isinstance(value, list | tuple):
        more = f", … {number(len(value))} in all" if len(value) > MOST_SHOWN else ""
        return "[" + ", ".join(map(setting, value[:MOST_SHOWN])) + more + "]"
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def slow_links(result: RunResult) -> dict[int, float]:
    """Returns how many times slower each worker's link is than the fastest, if it always is; without congestion."""
    if result.backend == "local":
        return {}  # it has no links
    # a run on the network of a file has the rates of its links in the manifest
    rates = result.manifest.get("worker_mbps") or result.plan.topology.worker_mbps
    workers = dict(enumerate(rates[: result.plan.topology.workers]))
    return {worker: max(workers.values()) / rate for worker, rate in workers.items() if rate < max(workers.values())}


def situation(result: RunResult) -> str:
    """The stragglers of a run, from its records: "with one worker 4× slower"."""
    straggler, steps = result.plan.straggler, range(result.plan.run.steps)
    with_stragglers = list(filter(straggler_pattern(result.plan).is_on, steps))
    when = _when(with_stragglers, steps)
    slow = _slow_workers(result)
    always = _always_slow(slow.pop(step) for step in list(slow) if step not in with_stragglers)
    found = []
    if links := slow_links(result):
        found.append(f"{_counted(len(links), 'link')} {slower_by(links.values())}")
    if always:
        found.append(f"{_counted(len(always), 'worker')} {slower_by(always.values())}")
    if with_stragglers and straggler.by == "congestion" and straggler.pattern == "constant":
        found.append(f"{_counted(len(straggler.workers), 'congested link')}, {slower(straggler.slowdown)}{when}")
    slow = {step: dict(each.items() - always.items()) for step, each in slow.items()}
    if any(slow.values()):
        found.append(_slow(slow, result.plan.topology.workers, steps, when))
    paused = {i.worker for run in result.runs for i in run.intervals if i.kind == "pause"}
    if paused and straggler.pattern == "random-pause":
        low, high = (_short(length, 3) for length in straggler.pause_range)
        whose = f"{_counted(len(straggler.among), 'worker')}'s" if straggler.among else "all workers'"
        points = f", {straggler.points} times each" if straggler.points > 1 else ""
        often = f"{percent(straggler.probability)} of {whose} steps{points}"
        found.append(f"pauses of {low} to {high} iterations in {often}{when}")
    elif paused:
        often = "every step" if straggler.every == 1 else f"every {_ordinal(straggler.every)} step"
        length = duration(straggler.pause_s, short=True)
        found.append(f"{_counted(len(paused), 'worker')} pausing for {length} in {often}{when}")
    if with_stragglers and straggler.pattern == "contention" and straggler.workers:
        contended = _counted(len(straggler.workers), "link")
        left = f"p99 {_short(straggler.tail, 3)}× slower" if straggler.tail > 1 else f"{percent(straggler.share)} left"
        found.append(f"{contended} contended at times, {left}{when}")
    return f"with {join(found)}" if found else "with no straggler"


def _when(some: Sequence[int], steps: Sequence[int]) -> str:
    """Which of a run's steps these consecutive ones are; "": all or none."""
    if len(some) in (0, len(steps)):
        return ""
    if some[-1] == steps[-1]:
        return f" from step {some[0]} on"
    return f" in steps {some[0]} to {some[-1]}" if len(some) > 1 else f" in step {some[0]}"


def _always_slow(without_stragglers: Iterable[Mapping[int, float]]) -> dict[int, float]:
    """The slow-down of each worker who is slow in steps without stragglers, because its device is."""
    return {worker: slowdown for each in without_stragglers for worker, slowdown in each.items()}


def _slow_workers(result: RunResult) -> dict[int, dict[int, float]]:
    """By step, the slow-down of each slow worker, from the first run; policies, repetitions and jobs have the same."""
    found: dict[int, dict[int, float]] = defaultdict(dict)
    reports: dict[int, int] = defaultdict(int)
    for each in result.runs[0].iterations if result.runs else []:
        slow = found[each.step]
        reports[each.step] += 1
        if each.slowdown > 1:
            slow[each.worker] = each.slowdown
    # if workers are not in step, slow ones record fewer steps: a missing record is not a change of speed
    whole = max(reports.values(), default=0)
    return {step: slow for step, slow in sorted(found.items()) if reports[step] == whole}


def _slow(slow: Mapping[int, Mapping[int, float]], workers: int, all_steps: Sequence[int], when: str) -> str:
    """Who is slow, by how much, and when.

    Args: slow: by step that may have one, the slow-down of each slow worker; when: these steps in words.
    """
    who = {worker for each in slow.values() for worker in each}
    how = slower_by([slowdown for each in slow.values() for slowdown in each.values()])
    steps = [step for step, each in slow.items() if each]
    if len(who) > 1 and all(len(each) == 1 for each in slow.values()):
        return f"one worker in each step {how}, not always the same one{when and ',' + when}"
    together = all(each.keys() == who for each in slow.values() if each)
    names = f"all {in_words(workers)} workers" if together and len(who) == workers > 1 else _counted(len(who), "worker")
    said = f"{names} {how}" if together else f"{names} {how} at times"
    if len(steps) == len(slow):
        return f"{said}{when}"
    if steps[-1] - steps[0] == len(steps) - 1:
        return f"{said}{_when(steps, all_steps)}"
    return f"{said} in {len(steps)} of {plural(len(slow), 'step')}{when}"


def slower_by(factors: Collection[float]) -> str:
    """2× to 8× slower."""
    low, high = min(factors), max(factors)
    return slower(low) if low == high else f"{_short(low, 2)}× to {slower(high, 2)}"


def _short(value: float, significant: int) -> str:
    """A number without trailing zeros: 4, 2.5."""
    return f"{float(f'{value:.{significant}g}'):g}"


def _counted(number: int, noun: str) -> str:
    return f"{in_words(number)} {noun}{'' if number == 1 else 's'}"


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
