"""The simulated backend: the real connections and switch program in virtual time, on simulated links."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from sa_atp.basics.errors import UserError
from sa_atp.basics.folders import cache_folder
from sa_atp.lab import policies
from sa_atp.lab.backends import flows
from sa_atp.lab.backends import peer_simulated as peer_sim
from sa_atp.lab.backends.worker_process import Checker
from sa_atp.lab.packet_tests import tofino_model
from sa_atp.lab.packet_tests.tofino_sim import ModelForwarder
from sa_atp.lab.parameters import simulated as parameter_sim
from sa_atp.lab.plans.capabilities import check_settings, network_of, too_many_for_packets
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.runs.collect import collect
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun
from sa_atp.lab.runs.tasks import evaluate, host_of, job_name, make_workload
from sa_atp.lab.runs.virtual_run import PacketRun, VirtualRank, link_settings
from sa_atp.lab.simulator.nodes import Forwarder
from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.lab.simulator.world import SwitchPorts, World
from sa_atp.net.logs.writing import LogFolder
from sa_atp.net.loop.compiled import plan_kernels, worker_kernels
from sa_atp.protocol.job.membership import JoinRequest
from sa_atp.protocol.log.event import nobody, of_nobody
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.steps.effects import gradient_of
from sa_atp.steps.pairing import travelled
from sa_atp.steps.step_record import StepRecord
from sa_atp.switches import artefacts
from sa_atp.switches.control import tofino
from sa_atp.switches.embedded.pipeline import Pipeline

SWITCH = "embedded"  # the target whose pipelines simulated switches run


def check(plan: Plan) -> None:
    """Raises: UserError."""
    check_settings(plan, "sim")
    by_server = [p for p in plan.run.policies if policies.find(p).family is policies.Family.PARAMETERS]
    if by_server and not plan.network.is_perfect:
        raise UserError(
            f"{', '.join(by_server)}: simulated without packets that could be lost, duplicated or reordered: "
            "set network.* to 0, or leave these policies out"
        )
    networks = {policy: network_of(plan, policy) for policy in plan.run.policies}
    by_flows = [policy for policy, network in networks.items() if network == "flows"]
    peers = [policy for policy in networks if isinstance(policies.find(policy), policies.PeerPolicy)]
    if set(peers) & set(by_flows):
        raise UserError(
            f"{', '.join(peers)}: simulated with packets alone, not as flows; leave it out, or see sim.network"
        )
    if peers and plan.switch.program != SWITCH:
        raise UserError(
            f"{', '.join(peers)}: switch.program = {plan.switch.program!r}: simulated on {SWITCH!r} switches alone"
        )
    if by_flows:
        if plan.straggler.by == "congestion":
            raise UserError('the flow-level model has no congestion in one direction: set sim.network = "packets"')
        flows.check(plan, by_flows)
    problem = too_many_for_packets(plan) if "packets" in networks.values() else None
    if problem is not None:
        raise UserError(f"{problem}; flows have no such limit (sim.network)")
    if plan.switch.program in tofino.MODELS:
        chip = tofino.MODELS[plan.switch.program]
        artefacts.tofino_folder(chip, plan.lanes)
        tofino_model.require(chip)


def run(
    plan: Plan, progress: Progress, turns: Iterable[tuple[int, str]] | None = None, log: Path | None = None
) -> list[PolicyRun]:
    """Runs policies and repetitions of a plan.

    Args:
        turns: which ones; None: all (RunPlan.turns).
        log: folder for logs of decisions; None: nothing is logged.

    Raises: SaAtpError.
    """
    check(plan)
    by_packets = any(network_of(plan, policy) == "packets" for policy in plan.run.policies)
    count = (1 if plan.topology.kind == "star" else 1 + plan.topology.racks) if by_packets else 0
    if by_packets:
        progress("loading the switch program (compiled the first time)")
    with contextlib.ExitStack() as processes:
        switches = _switches(plan, count, processes) if by_packets else ()
        if plan.job.model in flows.TRAINED:
            progress(f"loading the model {plan.job.model} and its data")  # PyTorch takes seconds, once for all runs
            make_workload(plan, 0)
        runs = []
        for repetition, policy in plan.run.turns() if turns is None else turns:
            progress(f"{policy}, repetition {repetition + 1} of {plan.run.repetitions}")
            if policies.find(policy).family is policies.Family.PARAMETERS:
                runs.append(parameter_sim.run(plan, policy, repetition, progress))
                continue
            if network_of(plan, policy) == "flows":
                runs.append(flows.run(plan, policy, repetition, progress))
                continue
            if isinstance(policies.find(policy), policies.PeerPolicy):
                runs.append(peer_sim.run(plan, policy, repetition, progress))
                continue
            raw = _PacketSimulation(plan, policy, repetition, switches, progress, log).run()
            runs.append(collect(plan, policy, repetition, raw))
    return runs


def _switches(plan: Plan, count: int, processes: contextlib.ExitStack) -> Sequence[Forwarder]:
    if plan.switch.program == SWITCH:
        path = artefacts.program(plan.lanes, plan.contribution_bits).json_path
        pipelines = [Pipeline.from_file(path, cache=cache_folder()) for _ in range(count)]
        pipelines[0].compile()  # all of them have the same code
        return pipelines
    program = tofino.from_folder(artefacts.tofino_folder(tofino.MODELS[plan.switch.program], plan.lanes))
    return [processes.enter_context(ModelForwarder(program)) for _ in range(count)]


def _ports(plan: Plan) -> SwitchPorts:
    """Switch ports of the target; on a Tofino all ports of a job are in the first pipe."""
    if plan.switch.program == SWITCH:
        return SwitchPorts()
    loop = tofino.LOOP_PORTS[tofino.MODELS[plan.switch.program]]
    return SwitchPorts(server=60, uplink=61, first_leaf=40, loop=loop)


class _PacketSimulation(PacketRun):
    """One repetition of a policy."""

    def __init__(
        self,
        plan: Plan,
        policy: str,
        repetition: int,
        switches: Sequence[Forwarder],
        progress: Progress,
        log: Path | None,
    ) -> None:
        self.policy = policies.switch_policy(policy)
        self.repetition = repetition
        self.job = job_name(policy, repetition)
        self.logs = None if log is None else LogFolder.virtual(log, lambda: self.world.clock.now_us)
        links = link_settings(plan)
        self.world = World(
            seed=plan.run.seed * 1000 + repetition,
            pipelines=switches,
            ports=_ports(plan),
            links=links,
            trunk=replace(links, rate_mbps=plan.topology.trunk_mbps or plan.topology.link_mbps),
            settings=ServerSettings(
                lanes=plan.lanes,
                contribution_bits=plan.contribution_bits,
                slots=plan.switch.slots,
                slots_per_job=plan.switch.quota,
                aggregates=self.policy.aggregates_at == "switch",
            ),
            log_of=of_nobody if self.logs is None else self.logs.server,
            kernels=worker_kernels(),
            plan_kernels=plan_kernels(),
        )
        super().__init__(plan, policy, self.world.clock, progress)
        self.ranks = [_PacketRank(self, rank) for rank in range(plan.topology.workers)]
        self.links_of = self.world.links_of
        self.note_rates()

    def run(self) -> list[dict[str, Any]]:
        try:
            self.run_to_end()
        finally:
            if self.logs is not None:
                self.logs.flush()
        return [rank.raw() for rank in self.ranks]


class _PacketRank(VirtualRank):
    """One worker's part of a simulation."""

    def __init__(self, simulation: _PacketSimulation, rank: int) -> None:
        plan = simulation.plan
        self.model = make_workload(plan, simulation.repetition)
        super().__init__(simulation, rank, self.model)
        self.simulation = simulation
        self.policy = simulation.policy
        self.checker = Checker(self.model.values, self.policy.shards(plan) * plan.job.micro_batches)
        self.snapshots: list[tuple[int, Any]] = []
        self.server: dict[str, Any] | None = None
        world = simulation.world
        self.worker = SimWorker(
            world.add_worker(rank, rate_mbps=plan.topology.worker_mbps[rank] if plan.topology.worker_mbps else None),
            world.clock,
            JoinRequest(
                job=simulation.job,
                rank=rank,
                world_size=plan.topology.workers,
                micro_batches=plan.job.micro_batches,
                help_grade=self.policy.help_grade(plan),
                seats=self.policy.seats(plan),
                cut_off=self.policy.cut_off(plan),
            ),
            world.server_address,
            world.random,
            joined=lambda _: self._joined(),
            kernels=worker_kernels(),
            log=nobody if simulation.logs is None else simulation.logs.rank(simulation.job, rank),
        )

    def _joined(self) -> None:
        plan = self.simulation.plan
        stepper = self.policy.stepper(
            host_of(plan, self.worker, self.simulation.repetition),
            self.model,
            plan,
            pause_us=lambda step: self.simulation.pattern.pause_us_of(step, self.rank),
        )
        self.start(stepper, lambda effect: gradient_of(self.model, effect))

    def take(self, record: StepRecord, slowdown: float, sum_: Any) -> None:
        super().take(record, slowdown, sum_)
        record.computed = travelled(sum_, record.computed)
        self.checker.add(record, *sum_.finished.integers())
        if self.rank == 0:
            self.snapshots.append((record.step, self.model.snapshot()))
            self.simulation.progress.steps(record.step + 1, self.simulation.plan.run.steps)

    def end(self) -> None:
        if self.rank == 0:
            self.worker.job_stats().add_done_callback(self._last)
        else:
            super().end()

    def _last(self, reply: Any) -> None:
        counted = reply.result()
        self.server = None if counted is None else asdict(counted)
        super().end()

    def raw(self) -> dict[str, Any]:
        """The same as `worker_process.train` returns."""
        self.checker.finish()
        return {
            "rank": self.rank,
            "records": self.records,
            "contributed": self.checker.contributed,
            "sums": self.checker.sums,
            "stats": self.worker.worker.stats.as_dict(),
            "server": self.server,
            "evaluations": evaluate(self.model, self.snapshots),
        }
