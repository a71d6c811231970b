"""Runs a sans-I/O connection over a UDP socket: a dozen lines, and a thread for those who want to block."""

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from sa_atp.net.clock import now_us
from sa_atp.net.loop.receive_coalescing import ReceiveCoalescing
from sa_atp.net.loop.send_pacer import SendPacer
from sa_atp.net.loop.steady_loop import SteadyLoop
from sa_atp.net.shared_memory.channel import Channel
from sa_atp.net.shared_memory.layout import ROOM_US
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.protocol.job.standstill import stood_still_us
from sa_atp.protocol.packets.datagrams import Address, Burst

LONGEST_WAIT_S = 1.0
LONGEST_PAUSE_US, WORTH_IT = 8_000, 8  # of datagrams that gather, see ReceiveCoalescing
ENOUGH = 96  # datagrams, for which a pause need not be longer
FD_SETSIZE = 1024  # descriptors from here on are beyond select()
A_TURN_S = 0.01  # a turn takes less, usually; `borrow` waits so long for the one that is under way
UNKNOWN = -1  # a time that has not been worked out yet
SEEK_US = 500_000
LOOKS = 8  # at a socket in a turn: calls and timers are not starved however much arrives


class Connection(Protocol):
    def receive(self, bursts: Sequence[Burst], now_us: int) -> None: ...
    def transmit(self, now_us: int, budget_bytes: int | None = None) -> list[Burst]: ...
    def next_timer_us(self) -> int | None: ...
    def handle_timer(self, now_us: int) -> None: ...
    def may_gather(self) -> int: ...
    @property
    def has_more(self) -> bool: ...
    def doubts(self, now_us: int) -> bool:
        """Says whether the connection wants to hear of hosts that refuse packets: a peer is silent, and may have ended."""

    def ports_closed(self, addresses: Collection[Address], now_us: int) -> None:
        """The hosts of these addresses say that no process has the port any more."""


class Driver:
    """One connection, one socket. All calls into the connection happen in the loop, in one thread at a time.

    Usually that is a thread of its own. A thread that waits for something borrows the loop and does its work meanwhile.
    """

    def __init__(
        self,
        connection: Connection,
        socket: UdpSocket,
        after: Callable[[], None] = lambda: None,
        worth_it: int = WORTH_IT,
        enough: int = ENOUGH,
    ) -> None:
        """Args:
        after: called whenever the connection has been served: the place to take its events.
        worth_it, enough: datagrams that are worth a pause in which they gather, and for which no pause need be longer.
        """
        self.connection = connection
        self.socket = socket
        self.after = after
        self.ended: Callable[[], None] = lambda: None
        """Called in the loop's thread when the loop ends, whatever ends it; later calls run in their caller's thread."""
        self._calls: deque[Callable[[], None]] = deque()
        self._woken = False
        self._stop = False
        self._over = False
        # between waking the loop and closing what wakes it; a signal handler may interrupt its own thread
        self._lock = threading.RLock()
        self._loop = threading.Lock()  # held by the thread that does what the loop does, between two waits
        self._owner = 0  # that thread; 0: none
        self._is_over: Callable[[], bool] = _never  # what the thread that has borrowed it waits for
        self._is_lent = False  # to a thread that keeps it while it waits
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll = select.epoll()  # of what the loop waits for
        for descriptor in (socket.fileno(), self._wake_read):
            self._epoll.register(descriptor, select.EPOLLIN)
        self._own_epoll = select.epoll()  # of that, unless it is lent: in which the loop's own thread sleeps
        self._own_epoll.register(self._epoll, select.EPOLLIN)
        self._may_sleep = True  # whether the switch rings, if something arrives by shared memory
        self._open_channel: Callable[[], Channel | None] | None = None
        self._spares = False  # whether the switch may leave out what others get as well
        self._seek_us = 0  # when a channel that was lost is looked for again
        self._due_us: int | None = UNKNOWN  # when there is something to do, seen after the last turn
        self._due_slept_us: int | None = UNKNOWN  # ... as the loop's own thread knew it when it began to wait
        self._thread: threading.Thread | None = None
        self._enough, self._worth_it = enough, worth_it
        self.expect(0)
        self.steady: SteadyLoop | None = None
        """Does turns in compiled code while a stream flows; None: nothing does."""
        self._pacer = SendPacer()
        self._owes = False  # whether contributions that may leave have not been sent
        self._resume_us: int | None = None  # when there may be room again for what waits to be sent

    def expect(self, size: int) -> None:
        """Says how large the largest datagrams will be, in bytes: before the loop runs, or in it."""
        enough = min(self._enough, self.socket.most_gathered(size))
        self._coalescing = ReceiveCoalescing(LONGEST_PAUSE_US, enough, self._worth_it)

    def share_memory(self, open_channel: Callable[[], Channel | None]) -> bool:
        """Has datagrams to and from the switch travel by shared memory from now on, where they can: before the loop runs.

        Args: open_channel: asks the switch. It is called again when the switch has ended, until there is another one.
        Returns: whether the switch shares memory with this process.
        """
        channel = open_channel()
        if channel is None:
            return False
        self._open_channel = open_channel
        self._use_channel(channel)
        return True

    def _use_channel(self, channel: Channel) -> None:
        self.socket.channel = channel
        channel.spare(self._spares)
        for descriptor in (channel.bell, channel.peer):
            self._epoll.register(descriptor, select.EPOLLIN)
        self._may_sleep = False

    def _drop_channel(self) -> None:
        channel = self.socket.channel
        if channel is None:
            return
        for descriptor in (channel.bell, channel.peer):
            self._epoll.unregister(descriptor)
        self.socket.drop_channel()
        self._may_sleep = True
        self._seek_us = now_us()

    def spare(self, wanted: bool) -> None:
        """See Channel.spare; in the loop."""
        self._spares = wanted
        if self.socket.channel is not None:
            self.socket.channel.spare(wanted)

    def _seek_channel(self) -> None:
        """Asks the switch now and then for another channel (shared memory), after one was lost."""
        if self._open_channel is None or now_us() < self._seek_us:
            return
        channel = self._open_channel()
        self._seek_us = now_us() + SEEK_US
        if channel is not None:
            self._use_channel(channel)

    def let_gather(self, longest_us: int) -> None:
        """Says for how long datagrams may gather at the most from now on: in the loop."""
        self._coalescing.longest_us = longest_us

    # --- from any thread ----------------------------------------------------------------------------------------------

    def call(self, action: Callable[[], None]) -> None:
        """Has the loop run `action` soon."""
        self._calls.append(action)
        if not self.is_here():
            self._wake()
        if self._over:
            self._run_calls()

    def start(self, name: str) -> threading.Thread:
        """Runs the loop in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self._thread.start()
        return self._thread

    def stop_soon(self) -> None:
        """Ends the loop, after what it is doing. Does not wait for that."""
        self._stop = True
        self._wake()

    def stop(self) -> None:
        """Ends the loop, after what it is doing, and closes the socket."""
        self.stop_soon()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def is_here(self) -> bool:
        """Whether the loop is in this thread at the moment: then nothing that it must do may be waited for."""
        return self._owner == threading.get_ident()

    @property
    def woken_by(self) -> int:
        """The descriptor at which the loop is woken: readable when somebody wants it."""
        return self._wake_read

    def borrow(self) -> bool:
        """Takes the loop into this thread, until `give_back`, so that no thread has to wake another one to go on.

        Returns: whether it could: somebody else may have it, or it may be over.
        """
        if self.is_here() or self._is_lent:
            return False
        if not self._loop.acquire(blocking=False):
            self._wake()  # it may be in the middle of many turns
            if not self._loop.acquire(timeout=A_TURN_S):
                return False
        if self._over or self._stop:
            self._loop.release()
            return False
        self._owner, self._is_lent = threading.get_ident(), True
        self._own_epoll.unregister(self._epoll)
        return True

    def turn_until(self, is_done: Callable[[], bool]) -> None:
        """Does turns in the thread that has borrowed the loop. An exception in a turn ends the loop, as everywhere."""
        readable: list[int] = []  # at first: what has been called meanwhile
        self._is_over = is_done
        while True:
            try:
                self._handle(readable)
            except BaseException:
                self._stop = True
                raise
            if is_done() or self._stop:
                return
            wait_s = self._wait_s(LONGEST_WAIT_S) if self._fall_asleep() else 0.0
            readable = self._woken_by([fd for fd, _ in self._epoll.poll(wait_s)])

    def give_back(self) -> None:
        self._is_over = _never
        self._own_epoll.register(self._epoll, select.EPOLLIN)
        if not self._fall_asleep():  # on behalf of the loop's own thread, which may sleep already
            self._wake()
        self._owner, self._is_lent = 0, False
        self._loop.release()
        # its own thread may sleep longer than it should, and does not know what has been called since
        due_us, slept_us = self._due_us, self._due_slept_us
        if self._stop or self._calls or (due_us is not None and (slept_us is None or due_us < slept_us)):
            self._wake()

    def _wake(self) -> None:
        if self._woken:
            return  # by somebody whom the loop has not heard yet: it will look at the calls after that
        with self._lock, contextlib.suppress(BlockingIOError):  # full: the loop will wake up anyway
            if not self._over:
                self._woken = True
                os.write(self._wake_write, b"x")

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._due_us = UNKNOWN  # the connection may be another one than before
        try:
            while not self._stop:
                self.turn(LONGEST_WAIT_S)
        finally:
            with self._loop:
                self._owner = threading.get_ident()
                try:
                    self.ended()
                finally:
                    self.close()
                    self._owner = 0

    def close(self) -> None:
        """Gives back what the loop has of the system; for a loop that does not run, or not any more."""
        with self._lock:
            if self._over:
                return
            self._over = True
            self._own_epoll.close()
            self._epoll.close()
            self.socket.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
        self._run_calls()

    def _run_calls(self) -> None:
        """Runs the calls that are there now: results and timers are not starved however many a program makes."""
        for _ in range(len(self._calls)):
            try:
                action = self._calls.popleft()
            except IndexError:  # when the loop is over, others run them, too
                return
            action()

    def _wait_s(self, longest_s: float) -> float:
        """Returns how long the loop may sleep if nothing arrives."""
        if self._calls or self._due_us == UNKNOWN:
            return 0.0
        return longest_s if self._due_us is None else max(0.0, min(longest_s, (self._due_us - now_us()) / 1e6))

    def _next_due_us(self) -> int | None:
        due = self.connection.next_timer_us()
        if due is None or self._resume_us is None:
            return self._resume_us if due is None else due
        return min(due, self._resume_us)

    def turn(self, longest_s: float) -> None:
        """Waits for something to happen, and handles it."""
        wait_s = self._wait_s(longest_s) if self._may_sleep else 0.0
        self._due_slept_us = self._due_us
        self._own_epoll.poll(wait_s)
        with self._loop:
            self._owner = threading.get_ident()
            try:
                self._handle(self._woken_by([fd for fd, _ in self._epoll.poll(0)]))
                self._fall_asleep()
            finally:
                self._owner = 0

    def _fall_asleep(self) -> bool:
        """Before a wait. Returns: whether it may be one: False if something has arrived by shared memory."""
        self._may_sleep = self.socket.channel is None or self.socket.channel.fall_asleep()
        return self._may_sleep

    def _woken_by(self, readable: list[int]) -> list[int]:
        """After a wait. Returns: the descriptors at which there is something, with those that need not be readable."""
        channel = self.socket.channel
        if channel is None:
            return readable
        has_rung = channel.bell in readable
        channel.wake_up(has_rung)
        return readable if has_rung or not channel.has_arrived() else [*readable, channel.bell]

    def _handle(self, readable: Sequence[int]) -> None:
        """Args: readable: descriptors at which there is something, or was."""
        received, is_called = self._take(readable), bool(self._calls)
        may_flow = self.steady is not None and (received > 0 or is_called)
        self._serve(contributions=not may_flow)  # which leave first if a stream flows, and else below
        if self._is_over():
            self._flush_what_is_owed()
            return
        pause_s = self._pause_s(received)
        while may_flow and self.steady is not None and not (self._calls or self._stop or self._is_over()):
            left = self.steady.run(self._pacer, self._coalescing, pause_s, self._resume_us, owes=self._owes)
            if left is None:
                break
            if left:
                self.connection.receive(left, now_us())
            self._serve(contributions=False)
            pause_s = 0.0
        self._flush_what_is_owed()
        if pause_s and self._resume_us is not None:  # what waits to be sent need not wait longer
            pause_s = min(pause_s, (self._resume_us - now_us()) / 1e6)
        if pause_s > 0:
            wait_readable(self._wake_read, pause_s)  # calls need not wait

    def _flush_what_is_owed(self) -> None:
        if self._owes:
            self._flush()
            self._owes = False
            self._due_us = self._next_due_us()

    def _pause_s(self, received: int) -> float:
        """Returns how long datagrams may gather now. Args: received: how many the last look at the socket brought."""
        return self._coalescing.pause_s(received, self.connection.may_gather()) if received else 0.0

    def _take(self, readable: Sequence[int]) -> int:
        """Reads from the descriptors that are readable. Returns: how many datagrams."""
        received, channel = 0, self.socket.channel
        is_wanted = self._wake_read in readable
        if is_wanted:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
            self._woken = False  # before the calls are taken: later ones wake the loop again
        if len(readable) > is_wanted:
            refused = self.socket.refused() if self.socket.reports_refusals else ()
            received = self._receive()
            if refused:  # after what has arrived: whoever is heard of now has not ended
                self.connection.ports_closed(refused, now_us())
        if channel is not None and (channel.is_broken or (channel.peer in readable and channel.is_over())):
            self._drop_channel()
        return received

    def _serve(self, *, contributions: bool = True) -> None:
        """Runs calls and timers that are due, and sends. Args: contributions: whether they are sent as well as the rest."""
        if self._calls:
            self._run_calls()
        if self.socket.channel is None:
            self._seek_channel()
        # as it was after the last turn: what has made it earlier since then is sent below
        due, now = self.connection.next_timer_us() if self._due_us == UNKNOWN else self._due_us, now_us()
        if due is not None and now >= due:
            if stood_still_us(due, now):
                self._receive()  # others are heard before anything follows from their silence
            self.connection.handle_timer(now_us())
        doubts = self.connection.doubts(now)
        if doubts != self.socket.reports_refusals:
            self.socket.report_refusals(doubts)
        self._owes = not contributions
        if contributions:
            self._flush()
        else:
            self.socket.send(self.connection.transmit(now_us(), 0))
        self.after()
        self._due_us = self._next_due_us()

    def _receive(self) -> int:
        """Takes what has arrived, or a bounded part of it; returns how many datagrams."""
        before = self.socket.stats.received
        for _ in range(LOOKS):
            self.connection.receive(self.socket.receive(), now_us())
            if self.socket.is_drained:
                break
            self._flush()
        return self.socket.stats.received - before

    def _flush(self) -> None:
        """Sends what there is to send; contributions only as fast as they leave this host, control messages at once."""
        self._resume_us = None
        while True:
            channel = self.socket.channel
            budget_bytes = (
                self._pacer.budget_bytes(self.socket.unsent_bytes(), now_us())
                if channel is None
                else channel.budget_bytes()
            )
            bursts = self.connection.transmit(now_us(), budget_bytes)
            if not bursts:
                break
            self.socket.send(bursts)
            if channel is None:
                self._pacer.wrote(sum(burst.data.size for burst in bursts), self.socket.unsent_bytes(), now_us())
            if not self.connection.has_more:
                break
        if channel is not None:
            self._resume_us = None if budget_bytes else now_us() + ROOM_US
        elif budget_bytes is not None:
            self._resume_us = self._pacer.resume_us()


def _never() -> bool:
    return False


def wait_readable(descriptor: int, seconds: float) -> None:
    """Waits until the descriptor is readable, or the time is over."""
    if descriptor < FD_SETSIZE:
        select.select([descriptor], [], [], seconds)
        return
    poll = select.poll()  # which counts in milliseconds
    poll.register(descriptor, select.POLLIN)
    poll.poll(1000 * seconds)
