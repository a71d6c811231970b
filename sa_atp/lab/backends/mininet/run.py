"""The Mininet backend: runs a plan in an emulated network."""

import itertools
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.terminal import say
from sa_atp.basics.words import plural
from sa_atp.lab.backends.local import (
    ENVIRONMENT,
    is_summed_by_server,
    job_of_peer,
    keeps_parameters,
    peer_of,
    prepare,
    run_policy,
)
from sa_atp.lab.backends.mininet import parts, topologies, traffic
from sa_atp.lab.backends.mininet.layout import NetworkLayout
from sa_atp.lab.backends.mininet.network import READY_TIMEOUT_S, MininetNetwork
from sa_atp.lab.backends.mininet.peers import MininetPeer
from sa_atp.lab.plans.capabilities import check_settings
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.runs.collect import collect
from sa_atp.lab.runs.processes import Process
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun
from sa_atp.lab.runs.tasks import job_name, straggler_pattern
from sa_atp.protocol.packets.frames import HEADERS_BYTES
from sa_atp.protocol.packets.header import size_of
from sa_atp.protocol.packets.spec import Kind

STORE_PORT = 29_500  # first of the ports at which Gloo's ranks meet


def check(plan: Plan, plan_path: Path) -> NetworkLayout:
    """Refuses plans that Mininet or this machine cannot run. Returns: the plan's network.

    Args: plan_path: the folder of this file has the files that the plan names. Raises: MissingPartError, UserError.
    """
    check_settings(plan, "mininet")
    layout = topologies.of_plan(
        plan, plan_path.parent
    )  # first, because mistakes in a file do not depend on the machine
    has_traffic = plan.traffic.is_wanted or plan.straggler.by == "congestion"
    parts.require(layout, switch=plan.switch.program, traffic=has_traffic)
    for policy in plan.run.policies:
        peer = peer_of(policy)
        if peer is not None and plan.job.jobs > 1:
            raise UserError(f"{plan_path}: {policy}: job.jobs = {plan.job.jobs}: its switch has one job at a time")
        if peer is not None and has_traffic and not peer.forwards:
            raise UserError(f"{plan_path}: {policy}: its switch program does not forward the plan's background traffic")
    return layout


def worker_mbps(plan: Plan, plan_path: Path) -> list[float | None]:
    """The rate of each worker's link, by rank, as `topology.worker_mbps`. Raises: UserError."""
    layout = topologies.of_plan(plan, plan_path.parent)
    rates = {cable.node: cable.quality.rate_mbps for cable in layout.cables}
    rates |= {cable.other: cable.quality.rate_mbps for cable in layout.cables}
    return [rates[worker.name] for worker in layout.workers()]


def run(
    plan: Plan, plan_path: Path, folder: Path, progress: Progress, log: Path | None = None, *, prompt: bool = False
) -> list[PolicyRun]:
    """Runs all policies and repetitions of a plan.

    Args:
        plan_path: as for `check`.
        folder: for the output of processes.
        progress: called with the current stage.
        log: folder for logs of decisions; None: nothing is logged.
        prompt: stop at Mininet's prompt before the first step, and after the last one.

    Raises: MissingPartError, UserError, ProcessError, TransportError.
    """
    layout = check(plan, plan_path)
    runs = []
    # protocols with a switch program of their own have a network of their own, after the others
    for bare in (False, True):
        turns = [
            (repetition, policy) for repetition, policy in plan.run.turns() if (peer_of(policy) is not None) == bare
        ]
        if not turns:
            continue
        what = f"{plural(len(layout.switches), 'switch', 'switches')} and {plural(len(layout.hosts), 'host')}"
        progress(f"building {what}{' for other programs' if bare else ''}")
        with MininetNetwork(
            layout,
            switch=plan.switch.program,
            lanes=plan.lanes,
            contributions=plan.contribution_bits,
            slots=plan.switch.slots,
            slots_per_job=plan.switch.quota,
            logs=folder / "peers" if bare else folder,
            pcap=plan.switch.pcap,
            seed=plan.run.seed,
            tell=progress,
            log=log,
            bare=bare,
        ) as network:
            runs += _MininetRun(plan, network, network.logs, progress, prompt=prompt).all(turns)
    return runs


class _MininetRun:
    """A plan on a running network."""

    def __init__(self, plan: Plan, network: MininetNetwork, folder: Path, progress: Progress, *, prompt: bool) -> None:
        self.plan = plan
        self.network = network
        self.folder = folder
        self.progress = progress
        self.prompt = prompt
        self.workers: list[list[Process]] = []  # by job and rank
        self.stores = 0
        self.parameters = ""
        self.peers: MininetPeer | None = None
        self.pattern = straggler_pattern(plan)
        self.step = 0
        self.is_slow: bool | None = None  # whether stragglers are slow now; None: nothing was done yet
        self.traffic: list[Process] = []
        self.loads: list[Process] = []  # what takes CPU time or links from stragglers

    def all(self, turns: Sequence[tuple[int, str]]) -> list[PolicyRun]:
        """Runs policies and repetitions of the plan."""
        layout, plan = self.network.layout, self.plan
        policies = [policy for _, policy in turns]
        self.workers = [
            [
                self.network.start(
                    place.name, f"worker {place.name}", ["sa_atp.lab.backends.worker_process"], ENVIRONMENT
                )
                for place in layout.workers(job)
            ]
            for job in range(plan.job.jobs)
        ]
        aggregating = "" if self.network.bare else self.network.start_server()
        self.peers = MininetPeer(self.network) if self.network.bare else None
        plain = self.network.start_plain_server() if any(map(is_summed_by_server, policies)) else ""
        if any(map(keeps_parameters, policies)):
            self.parameters = self.network.start_parameters()
        self._stop_at_prompt("before the first step; `exit` goes on")
        all_workers = list(itertools.chain(*self.workers))
        self._need(self.network.services)
        for worker in all_workers:
            worker.answer(READY_TIMEOUT_S)
        prepare(plan, all_workers)
        runs = []
        for repetition, policy in turns:
            self.progress(f"{policy}, repetition {repetition + 1} of {plan.run.repetitions}")
            runs += self._policy(policy, repetition, plain if is_summed_by_server(policy) else aggregating)
        self._stop_at_prompt("after the last step; `exit` ends the run")
        return runs

    def _need(self, others: Sequence[Process]) -> None:
        """Makes waiting for a worker fail once one of the other processes has ended."""
        for worker in itertools.chain(*self.workers):
            worker.companions = others

    def _stop_at_prompt(self, where: str) -> None:
        if self.prompt:
            with self.progress.aside():
                say(f"sa-atp run: {where}")
                self.network.prompt()

    def _policy(self, policy: str, repetition: int, server: str) -> list[PolicyRun]:
        """Runs one repetition of a policy, all jobs concurrently."""
        tasks: list[tuple[Process, dict[str, Any]]] = []
        numbers = [repetition * self.plan.job.jobs + job for job in range(self.plan.job.jobs)]
        for job, number in enumerate(numbers):
            places = self.network.layout.workers(job)
            self.stores += 1
            common = {
                "repetition": number,
                "server": server,
                "parameters": self.parameters,
                "job": job_name(policy, number),
                "log": None if self.network.log is None else str(self.network.log),
                "key": secrets.token_hex(),
                "store": [places[0].ip, STORE_PORT + self.stores],
                "peer_job": job_of_peer(self.plan, policy, self.peers),
            }
            tasks += [
                (worker, {**common, "rank": place.rank, "interface": f"{place.name}-eth0"})
                for worker, place in zip(self.workers[job], places, strict=True)
            ]
        self.step = 0
        self._start_traffic()
        self._begin(0)
        before = self.network.trunk_bytes()
        raw = run_policy(self.plan, policy, tasks, self.folder, self.progress, self._begin)
        after = self.network.trunk_bytes()
        size = self.plan.topology.workers
        runs = [
            collect(self.plan, policy, repetition, raw[job * size : (job + 1) * size], job)
            for job in range(len(numbers))
        ]
        if not self.plan.traffic.is_wanted and not keeps_parameters(
            policy
        ):  # the interfaces would count other traffic as well
            fragments = -(-raw[0]["values"] // self.plan.lanes) * self.plan.run.steps * len(numbers)
            stream_bytes = fragments * (
                HEADERS_BYTES + size_of(Kind.DATA, self.plan.lanes, self.plan.contribution_bits)
            )
            for run in runs:
                run.streams = {link: (after[link] - before[link]) / stream_bytes for link in after}
        return runs

    def _begin(self, step: int) -> None:
        """Slows stragglers' hosts and links down, or lets them have their normal speed, as a step has it."""
        self.step = max(self.step, step)  # of the job that is ahead, if there are several
        is_slow = self.pattern.is_on(self.step)
        if is_slow == self.is_slow:
            return
        self.is_slow = is_slow
        plan, straggler = self.plan, self.plan.straggler
        slow = straggler.workers if is_slow and straggler.pattern == "constant" and straggler.slowdown > 1 else ()
        names = [place.name for job in range(plan.job.jobs) for place in self.network.layout.workers(job)
                 if place.rank in slow]  # fmt: skip
        self.network.limit_cpus(dict.fromkeys(names, straggler.slowdown) if straggler.by == "cpu-quota" else {})
        while self.loads:
            self.loads.pop().end()
        if straggler.by == "hog":
            for name in names:
                self.loads += traffic.hog(self.network, name, round(straggler.slowdown) - 1)
        if straggler.by == "congestion":
            for name in names:
                rate = next(c.quality.rate_mbps for c in self.network.layout.cables if c.node == name)
                assert rate is not None, "plans give every link a rate"
                self.loads += traffic.stream(self.network, name, "t2", udp_mbps=rate)
        self._need([*self.network.services, *self.traffic, *self.loads])

    def _start_traffic(self) -> None:
        """Starts the plan's background traffic, unless it runs. A switch forwards it only when it has a program, and the
        network of another protocol has none before its first job.
        """
        plan = self.plan
        if plan.traffic.is_wanted and not self.traffic:
            self.traffic = traffic.stream(
                self.network, "t1", "t2", udp_mbps=plan.traffic.udp_mbps, tcp_flows=plan.traffic.tcp_flows
            )
