"""A worker's side of what it and the parameter server say to each other besides fragments. (protocol sections 7 and 9)

Requests and their answers, signs of life, and how a connection ends: because the worker leaves, because it cannot go
on, because the parameter server says so or is silent.
"""

import functools
import operator

from sa_atp.protocol.job import failures, standstill
from sa_atp.protocol.job.errors import ParameterServerLostError, TransportError, WorkerLostError
from sa_atp.protocol.job.horizon import horizon
from sa_atp.protocol.job.membership import SIGNS_MISSED
from sa_atp.protocol.job.requests import Requests
from sa_atp.protocol.log import help_fields
from sa_atp.protocol.log.rank_events import ConnectionEnded, GivingUp, HelpAnswered, HelpAsked, Leaving
from sa_atp.protocol.packets.control import (
    Alive,
    Failure,
    Leave,
    Progress,
    Recall,
    Reply,
    Report,
    ReportNarrow,
    Request,
)
from sa_atp.protocol.packets.help_messages import Assignment, WorkReport
from sa_atp.protocol.rank.connection import Connection
from sa_atp.protocol.rank.events import Answer, Assigned, Failed
from sa_atp.protocol.rank.recovery.fetching import Fetching
from sa_atp.protocol.rank.recovery.recovery import Recovery

REQUEST_TIMEOUT_US = 5_000_000
LEAVE_TIMEOUT_US = 2_000_000  # who leaves does not wait for a parameter server that has been silent for so long
TELL_VALUES = 1 << 22  # after so many the parameter server hears that they are done: it need not keep them, nor we


class ServerLink:
    """Times are microseconds of the worker's clock."""

    def __init__(
        self, connection: Connection, recovery: Recovery, fetching: Fetching, requests: Requests, now_us: int
    ) -> None:
        self._log, lanes = connection.log, connection.membership.lanes
        self.error: TransportError | None = None
        """Why the connection has ended."""
        self.giving_up: failures.Reportable | None = None
        """The error that the parameter server is asked to tell all ranks; None: there is none."""
        self.alive_at_us = now_us
        """When the next sign of life is due."""
        self.said_place = 0
        """How far we were when we last told."""
        self.tell_after = min(TELL_VALUES, horizon(lanes) * lanes // 2) // lanes
        """Fragments after which the parameter server is told that they are done, before it drops what follows."""
        self.requests = requests
        self._membership, self._limits = connection.membership, connection.limits
        requests.job, requests.epoch = self._membership.job, self._membership.epoch
        self._operations, self._leaf = connection.operations, connection.leaf
        self._recovery, self._fetching = recovery, fetching
        self._stats, self._events, self._waits = connection.stats, connection.events, connection.waits
        self._step = -1  # the newest that we have asked about
        self._of_step: set[int] = set()  # numbers of the questions about it that are not answered
        self._heard_us = now_us
        self._stood_us = self._stood_until_us = 0  # for how long this process did not run the last time, and until when
        self._leaving = 0  # number of the request to leave
        self._leave_by_us = now_us

    # --- asking -------------------------------------------------------------------------------------------------------

    def ask(self, request: Request, now_us: int) -> int:
        """Sends a request to the parameter server until it answers; the answer comes as an Answer event.

        There is one without an answer after 5 s, but for questions about help in the newest step. (protocol section 9.1)

        Returns: the number by which the event names it.
        """
        if not isinstance(request, WorkReport):
            return self.requests.ask(request, now_us, timeout_us=REQUEST_TIMEOUT_US)
        if request.step > self._step:
            self._step = request.step
            self._leaf.set_begun(False)  # nobody has helped in this step, as far as is known
            for number in self._of_step:
                self.requests.set_deadline(number, now_us + REQUEST_TIMEOUT_US)
            self._of_step.clear()
        if request.step < self._step:
            number = self.requests.ask(request, now_us, timeout_us=REQUEST_TIMEOUT_US)
            self._log_report(number, request)
            return number
        # The ledger decides when it hears the report, however late that is; and what it decides we have to know.
        number = self.requests.ask(request, now_us, timeout_us=None)
        self._of_step.add(number)
        self._log_report(number, request)
        return number

    def leave(self, now_us: int) -> int:
        """Says that this worker will contribute no more. Until that is answered it has to stay: others may need its sums.

        Returns: number of the request, as `ask` does. There is no answer if the parameter server is silent, or another rank
        is behind for longer than an operation may wait. (protocol section 7.6)
        """
        self._leave_by_us = now_us + self._limits.operation_timeout_us
        timeout_us = min(LEAVE_TIMEOUT_US, self._limits.operation_timeout_us)
        self._log(Leaving(self._operations.oldest_seq()))
        if self._waits and self._operations.oldest is None:
            self._say_alive(now_us)  # nobody will say it later
        self._leaving = self.requests.ask(Leave(oldest=self._operations.oldest_seq()), now_us, timeout_us=timeout_us)
        return self._leaving

    def due(self, now_us: int) -> list[bytes]:
        """Datagrams to send now."""
        if self.error is None and self._operations.oldest_place() - self.said_place > self.tell_after:
            self._say_alive(now_us)
        return self.requests.due(now_us)

    # --- answers ------------------------------------------------------------------------------------------------------

    def on_control(self, number: int, reply: Reply, now_us: int) -> None:
        """Takes a message. Args: number: of the request that it answers."""
        self._heard_us = now_us
        request = self.requests.take_answer(number, now_us)
        self._of_step.discard(number)
        match reply:
            case Failure():
                self.fail(self._error_of(reply, now_us))
            case Assignment() if number == 0:
                self._events.append(Assigned(reply))
                self._log(HelpAnswered(reply.step, 0, **help_fields.of_assignment(reply)))
            case Recall():
                self._fetching.recall(reply, self._operations.overlapping)
            case Progress(passed=passed, ahead=ahead):
                if ahead is not None:
                    self._operations.note_complete(ahead)
                # true whichever sign of life it answers: on a long way several are under way
                self._fetching.forget_passed(passed)
                self.requests.set_deadline(self._leaving, min(now_us + LEAVE_TIMEOUT_US, self._leave_by_us))
            case _ if request is None:
                self._stats.stale += 1
            case _ if not isinstance(request, Alive):
                self._on_answer(number, request, reply, now_us)

    def _on_answer(self, number: int, request: Request, reply: Reply | None, now_us: int) -> None:
        """Args: reply: to a request of ours; None: it did not come in time."""
        if isinstance(request, Report | ReportNarrow) and self.giving_up is not None:
            self.fail(self.giving_up)  # nobody else will tell us
            return
        told = reply.bypass_leaf if isinstance(reply, Assignment) else None
        if isinstance(request, WorkReport) and request.step < self._step:
            told = None
        if told is not None and self._leaf.set_begun(told):
            for operation in self._operations.active():
                self._recovery.leave_leaf(operation, now_us)
        self._log_answer(number, request, reply)
        self._events.append(Answer(number, reply))

    def _log_report(self, number: int, said: WorkReport) -> None:
        self._log(HelpAsked(said.step, help_fields.kind(said), number, said.took_us, **help_fields.of_report(said)))

    def _log_answer(self, number: int, asked: Request, reply: Reply | None) -> None:
        """Args: reply: None: it did not come in time."""
        if isinstance(asked, WorkReport):
            answer = reply if isinstance(reply, Assignment) else None
            self._log(HelpAnswered(asked.step, number, came=answer is not None, **help_fields.of_assignment(answer)))

    # --- the end ------------------------------------------------------------------------------------------------------

    def fail(self, error: TransportError) -> None:
        """Ends the connection with an error, which is reported once."""
        if self.error is None:
            self.error = error
            self._log(ConnectionEnded(type(error).__name__, str(error)))
            self._events.append(Failed(error))

    def give_up(self, error: failures.Reportable, now_us: int) -> None:
        """We cannot go on, and every rank must hear why: the parameter server tells all of them, us as well.

        Until then we answer the others as before. If the server does not answer, the connection ends all the same.
        """
        if self.giving_up is None:
            self.giving_up = error
            self._log(GivingUp(type(error).__name__, str(error)))
            self.ask(failures.report(error), now_us)

    def _error_of(self, failure: Failure, now_us: int) -> TransportError:
        """What the parameter server tells; and where it is about us, what we know of that."""
        if failure.reason == "lost" and self._membership.rank in failure.ranks:
            return WorkerLostError(failure.ranks, failure.detail + self._why_silent(now_us))
        return failures.error_of(failure)

    def _why_silent(self, now_us: int) -> str:
        """A part of errors about silence: for how long this process did not run, if it was so lately."""
        is_recent = now_us - self._stood_until_us <= 2 * self._limits.server_timeout_us
        return f"; {standstill.describe_standstill(self._stood_us)}" if self._stood_us and is_recent else ""

    # --- silence
    # ----------------------------------------------------------------------------------------------------------

    def is_doubted(self, now_us: int) -> bool:
        """Whether the parameter server has been silent for so long that it may have ended. (section 7.4)"""
        return now_us - self._heard_us > SIGNS_MISSED * self._membership.alive_every_us

    def port_closed(self, now_us: int) -> None:
        """Its host says that no process has its port: the parameter server has ended, if it has been silent, too."""
        if self.is_doubted(now_us):
            where = "{}:{}".format(*self._membership.server_address)
            self.fail(ParameterServerLostError(f"the parameter server at {where} is gone: its process has ended"))

    # --- time ---------------------------------------------------------------------------------------------------------

    def on_standstill(self, stood_us: int, now_us: int) -> None:
        """The process did not run for so long, and could hear nobody."""
        self._stood_us, self._stood_until_us = stood_us, now_us
        self._heard_us = min(now_us, self._heard_us + stood_us)
        self._leave_by_us += stood_us
        self.requests.discount_standstill(stood_us)
        self.alive_at_us = now_us

    def next_timer_us(self) -> int:
        """When `handle_timer` wants to be called."""
        next_us = self.requests.next_timer_us()
        return self.alive_at_us if next_us is None else min(self.alive_at_us, next_us)

    def handle_timer(self, now_us: int) -> None:
        """Ends requests whose time is up, and says that we live."""
        for number, request in self.requests.expired(now_us):
            if self.error is None and not isinstance(request, Alive):
                self._on_answer(number, request, None, now_us)
        if self.error is None and now_us >= self.alive_at_us:
            self._say_alive(now_us)

    def _say_alive(self, now_us: int) -> None:
        """Tells the server that we live and how far we are; its answers tell us the same of it."""
        if now_us - self._heard_us > self._limits.server_timeout_us:
            host, port = self._membership.server_address
            waited = (
                f"the parameter server at {host}:{port} has not answered for {(now_us - self._heard_us) / 1e6:.1f} s"
            )
            self.fail(ParameterServerLostError(waited + self._why_silent(now_us)))
            return
        every_us = self._membership.alive_every_us
        self.alive_at_us = now_us + every_us
        if now_us - self._heard_us > every_us:
            self.alive_at_us -= self._membership.stagger_us(every_us)
        self.said_place = self._operations.oldest_place()
        self.requests.ask(self._sign_of_life(), now_us, timeout_us=self._membership.alive_every_us)

    def _sign_of_life(self) -> Alive:
        """What of our state others may need, to know whom they wait for."""
        first = self._operations.oldest
        oldest = self._operations.oldest_seq()
        if first is None:
            return Alive(oldest=oldest, waits=self._waits.take())
        return Alive(
            oldest=oldest,
            waiting=True,
            operation=first.index,
            values=first.plan.values,
            first=first.first_seq,
            predicted=first.foretold,
            tag=first.tag,
            given=functools.reduce(operator.or_, (group.given_bits for group in first.groups), 0),
            held=first.held_bits,
            waits=self._waits.take(),
        )
