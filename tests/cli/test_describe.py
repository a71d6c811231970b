"""Descriptions of jobs: complete, never longer than the question, for nobody else; and what is read from them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.spec import HEADER_BYTES
from sa_atp.straggler.ledger import Grade
from sa_atp.transport.describe import Inquiry, JobDescription, MemberDescription, answer, may_ask, question
from sa_atp.transport.diagnosis import diagnose
from sa_atp.transport.errors import TransportError
from sa_atp.transport.job import Job, Member, State
from sa_atp.transport.server import ParameterServer, ServerSettings
from sa_atp.wire.datagrams import Address, Burst
from sa_atp.wire.messages import MAX_BYTES, MalformedError, decode, encode

NOW_US = 10_000_000
ASKER = ("127.0.0.1", 40_000)


def make_job(number: int, name: str, world_size: int, joined: int, state: State = State.RUNNING) -> Job:
    job = Job(
        name=name, number=number, epoch=255, world_size=world_size, micro_batches=64 // world_size, lanes=64,
        slot_base=0, slot_count=1024, first_seq=0xFFFFFFF0, grade=Grade.STEAL,
    )  # fmt: skip
    job.state = state
    for rank in range(joined):
        job.members[rank] = Member(
            rank=rank, address=(f"192.168.100.{rank + 100}", 65_000 + rank), incarnation=1, heard_us=NOW_US - 10**10,
            oldest=0xFFFFFFF0 + rank & 0xFFFFFFFF, moved_us=-(10**12), waiting=True,
            given=(1 << 64) - 1, held=(1 << 64) - 1,
        )  # fmt: skip
    return job


def ask_all(jobs: dict[int, Job]) -> list[JobDescription]:
    """Every question, through bytes as on the wire."""
    inquiry = Inquiry()
    while inquiry.position is not None:
        asked = encode(question(*inquiry.position), request=1)
        assert len(asked) == MAX_BYTES
        reply = encode(answer(jobs, decode(asked), len(asked), NOW_US), request=1, reply=True)
        assert len(reply) <= len(asked)
        inquiry.receive(decode(reply))
    return [inquiry.jobs[number] for number in sorted(inquiry.jobs)]


@given(
    st.dictionaries(
        st.integers(1, 255),
        st.tuples(st.text(min_size=1, max_size=64), st.integers(1, 64), st.data(), st.booleans()),
        max_size=6,
    )
)
def test_every_job_and_every_member_is_described(
    wanted: "dict[int, tuple[str, int, st.DataObject, bool]]",
) -> None:
    jobs = {}
    for number, (name, world_size, data, failed) in wanted.items():
        joined = data.draw(st.integers(0, world_size))
        jobs[number] = make_job(number, name, world_size, joined)
        if failed:
            jobs[number].failure = {"reason": "lost", "ranks": list(range(world_size)), "detail": "\u20ac" * 400}
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


def test_who_gets_an_answer() -> None:
    jobs = {1: make_job(1, "job", 4, 2)}
    assert may_ask(jobs, None, ASKER)
    assert may_ask(jobs, None, ("192.168.100.101", 9))  # a program beside rank 1
    assert may_ask(jobs, "10.0.0.1", ("10.0.0.1", 9))  # beside the server
    assert not may_ask(jobs, "10.0.0.1", ("10.0.0.2", 9))
    assert not may_ask({}, None, ("192.168.100.101", 9))


def test_strangers_learn_nothing_and_nothing_changes() -> None:
    server = ParameterServer(ServerSettings(), random.Random(1).getrandbits)
    asked = encode(question(0, 0), request=7)
    [refusal] = send(server, ("10.9.9.9", 1), asked)
    assert decode(refusal.data.tobytes())["type"] == "refused"
    assert refusal.data.shape[1] < 150
    assert server.foreign == 1
    [reply] = send(server, ASKER, asked)
    assert reply.address == ASKER
    assert decode(reply.data.tobytes()) == {"type": "description", "job": None, "next": None}
    assert (server.jobs, server.foreign, server.malformed) == ({}, 1, 0)
    assert server.next_event() is None


@pytest.mark.parametrize(
    "body",
    [
        {"type": "describe", "job": 0, "rank": 0},  # too short: the answer would be longer than the question
        {**question(0, 0), "job": "x", "pad": question(0, 0)["pad"][2:]},
        {**question(0, 0), "rank": -1, "pad": question(0, 0)["pad"][1:]},
        {"type": "describe", "pad": "." * 1300},
    ],
)
def test_malformed_questions_get_short_answers(body: dict[str, object]) -> None:
    server = ParameterServer(ServerSettings(), random.Random(1).getrandbits)
    [reply] = send(server, ASKER, encode(body, request=7))
    assert decode(reply.data.tobytes())["type"] == "refused"
    assert reply.data.shape[1] < HEADER_BYTES + 120
    assert server.malformed == 1


@pytest.mark.parametrize(
    "body",
    [
        {"type": "failed", "reason": "restarted"},
        {"type": "description", "job": 1, "next": None},
        {"type": "description", "job": None, "next": [0, 0]},
        {"type": "description", "job": None, "next": "x"},
        {**answer({1: make_job(1, "job", 2, 2)}, question(0, 0), MAX_BYTES, NOW_US), "state": "lazy"},
        {**answer({1: make_job(1, "job", 2, 2)}, question(0, 0), MAX_BYTES, NOW_US), "members": [[1]]},
        {**answer({1: make_job(1, "job", 2, 2)}, question(0, 0), MAX_BYTES, NOW_US), "failure": {}},
    ],
)
def test_answers_that_are_none(body: dict[str, object]) -> None:
    with pytest.raises(MalformedError):
        Inquiry().receive(body)


def test_a_refusal_says_why() -> None:
    with pytest.raises(TransportError, match="does not tell about its jobs: because"):
        Inquiry().receive({"type": "refused", "reason": "because"})


# --- diagnosis ------------------------------------------------------------------------------------------------------------


def member(rank: int, **changes: object) -> MemberDescription:
    fields = {
        "rank": rank, "address": ("10.0.0.1", 5000 + rank), "heard_ms": 100, "still_ms": 5000, "ahead": 0,
        "waiting": True, "given": 0b11 << 2 * rank, "held": None, "left": False, **changes,
    }  # fmt: skip
    return MemberDescription(**fields)  # type: ignore[arg-type]


def described(*members: MemberDescription, state: State = State.RUNNING, **changes: object) -> JobDescription:
    fields = {
        "number": 1, "name": "job", "epoch": 0, "state": state, "world_size": 3, "micro_batches": 2, "missing": (),
        "oldest": 100, "failure": None, "failed_ranks": (), "members": members, **changes,
    }  # fmt: skip
    return JobDescription(**fields)  # type: ignore[arg-type]


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
        (described(member(0, still_ms=10), member(1, still_ms=10), member(2, given=0, still_ms=10)), (), False, "progress"),
        (described(member(0, waiting=False), member(1, waiting=False)), (), False, "nobody waits"),
        (described(member(0), member(1, heard_ms=3000), member(2)), (1,), True, "rank 1 has been silent for up to 3.0 s"),
        (described(member(0), member(1, heard_ms=3000, left=True), member(2)), (1,), True, "rank 1 owes"),
        (described(state=State.GATHERING, missing=(1, 2)), (1, 2), True, "ranks 1, 2 have not joined; 0 of 3 have"),
        (described(state=State.ADMITTING), (), True, "the switch has not confirmed"),
        (described(state=State.FAILED, failure="gone", failed_ranks=(1,)), (1,), False, "it has failed: gone"),
        (described(state=State.ENDED), (), False, "it is over"),
    ],
)  # fmt: skip
def test_whom_a_job_waits_for(job: JobDescription, ranks: tuple[int, ...], stuck: bool, verdict: str) -> None:
    found = diagnose(job)
    assert (found.ranks, found.stuck) == (ranks, stuck)
    assert verdict in found.verdict


def test_sequence_numbers_wrap() -> None:
    job = described(member(0, ahead=20), member(1, ahead=20), member(2, ahead=20, given=0), oldest=0xFFFFFFF0)
    assert "fragment 4," in diagnose(job).verdict
