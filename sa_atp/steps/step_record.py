"""The record of a worker's step, in which every stretch of time has a name."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sa_atp.basics.arrays import Values


@dataclass(slots=True)
class Activity:
    """A stretch of time, in the host's microseconds."""

    kind: str
    start_us: int
    end_us: int
    label: str = ""


class Piece(NamedTuple):
    """A micro-batch that a worker has computed, and when it was done, in the host's microseconds."""

    step: int
    """The micro-batch's step; with parameters on a server it may be another than the worker's own."""
    shard: int
    micro_batch: int
    end_us: int


@dataclass(slots=True)
class StepRecord:
    """The record of one worker's step."""

    step: int
    start_us: int
    end_us: int = 0
    activities: list[Activity] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    micro_batches: int = 0
    """Micro-batches of its own shard that it computed."""
    helped: int = 0
    """Micro-batches of other shards that it computed."""
    pieces: list[Piece] = field(default_factory=list)
    """Micro-batches that it computed and contributed. Another worker may have contributed the same; only with all
    records together (runs.collect) is it known which of them counts."""
    dropped: int = 0
    """Micro-batches that it computed and did not contribute."""
    is_finished: bool = True
    """Whether it got to the end of the step; the job may end before."""
    samples: int | None = None
    """Samples of its shard; None: all shards have the same number."""
    computed: list[tuple[int, int, Values]] = field(default_factory=list)
    """(shard, micro-batch, gradient) of everything that it contributed; cleared when it has been checked."""


def account(record: StepRecord, contributed_us: int, sending: Sequence[tuple[int, int]]) -> None:
    """Names the rest of a step's time as sending or waiting, so that activities cover the step without a gap.

    Args:
        contributed_us: when the worker had contributed. Before, time between pieces of work is waiting: for the answer
            to a report, or for a core.
        sending: stretches in which the contribution left, in order. Time between them is waiting: for room in the
            window, or for lost packets to be sent again.
    """
    busy = sorted((a.start_us, a.end_us) for a in record.activities)
    at = record.start_us
    for busy_from, busy_until in [*busy, (record.end_us, record.end_us)]:
        for start, end in sending:
            start, end = max(at, contributed_us, start), min(end, busy_from)
            if end > start:
                _add(record, "wait", at, start)
                _add(record, "send", start, end)
                at = end
        _add(record, "wait", at, busy_from)
        at = max(at, busy_until)
    record.activities.sort(key=lambda a: a.start_us)


def _add(record: StepRecord, kind: str, start_us: int, end_us: int) -> None:
    if end_us > start_us:
        record.activities.append(Activity(kind, start_us, end_us))
