"""Training steps without a network: real steps, real ledger, messages that take as long as a test says.

Contributions count as soon as they are there; what is looked at is who computes what, and when.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sa_atp.lab.simulator.network import Clock
from sa_atp.lab.simulator.virtual_time import VirtualProcess
from sa_atp.net.helping import Helping
from sa_atp.protocol.help.ledger import Ledger
from sa_atp.protocol.help.progress import SendProgress
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.packets.control import Reply, Request, Taken, Terms, decode_reply
from sa_atp.protocol.packets.help_messages import Assignment, Offer, WorkReport
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.server import work_requests
from sa_atp.protocol.server.job import Job, Member
from sa_atp.steps.effects import Compute
from sa_atp.steps.step import Stepper

FOR_EVER_US = 1 << 50
ADDRESS = ("10.0.0.1", 1)
VALUE = np.ones(1, np.float32)


@dataclass
class Course:
    """What came of a step."""

    end_us: int = 0
    """When every contribution was there, since the step began."""
    computed: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """(shard, micro-batch): who began to compute it."""

    @property
    def helped(self) -> int:
        return sum(rank != shard for (shard, _), who in self.computed.items() for rank in who)

    @property
    def more_than_once(self) -> list[tuple[int, int]]:
        return [piece for piece, who in self.computed.items() if len(who) > 1]


class _Sum:
    """A step's sum, as one rank sees it."""

    progress: SendProgress | None = None
    overtaken: bool = False
    sending: tuple[tuple[int, int], ...] = ()
    sent_share: float = 1.0

    def __init__(self, crew: "Crew", step: int) -> None:
        self.crew, self.step = crew, step
        self.future: Future[Any] = Future()

    @property
    def missing_bits(self) -> int | None:
        return self.crew.fan_in & ~self.crew.there[self.step]


class _Host:
    def __init__(self, crew: "Crew", rank: int) -> None:
        self.crew = crew
        self.membership = Membership(
            job=1, epoch=0, rank=rank, world_size=crew.size, micro_batches=crew.micro_batches, lanes=64, slot_base=0,
            slot_count=64, first_seq=0, data_address=ADDRESS, server_address=ADDRESS, alive_every_us=1000,
            help_grade=crew.job.help_grade,
        )  # fmt: skip
        self.helping = Helping(self.membership, self._ask, crew.now_us, lambda: self._answer_us)
        self._answer_us = 0
        self._number = 0
        self._step = -1

    def _ask(self, question: Request, understand: Callable[[Reply | None], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        self._number += 1
        number, asked_us, crew, rank = self._number, self.crew.clock.now_us, self.crew, self.membership.rank

        def arrived() -> None:
            assert isinstance(question, WorkReport)
            reply = work_requests.answer(
                crew.job, crew.job.members[rank], number, question, crew.clock.now_us, levels=1
            )
            for burst in work_requests.unasked(crew.job):
                message, helping = decode_reply(burst.data[0].tobytes()), crew.hosts[burst.address[1]].helping
                assert isinstance(message, Assignment)
                crew.later(partial(helping.on_assigned, message))
            crew.later(lambda: heard(reply))

        def heard(reply: Reply) -> None:
            self._answer_us = crew.clock.now_us - asked_us
            future.set_result(understand(reply))

        if not crew.is_deaf(rank):
            crew.later(arrived)
        return future

    def now_us(self) -> int:
        return self.crew.clock.now_us

    def begin(self, values: int, key: object = "gradient") -> _Sum:
        self._step += 1
        return self.crew.sum_of(self._step)

    def contribute(self, sum_: _Sum, parts: Sequence[Any], bits: int, *, on_behalf: bool) -> None:
        assert len(parts) == bits.bit_count()
        self.crew.contributed(sum_.step, bits)

    def probe(self, sum_: _Sum) -> None:
        pass

    def take_seat(self, step: int) -> "Future[Any]":
        answer: Future[Any] = Future()
        answer.set_result(self.crew.job.seating.take(step, self.membership.rank, self.now_us()) or Taken())
        return answer


class _Workload:
    values = micro_batch_size = 1

    def gradient(self, step: int, shard: int, micro_batch: int) -> tuple[Any, float]:
        return VALUE, 0.0

    def apply(self, gradient: Any) -> None:
        pass


class Crew:
    """The workers of a job, and its ledger."""

    def __init__(
        self,
        size: int,
        micro_batches: int,
        mode: HelpGrade = HelpGrade.STEAL,
        *,
        delay_us: Callable[[], int] = lambda: 10,
        patience: float = 0.02,
    ) -> None:
        """Args: delay_us: of the next message; they may overtake one another."""
        self.size, self.micro_batches = size, micro_batches
        self.clock = Clock()
        self.job = Job(
            name="job", number=1, epoch=0, terms=Terms(size, micro_batches, mode), lanes=64, slot_base=0,
            slot_count=64, first_seq=0,
        )  # fmt: skip
        self.job.members = {rank: Member(rank, (ADDRESS[0], rank), 0, 0) for rank in range(size)}
        self.fan_in = self.job.fan_in
        self.there: dict[int, int] = defaultdict(int)  # step: contributions that have come
        self.courses: list[Course] = []
        self.is_deaf: Callable[[int], bool] = lambda rank: False
        self._sums: dict[int, list[_Sum]] = defaultdict(list)
        self._delay_us = delay_us
        self.hosts = [_Host(self, rank) for rank in range(size)]
        self.steppers = [Stepper(host, _Workload(), helps=True, patience=patience) for host in self.hosts]

    @property
    def ledger(self) -> Any:
        return self.job.ledger

    def now_us(self) -> int:
        return self.clock.now_us

    def later(self, action: Callable[[], None]) -> None:
        self.clock.at(self.clock.now_us + self._delay_us(), action)

    def sum_of(self, step: int) -> _Sum:
        found = _Sum(self, step)
        if self.there[step] == self.fan_in:
            found.future.set_result(VALUE)
        self._sums[step].append(found)
        return found

    def contributed(self, step: int, bits: int) -> None:
        if self.there[step] == self.fan_in:
            return
        self.there[step] |= bits
        if self.there[step] == self.fan_in:
            for each in self._sums[step]:
                each.future.set_result(VALUE)

    def run(self, times_us: Sequence[int], stops: Callable[[int, int], bool] = lambda rank, m: False) -> Course:
        """One step; ranks begin it together.

        Args:
            times_us: of a micro-batch, for each worker.
            stops: whether a worker never gets done with a micro-batch of its own (rank, micro-batch).
        """
        course, start_us, step = Course(), self.clock.now_us, len(self.courses)
        self.courses.append(course)
        over: list[int] = []

        def duration_us(rank: int, work: Compute) -> int:
            course.computed[work.shard, work.micro_batch].append(rank)
            return FOR_EVER_US if work.shard == rank and stops(rank, work.micro_batch) else times_us[rank]

        for rank, stepper in enumerate(self.steppers):

            def finished(outcome: Any, rank: int = rank) -> None:
                assert not isinstance(outcome, Exception), outcome
                over.append(rank)

            VirtualProcess(
                self.clock, stepper.run(step), duration_us=partial(duration_us, rank),
                gradient=lambda work: (VALUE, 0.0), finished=finished,
            )  # fmt: skip
        limit_us = start_us + 1000 * max(times_us) + 10_000_000
        assert self.clock.run(lambda: len(over) == self.size, limit_us), "it does not end"
        course.end_us = self.clock.now_us - start_us
        return course


class Given(NamedTuple):
    """Work that a leader is given: micro-batches of one shard, and all of it as (shard, micro-batch)."""

    shard: int
    micro_batches: tuple[int, ...]
    backup: bool
    all: frozenset[tuple[int, int]]


def told(work: Given | None) -> tuple[int, tuple[int, ...], bool]:
    """Returns: the shard and the micro-batches that a leader is given, and whether these are copies."""
    assert work is not None
    return work[:3]


@dataclass(frozen=True)
class About:
    """What a report says of the worker itself; see WorkReport."""

    took_us: int = 0
    spent_us: int = 0
    answer_us: int = 0
    sent_us: int = 0


class Books(Ledger):
    """A ledger, with a call for each thing that a worker may want to say."""

    def claim(
        self, step: int, rank: int, begun: int, held: int, since_us: int | None, about: About, now_us: int
    ) -> tuple[int, bool]:
        """A worker reports its progress. Returns: what it holds of its own shard, and whether it gets no more."""
        said = WorkReport(step=step, begun=begun, held=held, since_us=since_us, **asdict(about))
        answer = self.report(rank, said, now_us)
        assert answer.until is not None
        return answer.until, answer.over

    def ask(
        self,
        step: int,
        rank: int,
        missing: int,
        about: About,
        busy_us: int,
        now_us: int,
        pending: float | None = None,
        given: int | None = None,
    ) -> Given | None:
        """A worker offers to help. Args: given: None: it knows of all that it was given. Returns: its work."""
        state = self._steps.get(step)
        begun = held = self.micro_batches if state is None else state.held(rank)
        if busy_us and state is not None:
            begun = state.courses[rank].begun
        knows = state.courses[rank].given if given is None and state is not None else given or 0
        share = None if pending is None else int(1000 * pending)
        offer = Offer(missing=missing, busy_us=busy_us, pending=share, given=knows)
        since_us = 0 if busy_us else None
        said = WorkReport(step=step, begun=begun, held=held, since_us=since_us, offer=offer, **asdict(about))
        answer = self.report(rank, said, now_us)
        self.asks_again_us = answer.again_us
        return self.given(answer)

    def idle(self, step: int, rank: int, about: About, now_us: int) -> None:
        """A worker has computed all that it holds of its own shard."""
        held = self.micro_batches if step not in self._steps else self._steps[step].held(rank)
        self.report(rank, WorkReport(step=step, begun=held, held=held, done=True, **asdict(about)), now_us)

    @property
    def revoked(self) -> list[tuple[int, int | None]]:
        """Workers that are asked to give up work, and how much they are thought to hold."""
        return [(rank, each.revokes) for rank, each in self.unasked if each.revokes is not None]

    @property
    def called(self) -> list[tuple[int, Given]]:
        """Workers that are sent work, and that."""
        return [(rank, work) for rank, each in self.unasked if (work := self.given(each)) is not None]

    def given(self, answer: Assignment) -> Given | None:
        """The work in an assignment; None: it has none."""
        of_shards = self._map.micro_batches_of(answer.work | answer.copies)
        for shard, found in of_shards.items():
            whole = frozenset((s, m) for s, numbers in of_shards.items() for m in numbers)
            return Given(shard, tuple(found), bool(answer.copies), whole)
        return None


def between(rng: random.Random, low_us: int, high_us: int) -> Callable[[], int]:
    """Delays of messages that overtake one another."""
    return lambda: rng.randint(low_us, high_us)


def fluid_us(total: int, times_us: Sequence[int]) -> float:
    return total / sum(1 / t for t in times_us)
