"""`sa-atp bench scale`: iteration time over the number of workers, on the flow-level model of the network.

Workers send gradients of ResNet-50's size over links of 10 Gbit/s. Up to 32 workers share a switch; more are in racks of 32
with trunks that are not oversubscribed. Gradients have sizes without values: nothing is added up.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from sa_atp.basics import terminal
from sa_atp.basics.errors import UserError
from sa_atp.basics.folders import make_folder
from sa_atp.lab import policies
from sa_atp.lab.backends import flows
from sa_atp.lab.flow.ring import ring_steps_us
from sa_atp.lab.plans import plan as plans
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.report.drawing import style
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.tasks import straggler_pattern
from sa_atp.lab.runs.virtual_run import fabric_of
from sa_atp.lab.simulator.network import Clock

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RING = "ring"
WORKERS = (4, 16, 64, 256, 1024)
POLICIES = (RING, "ps", "atp", "sa-atp", "sa-atp+boa")
RACK = 32
LINK_MBPS = 10_000
EVERY = 32  # of so many workers one is slow
SLOWDOWN = 4
WARM_UP = 4  # steps that do not count: windows grow, and batch sizes adapt to measured speeds
FIGURE = "scale.png"
HEIGHT_IN = 3.9


@dataclass(frozen=True, slots=True)
class ScalePoint:
    policy: str
    workers: int
    stragglers: int
    iteration_time_s: float
    """Mean over the counted steps."""
    shortest_s: float
    """The fluid bound: total work over total speed, without communication."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)), metavar="N,N,...",
                        help="numbers of workers (default: %(default)s)")  # fmt: skip
    parser.add_argument("--policies", default=",".join(POLICIES), metavar="NAME,...",
                        help="ring, and synchronous policies (default: %(default)s)")  # fmt: skip
    parser.add_argument("--steps", type=int, default=8, metavar="N",
                        help=f"steps of each run; the first {WARM_UP} do not count (default: %(default)s)")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"write {FIGURE} and scale.json there")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Raises: UserError, SaAtpError."""
    numbers = [_number(text) for text in options.workers.split(",")]
    names = options.policies.split(",")
    for name in names:
        if name != RING:
            policies.switch_policy(name)
    if options.steps <= WARM_UP:
        raise UserError(f"--steps {options.steps}: expected more than {WARM_UP}")
    if options.out is not None:
        style.require_matplotlib()
        make_folder(options.out)
    found: list[ScalePoint] = []
    for stragglers in (False, True):
        for workers in numbers:
            for name in names:
                print(f"{name}, {workers} workers{', stragglers' if stragglers else ''}", file=sys.stderr, flush=True)
                found.append(measure(name, workers, options.steps, stragglers=stragglers))
    result = {"link_mbps": LINK_MBPS, "model": "resnet-50", "rack": RACK, "points": [asdict(p) for p in found]}
    if options.out is not None:
        (options.out / "scale.json").write_text(json.dumps(result, indent=1) + "\n")
        draw(found, options.out / FIGURE)
        print(options.out / FIGURE, file=sys.stderr)
    if options.json:
        print(json.dumps(result))
    else:
        terminal.console().print(_table(found))
    return 0


def _number(text: str) -> int:
    """Raises: UserError."""
    if not text.strip().isdigit() or not 2 <= int(text) <= plans.MOST_WORKERS:
        raise UserError(f"--workers {text}: expected whole numbers from 2 to {plans.MOST_WORKERS}, with commas between")
    return int(text)


def plan_of(policy: str, workers: int, steps: int, *, stragglers: bool) -> Plan:
    """The plan of a point. One of 32 workers is slow, at another place in each rack."""
    racks = workers // RACK
    slow = [(RACK + 1) * k + 3 for k in range(max(1, workers // EVERY)) if (RACK + 1) * k + 3 < workers]
    tables: dict[str, dict[str, Any]] = {
        "run": {"steps": steps, "warm_up": WARM_UP, "backend": "sim", "policies": [policy]},
        "topology": {"workers": workers, "link_mbps": LINK_MBPS}
        | ({"kind": "two-level", "racks": racks, "trunk_mbps": RACK * LINK_MBPS} if racks > 1 else {}),
        "job": {"model": "resnet-50", "batch_size": 32, "micro_batches": 4, "compute_us_per_sample": 3000},
        "straggler": {"pattern": "constant", "workers": slow, "slowdown": SLOWDOWN}
        if stragglers
        else {"pattern": "none"},
        "sim": {"network": "flows"},
    }
    return plan_files.parse_tables(tables, "bench scale")


def measure(policy: str, workers: int, steps: int, *, stragglers: bool) -> ScalePoint:
    """Runs one point. Raises: SaAtpError."""
    plan = plan_of("atp" if policy == RING else policy, workers, steps, stragglers=stragglers)
    fabric = fabric_of(plan, Clock(), server_mbps=LINK_MBPS)
    pattern = straggler_pattern(plan)
    if policy == RING:
        values = flows.sizes_of(plan).values
        slowest = [max(pattern.slowdown_of(s, w) for w in range(workers)) for s in range(steps)]
        ends = ring_steps_us(fabric, 4.0 * values, [round(plan.job.shard_us * slow) for slow in slowest])
    else:
        ends = flows.step_ends_us(plan, policy, Progress(), fabric)
    times = np.diff(ends)[WARM_UP - 1 :] / 1e6
    slow = len(plan.straggler.workers) if stragglers else 0
    return ScalePoint(policy, workers, slow, float(times.mean()), pattern.fluid_bound_us(0, plan.job.shard_us) / 1e6)


def _title(policy: str) -> str:
    return "Ring" if policy == RING else policies.title(policy)


def _table(found: Sequence[ScalePoint]) -> Table:
    table = Table(title="Iteration time", box=None)
    numbers = sorted({point.workers for point in found})
    for name, justify in (("", "left"), ("stragglers", "left"), *((str(n), "right") for n in numbers)):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for slow in (False, True):
        for name in dict.fromkeys(point.policy for point in found):
            row = {p.workers: p.iteration_time_s for p in found if p.policy == name and bool(p.stragglers) is slow}
            times = [f"{1e3 * row[n]:.0f} ms" for n in numbers]
            table.add_row(_title(name), f"one of {EVERY}" if slow else "none", *times)
    return table


def draw(found: Sequence[ScalePoint], path: Path) -> Path:
    """Draws the figure. Raises: UserError, MissingPartError."""

    def draw_on(*both: "Axes") -> float:
        for axes, slow in zip(both, (False, True), strict=True):
            panel([point for point in found if bool(point.stragglers) is slow], axes, slow=slow)
        return HEIGHT_IN

    title = f"Iteration time of ResNet-50 over the number of workers: 96 ms of computation, 10 Gbit/s, racks of {RACK}"
    return style.save(style.drawn(draw_on, lambda: title, panels=2), path)


def panel(found: Sequence[ScalePoint], axes: "Axes", *, slow: bool) -> None:
    """Draws iteration time over the number of workers, a line for each policy, and the fluid bound; logarithmically.

    Args: slow: whether these points have stragglers.
    """
    for name in dict.fromkeys(point.policy for point in found):
        points = sorted((p for p in found if p.policy == name), key=lambda p: p.workers)
        axes.plot(
            [p.workers for p in points], [p.iteration_time_s for p in points], marker="o", label=_title(name),
            color=style.policy_colour("gloo" if name == RING else name),
        )  # fmt: skip
    bound = sorted({p.workers: p.shortest_s for p in found}.items())
    axes.plot(*zip(*bound, strict=True), color=style.BOUND_COLOUR, ls=":", label="fluid bound (all work / all speed)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([workers for workers, _ in bound], [str(workers) for workers, _ in bound])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} s" if value >= 1 else f"{1e3 * value:g} ms")
    axes.set_ylabel("iteration time")
    axes.set_xlabel(f"workers, one of {EVERY} {SLOWDOWN} times slower" if slow else "workers, nobody slow")
    axes.grid(axis="y")
