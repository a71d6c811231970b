"""The picture of a map: the best policy of each point as a colour, its lead as a number, hatched where it is not clear."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.lab.maps.sentences import time_of
from sa_atp.lab.report.drawing import style
from sa_atp.lab.report.drawing.style import SCREEN, Style
from sa_atp.lab.report.text import policy_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_IN = 0.62  # height of a row of cells
NOTHING_COLOUR = "#EEEEEE"
DARK_BELOW = 0.5  # luminance below which text on a colour is white
MOST_CHARACTERS = 10


def draw(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes map.png and map.svg. Raises: UserError, MissingPartError."""
    made = figure(found)
    return [style.save(made, folder / name) for name in ("map.png", "map.svg")]


def figure(found: Mapping[str, Any], look: Style = SCREEN) -> "Figure":
    """The picture, to be shown or saved. Raises: MissingPartError without matplotlib."""

    def draw_on(axes: "Axes") -> float:
        return panel(found, axes)

    return style.drawn(draw_on, lambda: _title(found), look)


def _title(found: Mapping[str, Any]) -> str:
    axes = " and ".join(found[axis]["title"].partition(":")[0].partition(" (")[0] for axis in ("x", "y"))
    what = "step" if found["quantity"] == "iteration" else time_of(found)
    return f"Which policy has the shortest {what}, by {axes}"


def _colours_of(point: Mapping[str, Any]) -> list[str]:
    """The policies whose colours a cell has: the best, and the nearest of those that are not clearly longer."""
    return [name for name in (point["best"], *point["rivals"][:1]) if name is not None]


def panel(found: Mapping[str, Any], axes: "Axes") -> float:
    """Draws a cell for each point: by how many per cent the best policy is shorter than the next that is clearly longer,
    and in small figures below, where there is room, than the baseline.
    """
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
        _numbers(axes, x, y, point, colours[0])
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(-0.5, rows - 0.5)
    axes.set_xticks(range(columns), found["x"]["labels"])
    axes.set_yticks(range(rows), found["y"]["labels"])
    axes.set_xlabel(found["x"]["title"], wrap=True)
    axes.set_ylabel(found["y"]["title"], wrap=True)
    if max(map(len, found["x"]["labels"])) > MOST_CHARACTERS:
        axes.tick_params(axis="x", rotation=30)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    _add_keys(axes, found)
    return ROW_IN * rows


def _numbers(axes: "Axes", x: int, y: int, point: Mapping[str, Any], colour: str) -> None:
    ink = "white" if _luminance(colour) < DARK_BELOW else style.INK
    back = {"facecolor": colour, "edgecolor": "none", "pad": 1.2, "boxstyle": "square,pad=0.15"}
    box = back if point["rivals"] else None
    lead = _per_cent(point["lead"]) if point["lead"] else "≈" if point["rivals"] else "–"
    both = point["against_baseline"] and not style.is_small(axes)
    axes.text(x, y + (0.14 if both else 0), lead, color=ink, ha="center", va="center", weight="bold", bbox=box)
    if both:
        text = _per_cent(point["against_baseline"])
        axes.text(x, y - 0.25, text, color=ink, ha="center", va="center", fontsize="small", bbox=box)


def _per_cent(share: float) -> str:
    value = 100 * share
    return f"{value:.1f}" if value < 1.95 else f"{value:.0f}"


def _luminance(colour: str) -> float:
    red, green, blue = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    return 0.3 * red + 0.59 * green + 0.11 * blue


def _add_keys(axes: "Axes", found: Mapping[str, Any]) -> None:
    """Adds empty patches with labels, for the legend."""
    from matplotlib.patches import Rectangle

    points = found["points"]
    shown = [name for name in found["policies"] if any(name in _colours_of(point) for point in points)]
    keys: list[tuple[str, dict[str, Any]]] = [
        (policy_name(name), {"facecolor": style.policy_colour(name)}) for name in shown
    ]
    if any(point["rivals"] for point in points):
        hatched = {"facecolor": "white", "edgecolor": style.FAINT, "hatch": "////", "linewidth": 0}
        keys.append(("no clear difference from the hatching's policy (≈: from any)", hatched))
    if any(point["best"] is None for point in points):
        keys.append(("no policy reaches it", {"facecolor": NOTHING_COLOUR}))
    for label, look in keys:
        axes.add_patch(Rectangle((0, 0), 0, 0, label=label, **look))
