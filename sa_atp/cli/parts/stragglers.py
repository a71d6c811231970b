"""Slow ranks: a parameter server's report when jobs are over, and its sentences for people. (protocol section 7.7)"""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from sa_atp.basics import terminal
from sa_atp.basics.words import plural
from sa_atp.protocol.packets.lateness_messages import JobLateness, RankLateness, seconds
from sa_atp.protocol.server.job import Job


def as_line(job: Job) -> str:
    """Returns the report on a job that is over, or that runs when the parameter server ends, as a line of JSON."""
    found = msgspec.to_builtins(job.lateness.told())
    return json.dumps({"job": job.name, "epoch": job.epoch, "state": job.state.value, "stragglers": found})


def tell(lines: Iterable[str]) -> None:
    """Prints a table and a sentence for each job of which enough is known, on standard error; the others of one size are
    told as one. Args: lines: of as_line.
    """
    short: dict[int, list[JobLateness]] = {}
    for line in lines:
        said = json.loads(line)
        found = msgspec.convert(said.get("stragglers", {"type": "lateness"}), JobLateness)
        if len(found.ranks) > 1 and not found.is_long_enough:
            short.setdefault(len(found.ranks), []).append(found)
        elif len(found.ranks) > 1:
            _tell(f"job {said['job']}", found)
    for size, jobs in short.items():
        _tell(f"{plural(len(jobs), 'short job')} of {size} ranks", put_together(jobs))


def put_together(jobs: Sequence[JobLateness]) -> JobLateness:
    """The lateness of each rank in all of these jobs, which have the same ranks."""
    totals: dict[int, list[int]] = {}
    for each in (each for job in jobs for each in job.ranks):
        mine = msgspec.structs.astuple(each)[1:]
        totals[each.rank] = [a + b for a, b in zip(totals.get(each.rank, [0] * len(mine)), mine, strict=True)]
    ranks = sorted((RankLateness(rank, *mine) for rank, mine in totals.items()), key=lambda each: -each.late_us)
    sums, lasted_us = sum(job.sums for job in jobs), sum(job.lasted_us for job in jobs)
    return JobLateness(sums=sums, ranks=ranks, lasted_us=lasted_us)


def _tell(of: str, found: JobLateness) -> None:
    terminal.say(f"{of}, {plural(found.sums, 'sum')}: {found.verdict}")
    if found.is_long_enough:
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
