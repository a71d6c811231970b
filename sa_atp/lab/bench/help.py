"""`sa-atp bench help`: setting by setting, what a step takes without help, with help, and at best, in virtual time.

Nothing of it depends on the machine: the same release makes the same table, byte for byte. The committed one is
docs/help-table.md, and docs/help-table.json with the same numbers; `--out docs` writes both.
"""

import argparse
import fnmatch
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from sa_atp.basics import terminal
from sa_atp.basics.errors import UserError
from sa_atp.basics.folders import make_folder
from sa_atp.lab.backends import simulated
from sa_atp.lab.bench.help_bound import bound_us
from sa_atp.lab.bench.help_settings import HelpSetting, drawn, table
from sa_atp.lab.report import stats
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun

IN_DOUBT = 12  # repetitions of a drawn setting that may be worse
ERRORS_OF_DOUBT = 4  # standard errors of three repetitions: losses have heavy tails, and these may all be lucky
MOST_WORSE = 1.02  # SA-ATP's step over ATP's: help that costs more than that does harm


@dataclass(frozen=True, slots=True)
class HelpRow:
    """Times are means over the counted steps of the job, in milliseconds."""

    setting: str
    atp_ms: float
    sa_atp_ms: float
    bound_ms: float
    """See help_bound."""
    ratio: float
    """SA-ATP's time over ATP's."""
    to_bound: float
    """SA-ATP's time over the bound."""
    helped: float
    """Micro-batches that helpers contributed, a step."""
    questions: float
    """Of all workers to the parameter server's ledger, a step."""
    sums_wrong: int
    spread: float = 0.0
    """Standard error of the ratio, where a setting was repeated with other losses."""

    @property
    def does_harm(self) -> bool:
        """Whether SA-ATP is slower by more than is allowed, and by more than losses make of it."""
        return self.ratio - 2 * self.spread > MOST_WORSE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="PATTERN", default="*",
                        help="settings whose name has this in it; * and ? as in file names")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N",
                        help="settings that are simulated at once (default: the number of CPUs)")  # fmt: skip
    parser.add_argument("--draw", type=int, metavar="N", help="so many settings drawn at random instead of the table's")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of --draw (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write help-table.md and help-table.json there")
    parser.add_argument("--list", action="store_true", help="name the settings, and what each has otherwise")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Raises: UserError, SaAtpError."""
    if options.jobs < 1:
        raise UserError(f"--jobs {options.jobs}: expected at least 1")
    if options.draw is not None and options.draw < 1:
        raise UserError(f"--draw {options.draw}: expected at least 1")
    chosen = select(table() if options.draw is None else drawn(options.draw, options.seed), options.only)
    if options.list:
        for setting in chosen:
            print(f"{setting.name}: {' '.join(setting.changes)}")
        return 0
    if options.out is not None:
        make_folder(options.out)  # before minutes are spent
    rows = []
    for row in measure(chosen, options.jobs):
        rows.append(row)
        times = f"{row.atp_ms:.1f} ms, {row.sa_atp_ms:.1f} ms, at best {row.bound_ms:.1f} ms, {_said_ratio(row)}"
        print(f"[{len(rows)} of {len(chosen)}] {row.setting}: {times}", file=sys.stderr, flush=True)
    if options.out is not None:
        write(rows, options.out)
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
    else:
        _print(rows)
    return 1 if any(row.sums_wrong for row in rows) else 0


def select(settings: Sequence[HelpSetting], pattern: str) -> list[HelpSetting]:
    """Those whose names have the pattern in them. Raises: UserError: none does."""
    found = [s for s in settings if fnmatch.fnmatchcase(s.name, f"*{pattern}*")]
    if not found:
        raise UserError(f"--only {pattern!r}: no setting has this in its name; --list names them all")
    return found


def measure(settings: Sequence[HelpSetting], jobs: int) -> Iterator[HelpRow]:
    """A row for each setting, in order. Raises: SaAtpError."""
    if jobs == 1 or len(settings) == 1:
        yield from map(measure_one, settings)
        return
    with ProcessPoolExecutor(min(jobs, len(settings))) as pool:
        yield from pool.map(measure_one, settings)


def measure_one(setting: HelpSetting, *, once: bool = False) -> HelpRow:
    """Simulates one setting, and more often where chance may have made it worse, or hidden it. Raises: SaAtpError.

    Args: once: not more often: which takes a fifth of the time, and shows less.
    """
    row = _measure(setting)
    if not once and row.spread and row.ratio + ERRORS_OF_DOUBT * row.spread > MOST_WORSE:
        return _measure(replace(setting, changes=(*setting.changes, f"run.repetitions={IN_DOUBT}")))
    return row


def _measure(setting: HelpSetting) -> HelpRow:
    plan = setting.plan
    runs: dict[str, list[PolicyRun]] = {policy: [] for policy in plan.run.policies}
    for run in simulated.run(plan, Progress()):
        runs[run.policy].append(run)
    counted = stats.counted_steps(runs["atp"][0], plan.run.warm_up)
    times = {policy: np.array([_mean_ms(run, counted) for run in runs[policy]]) for policy in runs}
    atp, sa_atp = (float(times[policy].mean()) for policy in ("atp", "sa-atp"))
    bound = bound_us(plan, counted) / 1000
    steps = plan.run.steps * plan.run.repetitions
    helped, questions = (sum(run.help[name] for run in runs["sa-atp"]) for name in ("micro_batches", "questions"))
    return HelpRow(
        setting=setting.name,
        atp_ms=round(atp, 3),
        sa_atp_ms=round(sa_atp, 3),
        bound_ms=round(bound, 3),
        ratio=round(sa_atp / atp, 4),
        to_bound=round(sa_atp / bound, 4),
        helped=round(helped / steps, 2),
        questions=round(questions / steps, 2),
        sums_wrong=sum(run.sums_wrong for policy in runs for run in runs[policy]),
        spread=round(_spread(times["atp"], times["sa-atp"]), 4),
    )


def _spread(atp: NDArray[np.float64], sa_atp: NDArray[np.float64]) -> float:
    """Standard error of the ratio of two means, from repetitions of each; 0 where there are none."""
    if len(atp) == 1:
        return 0.0
    relative = [float(times.std(ddof=1) / times.mean()) / len(times) ** 0.5 for times in (atp, sa_atp)]
    return float(sa_atp.mean() / atp.mean()) * math.hypot(*relative)


def _mean_ms(run: PolicyRun, counted: Sequence[int]) -> float:
    ends = stats.step_ends_s(run)
    took = dict(zip(ends, np.diff([0.0, *ends.values()]), strict=True))
    return 1000 * float(np.mean([took[step] for step in counted]))


# --- the table ------------------------------------------------------------------------------------------------------------

HEAD = """# Help, setting by setting

Mean time of a training step in virtual time (the simulator runs the same connections and the same switch program): without
help (ATP), with help (SA-ATP), and the bound that counts devices and links. `sa-atp bench help --out docs` makes this file
and `help-table.json` anew, byte for byte; a test makes some rows anew, and fails when one is worse than here by more than
2 %.

The bound: of a step's time T a worker cannot compute for l + max(u, d), where u and d are how long its link is busy with
one contribution up and with the sum down, and l the delay there and back; T is the least for which all together can compute
the step's work. With links that take no time it is total work over total speed. Who pauses
cannot compute either; each step counts as much of a pause as comes to it on average.

What a setting's name does not say is as in `topologies/demo.toml`: 4 workers with 16 micro-batches of 12 ms, links of
10 Gbit/s and 20 us, one worker (the last) four times slower. But gradients are random numbers, as many as the demo's
network has, and with 8 workers and more a seventh of that. 8 workers have 8 micro-batches each; 16, 32 and 64 have 32, 16
and 8, which takes the build with 512 contributions ([protocol section 1.3](protocol.md#13-how-many-ranks-and-pieces)).
`sa-atp bench help --list` says in the terms of a plan file what each one is. `random` slows down one worker by 2 to 8 in
each step, another one each time; `pause` stops one for 1 s in each fourth step. Helped are micro-batches that helpers
contributed, asked the questions of all workers to the parameter server's ledger, both a step.
Of 14 steps (24 with heterogeneous links, 10 with 8 workers or more) the first three are not counted.

Settings that nobody chose: `sa-atp bench help --draw 100 --seed 1` draws workers, links, distances, losses, stragglers
and racks. Pauses are counted from the first one on, and what loses packets is repeated three times; twelve times where the
ratio may be above 1.02 by chance, by four standard errors. 250 were drawn while the rules of help were made (all of seeds
1 and 2, half of seed 3), not each of them with the rules as they are. The ten that had ever been in doubt were repeated
twelve times in the end; the highest ratios are 1.016 (with an error of 0.022), 1.014 (0.010) and 1.013 (0.040). Where
nothing is lost, and ratios are exact, the highest is 1.013.
"""


def markdown(rows: Sequence[HelpRow]) -> str:
    """The table as a document."""
    lines = [HEAD, "| setting | ATP ms | SA-ATP ms | bound ms | to ATP | to bound | helped | asked |",
             "|---|--:|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    lines += [
        f"| {r.setting} | {r.atp_ms:.1f} | {r.sa_atp_ms:.1f} | {r.bound_ms:.1f} | {r.ratio:.2f} | {r.to_bound:.2f} | "
        f"{r.helped:.1f} | {r.questions:.0f} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def write(rows: Sequence[HelpRow], folder: Path) -> None:
    """Raises: UserError."""
    text = json.dumps({"rows": [asdict(row) for row in rows]}, indent=1) + "\n"
    try:
        (folder / "help-table.md").write_text(markdown(rows))
        (folder / "help-table.json").write_text(text)
    except OSError as error:
        raise UserError(f"--out {folder}: {error.strerror}") from None


def _said_ratio(row: HelpRow) -> str:
    return f"{row.ratio:.3f}" + (f" ± {row.spread:.3f}" if row.spread else "")


def _print(rows: Sequence[HelpRow]) -> None:
    shown = Table(box=None, pad_edge=False)
    for column in ("", "ATP", "SA-ATP", "bound", "to ATP", "to bound", "helped", "asked"):
        shown.add_column(column, justify="right" if column else "left")
    for r in rows:
        shown.add_row(r.setting, f"{r.atp_ms:.1f} ms", f"{r.sa_atp_ms:.1f} ms", f"{r.bound_ms:.1f} ms", _said_ratio(r),
                      f"{r.to_bound:.3f}", f"{r.helped:.1f}", f"{r.questions:.1f}")  # fmt: skip
    console = terminal.console()
    terminal.print_table(console, shown)
    worse = [r.setting for r in rows if r.does_harm]
    if worse:
        console.print(f"More than {MOST_WORSE - 1:.0%} slower with help: {'; '.join(worse)}")
