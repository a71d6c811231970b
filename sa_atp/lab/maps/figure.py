"""The picture of a map: the best policy of each point as a colour, its lead as a number, hatched where it is not clear."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics.words import plural
from sa_atp.lab.maps.sentences import time_of
from sa_atp.lab.report.drawing import style
from sa_atp.lab.report.drawing.style import FigureLayout
from sa_atp.lab.report.text import policy_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_IN, NARROW_ROW_IN = 0.62, 0.34  # height of a row of cells
CHARACTERS_PER_IN = 12  # of the label of the vertical axis
FRAME_IN = 0.75  # of labels
NOTHING_COLOUR = "#EEEEEE"
DARK_BELOW = 0.5  # luminance below which text on a colour is white
MOST_CHARACTERS = 10


def draw(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes map.png, map.svg, and map-narrow.png for screens below 800 pixels. Raises: UserError, MissingPartError."""
    written = []
    for layout, names in ((style.WIDE, ("map.png", "map.svg")), (style.NARROW, ("map-narrow.png",))):
        with style.applied(layout):
            made = figure(found, layout)
            written += [style.save(made, folder / name) for name in names]
    return written


def figure(found: Mapping[str, Any], layout: FigureLayout = style.WIDE) -> "Figure":
    """The picture, to be shown or saved. Raises: MissingPartError without matplotlib."""
    style.require_matplotlib()
    rows = len(found["y"]["labels"])
    shown = [name for name in found["policies"] if any(name in _colours_of(point) for point in found["points"])]
    keys = _keys(shown, found)
    with style.applied(layout):
        made = style.figure(
            FRAME_IN + rows * _row_in(layout),
            _title(found),
            _subtitle(found, layout),
            legend=style.legend_rows((str(key.get_label()) for key in keys), layout),
            layout=layout,
        )
        _panel(made.subplots(), found, layout)
        style.add_legend(made, keys, layout)
        return made


def _row_in(layout: FigureLayout) -> float:
    return NARROW_ROW_IN if layout.is_narrow else ROW_IN


def _title(found: Mapping[str, Any]) -> str:
    axes = " and ".join(found[axis]["title"].partition(":")[0].partition(" (")[0] for axis in ("x", "y"))
    what = "step" if found["quantity"] == "iteration" else time_of(found)
    return f"Which policy has the shortest {what}, by {axes}"


def _subtitle(found: Mapping[str, Any], layout: FigureLayout) -> str:
    settings = found["settings"]
    said = [plural(settings["topology.workers"], "worker")] if "topology.workers" in settings else []
    said += [f"stragglers: {settings['straggler.pattern']}"] if "straggler.pattern" in settings else []
    said += [
        found["plan"] and f"plan {found['plan']}",
        plural(found["steps"], "step"),
        plural(len(found["seeds"]), "seed"),
    ]
    baseline = policy_name(found["policies"][0])
    numbers = "Numbers: per cent shorter than the next policy that is clearly longer"
    numbers += "." if layout.is_narrow else f"; small: than {baseline}."
    return f"{', '.join(filter(None, said))}. {numbers}"


def _colours_of(point: Mapping[str, Any]) -> list[str]:
    """The policies whose colours a cell has: the best, and the nearest of those that are not clearly longer."""
    return [name for name in (point["best"], *point["rivals"][:1]) if name is not None]


def _panel(axes: "Axes", found: Mapping[str, Any], layout: FigureLayout) -> None:
    from matplotlib.patches import Rectangle

    columns, rows = len(found["x"]["labels"]), len(found["y"]["labels"])
    for index, point in enumerate(found["points"]):
        x, y = index % columns, index // columns
        colours = [style.policy_colour(name) for name in _colours_of(point)] or [NOTHING_COLOUR]
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colours[0], edgecolor="white", linewidth=1.5))
        if len(colours) > 1:
            axes.add_patch(
                Rectangle((x - 0.47, y - 0.46), 0.94, 0.92, fill=False, hatch="////", edgecolor=colours[1], linewidth=0)
            )
        _numbers(axes, x, y, point, colours[0], layout)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(-0.5, rows - 0.5)
    axes.set_xticks(range(columns), found["x"]["labels"])
    axes.set_yticks(range(rows), found["y"]["labels"])
    axes.set_xlabel(layout.lines(found["x"]["title"], layout.title_characters))
    height_in = rows * _row_in(layout)
    axes.set_ylabel("\n".join(textwrap.wrap(found["y"]["title"], max(12, round(height_in * CHARACTERS_PER_IN)))))
    if max(map(len, found["x"]["labels"])) > MOST_CHARACTERS:
        axes.tick_params(axis="x", rotation=30)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _numbers(axes: "Axes", x: int, y: int, point: Mapping[str, Any], colour: str, layout: FigureLayout) -> None:
    ink = "white" if _luminance(colour) < DARK_BELOW else style.INK
    back = {"facecolor": colour, "edgecolor": "none", "pad": 1.2, "boxstyle": "square,pad=0.15"}
    box = back if point["rivals"] else None
    lead = _per_cent(point["lead"]) if point["lead"] else "≈" if point["rivals"] else "–"
    if layout.is_narrow:
        axes.text(x, y, lead, color=ink, ha="center", va="center", fontsize=layout.small, bbox=box)
        return
    axes.text(x, y + 0.14, lead, color=ink, ha="center", va="center", fontsize=layout.size + 1, weight="bold", bbox=box)
    if point["against_baseline"]:
        text = _per_cent(point["against_baseline"])
        axes.text(x, y - 0.25, text, color=ink, ha="center", va="center", fontsize=layout.small - 1.5, bbox=box)


def _per_cent(share: float) -> str:
    value = 100 * share
    return f"{value:.1f}" if value < 1.95 else f"{value:.0f}"


def _luminance(colour: str) -> float:
    red, green, blue = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    return 0.3 * red + 0.59 * green + 0.11 * blue


def _keys(shown: list[str], found: Mapping[str, Any]) -> list[Any]:
    from matplotlib.patches import Patch

    keys = [Patch(facecolor=style.policy_colour(name), label=policy_name(name)) for name in shown]
    if any(point["rivals"] for point in found["points"]):
        label = "no clear difference from the hatching's policy (≈: from any)"
        keys.append(Patch(facecolor="white", edgecolor=style.FAINT, hatch="////", linewidth=0, label=label))
    if any(point["best"] is None for point in found["points"]):
        keys.append(Patch(facecolor=NOTHING_COLOUR, label="no policy reaches it"))
    return keys
