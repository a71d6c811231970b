"""Compares the simulator with Mininet: `python -m sa_atp.lab.agreement.mininet` writes the table of docs/simulator.md.

It runs plans on both, policy by policy, and compares mean iteration times. In virtual time these are exact. In
Mininet they vary with the machine, so each plan runs there several times; that needs root, and an idle machine.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.lab import policies
from sa_atp.lab.backends import runner
from sa_atp.lab.plans import plan as plans
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.report import stats
from sa_atp.lab.runs.progress import Progress

BACKENDS = ("sim", "mininet")
PARAMETERS = '["ssp", "asp", "consgd", "dynsgd", "falcon"]'
SETTINGS: dict[str, tuple[str, ...]] = {
    "mininet-demo": (),
    'mininet-demo help.grade="clone"': ("help.grade=clone",),
    "mininet-demo, others": ('run.policies=["ps", "sync-opt", "boa", "sa-atp+boa"]', "sync-opt.backups=1"),
    "mininet-demo, parameters on a server": (
        f"run.policies={PARAMETERS}",
        "run.steps=20",
        "job.parallel_gain=[1,1,1,1]",
    ),
    "mininet-demo, six times": ('run.policies=["flexrr"]', "run.steps=20", "run.repetitions=6"),
    "star": (),
    "heterogeneous": (),
    "two-level": (),
    "four-racks": (),
    "resnet50": (),
    "random-pauses": ("run.steps=20", "topology.link_mbps=100"),
    "three-devices": ("run.steps=15", "topology.link_mbps=100"),
    **{
        f"sweep-congestion straggler.slowdown={n}": (f"straggler.slowdown={n}", "run.repetitions=1", "run.steps=24")
        for n in (1, 2, 4, 8)
    },
}
"""By name (a plan of topologies/ up to the first blank): changes to the plan. Links need rates, else the machine limits.

Runs of flexrr vary in both: messages that meet on the server's link in a step decide which ones meet in the next. So
means of several runs are compared.
"""


@dataclass(frozen=True, slots=True)
class MininetAgreement:
    """A policy of a plan: mean iteration times in seconds."""

    plan: str
    policy: str
    simulated_s: float
    mininet_s: tuple[float, ...]
    """One for each run, in ascending order."""

    @property
    def difference(self) -> float:
        """Relative difference of the simulator's time from Mininet's median."""
        return self.simulated_s / statistics.median(self.mininet_s) - 1


def compare(folder: Path, names: Iterable[str], repeat: int, progress: Progress) -> Iterator[MininetAgreement]:
    """Runs plans on both. Args: folder: of the plan files; repeat: number of runs in Mininet. Raises: SaAtpError."""
    for name in names:
        path = folder / f"{name.split(',')[0].split()[0]}.toml"
        plan = plan_files.load(path, SETTINGS[name])
        on_both = tuple(p for p in plan.run.policies if all(b in policies.find(p).backends for b in BACKENDS))
        plan = replace(plan, run=replace(plan.run, policies=on_both))
        simulated, *emulated = (
            _means(plans.placed(plan, backend), path, progress) for backend in ("sim", *["mininet"] * repeat)
        )
        for policy in on_both:
            yield MininetAgreement(name, policy, simulated[policy], tuple(sorted(run[policy] for run in emulated)))


def _means(plan: Plan, path: Path, progress: Progress) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        result = runner.run(plan, str(path), Path(folder), progress)
    return {each.policy: each.mean_s or 0.0 for each in stats.policies(result)}


def lines(rows: Iterable[MininetAgreement]) -> Iterator[str]:
    """The rows as a Markdown table."""
    yield "| plan | policy | simulator, ms | Mininet, ms | difference |"
    yield "|---|---|---|---|---|"
    for row in rows:
        least, most = row.mininet_s[0], row.mininet_s[-1]
        spread = f" ({1e3 * least:.0f} to {1e3 * most:.0f})" if len(row.mininet_s) > 1 else ""
        yield (
            f"| {row.plan} | {row.policy} | {1e3 * row.simulated_s:.1f} "
            f"| {1e3 * statistics.median(row.mininet_s):.1f}{spread} | {100 * row.difference:+.1f} % |"
        )


def main(arguments: Sequence[str]) -> None:
    """Raises: SaAtpError."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=f"of: {'; '.join(SETTINGS)}")
    parser.add_argument("--repeat", type=int, default=3, help="runs in Mininet (default: 3)")
    parser.add_argument("--plans", type=Path, default=Path("topologies"), help="folder (default: topologies)")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.settings if name not in SETTINGS]
    if unknown:
        raise UserError(f"setting {unknown[0]!r}: expected one of {'; '.join(SETTINGS)}")
    if chosen.repeat < 1:
        raise UserError(f"--repeat {chosen.repeat}: expected 1 or more")
    for line in lines(compare(chosen.plans, chosen.settings or SETTINGS, chosen.repeat, Progress())):
        print(line, flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SaAtpError as error:
        sys.exit(f"mininet_agreement: {error}")
