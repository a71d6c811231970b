"""The table at the end of a run, with a column for each policy, for terminals of 80 characters."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sa_atp.basics import terminal
from sa_atp.basics.words import join
from sa_atp.lab.policies import find, names
from sa_atp.lab.report import findings, stats
from sa_atp.lab.report.comparing import Comparison
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.report.text import NBSP, accuracy, digits, duration, factor, half, number, percent, policy_name, reached
from sa_atp.lab.runs.records import RunResult

LABEL_WIDTH, COLUMN_WIDTH = 27, 12
OVERVIEW_WIDTH = 80
AGAINST = "against baseline"

Cell = Callable[[dict[str, Any]], str]
"""Makes a cell from the numbers of a policy (`numbers_of`)."""
Rows = list[tuple[str, list[tuple[str, Cell]]]]
"""(heading, rows of a label and its cells)"""


def print_table(result: RunResult, console: Console | None = None, summary: dict[str, Any] | None = None) -> None:
    """Prints the table of a run. Args: console: by default, standard output."""
    console = console or terminal.console()
    for part in parts(result, console.width, summary):
        if isinstance(part, Table):
            console.print()
            terminal.print_table(console, part)
        else:
            console.print(part)


def parts(result: RunResult, width: int = 80, summary: dict[str, Any] | None = None) -> list[Text | Table]:
    """The table of a run, with its title, notes and warnings.

    Args: width: in characters. If not all policies fit as columns, they become rows with the most important numbers; if
        these do not fit either, there are several tables.
    """
    summary = summary or summarise(result)
    policies = list(summary["policies"])
    baseline = summary["comparison"]["baseline"]
    found: list[Text | Table] = [
        Text(findings.iteration_time(result), style="bold"),
        Text(findings.what_ran(result), style="dim"),
    ]
    per_table = max(1, (width - LABEL_WIDTH - 2) // (COLUMN_WIDTH + 2))
    if len(policies) > per_table and width >= OVERVIEW_WIDTH:
        found.append(_overview(summary, baseline))
    else:
        for first in range(0, len(policies), per_table):
            found.append(_table(summary, policies[first : first + per_table], baseline))
    found.append(Text())
    found.extend(Text(line) for line in (*notes(result, summary), *of_few_values(summary)))
    for remark in findings.remarks(result, summary):
        found.append(Text(remark.text, style="bold red" if remark.level == "wrong" else "yellow"))
    return found


def numbers_of(summary: dict[str, Any], policy: str) -> dict[str, Any]:
    """The numbers of a policy in a summary, with those of its comparison with the baseline: "" for the baseline itself."""
    compared = {name: each.get(policy, "") for name, each in summary["comparison"].items() if isinstance(each, dict)}
    return {**summary["policies"][policy], **compared}


def rows(summary: dict[str, Any]) -> Rows:
    """The same rows on the terminal and in report.html."""
    several = any(p["iteration_time_s"]["mean_ci95"] for p in summary["policies"].values())
    time = [
        ("mean", _cell(duration, "iteration_time_s", "mean")),
        ("p50", _cell(duration, "iteration_time_s", "p50")),
        ("p99", _cell(duration, "iteration_time_s", "p99")),
        ("longest", _cell(duration, "iteration_time_s", "max")),
        (AGAINST, against),
        ("speed-up", _cell(factor, "speedup")),
        ("times the fluid bound", _cell(factor, "ratio_to_fluid_bound")),
    ]
    if several:
        spread = "± (95 %, repetitions)".replace(" %", f"{NBSP}%")
        time.insert(5, (spread, _cell(partial(half, percent), "iteration_time_reduction_ci95")))
        time.insert(1, (spread, _cell(partial(half, duration), "iteration_time_s", "mean_ci95")))
    workers = [
        ("p99 of a worker's step", _cell(duration, "worker_iteration_time_s", "p99")),
        ("share of time waiting", _cell(percent, "time_share", "wait")),
        ("share of time helping", _cell(percent, "time_share", "help")),
        ("steps with help", lambda n: f"{number(n['help']['helped_steps'])} of {number(n['iterations'])}"),
        ("micro-batches by helpers", _cell(number, "help", "micro_batches")),
    ]
    training = [
        ("final loss", _cell(digits, "final_loss")),
        ("final accuracy", _cell(accuracy, "final_accuracy")),
        (f"time to {percent(summary['target_accuracy'])} accuracy", _cell(duration, "time_to_accuracy_s")),
        ("speed-up of training", _cell(factor, "training_speedup")),
    ]
    sums = [
        ("checked", _cell(number, "sums_checked")),
        ("wrong", _cell(number, "sums_wrong")),
        ("fragments sent", _cell(number, "fragments", "sent")),
        ("fragments retransmitted", _cell(number, "fragments", "retransmitted")),
    ]
    found = [("Iteration time", time), ("Workers", workers)]
    if any(p[key] is not None for p in summary["policies"].values() for key in ("final_loss", "final_accuracy")):
        found.append(("Training, held out", training))
    return [*found, ("Sums", sums), *_jobs(summary), *_links(summary)]


def _cell(write: Callable[[Any], str], *way: str) -> Cell:
    """Writes the number to which a way of keys leads."""

    def cell(numbers: dict[str, Any]) -> str:
        found: Any = numbers
        for key in way:
            found = found.get(key)
        return "" if found == "" else write(found)

    return cell


def _jobs(summary: dict[str, Any]) -> Rows:
    """Rows for concurrent jobs: the speed of each, and fairness; empty for a single job."""
    count = max((len(p["iteration_time_s"]["mean_of_jobs"]) for p in summary["policies"].values()), default=0)
    if count < 2:
        return []

    def mean_of(job: int) -> Cell:
        return lambda n: duration(dict(enumerate(n["iteration_time_s"]["mean_of_jobs"])).get(job))

    lines = [(f"job {job}, mean", mean_of(job)) for job in range(count)]
    return [("Jobs at once", [*lines, ("Jain's fairness index", _cell(digits, "fairness"))])]


def _links(summary: dict[str, Any]) -> Rows:
    """Rows for traffic on links between switches, in units of one worker's contribution."""
    names = list(dict.fromkeys(link for p in summary["policies"].values() for link in p["streams_per_link"]))
    lines = [(link, _cell(digits, "streams_per_link", link)) for link in names]
    return [("Streams up a link, as counted", lines)] if names else []


def notes(result: RunResult, summary: dict[str, Any]) -> list[str]:
    """Notes below the table: the fluid bound, differences in samples, and how devices are emulated."""
    lines = []
    bound, reduction = summary["comparison"]["fluid_bound_s"], summary["comparison"]["fluid_bound_reduction"]
    if bound is not None:
        less = f", {percent(reduction)} below the baseline" if reduction is not None and reduction > 0 else ""
        lines.append(f"Fluid bound: {duration(bound)} per iteration{less} (devices alone: all work over all speed).")
    lines += _of_other_samples(summary)
    lines += _of_momentum(result)
    lines.append(findings.device_speed(result))
    return lines


def _of_other_samples(summary: dict[str, Any]) -> list[str]:
    """Notes on policies whose updates have another number of samples than the baseline's."""
    baseline = summary["policies"].get(summary["comparison"]["baseline"], {}).get("samples_per_update")
    return [
        f"{policy_name(policy)}: an update has {number(each['samples_per_update'])} samples, not {number(baseline)}."
        for policy, each in summary["policies"].items()
        if baseline is not None and each["samples_per_update"] not in (None, baseline)
    ]


def _of_momentum(result: RunResult) -> list[str]:
    """A note on policies that train with other momentum than others, which is not their way of synchronising."""
    if result.plan.job.model != "digits-cnn":
        return []
    of: dict[float, list[str]] = {}
    for policy in (name for name in result.plan.run.policies if name in names()):
        of.setdefault(find(policy).momentum(result.plan), []).append(policy_name(policy))
    if len(of) < 2:
        return []
    said = [f"{join(alike)} with momentum {momentum:g}" if momentum else f"{join(alike)} without momentum"
            for momentum, alike in of.items()]  # fmt: skip
    return [f"SGD differs, and with it losses and accuracies: {', '.join(said)}."]


def of_few_values(summary: dict[str, Any]) -> list[str]:
    """Notes on percentiles without enough values, and on times to an accuracy that not all repetitions reached."""
    counts = [p["iterations_counted"] for p in summary["policies"].values() if p["iterations_counted"]]
    missing = [f"p{which}" for which in (50, 99) if counts and min(counts) < stats.values_for(which)]
    need = join([f"{name} needs {number(stats.values_for(int(name[1:])))} steps" for name in missing])
    found = [f"–: {need}, and only {number(min(counts))} counted."] if missing else []
    return found + of_times_to_accuracy(summary)


def of_times_to_accuracy(summary: dict[str, Any]) -> list[str]:
    """Notes on times to the target accuracy that are missing, because not all repetitions reached it."""
    late = stats.grouped(
        (reached(each["repetitions_that_reached_accuracy"], each["repetitions"]), policy_name(policy))
        for policy, each in summary["policies"].items()
        if each["final_accuracy"] is not None and each["time_to_accuracy_s"] is None
    )
    goal = percent(summary["target_accuracy"])
    return [f"–: {goal} accuracy was {how} with {join(whose)}." for how, whose in late.items()]


def _overview(summary: dict[str, Any], baseline: str | None) -> Table:
    """The overview: a row for each policy."""
    is_trained = any(p["final_accuracy"] is not None for p in summary["policies"].values())
    columns = [
        ("mean", _cell(duration, "iteration_time_s", "mean")),
        ("longest", _cell(duration, "iteration_time_s", "max")),
        (AGAINST, against),
    ]
    if is_trained:
        columns.append(("accuracy", _cell(accuracy, "final_accuracy")))
        columns.append((f"to {percent(summary['target_accuracy'])}", _cell(duration, "time_to_accuracy_s")))
    else:
        columns.append(("waiting", _cell(percent, "time_share", "wait")))
        columns.append(("helping", _cell(percent, "time_share", "help")))
    columns += [("checked", _cell(number, "sums_checked")), ("wrong", _cell(number, "sums_wrong"))]
    made = Table(box=None, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False, header_style="bold")
    made.add_column("Iteration time")
    for label, _ in columns:
        made.add_column(label, justify="right", min_width=len(label), no_wrap=True)
    for policy in summary["policies"]:
        name = Text(policy_name(policy))
        if policy == baseline:
            name.append(" (baseline)", style="dim")
        numbers = numbers_of(summary, policy)
        made.add_row(name, *(_emphasis(label, cell(numbers)) for label, cell in columns))
    return made


def _table(summary: dict[str, Any], policies: Sequence[str], baseline: str | None) -> Table:
    made = Table(box=None, padding=(0, 1, 0, 1), show_edge=False, pad_edge=False, header_style="bold")
    made.add_column("")
    for policy in policies:
        made.add_column(policy_name(policy), justify="right", min_width=COLUMN_WIDTH)
    if baseline in policies:
        made.add_row("", *(Text("baseline", style="dim") if p == baseline else "" for p in policies))
    for heading, lines in rows(summary):
        made.add_row(Text(heading, style="bold cyan"))
        for label, cell in lines:
            cells = [_emphasis(label, cell(numbers_of(summary, policy))) for policy in policies]
            made.add_row(Padding(label, (0, 0, 0, 2)), *cells)
    return made


def _emphasis(label: str, text: str) -> Text:
    if label == "wrong" and text != "0":
        return Text(text, style="bold red")
    return Text(text, style="bold" if label in (AGAINST, "speed-up") else "")


def against(numbers: dict[str, Any]) -> str:
    """Iteration time against that of another policy or run, in words; "" for that itself."""
    if not numbers["verdict"]:
        return "–" if numbers["verdict"] is None else ""
    return Comparison(numbers["verdict"], numbers["iteration_time_reduction"]).in_words()
