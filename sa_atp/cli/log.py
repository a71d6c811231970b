"""`sa-atp log`: the decisions that connections have logged, as text."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import meant

if TYPE_CHECKING:
    from sa_atp.net.logs.reading import LogFile
    from sa_atp.protocol.log.event import Event

WHO, WHAT = 16, 26  # characters of columns


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "log",
        help="print what ranks and the parameter server decided",
        description="Prints logs that `--log DIR` or SA_ATP_LOG=DIR has had written, one line an event, in the order of "
        "time: seconds since the first, whose, what, and its fields. docs/log.md says what events mean.",
    )
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE|DIR", help="logs, or folders that have some")
    parser.add_argument("--category", action="append", default=[], metavar="NAME",
                        help="only events of this category, as `recovery`, or of this name; may be repeated")  # fmt: skip
    parser.add_argument("--rank", action="append", default=[], metavar="N",
                        help="only what this rank has logged, or `server`; may be repeated")  # fmt: skip
    parser.add_argument("--step", type=int, metavar="N", help="only events about this step (help)")
    parser.add_argument("--operation", type=int, metavar="N", help="only events about this sum")
    parser.add_argument("--events", action="store_true", help="print which events there are, in Markdown")
    parser.set_defaults(run=run, waits="reading the logs")


def run(options: argparse.Namespace) -> int:
    from sa_atp.net.logs import reading
    from sa_atp.protocol.log import lines

    if options.events:
        print(lines.tables(), end="")
        return 0
    if not options.files:
        raise UserError("sa-atp log: which one? Expected a file, or a folder that has some, as runs/demo/log")
    for name in options.category:
        if name not in lines.CATEGORIES and name not in lines.KINDS:
            close = meant(name, (*lines.CATEGORIES, *lines.KINDS))
            raise UserError(
                f"--category {name}: expected one of {', '.join(lines.CATEGORIES)}, or the name of an event{close}"
            )
    for name in options.rank:
        if name != "server" and not name.isdecimal():
            raise UserError(f"--rank {name}: expected the number of a rank, or `server`")
    logs = [reading.read(path) for path in reading.below(options.files)]
    origin_us = min((time_us for log in logs for time_us, _ in log.events), default=0)
    found = [(time_us, who, event) for log in logs for time_us, who, event in _wanted(log, options)]
    for time_us, who, event in sorted(found, key=lambda each: each[0]):
        said = ", ".join(f"{name} {_text(value)}" for name, value in lines.fields(event).items())
        print(f"{(time_us - origin_us) / 1e6:12.6f}  {who:{WHO}}  {event.name:{WHAT}}  {said}")
    return 0


def _wanted(log: "LogFile", options: argparse.Namespace) -> "Iterator[tuple[int, str, Event]]":
    if options.rank and ("server" if log.rank is None else str(log.rank)) not in options.rank:
        return
    who = log.header.trace.vantage_point.name
    for time_us, event in log.events:
        if options.category and event.name not in options.category and _category(event) not in options.category:
            continue
        if options.step is not None and getattr(event, "step", None) != options.step:
            continue
        if options.operation is not None and getattr(event, "operation", None) != options.operation:
            continue
        yield time_us, who, event


def _category(event: "Event") -> str:
    return event.name.partition(":")[0]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "[" + " ".join(map(_text, value)) + "]"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
