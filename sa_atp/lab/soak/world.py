"""Builds a world from its description, runs it to its end, and checks it."""

import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from logging.handlers import BufferingHandler

from sa_atp.basics.words import plural
from sa_atp.lab.simulator.network import Link
from sa_atp.lab.simulator.nodes import Switch
from sa_atp.lab.simulator.world import World
from sa_atp.lab.soak import invariants
from sa_atp.lab.soak.invariants import Broken
from sa_atp.lab.soak.rank import JobState, Rank, RankWorld
from sa_atp.lab.soak.scene import Fault, FaultKind, Scene
from sa_atp.net.loop.compiled import plan_kernels, worker_kernels
from sa_atp.protocol.help.plan import PLAIN
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.switches.embedded.pipeline import Pipeline

LOOK_US = 5_000_000  # interval of the check for progress
QUIET_US = 110_000_000  # a world hangs after so long without progress: longer than every bound of protocol section 11
STALL_US = 20_000_000  # the same in a world without faults that explain it: every request repeats within 200 ms
# A world may schedule so many callbacks: a constant, and more for each fragment that a rank has to send and each second of
# a rank (signs of life, probes and offers of help, each 6 ms and over three links).
EVENTS = 30_000
EVENTS_A_PACKET = 200
EVENTS_A_SECOND = 5_000
DRAIN_US = 30_000_000  # after the last rank has ended, in which packets in flight arrive


@dataclass(frozen=True, slots=True)
class Outcome:
    """Statistics of a world that ended without a violation."""

    virtual_us: int
    events: int
    packets: int
    sums: int
    ranks: int
    done: int
    """Ranks that got all their sums."""
    errors: int
    """Errors that ranks were given, each explained by a fault."""
    longest_us: int
    """The longest time in which no rank made progress."""


class SoakWorld(RankWorld):
    """A world; it runs once."""

    def __init__(
        self, scene: Scene, pipelines: Sequence[Pipeline], watch: Callable[[World], None] | None = None
    ) -> None:
        """Args:
        pipelines: one for the root and one for each leaf, with the program for the scene's lanes and contributions.
        watch: called with the network before it runs.
        """
        network = World(
            seed=scene.seed,
            pipelines=list(pipelines),
            links=scene.links,
            trunk=scene.trunk,
            settings=ServerSettings(
                lanes=scene.lanes,
                contribution_bits=scene.contributions,
                slots=scene.slots,
                slots_per_job=scene.quota,
                aggregates=scene.aggregates,
            ),
            ttl_ticks=scene.ttl_ticks,
            kernels=worker_kernels() if scene.compiled else None,
            plan_kernels=plan_kernels() if scene.compiled else PLAIN,
        )
        super().__init__(scene, network)
        self.jobs = [JobState(scene.seed, number, job) for number, job in enumerate(scene.jobs)]
        self.ranks = [self._rank(job, rank) for job in self.jobs for rank in range(job.scene.ranks)]
        self._results = self._over_us = 0
        self._has_begun = False
        fragments = sum(
            job.ranks
            * sum(length // scene.lanes + 2 for length in job.lengths)
            * (job.ranks if job.scattered or job.gathers else 1)
            * (1 if job.help is HelpGrade.NONE else 2)
            for job in scene.jobs
        )
        for host in self.network.hosts.values():
            host.gather_us = scene.gather_us
        self._most_events = EVENTS + EVENTS_A_PACKET * fragments
        if watch is not None:
            watch(self.network)

    def _rank(self, job: JobState, rank: int) -> Rank:
        loss = job.scene.loss if rank in job.scene.lossy else None
        found = Rank(self, job, rank, self.network.add_worker(rank, job.number, loss=loss))
        job.ranks.append(found)
        return found

    # --- faults -----------------------------------------------------------------------------------------------------------

    def note_joined(self) -> None:
        """Begins the faults that wait for the first rank to join."""
        self.note_progress()
        if not self._has_begun:
            self._has_begun = True
            for fault in self.scene.faults:
                if fault.at_us >= 0:
                    self.schedule(fault.at_us, partial(self._strike, fault))

    def _strike(self, fault: Fault) -> None:
        """Begins a fault, unless another one holds the same device at that time."""
        network, rack = self.network, self.network.racks[fault.switch]
        rank = self.jobs[fault.job].ranks[fault.rank]
        match fault.kind:
            case FaultKind.RESTART_SWITCH if rack.switch.up:
                network.restart_switch(rack, fault.for_us)
            case FaultKind.PAUSE_SWITCH:
                self._cut([rack.switch], fault.for_us)
            case FaultKind.CUT_LEAF:
                self._cut(network.trunk_of(rack), fault.for_us)
            case FaultKind.CUT_WORKER:
                self._cut(network.links_of[rank.host.endpoint.address[0]], fault.for_us)
            case FaultKind.PAUSE_WORKER if not rank.host.paused:
                network.pause_host(rank.host, fault.for_us)
            case FaultKind.PAUSE_SERVER if not network.server_host.paused:
                network.pause_host(network.server_host, fault.for_us)
            case FaultKind.RESTART_WORKER:
                rank.die(fault.for_us)
            case FaultKind.KILL_WORKER:
                rank.die(None)
            case FaultKind.RESTART_SERVER:
                network.restart_server(fault.for_us)

    def _cut(self, places: Sequence[Link | Switch], for_us: int) -> None:
        if all(place.up for place in places):
            self.network.cut(places, for_us)

    # --- running ----------------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Raises: Broken."""
        logged = BufferingHandler(sys.maxsize)  # what futures log: an exception that a callback of theirs raised
        log = logging.getLogger("concurrent.futures")
        log.addHandler(logged)
        log.propagate = False
        try:
            self._run()
            if logged.buffer:
                raise Broken("unhandled", logging.Formatter().format(logged.buffer[0]))
        except Broken:
            raise
        except Exception:
            raise Broken("unhandled", traceback.format_exc().rstrip()) from None
        finally:
            log.removeHandler(logged)
            log.propagate = True
        links = self.network.all_links
        return Outcome(
            virtual_us=self._over_us,
            events=self.network.clock.scheduled,
            packets=sum(link.stats.carried for link in links),
            sums=self.sums,
            ranks=len(self.ranks),
            done=sum(rank.has_all for rank in self.ranks),
            errors=sum(len(rank.errors) for rank in self.ranks),
            longest_us=self.longest_us,
        )

    def _run(self) -> None:
        clock = self.network.clock
        for rank in self.ranks:
            clock.at(0, rank.start)
        for fault in self.scene.faults:
            if fault.at_us < 0:
                clock.at(-fault.at_us, partial(self._strike, fault))
        look_us, is_over = 0, False
        while not is_over:
            look_us += LOOK_US
            is_over = clock.run(self._is_over, look_us)
            self._raise_problem()
            self._look_for_results(look_us)
            if not is_over and (not clock.waiting or look_us - self.progress_us > self._bound_us()):
                waiting = "no event is scheduled" if not clock.waiting else "no rank makes progress"
                raise Broken("hang", f"{waiting} after {look_us / 1e6:.0f} s\n{self.describe()}")
        self._over_us = clock.now_us
        clock.run(lambda: self.problem is not None, clock.now_us + DRAIN_US + self.scene.apart_us)
        self._raise_problem()
        if clock.waiting:
            raise Broken(
                "left over", f"{plural(clock.waiting, 'event')} scheduled {DRAIN_US / 1e6:.0f} s after the end"
            )
        self.check_all()
        self._check_ends()
        orderly = all(fault.kind is not FaultKind.RESTART_SERVER for fault in self.scene.faults)
        invariants.check_left(self.network, self.left, orderly=orderly)

    def _bound_us(self) -> int:
        """Returns for how long there may be no progress: a rank that was given an error may ask in vain to join again."""
        may_fail = self.scene.may_fail or any(rank.errors for rank in self.ranks)
        return (QUIET_US if may_fail else STALL_US) + self.scene.apart_us + self.scene.computing_us

    def _is_over(self) -> bool:
        if self.problem is not None or self.are_over:
            return True
        clock = self.network.clock
        if clock.scheduled > self._most_events + EVENTS_A_SECOND * len(self.ranks) * clock.now_us / 1e6:
            raise Broken("storm", f"{clock.scheduled} events in {clock.now_us / 1e6:.1f} s\n{self.describe()}")
        return False

    def _look_for_results(self, now_us: int) -> None:
        """Counts arriving results of fragments as progress: a whole sum may take long."""
        results = sum(rank.worker.worker.stats.results for rank in self.ranks if rank.worker and rank.has_joined)
        if results != self._results:
            self._results = results
            self.progress_us = max(self.progress_us, now_us)

    def _raise_problem(self) -> None:
        if self.problem is not None:
            raise self.problem

    def _check_ends(self) -> None:
        """A rank without all its sums has an error that explains it. Raises: Broken."""
        for job in self.jobs:
            over = {rank.rank for rank in job.ranks if rank.has_all or rank.is_dead}
            for rank in (rank for rank in job.ranks if rank.rank not in over):
                if not rank.errors:
                    raise Broken("end", f"job {job.number}, rank {rank.rank}: has neither its sums nor an error")
                if not over and job.scene.not_finite is None:
                    raise Broken(
                        "end", f"job {job.number}: all ranks live, but after {plural(len(rank.errors), 'try', 'tries')} "
                        f"no rank has its sums: {rank.errors[-1]}"
                    )  # fmt: skip

    def describe(self) -> str:
        """The state of all ranks and of the server, for people."""
        lines = []
        for job in self.jobs:
            for rank in job.ranks:
                state = "over" if rank.is_over else "away" if rank.worker is None else "joining"
                if rank.worker is not None and rank.has_joined:
                    state = rank.worker.worker.describe()
                lines.append(f"job {job.number}, rank {rank.rank}, {rank.done} sums: {state}")
                lines += [f"  error: {error}" for error in rank.errors]
        lines += [
            f"at the server: {job.name}: {job.state.value}, {job.stats}" for job in self.network.server.jobs.values()
        ]
        return "\n".join(lines)
