"""The result of a run, for programs: summary, rows, figures and folder."""

import io
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics.errors import UserError
from sa_atp.lab import report
from sa_atp.lab.experiments.frames import frame
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.report import rows
from sa_atp.lab.report.drawing import figures
from sa_atp.lab.report.drawing.style import PAPER, SCREEN, NothingToDrawError
from sa_atp.lab.report.rows import Row
from sa_atp.lab.report.table import print_table
from sa_atp.lab.report.text import duration
from sa_atp.lab.runs.records import PolicyRun, RunResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXT_WIDTH = 100  # characters of a table


class Result:
    """A finished run. `print(result)` shows the table that `sa-atp run` ends with; a notebook shows it by itself."""

    def __init__(
        self, records: RunResult, folder: Path, problems: Sequence[str] = (), files: Sequence[Path] = ()
    ) -> None:
        """Args: records: the run's; folder: where they are kept; problems, files: from writing them there."""
        self.records = records
        """All records of the run; the other members are computed from them."""
        self.folder = folder
        """The folder with report.html, summary.json, iterations.csv, timeline.json, manifest.json, and the figures."""
        self.problems = problems
        """A sentence for each problem: wrong sums, files that could not be written. Usually empty."""
        self.files = files
        """The files that this run has written; empty for a run that was loaded."""

    @property
    def plan(self) -> Plan:
        """The plan that was run, with all defaults."""
        return self.records.plan

    @property
    def runs(self) -> list[PolicyRun]:
        """Each repetition of each policy, with its steps, intervals and evaluations."""
        return self.records.runs

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The contents of summary.json, which docs/cli.md describes. Times in seconds."""
        return report.summarise(self.records)

    @cached_property
    def iterations(self) -> list[Row]:
        """The rows of iterations.csv: each step of each worker."""
        return list(rows.rows(self.records))

    def to_pandas(self) -> Any:
        """The rows of iterations.csv as a DataFrame; a loss that is not known is NaN. Raises: MissingPartError."""
        return frame(Row, self.iterations)

    @property
    def figures(self) -> Mapping[str, str]:
        """Captions, by name, of the figures for which the run has data."""
        return {kind.name: kind.caption for kind in figures.FIGURES if kind.has_data(self.records)}

    def figure(self, name: str, *, paper: bool = False) -> "Figure":
        """Draws a figure of the report, as a matplotlib figure that can be shown, changed (`figure.axes[0]`), and saved.

        Args: name: one of `figures`; paper: for a column of a paper: 3.3 x 2.4 inches, without a title.

        Raises: UserError: there is no such figure, or the run has no data for it; MissingPartError: without matplotlib.
        """
        try:
            return figures.draw(self.records, figures.find(name), PAPER if paper else SCREEN)
        except NothingToDrawError as reason:
            raise UserError(f"figure {name!r}: {reason}") from None

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        console = Console(  # in a notebook, too, where rich would show the table instead
            file=text, width=TEXT_WIDTH, markup=False, highlight=False, color_system=None, force_jupyter=False
        )
        print_table(self.records, console)
        return text.getvalue().rstrip()

    def __repr__(self) -> str:
        means = [
            f"{name} {duration(each['iteration_time_s']['mean'])}" for name, each in self.summary["policies"].items()
        ]
        return f"Result({str(self.folder)!r}: {', '.join(means)} an iteration)"

    def _repr_pretty_(self, printer: Any, is_cycle: bool) -> None:
        """Prints the table, for IPython and notebooks."""
        printer.text(f"{self}\nReport: {self.folder / 'report.html'}")
