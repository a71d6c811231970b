"""The base of all runs in virtual time: they have a clock, contended links, and workers that run steps.

What differs is the network under it: packets (`backends.simulated`), flows (`backends.flows`), or messages to a server of
parameters that queue on links (`parameters.simulated`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sa_atp.basics.errors import SaAtpError
from sa_atp.lab.flow.fabric import Fabric, FabricSettings
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.runs.expected import expected_seconds
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.tasks import describe_step, link_contention, make_device, straggler_pattern
from sa_atp.lab.simulator.network import Clock, Link, LinkSettings
from sa_atp.lab.simulator.virtual_time import Gradient, VirtualDevice, VirtualProcess
from sa_atp.lab.simulator.world import worker_ip
from sa_atp.steps.effects import Compute, StepRunner, Steps, Workload, samples_of
from sa_atp.steps.step_record import StepRecord


class VirtualRun(ABC):
    """One repetition of a policy."""

    def __init__(self, plan: Plan, policy: str, clock: Clock, progress: Progress) -> None:
        self.plan = plan
        self.policy_name = policy
        self.clock = clock
        self.progress = progress
        self.pattern = straggler_pattern(plan)
        contention = link_contention(plan)
        workers = contention.workers if contention is not None else ()
        self._contended = dict.fromkeys(workers, self.pattern.is_on(0))  # whether spells of contention count now
        self._shares = dict.fromkeys(workers, 1.0)  # of a link's rate, by the present spell
        for rank in workers:
            assert contention is not None
            self._next_spell(rank, contention.spells(rank))
        self.left = plan.topology.workers
        """Workers that have not ended."""
        self.error: SaAtpError | None = None
        """Ends the run."""

    @abstractmethod
    def contend(self, rank: int, share: float) -> None:
        """Sets the rate of a worker's link to a share of the plan's, both ways."""

    def begin(self, rank: int, step: int) -> None:
        """Gives a worker's link the rate that it has in a step, after the first one.

        Without stragglers in the step there is no contention either.
        """
        if rank in self._contended and self._contended[rank] != self.pattern.is_on(step):
            self._contended[rank] = not self._contended[rank]
            self._set_share(rank)

    def _next_spell(self, rank: int, spells: Iterator[tuple[int, int, float]]) -> None:
        start_us, end_us, share = next(spells)

        def end() -> None:
            self._set_share(rank, 1.0)
            self._next_spell(rank, spells)

        self.clock.at(start_us, lambda: self._set_share(rank, share))
        self.clock.at(end_us, end)

    def _set_share(self, rank: int, share: float | None = None) -> None:
        """Sets a link's rate. Args: share: of a spell that begins or ends; None: as it is."""
        if share is not None:
            self._shares[rank] = share
        self.contend(rank, self._shares[rank] if self._contended[rank] else 1.0)

    def start(
        self,
        rank: int,
        effects: Steps,
        duration_us: Callable[[Compute], int],
        gradient: Gradient,
        finished: Callable[[Any], None],
    ) -> None:
        """Starts a worker's process. Args: finished: called with its outcome, unless that is an error."""

        def over(outcome: Any) -> None:
            if isinstance(outcome, SaAtpError):
                self.error = outcome
            else:
                finished(outcome)

        device = VirtualDevice(self.clock, self.plan.job.parallel_curve(rank))
        VirtualProcess(self.clock, effects, duration_us=duration_us, gradient=gradient, finished=over, device=device)

    def run_to_end(self, more_us: float = 0.0, more: Callable[[], str] = lambda: "") -> None:
        """Runs the simulation until all workers have ended.

        Args: more_us: added to the usual limit; more: more about a run that is stuck, for its error.
        Raises: SaAtpError.
        """
        limit_us = int((expected_seconds(self.plan) + 60.0) * 1e6 + more_us)
        over = self.clock.run(lambda: self.left == 0 or self.error is not None, limit_us)
        if self.error is not None:
            raise self.error
        if not over:
            raise SaAtpError(
                f"policy {self.policy_name}: not finished after {self.clock.now_us / 1e6:.0f} simulated seconds{more()}"
            )


class PacketRun(VirtualRun):
    """A run on simulated links that carry packets."""

    links_of: dict[str, tuple[Link, Link]]
    """By IP address of a worker: its link's way up, and the way down."""

    def note_rates(self) -> None:
        """Notes what the links' rates are without stragglers, and congests those that begin congested."""
        self.rates = {ip: links[0].settings.rate_mbps for ip, links in self.links_of.items()}
        straggler = self.plan.straggler
        is_congested = straggler.by == "congestion" and straggler.pattern == "constant"
        self.congested = straggler.workers if is_congested else ()
        for rank in self.congested:
            self._congest(rank, 0)

    def begin(self, rank: int, step: int) -> None:
        """See VirtualRun."""
        super().begin(rank, step)
        if rank in self.congested:
            self._congest(rank, step)

    def _congest(self, rank: int, step: int) -> None:
        """Congestion slows only the way up, as in Mininet."""
        ip = worker_ip(rank)
        up, _ = self.links_of[ip]
        slowdown = self.plan.straggler.slowdown if self.pattern.is_on(step) else 1.0
        up.settings = replace(up.settings, rate_mbps=self.rates[ip] / slowdown)

    def contend(self, rank: int, share: float) -> None:
        """See VirtualRun."""
        ip = worker_ip(rank)
        for link in self.links_of[ip]:
            link.settings = replace(link.settings, rate_mbps=self.rates[ip] * share)


def link_settings(plan: Plan) -> LinkSettings:
    """The links of a plan's workers, but for those with a rate of their own."""
    return LinkSettings(
        rate_mbps=plan.topology.link_mbps,
        delay_us=plan.topology.delay_us,
        loss=plan.network.loss,
        duplicate=plan.network.duplicate,
        reorder=plan.network.reorder,
        jitter_us=plan.network.jitter_us,
    )


class FabricRun(VirtualRun):
    """A run on the links of a flow-level network."""

    def __init__(self, plan: Plan, policy: str, fabric: Fabric, progress: Progress) -> None:
        self.fabric = fabric
        self.rates_mbps = [fabric.network.rate_mbps(link) for link in fabric.up]
        super().__init__(plan, policy, fabric.clock, progress)

    def contend(self, rank: int, share: float) -> None:
        for link in (self.fabric.up[rank], self.fabric.down[rank]):
            self.fabric.network.set_rate(link, self.rates_mbps[rank] * share)


def fabric_of(plan: Plan, clock: Clock, *, server_mbps: float = 0.0) -> Fabric:
    """The links of a plan. Args: server_mbps: rate of the parameter server's link; 0: that of trunks."""
    topology = plan.topology
    return Fabric(
        clock,
        FabricSettings(
            workers=topology.workers,
            racks=topology.racks if topology.kind == "two-level" else 0,
            link_mbps=topology.link_mbps,
            trunk_mbps=topology.trunk_mbps,
            server_mbps=server_mbps,
            worker_mbps=topology.worker_mbps,
            delay_us=topology.delay_us,
        ),
    )


class VirtualRank:
    """One worker's part of a run under a policy of steps: it runs them one after the other."""

    def __init__(self, run: VirtualRun, rank: int, workload: Workload) -> None:
        self.run = run
        self.rank = rank
        self.workload = workload
        self.records: list[dict[str, Any]] = []
        self._device = make_device(run.plan)

    def start(self, stepper: StepRunner, gradient: Gradient, step: int = 0) -> None:
        """Runs the steps from this one on."""
        slowdown = self._device.slowdown = self.run.pattern.slowdown_of(step, self.rank)

        def finished(outcome: Any) -> None:
            self.take(outcome[0], slowdown, outcome[1])
            if step + 1 < self.run.plan.run.steps:
                self.run.begin(self.rank, step + 1)
                self.start(stepper, gradient, step + 1)
            else:
                self.end()

        self.run.start(
            self.rank,
            stepper.run(step),
            lambda effect: int(self._device.microseconds(samples_of(self.workload, effect))),
            gradient,
            finished,
        )

    def take(self, record: StepRecord, slowdown: float, sum_: Any) -> None:
        """Takes a step's record, and its sum."""
        self.records.append(describe_step(record, slowdown))

    def end(self) -> None:
        """Ends the worker after its last step."""
        self.run.left -= 1
