"""Descriptions of jobs: complete, never longer than the question, for nobody else; and what is read from them."""

import random

import pytest
from helpers.messages import packet_of
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.job.errors import TransportError
from sa_atp.protocol.packets.control import (
    MAX_BYTES,
    Alive,
    Failure,
    MalformedError,
    Refused,
    Terms,
    decode_reply,
    decode_request,
    encode,
)
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.spec import HEADER_BYTES
from sa_atp.protocol.packets.status_messages import Describe, Description, MemberStatus
from sa_atp.protocol.server.diagnosis import diagnose
from sa_atp.protocol.server.job import Job, Member, State
from sa_atp.protocol.server.job_status import JobStatus, JobStatusQuery, answer, may_ask, question
from sa_atp.protocol.server.server import ParameterServer
from sa_atp.protocol.server.server_events import ServerSettings

NOW_US = 10_000_000
ASKER = ("127.0.0.1", 40_000)


def make_job(number: int, name: str, world_size: int, joined: int, bits: int = 64) -> Job:
    """Args: bits: of the bitmaps."""
    job = Job(
        name=name, number=number, epoch=255, terms=Terms(world_size, bits // world_size, HelpGrade.STEAL), lanes=256,
        contribution_bits=bits,
        slot_base=0, slot_count=1024, first_seq=0xFFFFFFF0,
    )  # fmt: skip
    job.state = State.RUNNING
    for rank in range(joined):
        job.members[rank] = Member(
            rank=rank, address=(f"192.168.100.{rank + 100}", 65_000 + rank), incarnation=1, heard_us=NOW_US - 10**10,
            oldest=0xFFFFFFF0 + rank & 0xFFFFFFFF, moved_us=-(10**12), waiting=True,
            given=(1 << bits) - 1, held=(1 << bits) - 1,
        )  # fmt: skip
    return job


def ask_all(jobs: dict[int, Job]) -> list[JobStatus]:
    """Every question, through bytes as on the wire."""
    query = JobStatusQuery()
    while query.position is not None:
        asked = encode(question(*query.position), request=1)
        assert len(asked) == MAX_BYTES
        heard = decode_request(asked)
        assert isinstance(heard, Describe)
        reply = encode(answer(jobs, heard, len(asked), NOW_US), request=1, reply=True)
        assert len(reply) <= len(asked)
        query.receive(decode_reply(reply))
    return [query.jobs[number] for number in sorted(query.jobs)]


@given(
    st.dictionaries(
        st.integers(1, 255),
        st.tuples(
            st.text(min_size=1, max_size=64), st.integers(1, 64), st.data(), st.booleans(), st.sampled_from((64, 512))
        ),
        max_size=6,
    )
)
def test_every_job_and_every_member_is_described(
    wanted: "dict[int, tuple[str, int, st.DataObject, bool, int]]",
) -> None:
    jobs = {}
    for number, (name, world_size, data, failed, bits) in wanted.items():
        joined = data.draw(st.integers(0, world_size))
        jobs[number] = make_job(number, name, world_size, joined, bits)
        if failed:
            jobs[number].failure = Failure(reason="lost", ranks=list(range(world_size)), detail="\u20ac" * 400)
    found = ask_all(jobs)
    assert [job.number for job in found] == sorted(jobs)
    for job in found:
        source = jobs[job.number]
        assert (job.name, job.world_size, job.state) == (source.name, source.world_size, source.state)
        assert list(job.missing) == source.missing
        assert [m.rank for m in job.members] == sorted(source.members)
        assert [m.address for m in job.members] == [source.members[m.rank].address for m in job.members]
        assert [m.ahead for m in job.members] == [m.rank for m in job.members]
        assert (job.failure is not None) == (source.failure is not None)
        assert job.failed_ranks == (tuple(range(job.world_size)) if source.failure else ())


def send(server: ParameterServer, address: Address, packet: bytes) -> list[Burst]:
    server.receive([Burst.of(address, packet)], NOW_US)
    return server.transmit(NOW_US)


def elsewhere(ip: str) -> bool:
    return False


def test_only_local_tools_and_members_hosts_get_an_answer() -> None:
    jobs = {1: make_job(1, "job", 4, 2)}
    assert may_ask(jobs, elsewhere, ASKER)
    assert may_ask(jobs, elsewhere, ("192.168.100.101", 9))  # a program beside rank 1
    assert may_ask(jobs, {"10.0.0.1"}.__contains__, ("10.0.0.1", 9))  # beside the server
    assert not may_ask(jobs, {"10.0.0.1"}.__contains__, ("10.0.0.2", 9))
    assert not may_ask({}, elsewhere, ("192.168.100.101", 9))


def test_strangers_learn_nothing_and_nothing_changes() -> None:
    server = ParameterServer(ServerSettings(), random.Random(1).getrandbits)
    asked = encode(question(0, 0), request=7)
    [refusal] = send(server, ("10.9.9.9", 1), asked)
    assert isinstance(decode_reply(refusal.data.tobytes()), Refused)
    assert refusal.data.shape[1] < 150
    assert server.foreign == 1
    [reply] = send(server, ASKER, asked)
    assert reply.address == ASKER
    assert decode_reply(reply.data.tobytes()) == Description()
    assert (server.jobs, server.foreign, server.malformed) == ({}, 1, 0)
    assert server.next_event() is None


@pytest.mark.parametrize(("given", "held"), [(1 << 64, 0), (0, 1 << 511)], ids=["given", "held"])
def test_a_sign_of_life_with_bits_that_the_job_has_not_is_malformed(given: int, held: int) -> None:
    """They would be in descriptions of the job, whose messages have room for the job's bits only."""
    server = ParameterServer(ServerSettings(), random.Random(1).getrandbits)
    job = server.jobs[1] = make_job(1, "job", 1, 1)
    job.epoch = 5
    first = job.first_seq
    sign = Alive(oldest=first, waiting=True, operation=0, values=100, first=first, given=given, held=held)
    send(server, job.members[0].address, encode(sign, request=3, job=1, epoch=5))
    assert server.malformed + job.stats.malformed == 1
    [reply] = send(server, ASKER, encode(question(0, 0), request=7))
    assert isinstance(decode_reply(reply.data.tobytes()), Description)


QUESTION = {"type": "describe", "job": 0, "rank": 0, "pad": "." * 1330}


@pytest.mark.parametrize(
    "changed",
    [
        {"pad": ""},  # too short: the answer would be longer than the question
        {"job": "x"},
        {"rank": -1},
        {"rank": None},
    ],
)
def test_malformed_questions_get_short_answers(changed: dict[str, object]) -> None:
    server = ParameterServer(ServerSettings(), random.Random(1).getrandbits)
    [reply] = send(server, ASKER, packet_of({**QUESTION, **changed}, request=7))
    assert isinstance(decode_reply(reply.data.tobytes()), Refused)
    assert reply.data.shape[1] < HEADER_BYTES + 120
    assert server.malformed == 1


ANSWER = {"type": "description", "job": 1, "name": "job", "epoch": 255, "state": "running", "world_size": 2,
          "micro_batches": 32, "joined": 3, "oldest": 5, "members": [], "next": None}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {"type": "failed", "reason": "restarted"},
        {"state": "lazy"},
        {"next": [0, 0]},
        {"next": "x"},
        {"next": [1, 2, 3]},
        {"members": [[1]]},
        {"failure": {}},
        {"job": 256},
    ],
)
def test_malformed_answers(changed: dict[str, object]) -> None:
    JobStatusQuery().receive(decode_reply(packet_of(ANSWER, request=1)))
    with pytest.raises(MalformedError):
        JobStatusQuery().receive(decode_reply(packet_of({**ANSWER, **changed}, request=1)))


def test_a_refusal_says_why() -> None:
    with pytest.raises(TransportError, match="does not describe its jobs: because"):
        JobStatusQuery().receive(Refused(reason="because"))


# --- diagnosis
# ------------------------------------------------------------------------------------------------------------


def member(rank: int, **changes: object) -> MemberStatus:
    fields = {
        "rank": rank, "ip": "10.0.0.1", "port": 5000 + rank, "heard_ms": 100, "still_ms": 5000, "ahead": 0,
        "waiting": True, "given": 0b11 << 2 * rank, "held": None, "left": False, **changes,
    }  # fmt: skip
    return MemberStatus(**fields)  # type: ignore[arg-type]


def described(*members: MemberStatus, state: State = State.RUNNING, **changes: object) -> JobStatus:
    fields = {
        "number": 1, "name": "job", "epoch": 0, "state": state, "world_size": 3, "micro_batches": 2, "seats": 0,
        "missing": (), "oldest": 100, "failure": None, "failed_ranks": (), "members": members, **changes,
    }  # fmt: skip
    return JobStatus(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("job", "ranks", "stuck", "verdict"),
    [
        (described(member(0), member(1), member(2, given=0)), (2,), True, "rank 2 owes contributions to fragment 100"),
        (described(member(0), member(1), member(2, waiting=False, given=0)), (2,), True, "ranks 0, 1 have made no"),
        (  # a helper has given what rank 2 has not
            described(member(0, given=0b110011), member(1), member(2, given=0)), (), True, "packets are lost on the way",
        ),
        (  # rank 2 is ahead: it has the result that the others lack
            described(member(0), member(1), member(2, ahead=7, waiting=False, given=0)), (), True, "have had no result",
        ),
        (
            described(member(0, held=0b1111), member(1), member(2)), (2,), True, "the switch lacks those of rank 2",
        ),
        (
            described(member(0), member(1), member(2), switch="10.0.0.9:4000"), (), True,
            "the switch at 10.0.0.9:4000 has answered no rank about it",
        ),
        (described(member(0, held=0b1111), member(1), member(2), switch="10.0.0.9:4000"), (2,), True, "packets are lost"),
        (described(member(0, still_ms=10), member(1, still_ms=10), member(2, given=0, still_ms=10)), (), False, "progress"),
        (described(member(0, waiting=False), member(1, waiting=False)), (), False, "no rank waits"),
        (described(member(0), member(1, heard_ms=3000), member(2)), (1,), True, "rank 1 has been silent for up to 3.0 s"),
        (described(member(0), member(1, heard_ms=3000, left=True), member(2)), (1,), True, "rank 1 owes"),
        (  # of two seats one is free, or its holder has not contributed: whoever has given nothing may be who is late
            described(member(0, given=0b11), member(1, given=0), member(2, ahead=5), seats=2), (1,), True, "rank 1 owes",
        ),
        (  # both seats' contributions are there; rank 1 is late, and not missed
            described(member(0, given=0b11), member(1, given=0), member(2, given=0b1100), seats=2), (), True, "packets",
        ),
        (described(state=State.GATHERING, missing=(1, 2)), (1, 2), True, "ranks 1, 2 have not joined; 0 of 3 have"),
        (described(state=State.ADMITTING), (), True, "the switch has not confirmed"),
        (described(state=State.FAILED, failure="gone", failed_ranks=(1,)), (1,), False, "it has failed: gone"),
        (described(state=State.ENDED), (), False, "it is over"),
    ],
)  # fmt: skip
def test_the_ranks_that_a_job_waits_for_are_named(
    job: JobStatus, ranks: tuple[int, ...], stuck: bool, verdict: str
) -> None:
    found = diagnose(job)
    assert (found.ranks, found.stuck) == (ranks, stuck)
    assert verdict in found.verdict


def test_sequence_numbers_wrap() -> None:
    job = described(member(0, ahead=20), member(1, ahead=20), member(2, ahead=20, given=0), oldest=0xFFFFFFF0)
    assert "fragment 4," in diagnose(job).verdict
