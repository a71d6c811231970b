"""Describes the parameter server's jobs to tools that look for the cause of a stuck one. (protocol section 9.3)

An answer describes one job, the first whose number is not below the one asked for, and as many of its members as fit;
`next` is the question for the rest. The question changes nothing. Programs on the server's host, and on hosts of
workers that have joined, get an answer; others are refused. The question is as long as the longest answer, so that a
forged one is not amplified.
"""

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from sa_atp.protocol.job.errors import TransportError
from sa_atp.protocol.job.serial import serial_distance
from sa_atp.protocol.packets.control import MAX_BYTES, Alive, MalformedError, Refused, Reply, encode, plain, type_of
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.spec import MOST_RANKS
from sa_atp.protocol.packets.status_messages import Describe, Description, FailureSummary, MemberStatus
from sa_atp.protocol.server.job import Job, Member, State

MAX_DETAIL = 160  # characters of a failure's explanation
LONGEST_MEMBER = 90  # bytes of the description of a member, without its two bitmaps


# --- the server's side
# ----------------------------------------------------------------------------------------------------


def may_ask(jobs: Mapping[int, Job], is_here: Callable[[str], bool], address: Address) -> bool:
    """Whether a question from this address gets an answer. Args: is_here: tells the addresses of the server's host."""
    ip = address[0]
    if is_here(ip) or ipaddress.ip_address(ip).is_loopback:
        return True
    return any(member.address[0] == ip for job in jobs.values() for member in job.members.values())


def question(job: int, rank: int) -> Describe:
    """A question, padded to the length of the longest answer."""
    bare = Describe(job=job, rank=rank, pad=".")
    return replace(bare, pad="." * (MAX_BYTES - len(encode(bare, request=0)) + 1))


def answer(
    jobs: Mapping[int, Job], asked: Describe, packet_bytes: int, now_us: int, *, known: bool = True, switch: str = ""
) -> Description | Refused:
    """The answer to a question. Raises: MalformedError.

    Args: known: whether the asker may have an answer. switch: address for contributions; "": the server's own.
    """
    if packet_bytes < MAX_BYTES:
        raise MalformedError(f"a describe message must have {MAX_BYTES} bytes")
    if not known:
        return Refused(reason="only tools on its own host, and on hosts of workers that have joined, get an answer")
    found = min((n for n in jobs if n >= asked.job), default=None)
    if found is None:
        return Description()
    job = jobs[found]
    ranks = [r for r in sorted(job.members) if r >= asked.rank or found != asked.job]
    reply = replace(_of_job(job), switch=switch)
    room = MAX_BYTES - LONGEST_MEMBER - 2 * len(str(1 << job.contribution_bits))
    for rank in ranks:
        status = _of_member(job, job.members[rank], now_us)
        reply = replace(reply, members=[*reply.members, status], next=(found, rank + 1))
        longest = replace(reply, next=(255, MOST_RANKS))
        if len(encode(longest, request=0, reply=True)) > room:
            break
    if not ranks or reply.next is None or reply.next[1] > ranks[-1]:
        reply = replace(reply, next=(found + 1, 0) if any(n > found for n in jobs) else None)
    return reply


def note_sign_of_life(member: Member, sign: Alive, now_us: int) -> None:
    """Keeps the parts of a worker's sign of life that a description needs."""
    if sign.oldest != member.oldest:
        member.moved_us = now_us
    member.waiting, member.given, member.held = sign.waiting, sign.given, sign.held


def status_of(job: Job, now_us: int, switch: str = "") -> "JobStatus":
    """A job with all its members. Args: switch: see `answer`."""
    members = [_of_member(job, member, now_us) for _, member in sorted(job.members.items())]
    return _status(replace(_of_job(job), members=members, switch=switch), job.number, ())


def _of_job(job: Job) -> Description:
    failure = None
    if job.failure is not None:
        failure = FailureSummary(
            reason=job.failure.reason,
            ranks=_bitmap(job.failure.ranks),
            detail=plain(job.failure.detail, MAX_DETAIL),
        )
    return Description(
        job=job.number,
        name=job.name,
        epoch=job.epoch,
        state=job.state.value,
        world_size=job.world_size,
        micro_batches=job.micro_batches,
        seats=job.seats,
        joined=_bitmap(job.members),
        oldest=job.sums.oldest_seq,
        failure=failure,
    )


def _of_member(job: Job, member: Member, now_us: int) -> MemberStatus:
    return MemberStatus(
        rank=member.rank,
        ip=member.address[0],
        port=member.address[1],
        heard_ms=(now_us - member.heard_us) // 1000,
        still_ms=(now_us - member.moved_us) // 1000,
        ahead=None if member.oldest is None else serial_distance(job.sums.oldest_seq, member.oldest),
        waiting=member.waiting,
        given=member.given,
        held=member.held,
        left=member.left_at is not None,
    )


def _bitmap(ranks: Iterable[int]) -> int:
    return sum(1 << rank for rank in ranks)


# --- the side that asks
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobStatus:
    number: int
    name: str
    epoch: int
    state: State
    world_size: int
    micro_batches: int
    seats: int
    """The sum is that of the first so many ranks; 0: of all ranks."""
    missing: tuple[int, ...]
    """Ranks that have not joined."""
    oldest: int
    """Sequence number of the oldest fragment that some rank may still need."""
    failure: str | None
    failed_ranks: tuple[int, ...]
    members: tuple[MemberStatus, ...]
    switch: str = ""
    """Address for contributions, HOST:PORT; "": the parameter server's own, with the switch on the way."""


class JobStatusQuery:
    """Collects answers: ask for `position` until it is None."""

    def __init__(self) -> None:
        self.position: tuple[int, int] | None = (0, 0)
        self.jobs: dict[int, JobStatus] = {}

    def receive(self, reply: Reply) -> None:
        """Takes the answer to the question for `position`. Raises: TransportError: a refusal; MalformedError."""
        if isinstance(reply, Refused):
            raise TransportError(f"the parameter server does not describe its jobs: {reply.reason}")
        if not isinstance(reply, Description):
            raise MalformedError(f"the answer is of type {type_of(reply)!r}")
        asked, self.position = self.position, reply.next
        if self.position is not None and asked is not None and self.position <= asked:
            raise MalformedError("next does not advance")
        if reply.job is not None:
            before = self.jobs[reply.job].members if reply.job in self.jobs else ()
            self.jobs[reply.job] = _status(reply, reply.job, before)


def _status(described: Description, number: int, before: tuple[MemberStatus, ...]) -> JobStatus:
    try:
        state = State(described.state)
    except ValueError:
        raise MalformedError(f"a job cannot be {described.state!r}") from None
    return JobStatus(
        number=number,
        name=described.name,
        epoch=described.epoch,
        state=state,
        world_size=described.world_size,
        micro_batches=described.micro_batches,
        seats=described.seats,
        missing=tuple(rank for rank in range(described.world_size) if not described.joined >> rank & 1),
        oldest=described.oldest,
        failure=None if described.failure is None else described.failure.detail,
        failed_ranks=() if described.failure is None else _ranks(described.failure.ranks),
        members=(*before, *described.members),
        switch=described.switch,
    )


def _ranks(bits: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(MOST_RANKS) if bits >> rank & 1)
