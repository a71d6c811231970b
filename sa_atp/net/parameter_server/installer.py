"""Installs the parameter server's jobs on switches.

The parameter server's loop must not wait for P4Runtime, and no switch for another one. So each switch has a thread, which
carries out all waiting decisions at once, and checks every second that the switch has what it should have.
"""

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from sa_atp.basics.errors import SaAtpError
from sa_atp.basics.terminal import say
from sa_atp.protocol.server.server_events import Admit, HostLeaf, Retire, ServerEvent
from sa_atp.switches.control import fabric
from sa_atp.switches.control.fabric import Keeper
from sa_atp.switches.control.job_tables import Problems

CHECK_EVERY_S = 1.0
CLOSE_S = 10.0  # to finish what was submitted


@dataclass(slots=True)
class _PendingJob:
    """A job that some switches do not have yet."""

    job: Admit
    waiting: set[Keeper] = field(default_factory=set)


class Installer:
    """Installs and removes jobs on all switches, and keeps the switches up."""

    def __init__(
        self,
        keepers: Sequence[Keeper],
        *,
        admitted: Callable[[Admit, list[list[int]]], None],
        refused: Callable[[Admit, str], None],
        restarted: Callable[[str], None] = lambda what: None,
        keeper_of: Callable[[HostLeaf], Keeper] | None = None,
        leaf_refused: Callable[[Admit, str, HostLeaf], None] = lambda job, reason, leaf: None,
    ) -> None:
        """Args:
        keepers: the keepers of the switches, which are up.
        admitted: called from a switch's thread with the job, and the ranks below each leaf, when all switches have it.
        refused: called from a switch's thread with the job, and the reason.
        restarted: called from a switch's thread with a description of what had to be set up again at its switch.
        keeper_of: makes the keeper of a leaf on a host; None: there are no such leaves.
        leaf_refused: called from its thread with the job, the reason, and the leaf on a host that could not take the job.
        """
        self._places = [keeper.place for keeper in keepers]
        self._admitted = admitted
        self._refused = refused
        self._open: dict[tuple[int, int], _PendingJob] = {}  # by number and epoch
        self._lock = threading.Lock()
        self._thread_of = partial(_SwitchThread, done=self._installed, restarted=restarted)
        self._switches = [self._thread_of(keeper) for keeper in keepers]
        self._keeper_of, self._leaf_refused = keeper_of, leaf_refused
        self._leaves: dict[HostLeaf, _SwitchThread] = {}
        self._jobs_of: dict[HostLeaf, set[int]] = {}  # numbers of the jobs for which there is that thread

    def submit(self, event: ServerEvent) -> None:
        """Queues the installation or removal of a job; a later event about it replaces this one. Called from one thread."""
        switches = [*self._switches, *self._leaves_of(event)]
        with self._lock:
            if isinstance(event, Admit):
                waiting = {switch.keeper for switch in switches}
                self._open[event.number, event.epoch] = _PendingJob(event, waiting)
            else:
                self._open.pop((event.number, event.epoch), None)
        for switch in switches:
            switch.events.put(event)
        for leaf in [leaf for leaf, numbers in self._jobs_of.items() if not numbers]:
            self._leaves.pop(leaf).events.put(None)
            del self._jobs_of[leaf]

    def _leaves_of(self, event: ServerEvent) -> "list[_SwitchThread]":
        """The threads of leaves on hosts that an event concerns. Each has one as long as there are jobs for it."""
        if not isinstance(event, Admit):
            had = [leaf for leaf, numbers in self._jobs_of.items() if event.number in numbers]
            for leaf in had:
                self._jobs_of[leaf].discard(event.number)
            return [self._leaves[leaf] for leaf in had]
        for leaf in event.leaves if self._keeper_of is not None else ():
            assert self._keeper_of is not None
            if leaf not in self._leaves:
                self._leaves[leaf] = self._thread_of(self._keeper_of(leaf))
            self._jobs_of.setdefault(leaf, set()).add(event.number)
        return [thread for leaf, thread in self._leaves.items() if event.number in self._jobs_of[leaf]]

    def close(self) -> None:
        """Carries out what was submitted, if there is time; each thread ends the connection of its switch."""
        switches = [*self._switches, *self._leaves.values()]
        for switch in switches:
            switch.events.put(None)
        until = time.monotonic() + CLOSE_S
        for switch in switches:
            switch.thread.join(max(0.0, until - time.monotonic()))

    def _installed(self, keeper: Keeper, job: Admit, problem: str | None) -> None:
        """Notes that a switch has a job, or why it cannot take it."""
        with self._lock:
            found = self._open.get((job.number, job.epoch))
            if found is None:
                return  # it is over, or another switch could not take it
            found.waiting.discard(keeper)
            if problem is None and found.waiting:
                return
            del self._open[job.number, job.epoch]
        leaf = keeper.place.attachment.host
        if problem is None:
            self._admitted(job, fabric.leaves(self._places, job))
        elif leaf is not None:
            say(f"sa-atp: the leaf at {leaf.where} is not used, its ranks send to the switch above: {problem}")
            self._leaf_refused(job, problem, leaf)
        else:
            self._refused(job, problem)


class _SwitchThread:
    """The thread of one switch."""

    def __init__(
        self,
        keeper: Keeper,
        done: Callable[[Keeper, Admit, str | None], None],
        restarted: Callable[[str], None],
    ) -> None:
        """Args:
        done: called with each job to be installed, and None or why it could not be.
        restarted: see Installer.
        """
        self.keeper = keeper
        self.events: queue.SimpleQueue[ServerEvent | None] = queue.SimpleQueue()  # None ends the thread
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
            except Exception:  # other jobs, and the next check, must go on
                say(traceback.format_exc())
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + CHECK_EVERY_S
        self.keeper.close()

    def _take(self, longest_s: float) -> list[ServerEvent | None]:
        """All waiting events; none if none comes in time."""
        found = []
        try:
            found.append(self.events.get(timeout=max(0.0, longest_s)))
            while True:
                found.append(self.events.get_nowait())
        except queue.Empty:
            return found

    def _carry_out(self, events: Sequence[ServerEvent]) -> None:
        last = {event.number: event for event in events}  # the newest event of each job counts
        installed = [event for event in last.values() if isinstance(event, Admit)]
        removed = [event.number for event in last.values() if isinstance(event, Retire)]
        if not last:
            return
        try:
            if self.keeper.place.attachment.host is not None and installed and not self.keeper.is_connected:
                self.keeper.bring_up()
            problems: Problems = self.keeper.apply_jobs(installed, removed)
        except SaAtpError as error:
            problems = dict.fromkeys(last, error)
        except Exception as error:
            # ranks that join must be refused, and the next jobs served
            say(traceback.format_exc())
            failed = SaAtpError(f"the control plane failed ({type(error).__name__}: {error})")
            problems = dict.fromkeys(last, failed)
        for number in removed:
            if number in problems:  # the job is over all the same: no rank sends what its entries admit
                say(f"sa-atp: job {number} could not be removed: {problems[number]}")
        for job in installed:
            self._done(self.keeper, job, str(problems[job.number]) if job.number in problems else None)

    def _look(self) -> None:
        found = self.keeper.check()
        if found is not None and found != self._complaint:
            say(f"sa-atp: {found}")
            self._restarted(found)
        self._complaint = found
