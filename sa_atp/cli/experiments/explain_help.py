"""`sa-atp explain-help`: who did which work in one step of a run, why, and how long it should have taken."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics.errors import MissingPartError, UserError

if TYPE_CHECKING:
    from sa_atp.lab.report.help_step import Decision, HelpStep

MOST_SHOWN = 60  # decisions, without --all
TEXT = ("worker", "shard", "computed by worker", "copies", "what")  # columns that begin at the left


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "explain-help",
        help="explain who helped whom in one step of a run, and why",
        description="Prints, for one step of a run that was made with --log: what each worker held, was granted, gave back "
        "and did for others; when the parameter server expected it to be done, and when it was; who computed which "
        "micro-batches; and each decision in the order of time. Draws the same as bars, projected above real.",
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="what `sa-atp run --log --out RUN` has written")
    parser.add_argument("step", type=int, metavar="STEP", help="the step's number, from 0 on")
    parser.add_argument("--policy", metavar="NAME", help="the policy (default: the first one with help)")
    parser.add_argument("--repetition", type=int, default=0, metavar="N", help="from 0 on (default: %(default)s)")
    parser.add_argument("--log", type=Path, metavar="DIR", help="the run's logs (default: RUN/log)")
    parser.add_argument("--picture", type=Path, metavar="FILE",
                        help="a .png, .svg or .pdf file (default: RUN/figures/help-POLICY-STEP.png)")  # fmt: skip
    parser.add_argument("--all", action="store_true", help=f"print all decisions, not only the first {MOST_SHOWN}")
    parser.add_argument("--json", action="store_true", help="print one JSON object, and draw nothing without --picture")
    parser.set_defaults(run=run, waits="reading the logs")


def run(options: argparse.Namespace) -> int:
    """Explains the help in one step, as text or as a picture.

    Raises: UserError; MissingPartError: a picture was asked for and cannot be drawn.
    """
    from sa_atp.lab.report import files, help_step
    from sa_atp.lab.report.drawing import style

    if options.picture is not None and options.picture.suffix not in (f".{name}" for name in style.FORMATS):
        raise UserError(f"--picture {options.picture}: expected a name that ends in .{', .'.join(style.FORMATS)}")
    result = files.load(options.folder)
    found = help_step.explain(result, options.folder, options.step, options.policy, options.repetition, options.log)
    if options.json:
        print(json.dumps(_finite(asdict(found)), allow_nan=False))
    else:
        _print(found, None if options.all else MOST_SHOWN)
    default = options.folder / "figures" / f"help-{found.policy}-{found.step}.png"
    if options.picture is not None or not options.json:
        _draw(found, options.picture or default, is_wanted=options.picture is not None)
    return 0


def _draw(found: "HelpStep", path: Path, *, is_wanted: bool) -> None:
    from sa_atp.lab.report.drawing import help_bars, style

    try:
        style.require_matplotlib()
    except MissingPartError as missing:
        if is_wanted:
            raise
        print(f"sa-atp: no picture: {missing}", file=sys.stderr)
        return
    print(style.save(help_bars.draw(found), path), file=sys.stderr)


def _finite(value: Any) -> Any:
    """Data for JSON, in which numbers that are not known are null."""
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- text -----------------------------------------------------------------------------------------------------------------


def _print(found: "HelpStep", most: int | None) -> None:
    from sa_atp.basics import terminal

    console = terminal.console()
    again = f", repetition {found.repetition}" if found.repetition else ""
    console.print(f"Step {found.step} of {found.policy}{again}: {_ms(found.end_ms)}. Times since it began.\n")
    workers = _table("worker", "a piece", "own", "for others", "in vain", "revoked", "first projected", "last projected",
                     "real")  # fmt: skip
    for r in found.ranks:
        workers.add_row(str(r.rank), _ms(r.micro_batch_ms) if r.micro_batch_ms else "not known", str(r.computed),
                        str(r.helped), str(r.in_vain), str(r.revoked), _ms(r.first_done_ms), _ms(r.done_ms),
                        _ms(r.real_ms))  # fmt: skip
    terminal.print_table(console, workers)
    console.print()
    shards = _table("shard", "computed by worker", "copies")
    for shard in found.shards:
        shards.add_row(str(shard.shard), _who(shard.computed_by), _who(shard.copied_by))
    terminal.print_table(console, shards)
    console.print()
    decided = _table("at", "worker", "what", "done at", "sum at", "planned")
    for decision in found.decisions[:most]:
        decided.add_row(_ms(decision.at_ms), str(decision.rank), _what(decision), _ms(decision.done_ms),
                        _ms(decision.step_end_ms), _ms(decision.plan_end_ms))  # fmt: skip
    terminal.print_table(console, decided)
    left_out = 0 if most is None else max(0, len(found.decisions) - most)
    if left_out:
        console.print(f"{left_out} more: --all")


def _table(*columns: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in TEXT else "right")
    return table


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.1f} ms" if math.isfinite(milliseconds) else "–"


def _who(pieces: dict[int, list[int]]) -> str:
    return "; ".join(f"{rank}: {_ranges(numbers)}" for rank, numbers in sorted(pieces.items())) or "–"


def _ranges(numbers: Sequence[int]) -> str:
    """0-4 7 9-10"""
    found: list[list[int]] = []
    for n in sorted(numbers):
        if found and n == found[-1][1] + 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def _what(decision: "Decision") -> str:
    match decision.asked:
        case "revocation":
            return f"is asked to give back work (held {decision.held})"
        case "idle":
            return "has computed what it held"
        case "call":
            return f"is called for {_work(decision)}"
        case "claim":
            over = ", and gets no more" if decision.ends_own else ""
            return f"has begun {decision.begun} of its own, holds {decision.held}{over}"
    if decision.shard is None:
        return "offers to help, gets nothing"
    return f"offers to help, gets {_work(decision)}"


def _work(decision: "Decision") -> str:
    copy = "copies of " if decision.is_backup else ""
    return f"{copy}{_ranges(decision.micro_batches)} of shard {decision.shard}"
