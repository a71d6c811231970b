"""`sa-atp bench allreduce --sizes`: times of sums by size, in a table and a figure."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sa_atp.basics import terminal
from sa_atp.lab.bench.cluster import AllReduceRequest, Cluster
from sa_atp.lab.report.drawing import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# the number of sums of a size is such that they move so many bytes, within bounds; the p99 of a few is the maximum
MEASURED_BYTES = 40_000_000
MOST_SUMS = 400
HEIGHT_IN = 4.0  # of the figure

Measure = Callable[[Cluster, AllReduceRequest, str | None, Path], dict[str, Any]]


def measure(
    one: Measure, cluster: Cluster, request: AllReduceRequest, sizes: Sequence[int], peer: str | None, folder: Path
) -> dict[str, Any]:
    """Measures each size, ours and the peer's in turn. Args: one: measures one size; request: common settings."""
    found = []
    for size in sizes:
        count = max(request.iterations, min(MOST_SUMS, MEASURED_BYTES // size))
        found.append(one(cluster, replace(request, bytes=size, iterations=count), peer, folder))
    kept = (
        "bytes", "iterations", "p50_ms", "p99_ms", "longest_ms", "goodput_mbps", "cpu_s_per_gbyte",
        "cpu_s_per_gbyte_by_process", "sums_wrong", "peer",
    )  # fmt: skip
    common = ("workers", "lanes", "switch", "link_mbps")
    return {
        **{key: found[0][key] for key in common},
        "sizes": [{key: each[key] for key in kept} for each in found],
        "sums_wrong": sum(each["sums_wrong"] for each in found),
    }


def print_table(found: dict[str, Any]) -> None:
    peer = found["sizes"][0]["peer"]
    columns = ["bytes", "sums", "p50", "p99", "goodput", "CPU per GB"]
    if peer:
        columns += [f"{peer['name']} p50", "p99", "goodput", "CPU per GB", "p50 ratio", "p99 ratio"]
    table = terminal.table((), columns)
    for each in found["sizes"]:
        row = [str(each["bytes"]), str(each["iterations"]), *_times(each)]
        if each["peer"]:
            ratios = [
                "–" if each[key] is None or each["peer"][key] is None else f"{each[key] / each['peer'][key]:.2f}"
                for key in ("p50_ms", "p99_ms")
            ]
            row += [*_times(each["peer"]), *ratios]
        table.add_row(*row)
    console = terminal.console()
    console.print(f"All-reduce among {found['workers']} workers, {found['lanes']} lanes, {found['switch']} switch")
    terminal.print_table(console, table)
    console.print(f"wrong sums: {found['sums_wrong']}")


def _times(of: dict[str, Any]) -> list[str]:
    return [
        *("–" if of[key] is None else f"{of[key]:.2f} ms" for key in ("p50_ms", "p99_ms")),
        f"{of['goodput_mbps']:.0f} Mbit/s",
        f"{of['cpu_s_per_gbyte']:.2f} s",
    ]


def draw(found: dict[str, Any], path: Path) -> None:
    """Writes the figure. Raises: MissingPartError without matplotlib; UserError."""

    def draw_on(axes: "Axes") -> float:
        return panel(found, axes)

    title = f"How long a sum among {found['workers']} workers takes"
    style.save(style.drawn(draw_on, lambda: title), path)


def panel(found: dict[str, Any], axes: "Axes") -> float:
    """Draws times by size: p50 as a line, and a band from there to p99, on logarithmic axes."""
    sizes = [each["bytes"] for each in found["sizes"]]
    lines = [("sa-atp", found["sizes"])]
    if found["sizes"][0]["peer"]:
        peers = [each["peer"] for each in found["sizes"]]
        lines.append((peers[0]["name"], peers))
    for name, of in lines:
        colour = style.policy_colour(name)
        middle, late = (np.array([each[key] for each in of], float) for key in ("p50_ms", "p99_ms"))  # NaN: too few
        axes.plot(sizes, middle, marker="o", color=colour, label=f"{name}, p50")
        axes.fill_between(sizes, middle, late, color=colour, alpha=0.2, linewidth=0, label=f"{name}, up to p99")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("bytes of the tensor")
    axes.set_ylabel("time of a sum (ms)")
    return HEIGHT_IN
