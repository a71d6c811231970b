"""The visual language of all figures: one colour per activity, one per policy, and how a figure is laid out.

Activities wear the Okabe-Ito colours, which colour-blind readers can tell apart; waiting is grey, because it is nothing.
Policies wear others (sa_atp/lab/policies), ATP grey. matplotlib is imported where it is used: the rest of the report does
without.
"""

import contextlib
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics import needs
from sa_atp.basics.errors import MissingPartError
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
}
ACTIVITY_LABELS = {
    "compute": "computes its own shard",
    "help": "helps another worker",
    "send": "sends",
    "wait": "waits",
    "pause": "is paused",
}
SLOW_COLOUR = "#F5CFCB"  # behind a worker whose device is slow
SPARE_COLOURS = ("#6699CC", "#999933", "#661100", "#CC6677")  # of policies that this release does not know
BOUND_COLOUR = "#B22222"
INK, FAINT = "#222222", "#6A6A6A"

WIDTH_IN = 10.0
ROW_CHARACTERS, KEY_CHARACTERS = 140, 6  # of a legend's row, and what a key takes beside its label
DPI = 120  # 1200 pixels wide: fits a laptop's screen at 100 %
INSTALL = needs.how_to_install("matplotlib")


class NothingToDrawError(Exception):
    """The run has no data for a figure; the message says which is missing."""


def require_matplotlib() -> None:
    """Raises: MissingPartError."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingPartError(f"figures need matplotlib ({error}): {INSTALL}") from None


@contextlib.contextmanager
def applied() -> Iterator[None]:
    """The style, whatever the user's matplotlibrc says, while figures are made and saved."""
    import matplotlib.style

    with matplotlib.style.context(["default", _SETTINGS]):
        yield


_SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#999999",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
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
}


def policy_colour(policy: str) -> str:
    """The colour of a policy in every figure; that of an unknown one depends on its name alone."""
    return policies.colours().get(policy) or SPARE_COLOURS[sum(policy.encode()) % len(SPARE_COLOURS)]


def figure(height_in: float, title: str, subtitle: str = "", *, legend: int = 0) -> "Figure":
    """An empty figure with its head: what is seen, how to read it, and room for a legend.

    Args: height_in: of what is below the head, in inches; legend: rows of it, see legend_rows.
    """
    from matplotlib.figure import Figure

    titles, subtitles = _balanced(title, 88), _balanced(subtitle, 136)
    head_in = 0.14 + 0.25 * len(titles) + 0.19 * len(subtitles) + (0.3 + 0.2 * (legend - 1) if legend else 0.06)
    whole_in = height_in + head_in
    made = Figure(figsize=(WIDTH_IN, whole_in), dpi=DPI)
    y = whole_in - 0.12
    for line in titles:
        made.text(0.012, y / whole_in, line, size=13, weight="bold", va="top")
        y -= 0.25
    for line in subtitles:
        made.text(0.012, (y - 0.01) / whole_in, line, size=9.5, color=FAINT, va="top")
        y -= 0.19
    made.set_layout_engine(
        "constrained", rect=(0.006, 0.0, 0.988, height_in / whole_in), w_pad=0.06, h_pad=0.05, hspace=0.04
    )
    return made


def _balanced(text: str, width: int) -> list[str]:
    """Wraps a text so that no line is much shorter than the others."""
    lines = textwrap.wrap(text, width)
    while width > 20 and len(narrower := textwrap.wrap(text, width - 1)) == len(lines):
        lines, width = narrower, width - 1
    return lines


def legend_rows(labels: Iterable[str]) -> int:
    """How many rows a legend needs so that its keys fit beside each other."""
    return -(-sum(len(label) + KEY_CHARACTERS for label in labels) // ROW_CHARACTERS)


def add_legend(made: "Figure", handles: list[Any], height_in: float) -> None:
    """Keys between head and panels, in as many rows as they need. Args: height_in: as given to `figure`."""
    rows = max(1, legend_rows(str(handle.get_label()) for handle in handles))
    whole_in = made.get_size_inches()[1]
    made.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.006, (height_in - 0.02) / whole_in),
        ncols=-(-len(handles) // rows),
        handlelength=1.3,
        handleheight=0.9,
        columnspacing=1.6,
        borderaxespad=0.1,
        fontsize=9.5,
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
    """No line and no ticks at the left: the labels are enough."""
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def save(made: "Figure", path: Path) -> Path:
    """Writes a PNG; the same figure gives the same bytes. Raises: UserError."""

    def write(part: Path) -> None:
        made.savefig(part, format="png", dpi=DPI, metadata={"Software": None})

    return write_file(path, write)
