"""What a worker did in a step, and names for all of its time."""

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
    """A micro-batch that a worker has computed, and when it was done with it, in the host's microseconds."""

    step: int
    """Of which the micro-batch is: where parameters are on a server it may be another than the worker's own."""
    shard: int
    micro_batch: int
    end_us: int


@dataclass(slots=True)
class StepRecord:
    """What one worker did in one step."""

    step: int
    start_us: int
    end_us: int = 0
    activities: list[Activity] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    micro_batches: int = 0
    """Of its own shard that it computed."""
    helped: int = 0
    """Of other shards."""
    pieces: list[Piece] = field(default_factory=list)
    """All that it computed and gave into a sum or an update. Another worker may have given the same ones: which of them
    counts can only be said where all records are known (runs.collect)."""
    dropped: int = 0
    """Micro-batches that it computed and gave nowhere."""
    is_finished: bool = True
    """Whether it got to the end of the step; the job may be over before."""
    samples: int = 0
    """Of its shard; 0: as many as everybody's."""
    computed: list[tuple[int, int, Values]] = field(default_factory=list)
    """(shard, micro-batch, gradient) of everything that it contributed; forgotten when it has been checked."""

    def seconds(self, *kinds: str) -> float:
        return sum(a.end_us - a.start_us for a in self.activities if a.kind in kinds) / 1e6


def account(record: StepRecord, contributed_us: int, sending: Sequence[tuple[int, int]]) -> None:
    """Names what is left of a step's time, so that its activities cover it without a gap: sending, or waiting.

    Args:
        contributed_us: when it had contributed; before, between pieces of work, it waits: for the answer to a claim, or
            for its turn on a core.
        sending: from when to when its contribution left, in order. Whatever is between is waiting: for room in the
            window, which others make by sending; or for something that was lost and is sent again.
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
