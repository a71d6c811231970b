"""Runs a sans-I/O connection over a UDP socket: a dozen lines, and a thread for those who want to block."""

import contextlib
import os
import select
import selectors
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from sa_atp.net.clock import now_us
from sa_atp.net.receive_coalescing import ReceiveCoalescing
from sa_atp.net.send_pacer import SendPacer
from sa_atp.net.udp import UdpSocket
from sa_atp.wire.datagrams import Burst

LONGEST_WAIT_S = 1.0
LONGEST_PAUSE_US, ENOUGH, WORTH_IT = 8_000, 96, 8  # of datagrams that gather, see ReceiveCoalescing
FD_SETSIZE = 1024  # descriptors from here on are beyond select()
LOOKS = 8  # at a socket in a turn: calls and timers come to their right however much arrives


class Connection(Protocol):
    def receive(self, bursts: Sequence[Burst], now_us: int) -> None: ...
    def transmit(self, now_us: int, budget_bytes: int | None = None) -> list[Burst]: ...
    def next_timer_us(self) -> int | None: ...
    def handle_timer(self, now_us: int) -> None: ...
    def may_gather(self) -> int: ...


class Driver:
    """One connection, one socket. All calls into the connection happen in the thread that runs the loop."""

    def __init__(self, connection: Connection, socket: UdpSocket, after: Callable[[], None] = lambda: None) -> None:
        """Args: after: called whenever the connection has been served: the place to take its events."""
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
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(socket, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread: threading.Thread | None = None
        self._coalescing = ReceiveCoalescing(LONGEST_PAUSE_US, ENOUGH, WORTH_IT)
        self._pacer = SendPacer()
        self._resume_us: int | None = None  # when there may be room again for what waits to be sent

    # --- from any thread ----------------------------------------------------------------------------------------------

    def call(self, action: Callable[[], None]) -> None:
        """Has the loop run `action` soon."""
        self._calls.append(action)
        self._wake()
        if self._over:
            self._run_calls()

    def start(self, name: str) -> threading.Thread:
        """Runs the loop in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self._thread.start()
        return self._thread

    def stop(self) -> None:
        """Ends the loop, after what it is doing, and closes the socket."""
        self._stop = True
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _wake(self) -> None:
        if self._woken:
            return  # by somebody whom the loop has not heard yet: it will look at the calls after that
        with self._lock, contextlib.suppress(BlockingIOError):  # full: the loop will wake up anyway
            if not self._over:
                self._woken = True
                os.write(self._wake_write, b"x")

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            while not self._stop:
                self.turn(LONGEST_WAIT_S)
        finally:
            try:
                self.ended()
            finally:
                self.close()

    def close(self) -> None:
        """Gives back what the loop has of the system; for a loop that does not run, or not any more."""
        with self._lock:
            if self._over:
                return
            self._over = True
            self._selector.close()
            self.socket.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
        self._run_calls()

    def _run_calls(self) -> None:
        """Those that are there: results and timers come to their right however many a program makes."""
        for _ in range(len(self._calls)):
            try:
                action = self._calls.popleft()
            except IndexError:  # when the loop is over, others run them, too
                return
            action()

    def turn(self, longest_s: float) -> None:
        """Waits for something to happen, and handles it."""
        wait = longest_s
        for due in (self.connection.next_timer_us(), self._resume_us):
            if due is not None:
                wait = min(wait, max(0.0, (due - now_us()) / 1e6))
        received = 0
        for key, _ in self._selector.select(0 if self._calls else wait):
            if key.fd == self._wake_read:
                os.read(self._wake_read, 4096)
                self._woken = False  # before the calls are taken: later ones wake the loop again
            else:
                received = self._receive()
        self._run_calls()
        due = self.connection.next_timer_us()
        if due is not None and now_us() >= due:
            self.connection.handle_timer(now_us())
        self._flush()
        self.after()
        pause_s = self._coalescing.pause_s(received, self.connection.may_gather())
        if pause_s:
            wait_readable(self._wake_read, pause_s)  # calls need not wait

    def _receive(self) -> int:
        """Takes what has arrived, or a bounded part of it; returns how many datagrams."""
        received = 0
        for _ in range(LOOKS):
            bursts = self.socket.receive()
            received += sum(len(burst) for burst in bursts)
            self.connection.receive(bursts, now_us())
            if self.socket.is_drained:
                break
            self._flush()
        return received

    def _flush(self) -> None:
        """Sends what there is to send; contributions only as fast as they leave this host, control messages at once."""
        self._resume_us = None
        while True:
            budget_bytes = self._pacer.budget_bytes(self.socket.unsent_bytes(), now_us())
            bursts = self.connection.transmit(now_us(), budget_bytes)
            if not bursts:
                break
            self.socket.send(bursts)
            self._pacer.wrote(sum(burst.data.size for burst in bursts), self.socket.unsent_bytes(), now_us())
        if budget_bytes is not None:
            self._resume_us = self._pacer.resume_us()


def wait_readable(descriptor: int, seconds: float) -> None:
    """Until there is something to read, or the time is over."""
    if descriptor < FD_SETSIZE:
        select.select([descriptor], [], [], seconds)
        return
    poll = select.poll()  # which counts in milliseconds
    poll.register(descriptor, select.POLLIN)
    poll.poll(1000 * seconds)
