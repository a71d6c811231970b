"""Numbers and circumstances of a run in words, for tables, figures and pages."""

import math
from collections.abc import Callable, Collection, Sequence

from sa_atp.basics.words import join
from sa_atp.lab import policies
from sa_atp.lab.plans.plan import StragglerPlan
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


def number(value: int | None) -> str:
    """An integer with a space between thousands: 14 400. Args: value: None gives a dash, as in all that follows."""
    return "–" if value is None else f"{value:,}".replace(",", NBSP)


def digits(value: float | None, significant: int = 3) -> str:
    """A number to so many significant digits, never in scientific notation: 0.0123, 1.23, 12.3, 123, 1230 -> 1230."""
    if value is None:
        return "–"
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


def accuracy(share: float | None) -> str:
    """An accuracy in per cent, with tenths: 96.8 %."""
    return "–" if share is None else f"{100 * share:.1f}{NBSP}%"


def half(write: Callable[[float], str], interval: Sequence[float] | None) -> str:
    """Half the width of an interval."""
    return write((interval[1] - interval[0]) / 2) if interval else "–"


def factor(value: float | None) -> str:
    """A ratio: 3.2×."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{digits(value, 3 if value >= 10 or 0.9 < value < 1.1 else 2)}×"


def slower(slowdown: float, significant: int = 3) -> str:
    """4× slower."""
    return f"{_short(slowdown, significant)}× slower"


def reached(count: int, of: int, what: str = "repetitions") -> str:
    """Says how many repetitions reached a goal, if not all did: "reached in 3 of 4 repetitions", "not reached"."""
    return f"reached in {count} of {of} {what}" if count else "not reached"


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
    # a run on the network of a file has the rates of its links in the manifest
    rates = result.manifest.get("worker_mbps") or result.plan.topology.worker_mbps
    workers = dict(enumerate(rates[: result.plan.topology.workers]))
    return {worker: max(workers.values()) / rate for worker, rate in workers.items() if rate < max(workers.values())}


def situation(result: RunResult, steps: range | None = None) -> str:
    """Says which stragglers a plan has: "with one worker 4× slower". Args: steps: in these; default: those that count."""
    plan = result.plan
    steps = steps or plan.run.counted
    pattern = straggler_pattern(plan)
    with_stragglers = list(filter(pattern.is_on, steps))
    is_always = len(with_stragglers) == len(steps)
    stragglers = plan.straggler.workers if is_always and pattern.kind == "constant" else ()
    slow_devices = [1 / speed for worker, speed in enumerate(plan.job.speeds) if speed < 1 and worker not in stragglers]
    found = []
    if links := slow_links(result):
        found.append(f"{_counted(len(links), 'link')} {slower_by(links.values())}")
    if slow_devices:
        found.append(f"{_counted(len(slow_devices), 'worker')} {slower_by(slow_devices)}")
    has_stragglers = with_stragglers and (_has_paused(result, steps) or "pause" not in plan.straggler.pattern)
    if has_stragglers and (said := _stragglers(plan.straggler, plan.job.speeds)):
        found.append(f"{said}{_when(with_stragglers, steps)}")
    return f"with {join(found)}" if found else "with no straggler"


def _has_paused(result: RunResult, steps: range) -> bool:
    """Whether any worker has paused in these steps: short runs may end before one does."""
    return any(each.kind == "pause" and each.step in steps for run in result.runs for each in run.intervals)


def _stragglers(straggler: StragglerPlan, speeds: Sequence[float]) -> str:
    """The stragglers of the steps that have some; "": none. Args: speeds: of the workers' devices; empty: all have 1."""
    count, pattern = len(straggler.workers), "congestion" if straggler.by == "congestion" else straggler.pattern
    if pattern in ("pause", "contention") and not count:
        return ""
    if pattern == "constant":  # a device that is slow as well is slower by both
        factors = [straggler.slowdown / (speeds[worker] if speeds else 1.0) for worker in straggler.workers]
        slow = [factor for factor in factors if factor > 1]
        return f"{_counted(len(slow), 'worker')} {slower_by(slow)}" if slow else ""
    if pattern == "congestion" and not (count and straggler.slowdown > 1):
        return ""
    among = _counted(len(straggler.among), "worker") if straggler.among else "all workers"
    low, high = (_short(length, 3) for length in straggler.pause_range)
    points = f", {straggler.points} times each" if straggler.points > 1 else ""
    left = f"p99 {slower(straggler.tail)}" if straggler.tail > 1 else f"{percent(straggler.share)} left"
    said = {
        "congestion": f"{_counted(count, 'congested link')}, {slower(straggler.slowdown)}",
        "random": f"one worker in each step {slower_by(straggler.slowdown_range)}, not always the same one",
        "tail": f"{among} slower at times, p99 {slower(straggler.tail)}",
        "trace": "the slow-downs of a trace",
        "pause": f"{_counted(count, 'worker')} pausing for {duration(straggler.pause_s, short=True)} "
        f"in 1 of {plural(straggler.every, 'step')}",
        "random-pause": f"pauses of {low} to {high} iterations in {percent(straggler.probability)} of the steps of "
        f"{among}{points}",
        "contention": f"{_counted(count, 'link')} contended at times, {left}",
    }
    return said.get(pattern, "")


def _when(some: Sequence[int], steps: Sequence[int]) -> str:
    """Which of a run's steps these consecutive ones are; "": all."""
    if len(some) == len(steps):
        return ""
    if some[-1] == steps[-1]:
        return f" from step {some[0]} on"
    return f" in steps {some[0]} to {some[-1]}" if len(some) > 1 else f" in step {some[0]}"


def slower_by(factors: Collection[float]) -> str:
    """2× to 8× slower."""
    low, high = min(factors), max(factors)
    return slower(low) if low == high else f"{_short(low, 2)}× to {slower(high, 2)}"


def _short(value: float, significant: int) -> str:
    """A number without trailing zeros: 4, 2.5."""
    return f"{float(f'{value:.{significant}g}'):g}"


def _counted(number: int, noun: str) -> str:
    return f"{in_words(number)} {noun}{'' if number == 1 else 's'}"
