"""The style of all figures: colours, and what they look like on a screen and in a paper.

Activities have the Okabe-Ito colours, which colour-blind readers can tell apart; waiting is grey, and the time between
steps a darker grey. Policies have other colours (sa_atp/lab/policies), ATP grey. matplotlib is imported where it is used:
the rest of the report does without it, and its constrained layout finds room for everything.
"""

import base64
import contextlib
import functools
import io
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sa_atp.basics import needs
from sa_atp.basics.errors import MissingPartError, UserError
from sa_atp.lab import policies
from sa_atp.lab.report.files import write_file
from sa_atp.lab.report.text import axis_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

ACTIVITY_COLOURS = {
    "compute": "#0072B2",
    "help": "#E69F00",
    "send": "#009E73",
    "wait": "#D5D5D5",
    "pause": "#CC79A7",
    "between": "#8F8F8F",
}
ACTIVITY_LABELS = {
    "compute": "computes its own shard",
    "help": "helps another worker",
    "send": "sends",
    "wait": "waits",
    "pause": "is paused",
    "between": "between steps",
}
SLOW_COLOUR = "#F5CFCB"  # behind a worker whose device is slow
SPARE_COLOURS = ("#6699CC", "#999933", "#661100", "#CC6677")  # for policies unknown to this release
BOUND_COLOUR = "#B22222"
DASHES = ("-", (0, (5, 2)), (0, (5, 1, 1, 1)), (0, (2, 1)))
INK, FAINT = "#222222", "#6A6A6A"

FORMATS = ("png", "svg", "pdf")
METADATA = {  # so that the same figure gives the same bytes
    "png": {"Software": None},
    "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
    "pdf": dict.fromkeys(("Creator", "Producer", "CreationDate")),
}
MOST_SVG_BYTES = 160_000  # larger pictures are embedded as PNG, whose size is bounded
SMALL_IN = 4.0  # axes that are narrower have no room for notes
INSTALL = needs.how_to_install("matplotlib")


@dataclass(frozen=True, slots=True)
class Style:
    """What figures look like."""

    width_in: float
    height_in: float | None
    """None: as the content of each figure wants."""
    font_size: float
    """In points."""
    line_width: float
    """In points."""
    dpi: int
    """Of PNG files."""
    has_title: bool = True


SCREEN = Style(width_in=10.0, height_in=None, font_size=10.0, line_width=2.0, dpi=120)
PAPER = Style(width_in=3.3, height_in=2.4, font_size=7.0, line_width=1.2, dpi=300, has_title=False)

_SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#999999",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "xtick.color": "#999999",
    "ytick.color": "#999999",
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.handlelength": 1.7,
    "legend.columnspacing": 1.4,
    "legend.borderaxespad": 0.2,
    "legend.borderpad": 0.2,
    "hatch.linewidth": 0.6,
    "figure.facecolor": "white",
    "figure.titlesize": "large",
    "figure.titleweight": "bold",
    "savefig.facecolor": "white",
    "savefig.dpi": "figure",
    "svg.fonttype": "none",  # text stays text, not outlines
    "svg.hashsalt": "sa_atp",
    "pdf.fonttype": 42,  # fonts that publishers accept
}


class NothingToDrawError(Exception):
    """The run lacks the data for a figure; the message says which."""


def require_matplotlib() -> None:
    """Raises: MissingPartError."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingPartError(f"figures need matplotlib ({error}): {INSTALL}") from None


@contextlib.contextmanager
def applied(style: Style = SCREEN) -> Iterator[None]:
    """Applies a style for the duration of the block, regardless of the user's matplotlibrc.

    Raises: MissingPartError without matplotlib.
    """
    require_matplotlib()
    import matplotlib.style

    sizes = {
        "font.size": style.font_size,
        "lines.linewidth": style.line_width,
        "lines.markersize": 2.0 * style.line_width,
        "figure.dpi": style.dpi,
    }
    with matplotlib.style.context(["default", _SETTINGS, sizes]):
        yield


def drawn(draw: Callable[..., float], title: Callable[[], str], style: Style = SCREEN, *, panels: int = 1) -> "Figure":
    """Makes a figure: Axes side by side, on which `draw` draws, a legend of all that has a label, and a title.

    Args: draw: is given the Axes, and returns the height in inches that they want on a screen; title: is asked after
        that, if the style has titles; panels: the number of Axes.

    Raises: MissingPartError without matplotlib; UserError without room for what is drawn; what `draw` raises.
    """
    with applied(style):
        made: Figure = _figure_class()(figsize=(style.width_in, style.height_in or 1.0), layout="constrained")
        made.look = style  # type: ignore[attr-defined]
        wanted_in = draw(*made.subplots(1, panels, squeeze=False)[0])
        if style.height_in is None:
            made.set_figheight(wanted_in + 1.2)
        if style.has_title:
            made.suptitle(title(), x=0.01, ha="left", wrap=True)
        _add_legend(made)
        return made


@functools.cache
def _figure_class() -> Any:
    """Matplotlib's class, with two differences: files have the figure's style, whoever saves it, and notebooks show the
    picture, where of a figure that pyplot did not make they show its name.
    """
    from matplotlib.figure import Figure

    class Styled(Figure):
        look = SCREEN

        def savefig(self, *args: Any, **options: Any) -> None:
            with applied(self.look):
                super().savefig(*args, **options)

        def _repr_png_(self) -> bytes:
            return _encoded(self, "png")

    return Styled


def _add_legend(made: "Figure") -> None:
    """Adds a legend of all Axes above the first, in as many columns as fit beside what stands left of the Axes."""
    pairs = [pair for axes in made.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    keys = {label: handle for handle, label in pairs}
    first = made.axes[0]
    if layout := made.get_layout_engine():
        with _room(made):
            layout.execute(made)  # only now the Axes are where they will be
    room = made.bbox.width - first.get_window_extent().x0
    for columns in range(len(keys), 0, -1):
        # Matplotlib fills columns; these are read by rows, in the order in which things were drawn
        ordered = [label for column in range(columns) for label in list(keys)[column::columns]]
        legend = first.legend(
            [keys[label] for label in ordered], ordered, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns
        )
        if (over := legend.get_window_extent().width - room) <= 0:
            return
        if columns == 1:
            _wrap(legend, over)


def _wrap(legend: "Legend", over: float) -> None:
    """Breaks labels of a legend with one column into several lines. Args: over: by how many dots it is too wide."""
    widths = [text.get_window_extent().width for text in legend.get_texts()]
    for text, width in zip(legend.get_texts(), widths, strict=True):
        if width > max(widths) - over:
            most = int(0.95 * len(text.get_text()) * (max(widths) - over) / width)  # letters have several widths
            text.set_text(textwrap.fill(text.get_text(), max(most, 1)))


# --- on Axes ----------------------------------------------------------------------------------------------------------


def policy_colour(policy: str) -> str:
    """The colour of a policy in every figure; an unknown policy gets one by its name."""
    return policies.colours().get(policy) or SPARE_COLOURS[sum(policy.encode()) % len(SPARE_COLOURS)]


def policy_line(policy: str, number: int) -> dict[str, Any]:
    """Colour, dashes and label of a policy's line: where lines coincide, each can be seen. Args: number: of the line."""
    dashes = DASHES[number % len(DASHES)]
    return {"color": policy_colour(policy), "ls": dashes, "label": policies.title(policy)}


def is_small(axes: "Axes") -> bool:
    """Whether there is no room for notes beside bars, as in a column of a paper."""
    return bool(axes.get_window_extent().width < SMALL_IN * axes.figure.dpi)


def time_axis(axes: "Axes", which: Literal["x", "y"], longest_s: float, title: str) -> float:
    """Labels an axis of times with the unit that fits its end, and lets it begin at zero.

    Returns: the unit in seconds. Times are drawn as multiples of it, so that they are what the label says at every scale.
    """
    unit_s, unit = axis_unit(longest_s)
    axes.set(**{f"{which}lim": (0, longest_s / unit_s or 1.0), f"{which}label": f"{title} ({unit})"})
    axes.grid(axis=which)
    return unit_s


def label_rows(axes: "Axes", labels: list[str], bold: set[int]) -> None:
    """Labels rows of bars from top to bottom; if a small figure has too many, only bold ones. Args: bold: their numbers."""
    import matplotlib as mpl

    line_in = 1.1 * mpl.rcParams["font.size"] / 72
    few = not is_small(axes) or line_in * len(labels) < axes.get_window_extent().height / axes.figure.dpi
    shown = [n for n in range(len(labels)) if few or n in bold]
    axes.set_yticks(shown, [labels[n] for n in shown])
    for n, tick in zip(shown, axes.get_yticklabels(), strict=True):
        tick.set_fontweight("bold" if n in bold else "normal")
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


# --- files ------------------------------------------------------------------------------------------------------------


def save(made: "Figure", path: Path) -> Path:
    """Writes a figure in the format of the path's suffix, one of FORMATS; the same figure gives the same bytes.

    Raises: UserError: the file cannot be written, or the figure is too small for its content.
    """

    def write(part: Path) -> None:
        part.write_bytes(_encoded(made, path.suffix.removeprefix(".")))

    return write_file(path, write)


def as_uri(made: "Figure") -> str:
    """A figure as a data URI: SVG, or PNG if the SVG would be too large."""
    # fallback fonts are as wide or narrower
    svg = _encoded(made, "svg").replace(b"'DejaVu Sans'", b"'DejaVu Sans', Verdana, Roboto, Arial, sans-serif")
    if len(svg) <= MOST_SVG_BYTES:
        return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")
    return "data:image/png;base64," + base64.b64encode(_encoded(made, "png")).decode("ascii")


def _encoded(made: "Figure", suffix: str) -> bytes:
    out = io.BytesIO()
    with _room(made):
        made.savefig(out, format=suffix, metadata=METADATA[suffix])
    return out.getvalue()


@contextlib.contextmanager
def _room(made: "Figure") -> Iterator[None]:
    """Refuses a figure that is too small for its content, where Matplotlib would warn and draw one thing over another.

    Raises: UserError.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="constrained_layout not applied")
        try:
            yield
        except UserWarning:
            width, height = made.get_size_inches()
            raise UserError(f"a figure of {width:g} x {height:g} inches has no room for its content") from None
