"""Diagnoses a stuck job: from the parameter server's description to the ranks that it waits for, in words. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from sa_atp.protocol.job.errors import describe_ranks, no_answer
from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.packets.status_messages import MemberStatus
from sa_atp.protocol.server.job import State
from sa_atp.protocol.server.job_status import JobStatus

SILENT_MS = 1000  # workers give five signs of life a second
STILL_MS = 2000  # a job whose workers all made progress in this time is not stuck


@dataclass(frozen=True, slots=True)
class Diagnosis:
    verdict: str
    """One sentence."""
    ranks: tuple[int, ...]
    """The ranks that the job waits for; empty: none, or no rank is the cause."""
    stuck: bool
    members: tuple[str, ...]
    """A line of text for each worker that has joined."""


def diagnose(job: JobStatus) -> Diagnosis:
    verdict, ranks, stuck = _verdict(job)
    return Diagnosis(verdict, ranks, stuck, tuple(_line(job, member) for member in job.members))


def _verdict(job: JobStatus) -> tuple[str, tuple[int, ...], bool]:
    match job.state:
        case State.GATHERING:
            joined = f"{len(job.members)} of {job.world_size} have"
            return f"{describe_ranks(job.missing)} {_have(job.missing)} not joined; {joined}", job.missing, True
        case State.ADMITTING:
            return (
                "all ranks have joined; the switch has not confirmed the job: see the parameter server's log",
                (),
                True,
            )
        case State.FAILED:
            return f"it has failed: {job.failure or 'the reason is not known'}", job.failed_ranks, False
        case State.ENDED:
            if not job.members:
                return "it is over: all its ranks have stopped asking to join", (), False
            return "it is over: all ranks have left", (), False
    return _running(job)


def _running(job: JobStatus) -> tuple[str, tuple[int, ...], bool]:
    there = [member for member in job.members if not member.left]
    silent = tuple(m.rank for m in there if m.heard_ms > SILENT_MS)
    if silent:
        longest = max(m.heard_ms for m in there) / 1000
        return f"{describe_ranks(silent)} {_have(silent)} been silent for up to {longest:.1f} s", silent, True
    waiting = [m for m in there if m.waiting]
    still = [m for m in waiting if m.still_ms > STILL_MS]
    if not waiting:
        return "no rank waits: all are between two sums", (), False
    if not still:
        return "it makes progress", (), False
    behind = min(m.ahead or 0 for m in waiting)
    front = [m for m in waiting if (m.ahead or 0) == behind]
    given = 0
    for member in front:
        given |= member.given
    lacks = _lacks(job, given)
    owing = tuple(
        m.rank
        for m in job.members
        if (_own_bits(job, m.rank) & ~given or (lacks and not m.given)) and (m.ahead is None or m.ahead <= behind)
    )
    seconds = max(m.still_ms for m in still) / 1000
    where = f"fragment {(job.oldest + behind) & 0xFFFFFFFF}"
    if owing:
        others = [m.rank for m in still if m.rank not in owing] or [m.rank for m in still]
        return (
            f"{describe_ranks(owing)} {_owe(owing)} contributions to {where}, and {describe_ranks(others)} {_have(others)} "
            f"made no progress for {seconds:.1f} s: slow, or hanging between two sums",
            owing,
            True,
        )
    held = 0
    for member in front:
        held |= member.held or 0
    lost = tuple(rank for rank in range(job.world_size) if _own_bits(job, rank) & ~held) if held else ()
    others = [m.rank for m in still]
    is_heard = not job.switch or any(m.held is not None or m.ahead != behind for m in waiting)
    return (
        f"every rank has contributed to {where}, but {describe_ranks(others)} {_have(others)} had no result for "
        f"{seconds:.1f} s: {'packets are lost on the way' if is_heard else no_answer(job.switch)}"
        + (f"; the switch lacks those of {describe_ranks(lost)}" if lost else ""),
        lost,
        True,
    )


def _own_bits(job: JobStatus, rank: int) -> int:
    """Contributions that only this rank can send; with seats it may have none to send."""
    return ContributionMap(job.world_size, job.micro_batches, job.seats).bits_of(rank)


def _lacks(job: JobStatus, given: int) -> bool:
    """Whether a sum in a job with seats still lacks contributions, which any rank without one may owe."""
    return bool(job.seats) and given != ContributionMap(job.world_size, job.micro_batches, job.seats).fan_in


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _owe(ranks: Sequence[int]) -> str:
    return "owes" if len(ranks) == 1 else "owe"


def _line(job: JobStatus, member: MemberStatus) -> str:
    host, port = member.address
    parts = [f"rank {member.rank} at {host}:{port}", f"heard {member.heard_ms / 1000:.1f} s ago"]
    if member.left:
        parts.append("has left")
    elif job.state is State.RUNNING and member.ahead is not None:
        doing = "waits for" if member.waiting else "computes; next is"
        number = (job.oldest + member.ahead) & 0xFFFFFFFF
        parts.append(f"{doing} fragment {number} since {member.still_ms / 1000:.1f} s")
        missing = _own_bits(job, member.rank) & ~member.given
        if member.waiting and missing:
            done = job.micro_batches - missing.bit_count()
            parts.append(f"has contributed {done} of its {job.micro_batches} parts")
    return ", ".join(parts)
