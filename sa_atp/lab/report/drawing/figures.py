"""The figures of a run: each is a function that draws a result on Axes it is given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import one_of
from sa_atp.lab.report import findings, stats
from sa_atp.lab.report.drawing import gantt, iteration_times, style, training, workers
from sa_atp.lab.report.drawing.style import SCREEN, NothingToDrawError, Style
from sa_atp.lab.runs.records import RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class FigureKind:
    """A kind of figure in reports."""

    name: str
    draw_on: Callable[[RunResult, "Axes"], float]
    """Draws on Axes a run that has the data, and returns the height in inches that they want on a screen."""
    title: Callable[[RunResult], str]
    """The quantity, and its number; of a run that has the data."""
    caption: str
    has_data: Callable[[RunResult], bool]
    """Whether a run has the data."""
    lacking: str
    """What a run without the data lacks."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn figure, and its file."""

    path: Path
    caption: str
    made: "Figure"

    @property
    def picture(self) -> str:
        """The figure as a data URI."""
        return style.as_uri(self.made)


def draw(result: RunResult, kind: FigureKind, style_: Style = SCREEN) -> "Figure":
    """One figure of a run, to be shown or saved. Raises: MissingPartError without matplotlib; NothingToDrawError."""
    if not kind.has_data(result):
        raise NothingToDrawError(kind.lacking)

    def draw_on(axes: "Axes") -> float:
        return kind.draw_on(result, axes)

    return style.drawn(draw_on, lambda: kind.title(result), style_)


def write(
    result: RunResult, folder: Path, kinds: Sequence[FigureKind], style_: Style = SCREEN, suffix: str = "png"
) -> tuple[list[Drawn], dict[str, str]]:
    """Writes figures for which the run has data in one style and format.

    Args: suffix: one of style.FORMATS. Returns: the figures; and by the file's name, why others were not drawn.

    Raises: MissingPartError without matplotlib; UserError.
    """
    written, left_out = [], {}
    for kind in kinds:
        path = folder / f"{kind.name}.{suffix}"
        try:
            made = draw(result, kind, style_)
            written.append(Drawn(style.save(made, path), kind.caption, made))
        except NothingToDrawError as reason:
            left_out[path.name] = str(reason)
    return written, left_out


def find(name: str) -> FigureKind:
    """The kind of figure with a name, with or without suffix. Raises: UserError."""
    stem = Path(name).stem.replace("-", "_")
    known = {kind.name: kind for kind in FIGURES}
    if stem not in known:
        raise UserError(f"figure {name!r}: {one_of(stem, known, str)}")
    return known[stem]


NO_STEPS = "no iterations were recorded"
FIGURES: tuple[FigureKind, ...] = (
    FigureKind(
        "iteration_time",
        iteration_times.iteration_time,
        findings.iteration_time,
        "Mean time of an iteration under each policy, and below it the time of each step. The fluid bound is the time "
        "in which all devices together could do all work, shared perfectly. It leaves links out: with slow or long links "
        "no policy comes near it.",
        stats.has_steps,
        NO_STEPS,
    ),
    FigureKind(
        "over_steps",
        iteration_times.over_steps,
        iteration_times.over_steps_title,
        "Time of each iteration over the number of the step, with the warm-up. Shaded: steps in which a worker's device "
        "was slow or its link congested, or a worker paused. Bands reach from the shortest to the longest of several "
        "repetitions.",
        stats.has_steps,
        NO_STEPS,
    ),
    FigureKind(
        "who_did_what",
        workers.who_did_what,
        findings.who_did_what,
        "Where each worker's time goes in an average step, and how many micro-batches it contributes."
        " Unused ones were computed in vain: another worker contributed them first, or the sum was already complete.",
        workers.has_steps,
        NO_STEPS,
    ),
    FigureKind(
        "timeline",
        gantt.timeline,
        gantt.timeline_title,
        "A few consecutive steps of each policy on the same time axis; thin lines are the beginnings of steps. "
        "A worker is in no step while the testbed copies the sum and writes records, before its first step, and after its "
        "last. Where a row is empty, the run is over. timeline.json has all steps, for Perfetto (ui.perfetto.dev).",
        gantt.has_intervals,
        "no intervals were recorded",
    ),
    FigureKind(
        "training",
        training.accuracy,
        training.accuracy_title,
        "Accuracy on held-out samples over time; dots on the target are where a policy reached it. Each line ends where "
        "its run ends.",
        training.is_evaluated,
        "nothing was evaluated on held-out samples",
    ),
    FigureKind(
        "loss",
        training.loss,
        training.loss_title,
        "Loss over time: on held-out samples if they were evaluated, else of training.",
        training.has_losses,
        "neither evaluations nor losses were recorded",
    ),
)
