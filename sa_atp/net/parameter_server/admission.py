"""Between the parameter server, which decides about jobs, and the switches, which must know of them.

The parameter server's loop must not wait for P4Runtime. So each switch has a thread, which does what was decided since it
last looked, all at once, and every second looks whether the switch is as it should be. A switch that does not answer keeps
no other one waiting.
"""

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sa_atp.basics.errors import SaAtpError
from sa_atp.basics.terminal import say
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.server.server_events import Admit, Retire, ServerEvent
from sa_atp.switches.control import fabric
from sa_atp.switches.control.fabric import Keeper
from sa_atp.switches.control.job_tables import Problems

CHECK_EVERY_S = 1.0
CLOSE_S = 10.0  # for what was submitted


@dataclass(slots=True)
class _Open:
    """A job that not all switches have yet."""

    job: Admit
    waiting: set[Keeper] = field(default_factory=set)


class Installer:
    """Installs and removes jobs on all switches, and looks after these."""

    def __init__(
        self,
        keepers: Sequence[Keeper],
        server: Address,
        *,
        admitted: Callable[[Admit, list[list[int]]], None],
        refused: Callable[[Admit, str], None],
        restarted: Callable[[str], None] = lambda what: None,
    ) -> None:
        """Args:
        keepers: of switches that are up.
        server: the parameter server's address as packets carry it.
        admitted: called from a thread with what was submitted, and the ranks below each leaf.
        refused: called from a thread with what was submitted, and the reason.
        restarted: called from a thread with what was found at a switch that is not as it should be, in words.
        """
        self._places = [keeper.place for keeper in keepers]
        self._admitted = admitted
        self._refused = refused
        self._open: dict[tuple[int, int], _Open] = {}  # by number and epoch
        self._lock = threading.Lock()
        self._attendants = [_Attendant(keeper, server, self._installed, restarted) for keeper in keepers]

    def submit(self, event: ServerEvent) -> None:
        """Has it done soon, unless a later event says that the job is over. Called from one thread."""
        with self._lock:
            if isinstance(event, Admit):
                waiting = {attendant.keeper for attendant in self._attendants}
                self._open[event.number, event.epoch] = _Open(event, waiting)
            else:
                self._open.pop((event.number, event.epoch), None)
        for attendant in self._attendants:
            attendant.events.put(event)

    def close(self) -> None:
        """Finishes what was submitted, and ends the connections."""
        for attendant in self._attendants:
            attendant.events.put(None)
        until = time.monotonic() + CLOSE_S
        for attendant in self._attendants:
            attendant.thread.join(max(0.0, until - time.monotonic()))
            attendant.keeper.close()

    def _installed(self, keeper: Keeper, job: Admit, problem: str | None) -> None:
        """A switch has a job, or cannot take it."""
        with self._lock:
            found = self._open.get((job.number, job.epoch))
            if found is None:
                return  # it is over, or another switch could not take it
            found.waiting.discard(keeper)
            if problem is None and found.waiting:
                return
            del self._open[job.number, job.epoch]
        if problem is None:
            self._admitted(job, fabric.leaves(self._places, job))
        else:
            self._refused(job, problem)


class _Attendant:
    """The thread of one switch."""

    def __init__(
        self,
        keeper: Keeper,
        server: Address,
        done: Callable[[Keeper, Admit, str | None], None],
        restarted: Callable[[str], None],
    ) -> None:
        """Args: done: called with each job that was to be installed, and why it could not be. restarted: see Installer."""
        self.keeper = keeper
        self.events: queue.SimpleQueue[ServerEvent | None] = queue.SimpleQueue()  # None: that was all
        self._server = server
        self._done = done
        self._restarted = restarted
        self._complaint: str | None = None
        self.thread = threading.Thread(target=self._run, name="sa-atp-installer", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        look_at = time.monotonic() + CHECK_EVERY_S
        events: list[ServerEvent | None] = []
        while None not in events:
            events = self._take(look_at - time.monotonic())
            try:
                self._carry_out([event for event in events if event is not None])
                if time.monotonic() >= look_at:
                    self._look()
            except Exception:  # whatever it is: there are other jobs, and a next look
                say(traceback.format_exc())
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + CHECK_EVERY_S

    def _take(self, longest_s: float) -> list[ServerEvent | None]:
        """What waits to be done; after a while nothing."""
        found = []
        try:
            found.append(self.events.get(timeout=max(0.0, longest_s)))
            while True:
                found.append(self.events.get_nowait())
        except queue.Empty:
            return found

    def _carry_out(self, events: Sequence[ServerEvent]) -> None:
        last = {event.number: event for event in events}  # what was decided before that is over
        installed = [event for event in last.values() if isinstance(event, Admit)]
        removed = [event.number for event in last.values() if isinstance(event, Retire)]
        if not last:
            return
        try:
            problems: Problems = self.keeper.carry_out(installed, removed, self._server)
        except Exception as error:
            # whatever it is: those who join must hear of it, and the next job be served
            say(traceback.format_exc())
            failed = SaAtpError(f"the control plane failed ({type(error).__name__}: {error})")
            problems = dict.fromkeys(last, failed)
        for number in removed:
            if number in problems:  # it is over either way; its entries admit nobody who is still there
                say(f"sa-atp: job {number} could not be removed: {problems[number]}")
        for job in installed:
            self._done(self.keeper, job, str(problems[job.number]) if job.number in problems else None)

    def _look(self) -> None:
        found = self.keeper.check()
        if found is not None and found != self._complaint:
            say(f"sa-atp: {found}")
            self._restarted(found)
        self._complaint = found
