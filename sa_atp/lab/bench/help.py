"""`sa-atp bench help`: setting by setting, the time of a step without help, with help, and its bound, in virtual time.

The table does not depend on the machine: the same release makes the same bytes. docs/help-table.md is the committed
one, and docs/help-table.json has its numbers; `--out docs` writes both.
"""

import argparse
import fnmatch
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from sa_atp.basics import terminal
from sa_atp.basics.errors import UserError
from sa_atp.basics.folders import make_folder
from sa_atp.lab.backends import simulated
from sa_atp.lab.bench import help_cost, help_rules
from sa_atp.lab.bench.help_bound import bound_us
from sa_atp.lab.bench.help_settings import HelpSetting, draw_settings, table
from sa_atp.lab.report import stats
from sa_atp.lab.runs.pool import pool
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun

IN_DOUBT = 12  # repetitions of a drawn setting in which help may do harm
ERRORS_OF_DOUBT = 4  # a setting is in doubt within so many standard errors: losses have heavy tails
MOST_WORSE = 1.02  # ratio of SA-ATP's step time to ATP's; above it, help does harm


@dataclass(frozen=True, slots=True)
class HelpRow:
    """A row of the table. Times are means over the counted steps of the job, in milliseconds."""

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
    """Micro-batches that helpers contributed per step."""
    questions: float
    """Requests of all workers to the parameter server's ledger per step."""
    sums_wrong: int
    spread: float = 0.0
    """Standard error of the ratio, if the setting was repeated with other losses."""
    heard_ms: float = 0.0
    """The bound that counts the age of knowledge, see help_bound; 0: not computed."""

    @property
    def does_harm(self) -> bool:
        """Whether SA-ATP is slower by more than MOST_WORSE, beyond two standard errors."""
        return self.ratio - 2 * self.spread > MOST_WORSE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="PATTERN", default="*",
                        help="only settings whose name contains this; * and ? as in file names")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N",
                        help="settings simulated concurrently (default: the number of CPUs)")  # fmt: skip
    parser.add_argument("--draw", type=int, metavar="N", help="simulate N random settings instead of the table's")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="seed of --draw (default: %(default)s)")
    parser.add_argument("--cost", action="store_true",
                        help="measure what the ledger's answers cost, over the number of workers")  # fmt: skip
    parser.add_argument("--ablate", action="store_true",
                        help="switch each rule of help off, to see what it is worth")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR",
                        help="write help-table.md and help-table.json there; with --ablate help-rules.md")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list the settings, with the keys that each changes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Raises: UserError, SaAtpError."""
    if options.cost:
        return _run_cost(select(help_cost.settings(), options.only), as_json=options.json)
    if options.jobs < 1:
        raise UserError(f"--jobs {options.jobs}: expected at least 1")
    if options.ablate:
        return _run_ablate(select(help_rules.settings(), options.only), options)
    if options.draw is not None and options.draw < 1:
        raise UserError(f"--draw {options.draw}: expected at least 1")
    chosen = select(table() if options.draw is None else draw_settings(options.draw, options.seed), options.only)
    if options.list:
        for setting in chosen:
            print(f"{setting.name}: {' '.join(setting.changes)}")
        return 0
    if options.out is not None:
        make_folder(options.out)  # fails before minutes are spent
    rows = []
    for row in measure(chosen, options.jobs):
        rows.append(row)
        times = f"{row.atp_ms:.1f} ms, {row.sa_atp_ms:.1f} ms, at best {row.bound_ms:.1f} ms, {_ratio_text(row)}"
        print(f"[{len(rows)} of {len(chosen)}] {row.setting}: {times}", file=sys.stderr, flush=True)
    if options.out is not None:
        write(rows, options.out)
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
    else:
        _print(rows)
    return 1 if any(row.sums_wrong for row in rows) else 0


def _run_ablate(settings: Sequence[HelpSetting], options: argparse.Namespace) -> int:
    found = []
    if options.out is not None:
        make_folder(options.out)
    for worth in help_rules.measure(settings, options.jobs):
        found.append(worth)
        print(help_rules.row(worth), file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.out is not None:
        help_rules.write(found, len(settings), options.out)
    if options.json:
        print(json.dumps({"rules": [asdict(worth) for worth in found]}))
    return 0


def _run_cost(settings: Sequence[HelpSetting], *, as_json: bool) -> int:
    rows = [help_cost.measure(setting, Progress()) for setting in settings]
    if as_json:
        print(json.dumps({"rows": [asdict(row) | {"share": row.share} for row in rows]}))
        return 0
    shown = Table("setting", "a step", "questions\nper step", "time of\nan answer", "share of\na core", box=None)
    for row in rows:
        shown.add_row(
            row.setting, f"{row.step_ms:.0f} ms", f"{row.questions:.1f}", f"{row.answer_us:.0f} us", f"{row.share:.1%}"
        )
    terminal.print_table(terminal.console(), shown)
    return 0


def select(settings: Sequence[HelpSetting], pattern: str) -> list[HelpSetting]:
    """Settings whose names contain the pattern. Raises: UserError: there is none."""
    found = [s for s in settings if fnmatch.fnmatchcase(s.name, f"*{pattern}*")]
    if not found:
        raise UserError(f"--only {pattern!r}: no setting has this in its name; --list shows all")
    return found


def measure(settings: Sequence[HelpSetting], jobs: int) -> Iterator[HelpRow]:
    """A row for each setting, in order. Raises: SaAtpError."""
    if jobs == 1 or len(settings) == 1:
        yield from map(measure_one, settings)
        return
    with pool(min(jobs, len(settings))) as processes:
        yield from processes.map(measure_one, settings)


def measure_one(setting: HelpSetting, *, once: bool = False) -> HelpRow:
    """Simulates one setting, repeatedly if it is in doubt whether help does harm. Raises: SaAtpError.

    Args: once: never repeat, which takes a fifth of the time and shows less.
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
    times = {policy: np.array([stats.mean_step_ms(run, counted) for run in runs[policy]]) for policy in runs}
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
        heard_ms=round(bound_us(plan, counted, with_age=True) / 1000, 3),
    )


def _spread(atp: NDArray[np.float64], sa_atp: NDArray[np.float64]) -> float:
    """Standard error of the ratio of two means, from repetitions of each; 0 for a single one."""
    if len(atp) == 1:
        return 0.0
    relative = [float(times.std(ddof=1) / times.mean()) / len(times) ** 0.5 for times in (atp, sa_atp)]
    return float(sa_atp.mean() / atp.mean()) * math.hypot(*relative)


# --- the table ------------------------------------------------------------------------------------------------------------

HEAD = """# Help, setting by setting

Mean time of a training step in virtual time (the simulator runs the same connections and the same switch program):
without help (ATP), with help (SA-ATP), and a lower bound that includes devices and links. `sa-atp bench help --out
docs` writes this file and `help-table.json` again, byte for byte; a test computes some rows again, and fails if one is
worse than here by more than 2 %.

The bound: during a step of time T, a worker cannot compute for l + max(u, d), where u and d are the times that its link is
busy with one contribution up and with the sum down, and l is the delay there and back; T is the smallest time in which all
workers together can compute the step's work. With instantaneous links this is total work over total speed. A worker that
pauses cannot compute, either; each step counts the average share of a pause. `with age` counts the age of knowledge: where
a straggler is not that of the step before, nobody helps before its first micro-batch is over and the word of it has gone to
the parameter server and back.

Unless a setting's name says otherwise, it is that of `topologies/demo.toml`: 4 workers with 16 micro-batches of 12 ms,
links of 10 Gbit/s and 20 us, and one worker (the last) four times slower. But gradients are random numbers, as many as
the demo's network has, and a seventh of that with 8 or more workers. 8 workers have 8 micro-batches each; 16, 32 and 64
have 32, 16 and 8, for which the switch needs the build with 512 contributions ([protocol section
1.3](protocol.md#13-how-many-ranks-and-pieces)). `sa-atp bench help --list` prints each setting as keys of a plan file.
`random` slows one worker down by a factor of 2 to 8, drawn anew for each step; `pause` stops one worker for 1 s in
every fourth step; where each of 6 workers pauses, a pause is as long as three shards. The last two columns count, per
step, the micro-batches that helpers contributed, and the requests of all workers to the parameter server's ledger. Of 14
steps (24 with heterogeneous links, other traffic or 6 workers, 10 with 8 or more workers, 60 where no work can be
cancelled) the first three do not count.

Random settings: `sa-atp bench help --draw 100 --seed 1` draws workers, links, delays, losses, stragglers and racks.
Steps count from the first pause on. Settings with losses are repeated three times, and twelve times if the ratio may be
above 1.02 within four standard errors. Of seeds 1 and 2 all but the three longest were measured, not all of them with the
final rules. Three with losses did harm, up to 1.8 times ATP's time, by faults that are mended. Now the highest ratios are
1.22 (with an error of 0.06), 1.07 (0.03), 1.04 (0.01) and 1.03 (0.01). The first is a network that loses 3 % on each of
four links and has round trips of 66 ms, in which ATP takes four times as long as without losses. Without losses, where
ratios are exact, the highest is 1.017. Other traffic is not drawn: where it takes half of a link of 20 Mbit/s and each link
has a delay of 8 ms, the ratio is 1.10, as the congested worker waits for an answer before it contributes, which plans do
not count.
"""


def markdown(rows: Sequence[HelpRow]) -> str:
    """The table as a document."""
    lines = [HEAD, "| setting | ATP, ms | SA-ATP, ms | bound, ms | with age | SA-ATP / ATP | SA-ATP / bound | helped | "
             "requests |", "|---|--:|--:|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    lines += [
        f"| {r.setting} | {r.atp_ms:.1f} | {r.sa_atp_ms:.1f} | {r.bound_ms:.1f} | {r.heard_ms:.1f} | "
        f"{r.ratio:.2f} | {r.to_bound:.2f} | "
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


def _ratio_text(row: HelpRow) -> str:
    return f"{row.ratio:.3f}" + (f" ± {row.spread:.3f}" if row.spread else "")


def _print(rows: Sequence[HelpRow]) -> None:
    numbers = ("ATP", "SA-ATP", "bound", "SA-ATP / ATP", "SA-ATP / bound", "helped", "requests")
    shown = terminal.table([""], numbers)
    for r in rows:
        shown.add_row(r.setting, f"{r.atp_ms:.1f} ms", f"{r.sa_atp_ms:.1f} ms", f"{r.bound_ms:.1f} ms", _ratio_text(r),
                      f"{r.to_bound:.3f}", f"{r.helped:.1f}", f"{r.questions:.1f}")  # fmt: skip
    console = terminal.console()
    terminal.print_table(console, shown)
    worse = [r.setting for r in rows if r.does_harm]
    if worse:
        console.print(f"More than {MOST_WORSE - 1:.0%} slower with help: {'; '.join(worse)}")
