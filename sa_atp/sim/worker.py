"""A simulated worker: joins a job, and runs steps in virtual time."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from sa_atp.sim.network import Clock
from sa_atp.sim.nodes import Host
from sa_atp.transport.errors import TransportError
from sa_atp.transport.events import Failed, OperationDone, Reply, WaitingFor, WorkerLimits
from sa_atp.transport.membership import Joining, JoinRequest, Membership
from sa_atp.transport.operation import Operation
from sa_atp.transport.worker import Worker
from sa_atp.wire.datagrams import Address
from sa_atp.wire.messages import Body

JOIN_TIMEOUT_US = 30_000_000


@dataclass(slots=True)
class SimSum:
    """A sum under way; the simulated counterpart of net.communicator.Sum."""

    operation: int
    values: int
    future: "Future[np.ndarray]" = field(default_factory=Future)
    missing_bits: int | None = None
    outlook: tuple[float, int] | None = None
    sent_us: int = 0
    finished: Operation | None = None


class SimWorker:
    """What net.communicator.Communicator is in real time, on a simulated host."""

    def __init__(
        self,
        host: Host,
        clock: Clock,
        request: JoinRequest,
        server: Address,
        rng: random.Random,
        *,
        joined: Callable[["SimWorker"], None],
        limits: WorkerLimits | None = None,
    ) -> None:
        """Args: joined: called once, when the job has been admitted."""
        self.host = host
        self.clock = clock
        self.error: TransportError | None = None
        self.membership: Membership  # after it has joined
        self.worker: Worker
        self.results: dict[int, SimSum] = {}
        self._rng = rng
        self._joined = joined
        self._limits = limits
        self._sums: dict[int, SimSum] = {}
        self._replies: dict[int, Future[Body | None]] = {}
        self._joining = Joining(
            request, server, incarnation=rng.getrandbits(31), now_us=clock.now_us, timeout_us=JOIN_TIMEOUT_US
        )
        host.connection = self._joining
        host.after = self._after_joining
        clock.at(clock.now_us, host.serve)

    # --- the Host of a step ---------------------------------------------------------------------------------------------

    def now_us(self) -> int:
        return self.clock.now_us

    def begin(self, values: int, key: object | None = "gradient") -> SimSum:
        operation = self.worker.begin(values, key, self.clock.now_us)
        sum_ = SimSum(operation, values)
        if self.error is not None:
            sum_.future.set_exception(self.error)
        self._sums[operation] = sum_
        self._serve_soon()
        return sum_

    def contribute(self, sum_: SimSum, parts: Sequence[np.ndarray], bits: int, *, on_behalf: bool = False) -> None:
        self.worker.contribute(sum_.operation, parts, bits, self.clock.now_us, on_behalf=on_behalf)
        self._serve_soon()

    def look(self, sum_: SimSum) -> None:
        self.worker.look(sum_.operation, self.clock.now_us)
        self._serve_soon()

    def ask(self, body: Body) -> "Future[Body | None]":
        future: Future[Body | None] = Future()
        if self.error is not None:
            future.set_exception(self.error)
        else:
            self._replies[self.worker.ask(body, self.clock.now_us)] = future
        self._serve_soon()
        return future

    def _serve_soon(self) -> None:
        self.clock.at(self.clock.now_us, self.host.serve)

    # --- connection -------------------------------------------------------------------------------------------------------

    def _after_joining(self) -> None:
        if self._joining.error is not None:
            self._fail(self._joining.error)
        elif self._joining.membership is not None and not hasattr(self, "worker"):
            self.membership = self._joining.membership
            self.worker = Worker(
                self.membership, self.clock.now_us, first_request=self._rng.getrandbits(32), limits=self._limits
            )
            self.host.connection = self.worker
            self.host.after = self._take_events
            self.clock.at(self.clock.now_us, lambda: self._joined(self))
            self._serve_soon()

    def _take_events(self) -> None:
        while (event := self.worker.next_event()) is not None:
            match event:
                case OperationDone(operation):
                    sum_ = self._sums.pop(operation)
                    sum_.sent_us = self.worker.sent_us(operation)
                    out = np.empty(sum_.values, np.float32)
                    sum_.finished = self.worker.result(operation, out)
                    sum_.future.set_result(out)
                case WaitingFor():
                    if event.operation in self._sums:
                        waiting = self._sums[event.operation]
                        waiting.missing_bits, waiting.outlook = event.missing_bits, event.outlook(waiting.outlook)
                case Reply(request, body):
                    if request in self._replies:
                        self._replies.pop(request).set_result(body)
                case Failed(error):
                    self._fail(error)

    def _fail(self, error: TransportError) -> None:
        self.error = error
        for sum_ in self._sums.values():
            sum_.future.set_exception(error)
        for reply in self._replies.values():
            reply.set_exception(error)
        self._sums.clear()
        self._replies.clear()
