"""What the parameter server tells about its jobs to whoever looks for the reason why one is stuck. (protocol section 9.3)

    question  {"type": "describe", "job": first job number, "rank": first rank, "pad": "..."}
    answer    {"type": "description", "job": ..., ..., "members": [...], "next": [job, rank] or null}

An answer tells of one job: the first whose number is not below the one asked for, and as many of its members as fit.
`next` is what to ask for the rest. The question changes nothing. It is answered to programs on the same host, and on
hosts from which a worker has joined; others are refused. It must be as long as the longest answer: so a forged one cannot
make the server send more than the forger did.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from sa_atp.spec import CONTRIBUTION_BITS
from sa_atp.transport.errors import TransportError
from sa_atp.transport.job import Job, Member, State
from sa_atp.transport.serial import serial_distance
from sa_atp.wire.datagrams import Address
from sa_atp.wire.messages import MAX_BYTES, Body, MalformedError, encode, integer, text

MAX_DETAIL = 160  # characters of a failure's explanation
LONGEST_MEMBER = 130  # bytes of the list that tells of one
ALL_BITS = (1 << CONTRIBUTION_BITS) - 1


# --- the server's side ----------------------------------------------------------------------------------------------------


def may_ask(jobs: Mapping[int, Job], own_ip: str | None, address: Address) -> bool:
    """Whether somebody at this address gets an answer."""
    ip = address[0]
    if ip == own_ip or ipaddress.ip_address(ip).is_loopback:
        return True
    return any(member.address[0] == ip for job in jobs.values() for member in job.members.values())


def question(job: int, rank: int) -> Body:
    """What to send, as long as the answer may be."""
    body: Body = {"type": "describe", "job": job, "rank": rank, "pad": ""}
    body["pad"] = "." * (MAX_BYTES - len(encode(body, request=0)))
    return body


def answer(jobs: Mapping[int, Job], body: Body, packet_bytes: int, now_us: int, *, known: bool = True) -> Body:
    """Args: known: who asks may know. Raises: MalformedError."""
    if packet_bytes < MAX_BYTES:
        raise MalformedError(f"a describe message must have {MAX_BYTES} bytes")
    if not known:
        return {"type": "refused", "reason": "it tells that on its own host, and on those of workers that have joined"}
    number = integer(body, "job", 0, 255)
    rank = integer(body, "rank", 0, CONTRIBUTION_BITS)
    found = min((n for n in jobs if n >= number), default=None)
    if found is None:
        return {"type": "description", "job": None, "next": None}
    job = jobs[found]
    reply = _job_body(job)
    members = [job.members[r] for r in sorted(job.members) if r >= rank or found != number]
    reply["members"] = []
    for member in members:
        reply["members"].append(_member_body(job, member, now_us))
        reply["next"] = [found, member.rank + 1]
        if len(encode({**reply, "next": [255, CONTRIBUTION_BITS]}, request=0, reply=True)) > MAX_BYTES - LONGEST_MEMBER:
            break
    if not members or reply["next"][1] > members[-1].rank:
        reply["next"] = [found + 1, 0] if any(n > found for n in jobs) else None
    return reply


def note(member: Member, oldest: int, body: Body, now_us: int) -> None:
    """Takes from a worker's sign of life what a description needs. Raises: MalformedError."""
    if oldest != member.oldest:
        member.moved_us = now_us
    member.waiting = body.get("waiting") is True
    member.given = integer(body, "given", 0, ALL_BITS) if "given" in body else 0
    member.held = integer(body, "held", 0, ALL_BITS) if "held" in body else None


def _job_body(job: Job) -> Body:
    failure = None
    if job.failure is not None:
        detail = str(job.failure["detail"]).encode("ascii", "replace").decode()
        failure = {
            "reason": job.failure["reason"],
            "ranks": _bitmap(job.failure["ranks"]),
            "detail": detail[:MAX_DETAIL],
        }
    return {
        "type": "description", "job": job.number, "name": job.name, "epoch": job.epoch, "state": job.state.value,
        "world_size": job.world_size, "micro_batches": job.micro_batches, "joined": _bitmap(job.members),
        "oldest": job.sums.oldest_seq, "failure": failure, "next": None,
    }  # fmt: skip


def _member_body(job: Job, member: Member, now_us: int) -> list[int | str | bool | None]:
    """A list, because every byte counts; see MemberDescription."""
    return [
        member.rank,
        member.address[0],
        member.address[1],
        (now_us - member.heard_us) // 1000,
        (now_us - member.moved_us) // 1000,
        None if member.oldest is None else serial_distance(job.sums.oldest_seq, member.oldest),
        member.waiting,
        member.given,
        member.held,
        member.left_at is not None,
    ]


def _bitmap(ranks: object) -> int:
    assert isinstance(ranks, list | dict)
    return sum(1 << rank for rank in ranks)


# --- the side that asks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A worker, as the parameter server sees it."""

    rank: int
    address: Address
    heard_ms: int
    """Since it was last heard of."""
    still_ms: int
    """Since it last made progress, or joined."""
    ahead: int | None
    """Its oldest fragment that has no result, counted from the oldest of all; None: it has not said yet."""
    waiting: bool
    """It has sums under way."""
    given: int
    """Contributions to the oldest of these sums that it has handed to its transport, as a bitmap."""
    held: int | None
    """Contributions that the switch held of its oldest fragment when it was last asked; None: not asked."""
    left: bool


@dataclass(frozen=True, slots=True)
class JobDescription:
    number: int
    name: str
    epoch: int
    state: State
    world_size: int
    micro_batches: int
    missing: tuple[int, ...]
    """Ranks that have not joined."""
    oldest: int
    """Sequence number of the oldest fragment that somebody may still need."""
    failure: str | None
    failed_ranks: tuple[int, ...]
    members: tuple[MemberDescription, ...]


class Inquiry:
    """Puts the answers together: ask for `position` until it is None."""

    def __init__(self) -> None:
        self.position: tuple[int, int] | None = (0, 0)
        self.jobs: dict[int, JobDescription] = {}

    def receive(self, body: Body) -> None:
        """Takes the answer to the question for `position`. Raises: TransportError: a refusal; MalformedError."""
        if body["type"] == "refused":
            raise TransportError(f"the parameter server does not tell about its jobs: {body.get('reason')}")
        if body["type"] != "description":
            raise MalformedError(f"the answer is of type {body['type'][:32]!r}")
        asked, self.position = self.position, _position(body.get("next"))
        if self.position is not None and asked is not None and self.position <= asked:
            raise MalformedError("next does not lead on")
        if body.get("job") is None:
            return
        number = integer(body, "job", 0, 255)
        before = self.jobs[number].members if number in self.jobs else ()
        self.jobs[number] = _description(body, number, before)


def _position(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value):
        return value[0], value[1]
    raise MalformedError("next must be null or two numbers")


def _description(body: Body, number: int, before: tuple[MemberDescription, ...]) -> JobDescription:
    world_size = integer(body, "world_size", 1, CONTRIBUTION_BITS)
    joined = integer(body, "joined", 0, ALL_BITS)
    failure = body.get("failure")
    try:
        members = tuple(_member(*entry) for entry in body["members"])
        return JobDescription(
            number=number,
            name=text(body, "name", 64),
            epoch=integer(body, "epoch", 0, 255),
            state=State(body.get("state")),
            world_size=world_size,
            micro_batches=integer(body, "micro_batches", 1, CONTRIBUTION_BITS),
            missing=tuple(rank for rank in range(world_size) if not joined >> rank & 1),
            oldest=integer(body, "oldest", 0, 0xFFFFFFFF),
            failure=None if failure is None else str(failure["detail"]),
            failed_ranks=() if failure is None else _ranks(int(failure["ranks"])),
            members=(*before, *members),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedError(f"a description that is none: {error}") from None


def _member(
    rank: int, ip: str, port: int, heard_ms: int, still_ms: int, ahead: int | None, waiting: bool, given: int,
    held: int | None, left: bool,
) -> MemberDescription:  # fmt: skip
    return MemberDescription(
        int(rank), (str(ip), int(port)), int(heard_ms), int(still_ms), None if ahead is None else int(ahead),
        bool(waiting), int(given), None if held is None else int(held), bool(left),
    )  # fmt: skip


def _ranks(bits: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(CONTRIBUTION_BITS) if bits >> rank & 1)
