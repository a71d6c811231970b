"""A simulated worker: joins a job, and runs steps in virtual time."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from sa_atp.basics.arrays import Addends, Octets
from sa_atp.lab.simulator.network import Clock
from sa_atp.lab.simulator.nodes import SimHost
from sa_atp.net.flat_values import words_of_bytes
from sa_atp.net.helping import Helping
from sa_atp.net.session import Asking, Session, Sum
from sa_atp.protocol.job.errors import TransportError
from sa_atp.protocol.job.membership import Joining, JoinRequest, Membership
from sa_atp.protocol.log.event import Log, nobody
from sa_atp.protocol.packets.control import Reply, Request
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.rank.compiled.common_case import Kernels
from sa_atp.protocol.rank.events import WorkerLimits
from sa_atp.protocol.rank.worker import Worker

T = TypeVar("T")
JOIN_TIMEOUT_US = 30_000_000


class SimWorker(Asking):
    """A worker on a simulated host: the counterpart of `net.communicator.Communicator`."""

    def __init__(
        self,
        host: SimHost,
        clock: Clock,
        request: JoinRequest,
        server: Address,
        rng: random.Random,
        *,
        joined: Callable[["SimWorker"], None],
        failed: Callable[["SimWorker"], None] = lambda worker: None,
        limits: WorkerLimits | None = None,
        kernels: Kernels | None = None,
        log: Log = nobody,
    ) -> None:
        """Args:
        joined: called once, when the job is admitted.
        failed: called once, when the connection ends with an error or cannot be made (`error`).
        kernels: compiled kernels for the connection; None: it runs in plain Python.
        log: called with each decision of the connection.
        """
        self.host = host
        self.clock = clock
        self.membership: Membership  # after it has joined
        self.worker: Worker
        self._rng = rng
        self._joined = joined
        self._failed = failed
        self._has_failed = False
        self._limits = limits
        self._kernels = kernels
        self._log = log
        self._session: Session
        self._joining = Joining(
            request, server, incarnation=rng.getrandbits(31), now_us=clock.now_us, timeout_us=JOIN_TIMEOUT_US, log=log
        )
        host.connection = self._joining
        host.after = self._after_joining
        clock.at(clock.now_us, host.serve)

    # --- the Host of a step ---------------------------------------------------------------------------------------------

    def now_us(self) -> int:
        return self.clock.now_us

    def begin(self, values: int, key: object | None = "gradient", scale: float = 1.0, *, whole: bool = False) -> Sum:
        sum_ = self._session.new_sum(values, Future(), scale=scale, whole=whole)
        self._session.begin(sum_, key, self.clock.now_us)
        self._serve_soon()
        return sum_

    def begin_gather(self, size: int) -> Sum:
        """Starts an all-gather of parts of so many bytes, whose `out` is uint8[ranks, size]."""
        sum_ = self._session.new_gather("uint8", size, Future())
        self._session.begin_gather(sum_, self.clock.now_us)
        self._serve_soon()
        return sum_

    def contribute_part(self, sum_: Sum, part: Octets) -> None:
        """Args: part: uint8[size], which must stay as it is until the all-gather is done."""
        self._session.contribute_part(sum_, words_of_bytes(part), self.clock.now_us)
        self._serve_soon()

    def contribute(self, sum_: Sum, parts: Sequence[Addends], bits: int, *, on_behalf: bool = False) -> None:
        bits = self._session.check_contribution(sum_, parts, bits, on_behalf=on_behalf)
        self._session.contribute(sum_, parts, bits, self.clock.now_us, on_behalf=on_behalf)
        self._serve_soon()

    def probe(self, sum_: Sum) -> None:
        self._session.probe(sum_)
        self._serve_soon()

    def ask(self, question: Request, understand: Callable[[Reply | None], T]) -> "Future[T]":
        future: Future[T] = Future()
        self._session.ask(question, understand, future, self.clock.now_us)
        self._serve_soon()
        return future

    def leave(self) -> "Future[None]":
        """Announces that it will contribute no more; the worker has to run until the future is done."""
        future: Future[None] = Future()
        self._session.leave(future, self.clock.now_us)
        self._serve_soon()
        return future

    def _serve_soon(self) -> None:
        self.clock.at(self.clock.now_us, self.host.serve)

    # --- connection -------------------------------------------------------------------------------------------------------

    def _after_joining(self) -> None:
        if self._joining.membership is not None and not hasattr(self, "worker"):
            self.membership = self._joining.membership
            self.worker = Worker(
                self.membership,
                self.clock.now_us,
                first_request=self._rng.getrandbits(32),
                limits=self._limits,
                kernels=self._kernels,
                log=self._log,
            )
            self._session = Session(self.worker)
            self.helping = Helping(
                self.membership, self.ask, now_us=self.now_us, answer_us=lambda: self.worker.answer_us
            )
            self._session.assigned = self.helping.on_assigned
            self.host.connection = self.worker
            self.host.after = self._serve
            self.clock.at(self.clock.now_us, lambda: self._joined(self))
            self._serve_soon()

        self._tell_failure()

    def _serve(self) -> None:
        self._session.serve(self.clock.now_us)
        self._tell_failure()

    def _tell_failure(self) -> None:
        if not self._has_failed and self.error is not None:
            self._has_failed = True
            self.clock.at(self.clock.now_us, lambda: self._failed(self))

    @property
    def error(self) -> TransportError | None:
        """The error that ended the connection or prevented it."""
        return self.worker.error if hasattr(self, "worker") else self._joining.error
