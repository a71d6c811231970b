"""Who is no member gets at most as many bytes as it has sent, whatever it asks: its address may be somebody else's."""

import random
from typing import Any

import pytest
from helpers.messages import packet_of
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.packets.control import (
    JOIN_BYTES,
    LEAST_REQUEST_BYTES,
    Alive,
    Failure,
    Fetch,
    Join,
    Leave,
    Refused,
    Reply,
    ReportTimeout,
    Request,
    TakeSeat,
    Waiting,
    Welcome,
    decode_reply,
    encode,
)
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.fitting import fitted
from sa_atp.protocol.packets.header import pack
from sa_atp.protocol.packets.help_messages import WorkReport
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.mtu import IP_UDP_BYTES, MOST_MTU, needed_mtu
from sa_atp.protocol.packets.spec import HEADER_BYTES, Kind
from sa_atp.protocol.packets.status_messages import AskStats
from sa_atp.protocol.server.job import State
from sa_atp.protocol.server.server import ParameterServer
from sa_atp.protocol.server.server_events import Admit, ServerSettings

STRANGER = ("10.0.9.9", 999)
RANKS = 64
LONG = "a switch may say much: " + 600 * "x"
STATES = ("gathering", "admitting", "running", "failed", "refused", "occupied")


def asks(name: str, rank: int, size: int, *, incarnation: int = 5, mtu: int = MOST_MTU) -> Join:
    return Join(
        name=name,
        rank=rank,
        world_size=size,
        micro_batches=1,
        help_grade=HelpGrade.NONE,
        incarnation=incarnation,
        mtu=mtu,
    )


class Server:
    """A parameter server with a job in each state."""

    def __init__(self, lanes: int = 64) -> None:
        self.now_us = 1_000_000
        self.server = ParameterServer(ServerSettings(lanes=lanes), random.Random(1).getrandbits)
        self.send(asks("gathering", 63, RANKS), ("10.0.0.1", 1))
        for name in ("running", "failed", "refused", "admitting"):
            for rank in (0, 1):
                self.send(asks(name, rank, 2), ("10.0.0.2", 100 + rank))
        self.send(asks("occupied", 0, 2), ("255.255.255.255", 65535))
        jobs = {job.name: job for job in self.server.jobs.values()}
        while (event := self.server.next_event()) is not None:
            if isinstance(event, Admit):
                match self.server.jobs[event.number].name:
                    case "refused":
                        self.server.on_refused(event, LONG)
                    case "running" | "failed":
                        self.server.on_admitted(event, self.now_us)
        jobs["failed"].fail(Failure(reason="lost", ranks=[0, 1], detail=LONG))
        self.epochs = {job.name: (job.number, job.epoch) for job in jobs.values()}
        self.server.transmit(self.now_us)

    def send(self, request: Request | bytes, address: Address = STRANGER, job: str = "") -> tuple[int, list[bytes]]:
        """Returns: how many bytes it was, and what went back to there, at once and in the next twelve seconds."""
        number, epoch = self.epochs[job] if job else (0, 0)
        packet = request if isinstance(request, bytes) else encode(request, request=9, job=number, epoch=epoch)
        self.server.receive([Burst.of(address, packet)], self.now_us)
        back = []
        for _ in range(1 if address != STRANGER else 60):
            back += [burst for burst in self.server.transmit(self.now_us) if burst.address == address]
            if address == STRANGER:
                self.now_us += 200_000
                self.server.handle_timer(self.now_us)
                while (event := self.server.next_event()) is not None:
                    if isinstance(event, Admit) and self.server.jobs[event.number].name == "alone":
                        self.server.on_admitted(event, self.now_us)
                    elif isinstance(event, Admit):
                        self.server.on_refused(event, LONG)
        return len(packet), [row.tobytes() for burst in back for row in burst.data]


def test_the_jobs_are_in_all_states() -> None:
    states = {job.name: job.state for job in Server().server.jobs.values()}
    assert states == {
        "gathering": State.GATHERING, "admitting": State.ADMITTING, "running": State.RUNNING, "failed": State.FAILED,
        "refused": State.FAILED, "occupied": State.GATHERING,
    }  # fmt: skip


JOINS = (
    st.builds(
        asks,
        st.sampled_from([*STATES, "new", "n" * 64]),
        st.sampled_from([0, 1, 2, 63]),
        st.sampled_from([RANKS]),
        mtu=st.sampled_from([68, 300, 576, MOST_MTU]),
    )
    | st.builds(asks, st.sampled_from([*STATES, "new"]), st.integers(0, 1), st.sampled_from([2]))
    | st.just(asks("alone", 0, 1))
)
OTHERS = st.sampled_from(
    [
        Alive(oldest=0), Leave(oldest=0), Fetch(first=0, count=1), AskStats(), TakeSeat(step=0),
        ReportTimeout(operation=0, waited_us=0), WorkReport(step=0, begun=0, held=0),
    ]
)  # fmt: skip
NONSENSE = st.binary(max_size=80).map(lambda body: pack(Kind.CONTROL, body=body, seq=9))
CUT = st.builds(
    lambda name, extra: packet_of(
        {"type": "join", "name": name, "rank": 0, "world_size": 64, "micro_batches": 1, "grade": "none",
         "incarnation": 1, **extra}, request=9,
    ),
    st.sampled_from([*STATES, "new"]), st.sampled_from([{}, {"mtu": 68}, {"mtu": 300}, {"rank": 64}]),
)  # fmt: skip


@given(JOINS | OTHERS | NONSENSE | CUT, st.sampled_from(["", *STATES]))
def test_no_answer_is_longer_than_its_question(question: Request | bytes, job: str) -> None:
    asked, back = Server().send(question, job=job)
    assert sum(map(len, back)) <= asked


@pytest.mark.parametrize("lanes", [32, 256])
def test_a_valid_question_gets_the_whole_answer(lanes: int) -> None:
    """On the narrowest link that carries an answer, and on one that carries everything."""
    for name, kind in (("running", Welcome), ("occupied", Waiting)):
        server = Server(lanes)
        address = ("10.0.0.2", 100) if name == "running" else STRANGER
        _, [answer, *_] = server.send(asks(name, 0, 2, incarnation=5 if name == "running" else 6), address)
        assert isinstance(decode_reply(answer), kind)
    _, [answer, *_] = Server(lanes).send(asks("gathering", 0, RANKS))
    assert decode_reply(answer) == Waiting(missing=list(range(1, 63)))
    _, [answer] = Server(lanes).send(asks("failed", 0, 2))
    told = decode_reply(answer)
    assert isinstance(told, Failure)
    assert told.ranks == [0, 1]
    assert told.detail.startswith("a switch may say much: xxxx")
    assert len(answer) == JOIN_BYTES


def test_a_question_too_short_or_on_too_narrow_a_path_is_refused_with_a_reason() -> None:
    brief = encode(asks("new", 0, 2), request=9).rstrip()
    _, [answer] = Server().send(brief)
    assert decode_reply(answer) == Refused(reason=f"a question to join must have {JOIN_BYTES} bytes")
    server = Server(32)
    narrow = asks("running", 0, 2, mtu=needed_mtu(32))
    asked, [answer] = server.send(narrow, ("10.0.0.2", 100))
    assert asked == needed_mtu(32) - IP_UDP_BYTES
    assert decode_reply(answer) == Refused(reason="the way from rank 0 carries 176 bytes: expected 576")


@pytest.mark.parametrize("reply", [
    Welcome(
        job=255, epoch=255, rank=63, world_size=64, micro_batches=8, lanes=256, slot_base=65535, slot_count=65536,
        first_seq=0xFFFFFFFF, data_ip="255.255.255.255", data_port=65535, alive_every_us=60_000_000,
        help_grade=HelpGrade.STEAL, levels=8, leaf_ranks=(1 << 64) - 1, contribution_bits=512,
    ),
    Waiting(missing=list(range(64)), occupied="255.255.255.255:65535"),
], ids=lambda reply: type(reply).__name__)  # fmt: skip
def test_a_question_to_join_has_room_for_every_answer(reply: Reply) -> None:
    assert fitted(reply, JOIN_BYTES) == reply


def test_every_other_question_has_room_for_the_news_of_a_restart() -> None:
    restarted = Failure(reason="restarted")
    assert fitted(restarted, LEAST_REQUEST_BYTES) == restarted
    assert len(encode(AskStats(), request=1)) == LEAST_REQUEST_BYTES
    assert encode(AskStats(), request=1)[HEADER_BYTES:].rstrip() == b'{"type":"stats"}'


@given(st.integers(0, 700), st.text(max_size=300), st.lists(st.integers(0, 63), max_size=64))
def test_a_cut_answer_fits_and_is_understood(room: int, text: str, ranks: list[int]) -> None:
    replies: list[Any] = [
        Refused(reason=text), Failure(reason="lost", ranks=ranks, detail=text), Waiting(missing=ranks, refusal=text),
        Waiting(missing=ranks, refusal=text, differs=text),
    ]  # fmt: skip
    for reply in replies:
        found = fitted(reply, room)
        if found is None:
            assert room < 55
            continue
        packet = encode(found, request=1, reply=True)
        assert len(packet) <= room
        assert decode_reply(packet) == found


def test_a_host_with_many_jobs_that_do_not_begin_keeps_no_other_host_waiting() -> None:
    """Its questions may be forged; they get no number, no slots and no place in a queue."""
    server = Server()
    for number in range(300):
        _, [answer, *_] = server.send(asks(f"forged {number}", 0, 1), ("10.0.7.7", number + 1))
    assert decode_reply(answer) == Waiting(
        missing=[0], refusal="32 jobs with ranks at 10.0.7.7 have not begun yet, and more must wait"
    )
    assert sum(job.name.startswith("forged") for job in server.server.jobs.values()) == 32
    _, [answer, *_] = server.send(asks("honest", 0, 1), ("10.0.7.8", 1))
    assert decode_reply(answer) == Waiting(missing=[])
    events = []
    while (event := server.server.next_event()) is not None:
        events.append(event)
    assert len(events) == 33
