"""The comparison of runs as a table on the terminal, and as one page with figures side by side."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sa_atp.basics import needs, terminal
from sa_atp.basics.words import join
from sa_atp.lab.experiments.compare import (
    RunToCompare,
    machine_differences,
    numbers_of,
    plan_differences,
    policies_of,
)
from sa_atp.lab.report import files, findings, html
from sa_atp.lab.report.drawing import figures, means_of_runs, style
from sa_atp.lab.report.drawing.style import NothingToDrawError, Style
from sa_atp.lab.report.table import against, of_times_to_accuracy
from sa_atp.lab.report.text import NBSP, accuracy, digits, duration, factor, half, number, policy_name, setting

MOST_KEYS = 4  # in a title
BESIDE = Style(width_in=5.5, height_in=None, font_size=8.0, line_width=1.5, dpi=160)  # two on a wide screen

Cell = Callable[[dict[str, Any]], str]
"""Makes a cell from the numbers of a policy in a run (`compare.numbers_of`)."""


def columns(runs: Sequence[RunToCompare]) -> list[tuple[str, Cell]]:
    """The columns of the table of numbers: heading, and a function that makes a cell."""
    all_numbers = [n for policy in policies_of(runs) for _, n in rows(runs, policy)]
    found: list[tuple[str, Cell]] = [("iteration", lambda n: duration(n["iteration_time_s"]))]
    if any(n["iteration_time_ci95"] for n in all_numbers):
        found.append((f"±{NBSP}95{NBSP}%", lambda n: half(duration, n["iteration_time_ci95"])))
    found.append((f"against {runs[0].name}", lambda n: _against(runs, n)))
    found.append(("speed-up", lambda n: "" if n["speedup"] is None else factor(n["speedup"])))
    if any(n["final_loss"] is not None for n in all_numbers):
        found.append(("loss", lambda n: digits(n["final_loss"])))
        found.append(("accuracy", lambda n: accuracy(n["final_accuracy"])))
        found.append(("to target", lambda n: duration(n["time_to_accuracy_s"])))
    return [*found, ("wrong", lambda n: number(n["sums_wrong"]))]


def rows(runs: Sequence[RunToCompare], policy: str) -> list[tuple[RunToCompare, dict[str, Any]]]:
    """The runs that have a policy, and its numbers there."""
    return [(run, numbers_of(runs, run, policy)) for run in runs if policy in run.found]


def print_comparison(runs: Sequence[RunToCompare], console: Console | None = None) -> None:
    """Prints the differences of the plans and of the machines, and the numbers of each policy, a row for each run."""
    console = console or terminal.console()
    for heading, differences in (
        ("Plans differ in", plan_differences(runs)),
        ("Machines and versions differ in", machine_differences(runs)),
    ):
        if differences:
            table = _empty(heading, 2)
            for run in runs:
                table.add_column(run.name)
            for key, values in differences.items():
                table.add_row(Padding(key, (0, 0, 0, 2)), *map(setting, values))
            terminal.print_table(console, table)
            console.print()
    if not plan_differences(runs):
        console.print("The plans are the same.\n")
    shown = columns(runs)
    table = _empty("Numbers", 1)
    for heading, _ in shown:
        table.add_column(heading, justify="right")
    for policy in policies_of(runs):
        table.add_row(Text(policy_name(policy), style="bold cyan"))
        for run, numbers in rows(runs, policy):
            table.add_row(Padding(run.name, (0, 0, 0, 2)), *(cell(numbers) for _, cell in shown))
    terminal.print_table(console, table)
    for note in notes(runs):
        console.print(note)


def _empty(heading: str, gap: int) -> Table:
    made = Table(box=None, padding=(0, gap, 0, 0), show_edge=False, pad_edge=False, header_style="bold")
    made.add_column(heading)
    return made


def notes(runs: Sequence[RunToCompare]) -> list[str]:
    """Explanations of the columns, and warnings of each run."""
    lines = ["Speed-up: against the first policy of the same run."]
    for run in runs:
        remarks = findings.remarks(run.result.records, run.result.summary)
        lines += [f"{run.name}: {remark.text}" for remark in remarks if remark.level == "wrong"]
        lines += [f"{run.name}: {note}" for note in of_times_to_accuracy(run.result.summary)]
    return lines


def write_page(runs: Sequence[RunToCompare], path: Path) -> Path:
    """Writes the comparison as one self-contained HTML file. Raises: UserError, MissingPartError."""
    needs.require_modules("the page needs", "matplotlib", "jinja2")
    return files.write_text(path, _page(runs))


def _page(runs: Sequence[RunToCompare]) -> str:
    return html.filled(
        "compare.html.jinja",
        title=_title(runs),
        runs=runs,
        what_ran={run.name: findings.what_ran(run.result.records) for run in runs},
        findings={run.name: findings.iteration_time(run.result.records) for run in runs},
        differences=[
            ("Plans", plan_differences(runs)),
            ("Machines and versions", machine_differences(runs)),
        ],
        columns=columns(runs),
        policies={policy: rows(runs, policy) for policy in policies_of(runs)},
        notes=notes(runs),
        means=_means(runs),
        figures=[(kind.caption, _of_each_run(runs, kind)) for kind in figures.FIGURES],
        policy_name=policy_name,
        shown=setting,
    )


def _title(runs: Sequence[RunToCompare]) -> str:
    """a and b differ in straggler.slowdown."""
    names, differences = join([run.name for run in runs]), list(plan_differences(runs))
    if not differences:
        return f"{names}: the same plan"
    few = differences if len(differences) <= MOST_KEYS else [*differences[: MOST_KEYS - 1], "more"]
    return f"{names} differ in {join(few)}"


def _means(runs: Sequence[RunToCompare]) -> str:
    """The figure of all means as a URI; "" if no run has iterations."""
    found = {policy: [(run.name, run.found[policy]) for run, _ in rows(runs, policy)] for policy in policies_of(runs)}
    try:
        return style.as_uri(means_of_runs.draw(found))
    except NothingToDrawError:
        return ""


def _of_each_run(runs: Sequence[RunToCompare], kind: figures.FigureKind) -> list[tuple[str, str, str]]:
    """Draws one kind of figure for each run. Returns: for each, the run's name, the picture as a URI, and a note; where the
    run has no data for it, the picture is "" and the note says why.
    """
    found = []
    for run in runs:
        try:
            found.append((run.name, style.as_uri(figures.draw(run.result.records, kind, BESIDE)), ""))
        except NothingToDrawError as reason:
            found.append((run.name, "", f"not drawn: {reason}"))
    return found if any(picture for _, picture, _ in found) else []


def _against(runs: Sequence[RunToCompare], numbers: dict[str, Any]) -> str:
    return "" if numbers["run"] == runs[0].name else against(numbers)
