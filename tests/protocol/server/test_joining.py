"""Ranks that ask to join and fall silent before their job runs: they are not waited for, and hold nothing back."""

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from sa_atp.basics.errors import UserError
from sa_atp.protocol.job.errors import JobRestartedError, ParameterServerLostError, RefusedError
from sa_atp.protocol.job.membership import GONE_US, SERVER_TIMEOUT_US, Joining, JoinRequest
from sa_atp.protocol.job.terms import Value
from sa_atp.protocol.packets.control import Join, Refused, Waiting, decode_reply, encode
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.mtu import MOST_MTU, needed_mtu
from sa_atp.protocol.server.admission import MOST_WAITING
from sa_atp.protocol.server.diagnosis import diagnose
from sa_atp.protocol.server.job import Job, State
from sa_atp.protocol.server.job_status import JobStatusQuery, question
from sa_atp.protocol.server.registry import MAX_JOBS
from sa_atp.protocol.server.server import ParameterServer
from sa_atp.protocol.server.server_events import Admit, Retire, ServerEvent, ServerSettings

SERVER = ("10.9.9.9", 21313)
TURN_US = 10_000
JOIN_TIMEOUT_US = 30_000_000
GONE_S = (GONE_US + 2 * ServerSettings().alive_every_us) / 1e6  # after so long a rank has been dropped


class Lobby:
    """A parameter server and joining ranks, in virtual time and without a network."""

    def __init__(self, *, admits: bool = True, loss: float = 0.0, **settings: int) -> None:
        """Args: admits: whether jobs are installed on the switches at once; False: the test does it."""
        self.now_us = 1_000_000
        self.rng = random.Random(1)
        self.server = ParameterServer(ServerSettings(**settings), self.rng.getrandbits)  # type: ignore[arg-type]
        self.server.is_here = {SERVER[0]}.__contains__
        self.events: list[ServerEvent] = []
        self._admits = admits
        self._loss = loss
        self.deaf: list[Joining] = []
        """Programs to which nothing comes through."""
        self._clients: dict[Address, Joining] = {}
        self._ports = itertools.count(1000)

    def ask(
        self,
        rank: int,
        size: int,
        name: str = "job",
        mtu: int = MOST_MTU,
        ip: str = "10.0.0.1",
        instead_of: Joining | None = None,
        **stated: Value,
    ) -> Joining:
        """Starts a program, which asks to join.

        Args: instead_of: one that ends, whose address it gets; stated: its own terms.
        """
        request = JoinRequest(job=name, rank=rank, world_size=size, agree=stated)
        joining = Joining(
            request,
            SERVER,
            incarnation=self.rng.getrandbits(31),
            now_us=self.now_us,
            timeout_us=JOIN_TIMEOUT_US,
            mtu=mtu,
        )
        known = [address for address, client in self._clients.items() if client is instead_of]
        self._clients[known[0] if known else (ip, next(self._ports))] = joining
        return joining

    def kill(self, gone: Sequence[Joining]) -> None:
        """Silences programs: they neither ask nor answer."""
        self._clients = {address: client for address, client in self._clients.items() if client not in gone}

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds * 1e6 / TURN_US)):
            self.now_us += TURN_US
            for address, client in self._clients.items():
                if not client.finished:
                    client.handle_timer(self.now_us)
                    self._deliver(client.transmit(self.now_us), address)
            due = self.server.next_timer_us()
            if due is not None and due <= self.now_us:
                self.server.handle_timer(self.now_us)
            while (event := self.server.next_event()) is not None:
                self.events.append(event)
                if self._admits and isinstance(event, Admit):
                    self.server.on_admitted(event, self.now_us)
            for burst in self.server.transmit(self.now_us):
                hears = self._clients.get(burst.address)
                if hears is not None and hears not in self.deaf and self.rng.random() >= self._loss:
                    hears.receive([Burst(SERVER, burst.data)], self.now_us)

    def _deliver(self, bursts: Sequence[Burst], source: Address) -> None:
        for burst in bursts:
            if self.rng.random() >= self._loss:
                self.server.receive([Burst(source, burst.data)], self.now_us)

    def job(self, name: str = "job") -> Job:
        return next(job for job in self.server.jobs.values() if job.name == name)

    def diagnosis(self, name: str = "job") -> str:
        """The diagnosis that a tool would print."""
        query = JobStatusQuery()
        while query.position is not None:
            asked = encode(question(*query.position), request=7)
            self.server.receive([Burst.of((SERVER[0], 9), asked)], self.now_us)
            (answer,) = [b for b in self.server.transmit(self.now_us) if b.address == (SERVER[0], 9)]
            query.receive(decode_reply(answer.data[0].tobytes()))
        return diagnose(next(job for job in query.jobs.values() if job.name == name)).verdict


def gathered(lobby: Lobby, ranks: Sequence[int], size: int, name: str = "job") -> list[Joining]:
    joining = [lobby.ask(rank, size, name) for rank in ranks]
    lobby.run(0.3)  # they hear of one another when they ask for the second time
    return joining


def assert_welcome(joining: Sequence[Joining]) -> None:
    """Whether all are members of the same epoch."""
    assert [j.error for j in joining] == [None] * len(joining)
    assert len({(m.job, m.epoch) for j in joining if (m := j.membership) is not None}) == 1
    assert all(j.membership is not None for j in joining)


def test_a_rank_whose_way_is_too_narrow_is_refused() -> None:
    """It learns at once why, the others go on waiting, and with a larger MTU it is welcome."""
    lobby = Lobby(lanes=2048)
    wide, narrow = lobby.ask(0, 2, mtu=9000), lobby.ask(1, 2, mtu=needed_mtu(2048) - 1)
    lobby.run(0.3)
    assert isinstance(narrow.error, RefusedError)
    assert "packets of 2048 lanes are 8240 bytes long, and the way from rank 1 carries 8239" in str(narrow.error)
    assert not wide.finished
    again = lobby.ask(1, 2, mtu=needed_mtu(2048))
    lobby.run(0.6)
    assert_welcome([wide, again])
    assert wide.membership is not None
    assert wide.membership.lanes == 2048


# --- what all must state alike
# ------------------------------------------------------------------------------------------


def test_ranks_with_different_terms_learn_the_difference_and_its_ranks() -> None:
    """The refused rank at once, a rank that waits for it when it gives up; with the right terms it is welcome."""
    lobby = Lobby()
    first = lobby.ask(0, 2, group="ranks 0, 2", nonfinite="raise", scale=0.5)
    lobby.run(0.1)
    other = lobby.ask(1, 2, group="ranks 1, 3", nonfinite="raise")
    lobby.run(0.3)
    said = (
        "job 'job': group is 'ranks 1, 3' for rank 1 and 'ranks 0, 2' for rank 0, scale is not stated for rank 1 and 0.5 "
        "for rank 0: all ranks of a job must say the same"
    )
    assert isinstance(other.error, RefusedError)
    assert str(other.error) == f"the parameter server refuses: {said}"
    assert not first.finished
    waiting = lobby.ask(0, 2, "other job", group="a")
    lobby.ask(1, 2, "other job", group="b")
    lobby.run(1.0)
    again = lobby.ask(1, 2, group="ranks 0, 2", nonfinite="raise", scale=0.5)
    lobby.run(0.6)
    assert_welcome([first, again])
    lobby.run(JOIN_TIMEOUT_US / 1e6)
    assert "these ranks have not joined: 1; one was refused: job 'other job': group is 'b' for rank 1" in str(
        waiting.error
    )


@pytest.mark.parametrize(
    ("rank", "size", "micro_batches", "help_grade", "said"),
    [
        (1, 3, 1, HelpGrade.NONE, "world_size is 3 for rank 1 and 2 for rank 0"),
        (1, 2, 2, HelpGrade.NONE, "micro_batches is 2 for rank 1 and 1 for rank 0"),
        (1, 2, 1, HelpGrade.CLONE, "help is 'clone' for rank 1 and 'none' for rank 0"),
    ],
)
def test_the_protocols_own_terms_are_compared_in_the_same_way(
    rank: int, size: int, micro_batches: int, help_grade: HelpGrade, said: str
) -> None:
    lobby = Lobby()
    lobby.ask(0, 2)
    lobby.run(0.1)
    question = Join(
        name="job", rank=rank, world_size=size, micro_batches=micro_batches, help_grade=help_grade, incarnation=1
    )
    lobby.server.receive([Burst.of(("10.0.0.1", 1), encode(question, request=1))], lobby.now_us)
    (answer,) = [decode_reply(b.data[0].tobytes()) for b in lobby.server.transmit(lobby.now_us)]
    assert answer == Refused(reason=f"job 'job': {said}: all ranks of a job must say the same")


def test_a_packets_own_terms_cannot_replace_its_fields() -> None:
    """A stranger cannot end a job by stating forged terms."""
    lobby = Lobby()
    ranks = [lobby.ask(rank, 2) for rank in range(2)]
    lobby.run(2.0)
    assert all(rank.membership is not None for rank in ranks)
    (job,) = lobby.server.jobs.values()
    stranger = Join(
        name="job", rank=2, world_size=3, micro_batches=1, help_grade=HelpGrade.NONE, incarnation=1,
        agree={"world_size": "2"},
    )  # fmt: skip
    lobby.server.receive([Burst.of(("10.0.0.9", 9), encode(stranger, request=1))], lobby.now_us)
    assert (job.state, sorted(job.members)) == (State.RUNNING, [0, 1])


def test_other_terms_are_refused_only_while_ranks_are_there() -> None:
    lobby = Lobby()
    running = gathered(lobby, (0, 1), 2)
    lobby.run(0.6)
    assert_welcome(running)
    early = lobby.ask(0, 3)
    lobby.run(0.3)
    assert "world_size is 3 for rank 0 and 2 for rank 1" in str(early.error)
    lobby.kill(running)
    lobby.run(GONE_S)
    assert_welcome(gathered(lobby, (0, 1, 2), 3))


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"": 1}, "1 to 32 printable ASCII characters"),
        ({"x" * 33: 1}, "1 to 32 printable"),
        ({"seats": 1}, "none of world_size"),
        ({"x": [1]}, "agree['x'] is a list: expected text, a number, True, False or None"),
        ({f"name {n}": "y" * 64 for n in range(20)}, "at most 24 names, and 800 characters"),
        ({f"{n}": 1 for n in range(25)}, "at most 24 names, and 800 characters"),
    ],
)
def test_terms_that_cannot_be_stated(stated: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        JoinRequest(job="job", rank=0, world_size=2, agree=stated)  # type: ignore[arg-type]
    assert said in str(caught.value)


@pytest.mark.parametrize("value", ["x" * 5000, "é\n" * 30, '"' * 300, 1e300, None, True, -3])
def test_every_term_fits_and_is_compared_in_full(value: Value) -> None:
    """Together with the longest name of a job."""
    lobby = Lobby()
    name = "\U0001f600" * 64
    same = [lobby.ask(rank, 2, name, a=value) for rank in range(2)]
    lobby.run(0.6)
    assert_welcome(same)
    if isinstance(value, str):
        lobby.ask(0, 2, a=value)
        lobby.run(0.1)
        other = lobby.ask(1, 2, a=value + "!")
        lobby.run(0.1)
        assert "a is " in str(other.error)


# --- before all are there
# -----------------------------------------------------------------------------------------------


def test_a_name_that_nobody_uses_any_more_may_be_taken_with_another_size() -> None:
    lobby = Lobby()
    lobby.kill(gathered(lobby, (0, 1, 2), 4))
    lobby.run(GONE_S)
    assert_welcome(gathered(lobby, (0, 1), 2))


def test_ranks_that_died_while_others_were_missing_are_no_members_of_the_next_run() -> None:
    """Three of four come and are killed; then all four start again, the missing one first."""
    lobby = Lobby()
    lobby.kill(gathered(lobby, (0, 1, 2), 4))
    lobby.run(GONE_S)
    healthy = gathered(lobby, (3,), 4)
    assert healthy[0].waiting_for == [0, 1, 2]
    healthy += gathered(lobby, (0, 1, 2), 4)
    lobby.run(0.3)
    assert_welcome(healthy)
    assert lobby.job().state is State.RUNNING
    assert not lobby.job().missing


def test_names_that_nobody_uses_any_more_give_their_numbers_away() -> None:
    lobby = Lobby()
    abandoned = [lobby.ask(0, 2, f"run {number}", ip=f"10.0.1.{number // MOST_WAITING}") for number in range(MAX_JOBS)]
    lobby.run(0.1)
    assert len(lobby.server.jobs) == MAX_JOBS
    early = lobby.ask(0, 1, "too early")
    lobby.run(0.1)
    assert early.refusal == "the parameter server has 255 jobs already"
    lobby.kill([early])
    before = {number: job.epoch for number, job in lobby.server.jobs.items()}
    lobby.kill(abandoned)
    lobby.run(GONE_S)
    assert_welcome(gathered(lobby, (0, 1), 2, "new"))
    job = lobby.job("new")
    assert job.epoch == (before[job.number] + 1) % 256  # nothing that is still under way to the old one is for it


def test_ranks_that_are_gone_use_no_slots() -> None:
    lobby = Lobby(slots=2048, slots_per_job=1024)
    lobby.kill(gathered(lobby, (0,), 2, "abandoned"))
    lobby.run(GONE_S)
    gathered(lobby, (0,), 2, "first")
    gathered(lobby, (0,), 2, "second")
    assert [lobby.job(name).slot_base for name in ("first", "second")] == [0, 1024]


def test_a_server_that_dies_while_ranks_are_missing_is_named_and_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the ranks that were missing when it last answered."""
    lobby = Lobby()
    waiting = lobby.ask(0, 2)
    lobby.run(1.0)
    assert waiting.waiting_for == [1]
    monkeypatch.setattr(lobby.server, "receive", lambda bursts, now_us: None)
    lobby.run(SERVER_TIMEOUT_US / 1e6 - 1)
    assert not waiting.finished
    lobby.run(1.5)
    assert isinstance(waiting.error, ParameterServerLostError)
    assert "the parameter server at 10.9.9.9:21313 has not answered for 10." in str(waiting.error)


def test_a_rank_that_has_gone_is_missing_again() -> None:
    lobby = Lobby()
    waiting, gone = gathered(lobby, (0, 1), 3)
    assert waiting.waiting_for == [2]
    lobby.kill([gone])
    lobby.run(GONE_S + 0.3)
    assert waiting.waiting_for == [1, 2]
    assert lobby.diagnosis() == "ranks 1, 2 have not joined; 1 of 3 have"
    lobby.run(JOIN_TIMEOUT_US / 1e6)
    assert str(waiting.error) == "job 'job': after 30.0 s these ranks have not joined: 1, 2"
    lobby.run(GONE_S)
    assert lobby.diagnosis() == "it is over: all its ranks have stopped asking to join"
    assert lobby.server.next_timer_us() is None


def test_a_silent_rank_is_given_up_however_often_others_ask_to_join() -> None:
    lobby = Lobby()
    assert_welcome(gathered(lobby, (0,), 1, "silent"))  # which says nothing from now on
    for rank in range(8):
        lobby.ask(rank, 9)
        lobby.run(0.06)
    lobby.run(ServerSettings().dead_after_us / 1e6)
    assert lobby.job("silent").state is State.FAILED
    assert lobby.job().missing == [8]


def test_ranks_that_go_on_asking_are_not_dropped_though_packets_are_lost() -> None:
    lobby = Lobby(loss=0.2)
    waiting = [lobby.ask(rank, 3) for rank in (0, 1)]
    lobby.run(1.0)
    for _ in range(250):
        lobby.run(0.1)
        assert lobby.job().missing == [2]
    waiting.append(lobby.ask(2, 3))
    lobby.run(2.0)
    assert_welcome(waiting)


def test_a_rank_that_was_welcomed_is_in_no_later_epoch() -> None:
    """The server cannot know whether the welcome came. If it did, the rank joins anew when it hears that the epoch is over,
    which would end the next epoch for all, and so on: with round trips of 0.3 s five ranks never had a sum.
    """
    lobby = Lobby()
    ranks = [lobby.ask(rank, 2) for rank in (0, 1)]
    lobby.deaf = ranks[:1]
    lobby.run(0.3)
    assert ranks[1].membership is not None
    ranks[1] = lobby.ask(1, 2, instead_of=ranks[1])
    lobby.run(0.3)  # meanwhile the other one asks again
    assert lobby.job().missing == [0]
    lobby.deaf = []
    lobby.run(0.3)
    assert isinstance(ranks[0].error, JobRestartedError)
    ranks[0] = lobby.ask(0, 2, instead_of=ranks[0])
    lobby.run(0.3)
    assert_welcome(ranks)


def test_a_refusal_is_not_told_to_later_ranks_of_another_run() -> None:
    lobby = Lobby(admits=False)
    first = gathered(lobby, (0, 1), 2)
    (event,) = lobby.events
    assert isinstance(event, Admit)
    lobby.server.on_refused(event, "its tables are full")
    lobby.kill(first[1:])
    lobby.run(0.5)
    assert first[0].refusal is not None
    lobby.kill(first)
    lobby.run(GONE_S)
    (later,) = gathered(lobby, (0,), 2)
    assert later.refusal is None


# --- while the switches are being told --------------------------------------------------------------------------------


def test_a_rank_that_dies_while_the_job_is_admitted_costs_an_epoch() -> None:
    lobby = Lobby(admits=False)
    ranks = gathered(lobby, (0, 1, 2), 3)
    (admission,) = lobby.events
    assert isinstance(admission, Admit)
    lobby.kill(ranks[1:2])
    lobby.run(GONE_S + 0.3)
    # what the switches were told of this epoch goes again
    assert lobby.events[1:] == [Retire(admission.number, admission.epoch)]
    assert lobby.job().state is State.GATHERING
    assert ranks[0].waiting_for == ranks[2].waiting_for == [1]
    lobby.server.on_admitted(admission, lobby.now_us)  # the control plane is late
    lobby.server.on_refused(admission, "it was slow")
    lobby.run(0.3)
    assert lobby.job().state is State.GATHERING
    ranks[1] = lobby.ask(1, 3)
    lobby.run(0.3)
    again = lobby.events[-1]
    assert isinstance(again, Admit)
    assert again.epoch == (admission.epoch + 1) % 256
    assert sorted(again.addresses) == [0, 1, 2]
    lobby.server.on_admitted(again, lobby.now_us)
    lobby.run(0.3)
    assert_welcome(ranks)


def test_a_job_that_all_have_given_up_while_it_was_admitted_is_over() -> None:
    lobby = Lobby(admits=False)
    ranks = gathered(lobby, (0, 1), 2)
    (admission,) = lobby.events
    lobby.kill(ranks)
    lobby.run(GONE_S)
    assert isinstance(admission, Admit)
    assert lobby.events[1:] == [Retire(admission.number, admission.epoch)]
    assert lobby.job().state is State.ENDED
    assert lobby.server.next_timer_us() is None
    lobby.server.on_admitted(admission, lobby.now_us)
    assert lobby.job().state is State.ENDED


@pytest.mark.parametrize("seconds", [5.0, 20.0])
def test_a_control_plane_may_take_its_time(seconds: float) -> None:
    lobby = Lobby(admits=False, loss=0.1)
    ranks = [lobby.ask(rank, 3) for rank in range(3)]
    lobby.run(seconds)
    (admission,) = lobby.events
    assert isinstance(admission, Admit)
    lobby.server.on_admitted(admission, lobby.now_us)
    lobby.run(2.0)
    assert_welcome(ranks)


@pytest.mark.parametrize("reason", ['"\\' * 3000, "line\n\x00" * 3000, "é" * 5000])
def test_any_refusal_of_a_switch_reaches_all_ranks(reason: str) -> None:
    """The longest answer: a refusal, and nearly all of 64 ranks missing."""
    lobby = Lobby(admits=False)
    ranks = gathered(lobby, range(64), 64)
    (event,) = lobby.events
    assert isinstance(event, Admit)
    lobby.kill(ranks[1:])
    lobby.server.on_refused(event, reason)
    lobby.run(1.0)
    assert ranks[0].refusal is not None
    assert ranks[0].refusal.startswith("the switch cannot take the job: ")
    assert list(ranks[0].waiting_for or ()) == list(range(1, 64))


@pytest.mark.parametrize("name", ["\x1b[31m" * 12 + "name", "\U0001f600" * 64, '"' * 64])
def test_jobs_with_any_name_are_described(name: str) -> None:
    lobby = Lobby(admits=False)
    job = Join(name=name, rank=0, world_size=64, micro_batches=1, help_grade=HelpGrade.NONE, incarnation=1)
    for _ in range(2):
        lobby.server.receive([Burst.of(("10.0.0.1", 1), encode(job, request=1))], lobby.now_us)
        job = replace(job, world_size=2)  # refused, by name
    (waiting, refused) = [decode_reply(b.data[0].tobytes()) for b in lobby.server.transmit(lobby.now_us)]
    assert isinstance(waiting, Waiting)
    assert isinstance(refused, Refused)
    assert "world_size is 2 for rank 0 and 64 for rank 0, which has joined already" in refused.reason
    assert "ranks 1, 2, 3" in lobby.diagnosis(name)


@pytest.mark.parametrize("options", [{"job": ""}, {"job": "a" * 65}, {"job": "a\n"}, {"job": "\ud800"}, {"job": 5}])
def test_impossible_names_are_refused_at_once(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match="expected a name of 1 to 64 printable characters"):
        JoinRequest(**{"rank": 0, "world_size": 2, **options})  # type: ignore[arg-type]


def test_ranks_are_whole_numbers() -> None:
    request = JoinRequest(job="job", rank=np.int64(1), world_size=np.int32(2))  # type: ignore[arg-type]
    assert (type(request.rank), type(request.world_size)) == (int, int)
    for options in ({"rank": "0"}, {"world_size": 2.0}, {"micro_batches": None}):
        with pytest.raises(UserError, match="expected a whole number"):
            JoinRequest(**{"job": "job", "rank": 0, "world_size": 2, **options})  # type: ignore[arg-type]
