"""The style of all figures: colours of activities and policies, and the layout.

Activities have the Okabe-Ito colours, which colour-blind readers can tell apart; waiting is grey, and the time between
steps a darker grey. Policies have other colours (sa_atp/lab/policies), ATP grey. matplotlib is imported where it is used:
the rest of the report does without it.

A figure of a run is drawn twice, in the layouts WIDE and NARROW: PNG files are wide, and report.html shows the one that
fits the screen.
"""

import base64
import contextlib
import dataclasses
import functools
import io
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics import needs
from sa_atp.basics.errors import MissingPartError, UserError
from sa_atp.lab import policies
from sa_atp.lab.report.files import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
INK, FAINT = "#222222", "#6A6A6A"

WIDTH_IN = 10.0
NARROW_BELOW_IN = 6.0
LEAST_HEIGHT = 0.6  # share of the height that the panels of a figure want
FORMATS = ("png", "svg", "pdf")
KEY_CHARACTERS = 6  # width of a legend's key beside its label
DPI = 120  # 1200 pixels wide: fits a laptop's screen at 100 %
MOST_SVG_BYTES = 160_000  # larger pictures are embedded as PNG, whose size is bounded
INSTALL = needs.how_to_install("matplotlib")


@dataclass(frozen=True, slots=True)
class FigureLayout:
    """The dimensions of a figure. Sizes are in points."""

    width_in: float
    size: float
    """Size of text."""
    title_size: float
    title_characters: int
    """Characters in a line of the title; likewise below."""
    subtitle_characters: int
    legend_characters: int
    ticks: float
    """Number of ticks on an axis, as a share of those of a wide figure."""
    height_in: float = 0.0
    """Height of the whole figure; 0: as its content wants."""

    @property
    def is_narrow(self) -> bool:
        """Whether labels are folded, and panels stand one above the other."""
        return self.width_in < NARROW_BELOW_IN

    @property
    def small(self) -> float:
        """Size of notes beside bars and in legends."""
        return self.size - 0.5

    def lines(self, text: str, characters: int) -> str:
        """A label in one line if the figure is wide, else in lines of so many characters."""
        return "\n".join(_balanced(text, characters)) if self.is_narrow else text


WIDE = FigureLayout(WIDTH_IN, 10.0, 13.0, 88, 136, 140, 1.0)
# as wide as a telephone's screen, at four thirds of a pixel per point
NARROW = FigureLayout(3.9, 8.5, 10.5, 39, 56, 56, 0.55)


def of_size(width_in: float, height_in: float = 0.0) -> FigureLayout:
    """The layout of a figure of another size: text keeps its size, and lines have more or fewer characters.

    Args: height_in: 0: as the content of each figure wants.
    """
    like = NARROW if width_in < NARROW_BELOW_IN else WIDE
    share = width_in / like.width_in
    return dataclasses.replace(
        like,
        width_in=width_in,
        height_in=height_in,
        title_characters=round(like.title_characters * share),
        subtitle_characters=round(like.subtitle_characters * share),
        legend_characters=round(like.legend_characters * share),
        ticks=min(1.0, like.ticks * share),
    )


class NothingToDrawError(Exception):
    """The run lacks the data for a figure; the message says which."""


def require_matplotlib() -> None:
    """Raises: MissingPartError."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingPartError(f"figures need matplotlib ({error}): {INSTALL}") from None


@contextlib.contextmanager
def applied(layout: FigureLayout = WIDE) -> Iterator[None]:
    """Applies the style for the duration of the block, regardless of the user's matplotlibrc."""
    import matplotlib.style

    with matplotlib.style.context(["default", _SETTINGS, _sizes(layout)]):
        yield


_SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#999999",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "xtick.color": "#999999",
    "ytick.color": "#999999",
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "none",  # text stays text, not outlines
    "svg.hashsalt": "sa_atp",
    "pdf.fonttype": 42,  # fonts that publishers accept
}


def _sizes(layout: FigureLayout) -> dict[str, Any]:
    return {"font.size": layout.size, "axes.titlesize": layout.size + 0.5}


def policy_colour(policy: str) -> str:
    """The colour of a policy in every figure; an unknown policy gets one by its name."""
    return policies.colours().get(policy) or SPARE_COLOURS[sum(policy.encode()) % len(SPARE_COLOURS)]


def figure(
    height_in: float, title: str, subtitle: str = "", *, legend: int = 0, layout: FigureLayout = WIDE
) -> "Figure":
    """An empty figure with title, subtitle, and room for a legend.

    Args: height_in: height below these that the content wants, in inches; legend: its rows, see legend_rows.

    Raises: UserError: the layout's height is too small for it.
    """
    titles = _balanced(title, layout.title_characters)
    subtitles = _balanced(subtitle, layout.subtitle_characters)
    title_in, subtitle_in = 0.25 * layout.title_size / WIDE.title_size, 0.19 * layout.small / WIDE.small
    head_in = 0.14 + title_in * len(titles) + subtitle_in * len(subtitles)
    head_in += 0.3 + 0.2 * layout.small / WIDE.small * (legend - 1) if legend else 0.06
    if layout.height_in and layout.height_in < head_in + LEAST_HEIGHT * height_in:
        raise UserError(
            f"a figure {layout.height_in:g} inches high has no room for its content: expected at least "
            f"{head_in + LEAST_HEIGHT * height_in:.1f}"
        )
    height_in = layout.height_in - head_in if layout.height_in else height_in
    whole_in = height_in + head_in
    made: Figure = _figure_class()(figsize=(layout.width_in, whole_in), dpi=DPI)
    y = whole_in - 0.12
    for line in titles:
        made.text(0.012, y / whole_in, line, size=layout.title_size, weight="bold", va="top")
        y -= title_in
    for line in subtitles:
        made.text(0.012, (y - 0.01) / whole_in, line, size=layout.small, color=FAINT, va="top")
        y -= subtitle_in
    made.set_layout_engine(
        "constrained", rect=(0.006, 0.0, 0.988, height_in / whole_in), w_pad=0.06, h_pad=0.05, hspace=0.04
    )
    return made


@functools.cache
def _figure_class() -> Any:
    """Matplotlib's class, of which notebooks show the picture; of a figure that pyplot did not make they show its name."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            return _png(self)

    return Shown


def _balanced(text: str, width: int) -> list[str]:
    """Wraps a text so that no line is much shorter than the others."""
    lines = textwrap.wrap(text, width, break_on_hyphens=False)
    while width > 20 and len(narrower := textwrap.wrap(text, width - 1, break_on_hyphens=False)) == len(lines):
        lines, width = narrower, width - 1
    return lines


def legend_rows(labels: Iterable[str], layout: FigureLayout = WIDE) -> int:
    """Number of rows that a legend needs to fit the width. Its columns are filled one by one."""
    characters = [len(label) + KEY_CHARACTERS for label in labels]
    for rows in range(1, len(characters)):
        if sum(max(column) for column in _columns(characters, rows)) <= layout.legend_characters:
            return rows
    return len(characters)


def _columns(found: Sequence[int], rows: int) -> list[Sequence[int]]:
    """The columns of a legend as matplotlib fills them: evenly, with one more key in the first ones."""
    columns = -(-len(found) // rows)
    each, more = divmod(len(found), columns)
    ends = [0]
    for n in range(columns):
        ends.append(ends[-1] + each + (n < more))
    return [found[start:end] for start, end in itertools.pairwise(ends)]


def add_legend(made: "Figure", handles: list[Any], layout: FigureLayout = WIDE) -> None:
    """Adds a legend between subtitle and panels of a figure that `figure` has made."""
    rows = max(1, legend_rows((str(handle.get_label()) for handle in handles), layout))
    whole_in = made.get_size_inches()[1]
    engine = made.get_layout_engine()
    assert engine is not None
    share = engine.get()["rect"][3]  # of the panels
    made.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.006, share - 0.02 / whole_in),
        ncols=-(-len(handles) // rows),
        handlelength=1.3,
        handleheight=0.9,
        columnspacing=1.6,
        borderaxespad=0.1,
        fontsize=layout.small,
    )


def activity_keys(kinds: Iterable[str], *, slow: bool) -> list[Any]:
    """Legend keys for activities, and for the band behind slow workers."""
    from matplotlib.patches import Patch

    wanted = set(kinds)
    keys: list[Any] = [
        Patch(color=ACTIVITY_COLOURS[k], label=ACTIVITY_LABELS[k]) for k in ACTIVITY_COLOURS if k in wanted
    ]
    if slow:
        keys.append(Patch(facecolor=SLOW_COLOUR, edgecolor="#E0A9A4", linewidth=0.6, label="straggler"))
    return keys


def quiet_y(axes: "Axes") -> None:
    """Removes the line and ticks of the left axis."""
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def save(made: "Figure", path: Path) -> Path:
    """Writes a figure in the format of the path's suffix, one of FORMATS; the same figure gives the same bytes.

    Raises: UserError.
    """
    encoders = {".png": _png, ".svg": _svg, ".pdf": _pdf}

    def write(part: Path) -> None:
        part.write_bytes(encoders[path.suffix](made))

    return write_file(path, write)


def as_uri(made: "Figure") -> str:
    """A figure as a data URI: SVG, or PNG if the SVG would be too large."""
    text = _svg(made)
    if len(text) <= MOST_SVG_BYTES:
        return "data:image/svg+xml;base64," + base64.b64encode(text).decode("ascii")
    sharp = 2 if made.get_size_inches()[0] < NARROW_BELOW_IN else 1  # narrow screens have high resolutions
    return "data:image/png;base64," + base64.b64encode(_png(made, sharp * DPI)).decode("ascii")


def _svg(made: "Figure") -> bytes:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.BytesIO()
    FigureCanvasSVG(made).print_svg(out, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    # fallback fonts are as wide or narrower
    return out.getvalue().replace(b"'DejaVu Sans'", b"'DejaVu Sans', Verdana, Roboto, Arial, sans-serif")


def _pdf(made: "Figure") -> bytes:
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    out = io.BytesIO()
    FigureCanvasPdf(made).print_pdf(out, metadata=dict.fromkeys(("Creator", "Producer", "CreationDate")))
    return out.getvalue()


def _png(made: "Figure", dpi: int = DPI) -> bytes:
    """A figure as PNG, drawn once (`Figure.savefig` draws twice). Later files have the same layout."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    out = io.BytesIO()
    made.set_dpi(dpi)
    FigureCanvasAgg(made).print_png(out, metadata={"Software": None})
    made.set_layout_engine("none")
    return out.getvalue()
