"""Slow ranks: a parameter server's report when jobs are over, and its sentences for people. (protocol section 7.7)"""

import json
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from sa_atp.basics import terminal
from sa_atp.basics.words import plural
from sa_atp.protocol.packets.lateness_messages import JobLateness, RankLateness, seconds
from sa_atp.protocol.server.job import Job

LEAST_SUMS = 3  # fewer say nothing of a rank


def as_line(job: Job) -> str:
    """Returns the report on a job that is over, or that runs when the parameter server ends, as a line of JSON."""
    found = msgspec.to_builtins(job.lateness.told())
    return json.dumps({"job": job.name, "epoch": job.epoch, "state": job.state.value, "stragglers": found})


def tell(lines: Iterable[str]) -> None:
    """Prints a table and a sentence for each job of which enough is known, on standard error. Args: lines: of as_line."""
    for line in lines:
        said = json.loads(line)
        found = msgspec.convert(said.get("stragglers", {"type": "lateness"}), JobLateness)
        if found.sums >= LEAST_SUMS and len(found.ranks) > 1:
            terminal.say(f"job {said['job']}, {plural(found.sums, 'sum')}: {found.verdict}")
            terminal.print_table(terminal.console(sys.stderr), _table(found))


def _table(found: JobLateness) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("rank", "late in", "last in", "mean", "total", "computing", "sending", "waited"):
        table.add_column(name, justify="right", min_width=len(name))
    for each in sorted(found.ranks, key=lambda each: each.rank):
        table.add_row(str(each.rank), str(each.late), str(each.last), *_times(each))
    return table


def _times(of: RankLateness) -> list[str]:
    mean = seconds(of.late_us / of.late) if of.late else "-"
    return [mean, *(seconds(us) for us in (of.late_us, of.computing_us, of.sending_us, of.waited_us))]
