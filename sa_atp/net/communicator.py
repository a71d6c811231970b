"""The interface for programs: `sa_atp.connect(...)`, sums of arrays, and the calls that helping needs.

    with sa_atp.connect("udp://127.0.0.1:21313", job="demo", rank=0, world_size=4) as comm:
        comm.all_reduce(gradient)

A thread runs the connection, so sums travel while the program computes.
"""

import contextlib
import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from sa_atp.basics.arrays import Addends, Values
from sa_atp.basics.errors import UserError
from sa_atp.basics.inputs import microseconds
from sa_atp.net.clock import now_us
from sa_atp.net.flat_values import flat_float32
from sa_atp.net.gathering import Gathering
from sa_atp.net.helping import Helping
from sa_atp.net.host_leaf.meeting import Leaf
from sa_atp.net.host_leaf.way import Way
from sa_atp.net.logs import writing
from sa_atp.net.loop.driver import Driver
from sa_atp.net.loop.steady_loop import SteadyLoop
from sa_atp.net.promise import Callbacks, Promise
from sa_atp.net.scattering import Scattering
from sa_atp.net.session import Asking, Session, Sum, future_of
from sa_atp.net.shared_memory.layout import SAFE_BYTES
from sa_atp.net.sockets import mtu
from sa_atp.net.sockets.udp import segments
from sa_atp.net.watching import door
from sa_atp.net.watching.of_connection import of_connection
from sa_atp.net.watching.states import ConnectionState
from sa_atp.protocol.job.errors import TransportError
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.log.event import Log, nobody
from sa_atp.protocol.packets.control import Reply, Request
from sa_atp.protocol.packets.header import size_of
from sa_atp.protocol.packets.lateness_messages import JobLateness
from sa_atp.protocol.packets.spec import Kind
from sa_atp.protocol.rank.compiled.common_case import Kernels
from sa_atp.protocol.rank.events import WorkerLimits, WorkerStats
from sa_atp.protocol.rank.worker import Worker

T = TypeVar("T")
AT_ONCE = 17  # segmented sends of one burst: a window of 1024 fragments
MARGIN_S = 1.0  # for the connection's thread to report a timeout before this one gives up waiting for it
LOOK_TIMEOUT_S = 5.0  # for a turn of the connection's thread, which takes milliseconds


class Communicator(Asking, Scattering, Gathering):
    """One rank's connection to a job. Thread-safe; close it, or use it as a context manager."""

    def __init__(
        self,
        membership: Membership,
        driver: Driver,
        limits: WorkerLimits,
        kernels: Kernels,
        log: Log = nobody,
        leaf: Leaf | None = None,
    ) -> None:
        """Args: leaf: of this host; None: there is none, or it is not used. Takes it over."""
        self.membership = membership
        self._worker = Worker(
            membership, now_us(), first_request=random.getrandbits(32), limits=limits, kernels=kernels, log=log
        )
        size = size_of(Kind.DATA, membership.lanes, membership.contribution_bits)
        self._worker.write_over(AT_ONCE * segments(size))
        driver.expect(size)
        self._session = Session(self._worker)
        self.helping = Helping(membership, self.ask, now_us, lambda: self._worker.answer_us)
        self._session.assigned = self.helping.on_assigned
        self._driver = driver
        self._closed = False
        self._closing = threading.Lock()  # the first call of close takes it, and keeps it
        self._process = os.getpid()
        self._callbacks = Callbacks(driver.is_here)
        driver.connection = self._worker
        driver.after = self._serve
        driver.ended = self._end
        driver.steady = SteadyLoop(self._worker, driver.socket, driver.woken_by, segments(size))
        self._way = Way(membership, driver.socket, leaf)
        self.shares_memory = driver.share_memory(self._way.open_channel)
        """Whether packets to and from the switch travel by shared memory, and not through the kernel."""
        if self.shares_memory:
            self._worker.hold_window(SAFE_BYTES)
        self._connected_us = now_us()
        self._end_telling = door.tell(partial(self.state, door.TURN_S))
        driver.start(f"sa-atp-rank-{membership.rank}")

    # --- sums ---------------------------------------------------------------------------------------------------------

    def all_reduce(self, array: Any, *, key: object | None = None, scale: float = 1.0) -> None:
        """Replaces an array by its sum over all ranks. Every rank must call it in the same order with the same size, key
        and scale.

        Args:
            array: np.ndarray of float32 or float16, or a dense CPU torch.Tensor of float32, float16 or bfloat16; any shape.
                An empty one returns at once.
            key: names the tensor from call to call, which saves a round trip where its magnitude changes slowly.
            scale: the sum is multiplied by this; 1 / world_size gives the mean.

        The calling thread runs the connection meanwhile: an interrupt, such as Ctrl-C, may end the connection.

        Raises: TransportError: what failed, naming the ranks that are missing; UserError: an array that cannot be sent.
        """
        self._wait_for(lambda: self._sum_of(array, key, scale, measured=True))

    def _wait_for(self, start: Callable[[], Sum | None]) -> Sum | None:
        """Starts a sum, and waits for it."""
        if self._driver.is_here():
            raise TransportError("a signal's handler cannot wait for a sum in the middle of another one")
        # this thread runs the connection while it waits, so no thread has to wake another one
        borrowed = not self.is_of_another_process and self._driver.borrow()
        try:
            sum_ = start()
            if borrowed and sum_ is not None:
                self._driver.turn_until(lambda: sum_.is_over)
        finally:
            if borrowed:
                self._driver.give_back()
        if sum_ is not None:
            sum_.future.result()
        return sum_

    def _start(self, values: Values, scale: float, *, measured: bool) -> Sum:
        sum_ = self._new_sum(values.size, None, None, scale, measured=measured)
        self._call(lambda: self._session.begin(sum_, None, now_us(), values))
        return sum_

    def all_reduce_async(
        self, array: Any, *, key: object | None = None, scale: float = 1.0, measured: bool = True
    ) -> "Future[Any]":
        """Like `all_reduce`, in the background. The array must not be touched until the future is done.

        Args: measured: see `begin`.

        Returns: a future, whose result is the array, and whose exception is what went wrong. Its callbacks run in threads
        of their own, and may wait for other sums.
        """
        return future_of(self._sum_of(array, key, scale, measured=measured), array)

    def _sum_of(self, array: Any, key: object | None, scale: float, *, measured: bool) -> Sum | None:
        """Starts a sum to which this rank contributes an array, and which replaces that; None: the array is empty."""
        if self.membership.seats:
            raise UserError(
                "a job with seats sums contributions of some of its ranks only: use begin, take_seat and contribute"
            )
        if self.membership.scatters:
            raise UserError("results of this job are scattered, so that no rank gets a whole sum: use reduce_scatter")
        values, write_back = flat_float32(array)
        if not values.size:
            return None
        sum_ = self._new_sum(values.size, key, values, scale, measured=measured)
        sum_.array, sum_.write_back = array, write_back
        self._call(lambda: self._session.begin(sum_, key, now_us(), values))
        return sum_

    def begin(
        self,
        values: int,
        *,
        key: object | None = None,
        out: Addends | None = None,
        scale: float = 1.0,
        measured: bool = True,
        whole: bool = False,
    ) -> Sum:
        """Starts a sum without contributing yet; its future's result is float32[values], its exception a TransportError.

        Args:
            out: where the values go when the sum is done; may be one of the contributions. Default: a new array.
            scale: the sum is multiplied by this.
            measured: whether this sum counts in `stragglers`. Every rank must say the same.
            whole: whether contributions and sum are whole numbers, int32 in place of float32. Their sum is exact, and has
                to be between -2**30 and 2**30; the sum fails otherwise. Every rank must say the same.

        Raises: UserError: nothing to sum, an `out` that cannot take the sum, or a key that cannot be compared.
        """
        sum_ = self._new_sum(values, key, out, scale, measured=measured, whole=whole)
        self._call(lambda: self._session.begin(sum_, key, now_us()))
        return sum_

    def _new_sum(
        self,
        values: int,
        key: object | None,
        out: Addends | None,
        scale: float,
        *,
        measured: bool,
        whole: bool = False,
    ) -> Sum:
        try:
            hash(key)
        except TypeError:
            raise UserError(f"a key must be hashable, as a name or a number is, not a {type(key).__name__}") from None
        return self._session.new_sum(values, self._new_future(), out=out, scale=scale, measured=measured, whole=whole)

    def _new_future(self) -> "Future[Any]":
        return Promise(self._callbacks)

    def contribute(self, sum_: Sum, parts: Sequence[Addends], bits: int, *, on_behalf: bool = False) -> None:
        """Adds values to a sum.

        Args:
            parts: float32[values] for each contribution, or int32[values] to a sum of whole numbers, lowest bit first,
                rounded one by one, or one array for all of them. They must not change until the sum is done.
            bits: which contributions they are, see `membership.bits_of` and `membership.bit`.
            on_behalf: whether some of them belong to other ranks.

        Raises: UserError: bits and arrays do not fit the job, the sum, or one another.
        """
        parts = tuple(parts)
        bits = self._session.check_contribution(sum_, parts, bits, on_behalf=on_behalf)
        self._call(lambda: self._session.contribute(sum_, parts, bits, now_us(), on_behalf=on_behalf))

    def limit_operations(self, operation_timeout_s: float) -> None:
        """Changes how long a sum may make no progress before it fails, also for sums under way. Raises: UserError."""
        timeout_us = microseconds("operation_timeout_s", operation_timeout_s)
        self._call(lambda: self._worker.limit_operations(timeout_us))

    def probe(self, sum_: Sum) -> None:
        """Asks the switch what it holds of a sum; the answer appears in `sum_.missing_bits`."""
        self._call(lambda: self._session.probe(sum_))

    # --- help ---------------------------------------------------------------------------------------------------------

    def ask(self, question: Request, understand: Callable[[Reply | None], T]) -> "Future[T]":
        """See `Asking.ask`. Raises: UserError: a program may not ask this."""
        self._session.check_question(question)
        future: Promise[T] = Promise(self._callbacks)
        # the server's word may make the connection's own thread report something while the program already closes it
        call = self._driver.call if self._driver.is_here() else self._call
        call(lambda: self._session.ask(question, understand, future, now_us()))
        return future

    # --- state --------------------------------------------------------------------------------------------------------

    def stats(self) -> WorkerStats:
        """Counters since the connection was made, as they are now. Raises: TransportError, see describe."""
        return self._look(lambda: replace(self._worker.stats))

    def stragglers(self) -> JobLateness:
        """Returns which ranks were slow, by how much, and at what, in all sums of this job but those of the last 0.4 s.

        A sum counts when all ranks have told how long they waited for it. Of many small ones every second, fourth, ...
        counts.

        Raises: TransportError: the connection is over, or the parameter server has not answered in time.
        """
        found = self.lateness().result(LOOK_TIMEOUT_S)
        if found is None:
            raise TransportError("the parameter server has not said who was slow")
        return found

    def state(self, timeout_s: float | None = None) -> ConnectionState:
        """Counters, windows and waits, as `sa-atp watch` shows them. Raises: TransportError, see describe."""

        def at() -> ConnectionState:
            connected_us = now_us() - self._connected_us
            return of_connection(self._worker, self.helping, connected_us, shares_memory=self.shares_memory)

        return self._look(at, timeout_s)

    def describe(self) -> str:
        """Describes in words what the connection waits for. Raises: TransportError: its thread is stuck."""
        return self._look(self._worker.describe)

    def _look(self, at: Callable[[], T], timeout_s: float | None = None) -> T:
        """Calls `at` between two turns of the connection's thread, or here if that thread does not run in this process."""
        if self.is_of_another_process or self._driver.is_here():
            return at()
        timeout_s = LOOK_TIMEOUT_S if timeout_s is None else timeout_s
        try:
            return door.between_turns(self._driver.call, at, timeout_s)
        except TimeoutError:
            raise TransportError(f"the connection's thread has not answered for {timeout_s:g} s") from None

    @property
    def is_of_another_process(self) -> bool:
        """Whether this process was forked from the one that made the connection: a fork has no threads."""
        return self._process != os.getpid()

    @property
    def error(self) -> TransportError | None:
        """The error that ended the connection, if any."""
        return self._worker.error  # which changes once, at once

    def close(self) -> None:
        """Leaves the job. Sums that are still under way fail.

        Waits until every other rank has the sums that this one has, or leaves as well: another rank may have missed a
        result and need it from here. This usually takes a round trip, and at most `operation_timeout_s`.
        """
        if self.is_of_another_process or not self._closing.acquire(blocking=False):
            return
        self._closed = True
        if self._driver.is_here():  # a signal's handler in the middle of a sum: waiting here would wait for itself
            self._driver.stop_soon()
            return
        try:
            if self._worker.error is None:
                left: Promise[None] = Promise(self._callbacks)
                self._driver.call(lambda: self._session.leave(left, now_us()))
                with contextlib.suppress(TimeoutError, TransportError):  # the server will notice by itself
                    left.result(timeout=self._worker.limits.operation_timeout_us / 1e6 + MARGIN_S)
        finally:
            self._driver.stop()
            writing.flush()
            self._callbacks.close()

    def abort(self) -> None:
        """Ends the connection at once: sums under way fail, and the other ranks are told that this one has left."""
        if self.is_of_another_process or not self._closing.acquire(blocking=False):
            return
        self._closed = True

        def leave() -> None:
            if self._worker.error is None:
                self._worker.server.leave(now_us())  # sent in this turn, the last one
            self._driver.stop_soon()

        self._driver.call(leave)
        if not self._driver.is_here():
            self._driver.stop()
            self._callbacks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- in the connection's thread -------------------------------------------------------------------------------------

    def _call(self, action: Callable[[], None]) -> None:
        if self._closed:
            raise TransportError("the connection is closed")
        if self.is_of_another_process:
            raise TransportError("the connection belongs to the process that this one was forked from: connect again")
        self._driver.call(action)

    def _serve(self) -> None:
        """Called after each turn of the connection's thread."""
        too_long = None if self._driver.socket.too_long is None else mtu.take_exceeded(self._driver.socket)
        if too_long is not None and self._worker.error is None:
            self._worker.path_narrowed(*too_long, now_us())
        self._session.serve(now_us())

    def _end(self) -> None:
        """Called when the connection's thread ends: completes everything that waits for it."""
        self._end_telling()
        self._way.close()
        reason = "the connection was closed" if self._closed else "the connection's thread has failed"
        self._worker.server.fail(TransportError(reason))
        self._session.fail(self._worker.error or TransportError(reason))
