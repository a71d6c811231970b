"""Plans: what one says is everything about an experiment.

Every table of a plan file is a dataclass here; a field's docstring is its documentation. `plan_files` reads them.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.tables import setting
from sa_atp.basics.words import join, short
from sa_atp.lab import policies
from sa_atp.lab.policies.policy import BACKENDS
from sa_atp.net.sockets.mtu import of_interface
from sa_atp.protocol.packets.mtu import check_fits, most_lanes
from sa_atp.protocol.packets.spec import (
    CONTRIBUTION_BITS,
    LANE_BUILDS,
    MOST_CONTRIBUTIONS,
    MOST_RANKS,
    SLOTS,
    WIDE_BUILDS,
)
from sa_atp.steps.workloads.comm_models import COMM_MODELS
from sa_atp.switches import artefacts
from sa_atp.switches.control import tofino

V1MODEL = ("embedded", "bmv2")
SWITCHES = (*V1MODEL, "tofino-model", "tofino2-model")
TOPOLOGIES = ("star", "two-level", "dumbbell", "file")
DEVICES = ("emulated", "cpu")
CAUSES = ("device", "cpu-quota", "hog", "congestion")
FIGURES = ("iteration-time", "aggregation", "accuracy", "fairness")
PATTERNS = ("none", "constant", "random", "pause", "random-pause", "contention", "trace")
GRADES = ("steal", "clone")
MODELS = ("digits-cnn", *COMM_MODELS)
NETWORKS = ("auto", "packets", "flows")
MOST_WORKERS, MOST_RACKS = 4096, 256


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """[run]"""

    seed: int = setting(1, between=(0, 2**31 - 1))
    """Decides data order, initial weights, dropout and random stragglers."""
    repetitions: int = setting(1, between=(1, 100))
    """How often each policy runs, with other data each time. With more than one, reports give 95 % intervals."""
    steps: int = setting(40, between=(1, 100_000))
    warm_up: int = setting(3, between=(0, 1000))
    """First steps of every run that do not count in means and percentiles."""
    policies: tuple[str, ...] = setting(("atp", "sa-atp"), one_of=policies.names)
    """What to compare; the first one is the baseline. docs/policies.md says what each does."""
    backend: str = setting("local", one_of=BACKENDS)
    """Where `--backend auto` runs the plan."""
    target_accuracy: float = setting(0.9, between=(0.0, 1.0))
    """Time to accuracy is the time until the held-out accuracy first reaches this."""

    def turns(self) -> Iterator[tuple[int, str]]:
        """What runs when: (repetition, policy).

        Every second repetition goes the other way round, so that no policy is always the first, or the last.
        """
        for repetition in range(self.repetitions):
            policies = self.policies if repetition % 2 == 0 else self.policies[::-1]
            yield from ((repetition, policy) for policy in policies)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopologyPlan:
    """[topology]"""

    kind: str = setting("star", one_of=TOPOLOGIES)
    workers: int = setting(4, between=(1, MOST_WORKERS))
    """More than a job can have ranks are a question for flows: see [sim]."""
    racks: int = setting(2, between=(2, MOST_RACKS))
    """Leaf switches of a two-level topology; workers are dealt to them in turn. At most 16, or 256 where flows run."""
    link_mbps: float = setting(10_000.0, between=(0.1, 1e6))
    """Rate of every link. The local backend has no links: it goes as fast as loopback does."""
    delay_us: int = setting(20, between=(0, 10_000_000))
    """One-way delay of every link (not of the local backend)."""
    worker_mbps: tuple[float, ...] = setting((), each=(0.1, 1e6))
    """Rate of each worker's own link, by rank, where they differ; default: link_mbps."""
    trunk_mbps: float = setting(0.0, between=(0.0, 1e6))
    """Rate of the links between switches, and of the parameter server's at the spine; 0: link_mbps."""
    mtu: int = setting(1500, between=(576, 9216))
    """Bytes of the largest IP packet that links carry; 9000 for jumbo frames (not of the local backend)."""
    queue_packets: int = setting(1000, between=(10, 100_000))
    """Packets that wait for a link; one more is dropped (Mininet)."""
    file: str = setting("")
    """A topology.json as p4lang's tutorials have it, beside the plan (kind file)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchPlan:
    """[switch]"""

    program: str = setting("embedded", one_of=SWITCHES)
    """Which target executes the P4 program where `--switch auto` is given."""
    lanes: int = setting(0, one_of=(0, *LANE_BUILDS))
    """Values per packet. 0: the most that links carry (topology.mtu; for the local backend loopback's), in a build that has
    bits for all contributions."""
    contributions: int = setting(0, one_of=(0, CONTRIBUTION_BITS, *sorted({most for _, most in WIDE_BUILDS})))
    """Bits of a packet's bitmap, which bound workers times micro-batches. 0: the fewest of which there is a build."""
    slots: int = setting(1024, between=(1, SLOTS))
    """Aggregators that all jobs may use; a power of two."""
    slots_per_job: int = setting(0, between=(0, SLOTS))
    """Aggregators of each job; a power of two. Jobs share slots where there are not enough. 0: all of them."""

    pcap: bool = setting(False)
    """Write what each port sees to a file beside the logs (Mininet)."""

    @property
    def quota(self) -> int:
        """Aggregators of each job."""
        return self.slots_per_job or self.slots


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPlan:
    """[job]"""

    model: str = setting("digits-cnn", one_of=MODELS)
    """digits-cnn is trained. The others are gradients of the model's shapes and sizes, for questions of communication."""
    model_scale: float = setting(1.0, between=(0.0001, 1.0))
    """Share of each parameter that is sent, of models that are not trained."""
    batch_size: int = setting(64, between=(1, 4096))
    """Samples of each worker's shard of a step."""
    micro_batches: int = setting(16, between=(1, MOST_CONTRIBUTIONS))
    """Pieces of a shard, each with a contribution bit of its own: the units of help."""
    compute_us_per_sample: int = setting(3000, between=(0, 10_000_000))
    """Emulated speed of a worker's device: forward and backward pass of one sample."""
    compute_us_per_pass: int = setting(0, between=(0, 10_000_000))
    """What a pass takes however few samples it has; each micro-batch is one."""
    speeds: tuple[float, ...] = setting((), each=(0.001, 1000.0))
    """Speed of each worker's device, by rank, where they differ: relative to compute_us_per_sample, 0.5 is half as fast."""
    jobs: int = setting(1, between=(1, 8))
    """How many such jobs run at once on the same switches, each with workers of its own (Mininet)."""
    device: str = setting("emulated", one_of=DEVICES)
    """emulated: a worker waits until its device would be done. cpu: it uses CPU time, of which its host has cpu_share
    (Mininet)."""
    cpu_share: float = setting(0.25, between=(0.01, 64.0))
    """CPU quota of a normal worker's host, in cores (device cpu)."""
    learning_rate: float = setting(0.05, between=(0.0, 100.0))

    @property
    def shard_us(self) -> int:
        """What a shard of batch_size samples takes on a device of speed 1."""
        return self.batch_size * self.compute_us_per_sample + self.micro_batches * self.compute_us_per_pass


@dataclass(frozen=True, kw_only=True, slots=True)
class StragglerPlan:
    """[straggler]"""

    pattern: str = setting("constant", one_of=PATTERNS)
    """constant: the same workers are slow in every step. random: one worker, drawn anew for each step. pause: the workers
    stop for a while in the middle of every `every`-th step. random-pause: in each step each worker stops with `probability`
    for as long as `pause_range` says. contention: other traffic takes the workers' links for spells of time (simulator).
    trace: as a file says."""
    by: str = setting("device", one_of=CAUSES)
    """What makes workers slow. device: their emulated devices. cpu-quota: their hosts have 1/slowdown of the CPU time.
    hog: other processes take the rest of it. congestion: other traffic takes the rest of their links up (pattern constant;
    Mininet, and the simulator's packets)."""
    workers: tuple[int, ...] = setting((3,), each=(0, MOST_WORKERS - 1))
    slowdown: float = setting(4.0, between=(1.0, 1000.0))
    """How many times longer a slow worker takes (pattern constant)."""
    slowdown_range: tuple[float, ...] = setting((2.0, 8.0), each=(1.0, 1000.0))
    """Uniform range of the slow-down (pattern random)."""
    pause_s: float = setting(1.0, between=(0.0, 60.0))
    every: int = setting(10, between=(1, 100_000))
    probability: float = setting(0.1, between=(0.0, 1.0))
    """Of a worker's pause in a step (pattern random-pause)."""
    pause_range: tuple[float, ...] = setting((0.5, 2.0), each=(0.0, 1000.0))
    """Uniform range of its length, in iterations: what a shard takes on a device of speed 1."""
    share: float = setting(0.2, between=(0.001, 1.0))
    """What a spell of contention leaves of a link's rate."""
    spell_s: tuple[float, ...] = setting((0.5, 2.0), each=(0.001, 3600.0))
    """Uniform range of a spell's length."""
    calm_s: tuple[float, ...] = setting((1.0, 4.0), each=(0.001, 3600.0))
    """Uniform range of the time between two spells."""
    trace: str = setting("")
    """A file beside the plan: CSV with the columns step, worker, slowdown, or a JSON list of objects with these keys
    (pattern trace). Steps and workers that it does not name are as usual; a run that is longer begins it anew."""
    rows: tuple[tuple[Any, ...], ...] = setting(())
    """What such a file says, [step, worker, slowdown] each; a run's records hold it, so that they do not need the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkPlan:
    """[network]: what links do to packets; the local backend cannot, and says so."""

    loss: float = setting(0.0, between=(0.0, 0.5))
    duplicate: float = setting(0.0, between=(0.0, 0.5))
    reorder: float = setting(0.0, between=(0.0, 0.5))
    jitter_us: int = setting(0, between=(0, 1_000_000))

    @property
    def is_perfect(self) -> bool:
        return not (self.loss or self.duplicate or self.reorder or self.jitter_us)


@dataclass(frozen=True, kw_only=True, slots=True)
class HelpPlan:
    """[help]"""

    grade: str = setting("steal", one_of=GRADES)
    """steal: micro-batches are taken over one by one. clone: a helper computes the straggler's whole shard beside it."""
    patience: float = setting(0.02, between=(0.0, 10.0))
    """How long a leader waits before it offers help, as a share of the time that its own shard took."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficPlan:
    """[traffic]: what else is on the network, by iperf3 (Mininet)."""

    udp_mbps: float = setting(0.0, between=(0.0, 1e5))
    """Rate of a UDP stream through the trunk of a dumbbell, or between two more hosts of another network."""
    tcp_flows: int = setting(0, between=(0, 64))
    """TCP connections beside it, each as fast as it gets."""

    @property
    def is_wanted(self) -> bool:
        return bool(self.udp_mbps or self.tcp_flows)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimPlan:
    """[sim]: how the simulated backend simulates."""

    network: str = setting("auto", one_of=NETWORKS)
    """packets: each packet goes through the compiled switch program. flows: transfers share links without packets, which
    takes hundreds of workers (docs/flow-model.md). auto: packets; flows where workers and micro-batches make more
    contributions than a packet has bits for, and for policies whose parameters are on a server."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """[sweep]: the same run at several values of one key; one figure shows them all."""

    key: str = setting("")
    """Of this file, for example straggler.slowdown."""
    values: tuple[Any, ...] = setting(())
    figure: str = setting("iteration-time", one_of=FIGURES)
    """What the figure shows over the key's values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A whole experiment."""

    run: RunPlan = field(default_factory=RunPlan)
    topology: TopologyPlan = field(default_factory=TopologyPlan)
    switch: SwitchPlan = field(default_factory=SwitchPlan)
    job: JobPlan = field(default_factory=JobPlan)
    straggler: StragglerPlan = field(default_factory=StragglerPlan)
    network: NetworkPlan = field(default_factory=NetworkPlan)
    help: HelpPlan = field(default_factory=HelpPlan)
    traffic: TrafficPlan = field(default_factory=TrafficPlan)
    sim: SimPlan = field(default_factory=SimPlan)
    sweep: SweepPlan = field(default_factory=SweepPlan)
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The policies' own tables, by their names: see policies.settings."""

    @property
    def lanes(self) -> int:
        """Values per packet. Raises: UserError: links do not carry so many."""
        mtu = of_interface("lo") if self.run.backend == "local" else self.topology.mtu
        if self.switch.lanes:
            where = "loopback" if self.run.backend == "local" else "topology.mtu: a link"
            check_fits(self.switch.lanes, mtu, where, self._bits_with(self.switch.lanes))
            return self.switch.lanes
        if self.switch.program in tofino.MODELS:
            return artefacts.lanes_of(artefacts.tofino_folder(tofino.MODELS[self.switch.program]))
        return most_lanes(mtu, self.switch.contributions or self._bits_needed)

    @property
    def contribution_bits(self) -> int:
        """Of the build that the switches run: as the plan says, else the fewest that are enough, or as few as there are."""
        return self._bits_with(self.lanes)

    def _bits_with(self, lanes: int) -> int:
        """Of the build with so many lanes. Raises: UserError: the plan wants one that does not exist."""
        wanted = self.switch.contributions
        if not wanted:
            return artefacts.contributions_for(lanes, self._bits_needed) or CONTRIBUTION_BITS
        exists = wanted == CONTRIBUTION_BITS or (self.switch.program in V1MODEL and (lanes, wanted) in WIDE_BUILDS)
        if not exists:
            known = join([f"{bits} with {width} lanes" for width, bits in WIDE_BUILDS])
            raise UserError(
                f"switch.contributions = {wanted} with {lanes} lanes and switch.program = {self.switch.program!r}: "
                f"there is no such build; there is {known}, for {join(V1MODEL)}"
            )
        return wanted

    @property
    def _bits_needed(self) -> int:
        """Of a bitmap; as few as there are where no switch has as many as there would be."""
        if self.topology.workers > MOST_RANKS or self.switch.program not in V1MODEL:
            return CONTRIBUTION_BITS
        return self.contributions if self.contributions <= MOST_CONTRIBUTIONS else CONTRIBUTION_BITS

    @property
    def contributions(self) -> int:
        """At most, of a sum."""
        return self.topology.workers * self.job.micro_batches

    def settings_of(self, table: str) -> Any:
        """A policy's own table, with defaults for what the plan leaves out."""
        return self.settings[table] if table in self.settings else policies.settings()[table]()

    def as_dict(self) -> dict[str, Any]:
        """The plan as TOML-like tables, complete with defaults; of the policies' own those that the plan concerns."""
        tables = {name: dataclasses.asdict(getattr(self, name)) for name in TABLES}
        own = {*self.settings, *policies.tables_of(self.run.policies)}
        return tables | {
            name: dataclasses.asdict(self.settings_of(name)) for name in policies.settings() if name in own
        }


TABLES = {f.name: f.default_factory for f in dataclasses.fields(Plan) if f.name != "settings"}
"""The tables that every plan has, and what each holds."""


def placed(plan: Plan, backend: str = "auto", switch: str = "auto") -> Plan:
    """The plan with the backend and the switch that the command line names, so that it says what runs.

    Args: backend, switch: "auto" leaves what the plan names.
    """
    run, program = plan.run, plan.switch
    if backend != "auto":
        run = dataclasses.replace(run, backend=backend)
    if switch != "auto":
        program = dataclasses.replace(program, program=switch)
    return dataclasses.replace(plan, run=run, switch=program)


def with_lanes(plan: Plan) -> Plan:
    """The plan with the number of lanes that it has where it runs. Raises: UserError, see Plan.lanes."""
    return dataclasses.replace(plan, switch=dataclasses.replace(plan.switch, lanes=plan.lanes))


def differences(one: Plan, other: Plan) -> list[str]:
    """What two plans say otherwise: "table.key = value of one, not value of the other"."""
    tables, others = one.as_dict(), other.as_dict()
    found = []
    for name in {**tables, **others}:
        table, other_table = tables.get(name, {}), others.get(name, {})
        for key in {**table, **other_table}:
            value, other_value = table.get(key), other_table.get(key)
            if value != other_value:
                found.append(f"{name}.{key} = {short(value)}, not {short(other_value)}")  # a trace is long
    return found
