"""Control messages about the state of jobs: for people who ask why a job waits, and its counters. (protocol section 9.3)"""

from typing import Annotated

from msgspec import Meta, Struct, field

from sa_atp.protocol.packets.message_fields import (
    Bitmap,
    Checked,
    Message,
    Octet,
    Port,
    Rank,
    Seats,
    Seq,
)
from sa_atp.protocol.packets.spec import MOST_CONTRIBUTIONS, MOST_RANKS

LONGEST_NAME = 64  # characters of a job's name


class AskStats(Message, frozen=True, tag="stats"):
    """Asks for the job's counters."""


class Describe(Message, frozen=True, tag="describe"):
    """Asks which jobs there are, and for their state; for tools on the server's host or a worker's. (section 9.3)"""

    job: Octet
    rank: Annotated[int, Meta(ge=0, le=MOST_RANKS)]
    pad: str = ""
    """Makes the question as long as the longest answer, so that a forged question is not amplified."""


class FailureSummary(Checked, frozen=True, kw_only=True):
    """A failure, as a Description has it."""

    reason: str
    ranks: Bitmap
    detail: str


class MemberStatus(Checked, frozen=True, array_like=True):
    """A worker as the parameter server sees it; on the wire a list without names, because every byte counts."""

    rank: Rank
    ip: str
    port: Port
    heard_ms: int
    """Time since it was last heard of."""
    still_ms: int
    """Time since it last made progress, or joined."""
    ahead: int | None
    """Its oldest fragment without a result, counted from the oldest of all ranks; None: not reported yet."""
    waiting: bool
    """Whether it has sums under way."""
    given: Bitmap
    """Contributions to the oldest of these sums that the program has handed to its transport."""
    held: Bitmap | None
    """Contributions to its oldest fragment that the switch held at the last probe; None: not probed."""
    left: bool
    """Whether it has left the job."""

    @property
    def address(self) -> tuple[str, int]:
        return self.ip, self.port


class Description(Message, frozen=True, tag="description"):
    """Answers Describe: one job, and as many of its members as fit."""

    job: Octet | None = None
    """None: no job has this number, or a higher one."""
    name: Annotated[str, Meta(max_length=LONGEST_NAME)] = ""
    epoch: Octet = 0
    state: Annotated[str, Meta(max_length=32)] = ""
    world_size: Annotated[int, Meta(ge=0, le=MOST_RANKS)] = 0
    micro_batches: Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS)] = 0
    seats: Seats = 0
    joined: Bitmap = 0
    oldest: Seq = 0
    failure: FailureSummary | None = None
    members: list[MemberStatus] = field(default_factory=list)
    switch: Annotated[str, Meta(max_length=21)] = ""
    """The address for contributions, HOST:PORT; empty: the parameter server's own, with the switch on the way."""
    next: tuple[Octet, Annotated[int, Meta(ge=0, le=MOST_RANKS)]] | None = None
    """Job and rank of the next question; None: that was all."""


class JobCounters(Struct):
    """The parameter server's counters of a running job. (section 8)"""

    results_kept: int = 0
    """Fragments whose sum a switch finished."""
    finished_here: int = 0
    """Fragments whose sum the parameter server finished."""
    added: int = 0
    """Packets added by the parameter server: collisions, partial sums, hand-overs."""
    duplicates: int = 0
    """Contributions and results that had arrived before, or are no longer needed."""
    overlaps: int = 0
    probes: int = 0
    served: int = 0
    """Stored results sent to workers that missed them."""
    malformed: int = 0
    foreign: int = 0
    stale: int = 0
    beyond: int = 0
    questions: int = 0
    """Questions about help that the ledger answered, repetitions not counted."""


class JobStats(  # type: ignore[misc]  # a frozen copy of counters that change
    JobCounters, Message, frozen=True, tag="stats", omit_defaults=False
):
    """Answers AskStats: the counters, and those of the ledger of help."""

    helped_micro_batches: int = 0
    backups: int = 0
