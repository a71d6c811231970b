"""Plans: the complete description of an experiment.

Every table of a plan file is a dataclass here; a field's docstring is its documentation. `plan_files` reads them.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.tables import setting
from sa_atp.basics.words import join, short
from sa_atp.lab import policies
from sa_atp.lab.policies.policy import BACKENDS
from sa_atp.net.sockets.mtu import of_interface
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.mtu import check_fits, most_lanes
from sa_atp.protocol.packets.spec import (
    CONTRIBUTION_BITS,
    LANE_BUILDS,
    MOST_CONTRIBUTIONS,
    MOST_RANKS,
    SLOTS,
    WIDE_BUILDS,
)
from sa_atp.steps.parallel import MEASURED, MOST_TASKS, NO_GAIN, Curve
from sa_atp.steps.workloads.comm_models import COMM_MODELS
from sa_atp.switches import artefacts
from sa_atp.switches.control import tofino

V1MODEL = ("embedded", "bmv2")
SWITCHES = (*V1MODEL, "tofino-model", "tofino2-model")
TOPOLOGIES = ("star", "two-level", "dumbbell", "file")
DEVICES = ("emulated", "cpu")
CAUSES = ("device", "cpu-quota", "hog", "congestion")
FIGURES = ("iteration-time", "aggregation", "accuracy", "fairness")
PATTERNS = ("none", "constant", "random", "pause", "random-pause", "tail", "contention", "trace")
GRADES = ("steal", "clone")
MODELS = ("digits-cnn", *COMM_MODELS)
NETWORKS = ("auto", "packets", "flows")
MOST_WORKERS, MOST_RACKS = 4096, 256

# backends for `only_on`, beside which others refuse a key, or some of its values; and for `unused_by`, which ignore it
_MININET, _LINKS, _SIM = ("mininet",), ("sim", "mininet"), ("sim",)


def _policies(wanted: Callable[[policies.Policy], bool]) -> dict[str, Callable[[], tuple[str, ...]]]:
    return {"run.policies": lambda: tuple(name for name in policies.names() if wanted(policies.find(name)))}


# for `used_with`: other keys, with the values beside which a key has an effect
_STRAGGLING = {"straggler.pattern": tuple(pattern for pattern in PATTERNS if pattern != "none")}
_TRAINED = {"job.model": ("digits-cnn",)}
_ON_WORKERS = _TRAINED | _policies(lambda policy: policy.family is not policies.Family.PARAMETERS)
_TASKS = _policies(lambda policy: policy.has_tasks_at_a_time)
_AT_SWITCH = _policies(lambda policy: isinstance(policy, policies.SwitchPolicy) and policy.aggregates_at == "switch")
_HELPING = _policies(
    lambda policy: isinstance(policy, policies.SwitchPolicy) and policy.help_grade(Plan()) is not HelpGrade.NONE
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """[run]"""

    seed: int = setting(1, between=(0, 2**31 - 1))
    """Decides data order, initial weights, dropout and random stragglers."""
    repetitions: int = setting(1, between=(1, 100))
    """Number of runs of each policy, with different data. With more than one, reports have 95 % intervals."""
    steps: int = setting(40, between=(1, 100_000))
    """Training steps of each repetition."""
    warm_up: int = setting(3, between=(0, 1000))
    """First steps of every run, which means and percentiles leave out."""
    policies: tuple[str, ...] = setting(("atp", "sa-atp"), one_of=policies.names)
    """Policies to compare; the first one is the baseline. docs/policies.md describes each."""
    backend: str = setting("local", one_of=BACKENDS)
    """The backend for `--backend auto`."""
    target_accuracy: float = setting(0.9, between=(0.0, 1.0), used_with=_TRAINED)
    """Time to accuracy is the time until the held-out accuracy first reaches this."""

    @property
    def counted(self) -> range:
        """The numbers of the steps in means and percentiles: those after the warm-up, or all if there are none after it."""
        return range(self.warm_up, self.steps) or range(self.steps)

    def turns(self) -> Iterator[tuple[int, str]]:
        """The order of runs: (repetition, policy).

        Every second repetition has the policies in reverse, so that none is always the first or the last.
        """
        for repetition in range(self.repetitions):
            policies = self.policies if repetition % 2 == 0 else self.policies[::-1]
            yield from ((repetition, policy) for policy in policies)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopologyPlan:
    """[topology]"""

    kind: str = setting(
        "star", one_of=TOPOLOGIES, values_only_on={"two-level": _LINKS, "dumbbell": _MININET, "file": _MININET}
    )
    """star: all hosts at one switch. two-level: leaf switches below a spine. dumbbell: half of the workers at either of two
    switches. file: as `file` says."""
    workers: int = setting(4, between=(1, MOST_WORKERS))
    """Number of workers; more than 64 only on flows, see sim.network."""
    racks: int = setting(2, between=(2, MOST_RACKS), used_with={"topology.kind": ("two-level",)})
    """Leaf switches of a two-level topology, to which workers are assigned in turn. At most 16; 256 on flows."""
    link_mbps: float = setting(10_000.0, between=(0.1, 1e6), unused_by=("local",))
    """Rate of every link. The local backend has no links: it runs at the speed of loopback."""
    delay_us: int = setting(20, between=(0, 10_000_000), unused_by=("local",))
    """One-way delay of every link."""
    worker_mbps: tuple[float, ...] = setting((), each=(0.1, 1e6), only_on=_LINKS)
    """Rate of each worker's link, by rank; default: link_mbps."""
    trunk_mbps: float = setting(0.0, between=(0.0, 1e6), only_on=_LINKS)
    """Rate of links between switches, and of the parameter server's link; 0: link_mbps."""
    mtu: int = setting(1500, between=(576, 9216), unused_by=("local",))
    """Bytes of the largest IP packet that links carry; 9000 for jumbo frames."""
    queue_packets: int = setting(1000, between=(10, 100_000), unused_by=("local", "sim"))
    """Capacity of a link's queue; further packets are dropped."""
    file: str = setting("", only_on=_MININET)
    """A topology.json in the format of p4lang's tutorials, in the plan's folder (kind file)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchPlan:
    """[switch]"""

    program: str = setting(
        "embedded",
        one_of=SWITCHES,
        values_only_on={"bmv2": _MININET, "tofino-model": _SIM, "tofino2-model": _SIM},
    )
    """The target that runs the P4 program, for `--switch auto`."""
    lanes: int = setting(0, one_of=(0, *LANE_BUILDS))
    """Values per packet. 0: the most that fit the MTU (topology.mtu; on the local backend that of loopback), in a build
    with bits for all contributions."""
    contributions: int = setting(0, one_of=(0, CONTRIBUTION_BITS, *sorted({most for _, most in WIDE_BUILDS})))
    """Bits of a packet's bitmap, which bound workers times micro-batches. 0: those of the smallest build that suffices."""
    slots: int = setting(1024, between=(1, SLOTS), used_with=_AT_SWITCH)
    """Slots of the switch for all jobs; a power of two."""
    slots_per_job: int = setting(0, between=(0, SLOTS), used_with=_AT_SWITCH)
    """Slots of each job; a power of two. Jobs share slots if there are too few. 0: all slots."""

    pcap: bool = setting(False, only_on=_MININET)
    """Whether to capture the packets of each port to a file beside the logs."""
    shared_memory: bool = setting(True, unused_by=_LINKS)
    """Whether workers share memory with the switch on their machine. False: their packets cross loopback, as UDP."""

    @property
    def quota(self) -> int:
        """Slots of each job."""
        return self.slots_per_job or self.slots


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPlan:
    """[job]"""

    model: str = setting("digits-cnn", one_of=MODELS)
    """digits-cnn is trained. The others are gradients with the model's shapes and sizes, to study communication."""
    model_scale: float = setting(1.0, between=(0.0001, 1.0), used_with={"job.model": tuple(COMM_MODELS)})
    """Factor on the size of each parameter."""
    batch_size: int = setting(64, between=(1, 4096))
    """Samples in each worker's shard of a step."""
    micro_batches: int = setting(16, between=(1, MOST_CONTRIBUTIONS))
    """Pieces of a shard, each with a contribution bit of its own: the units of help."""
    compute_us_per_sample: int = setting(3000, between=(0, 10_000_000))
    """Emulated speed of a worker's device: forward and backward pass of one sample."""
    compute_us_per_pass: int = setting(0, between=(0, 10_000_000))
    """Fixed time of a pass; each micro-batch is one."""
    speeds: tuple[float, ...] = setting((), each=(0.001, 1000.0))
    """Relative speed of each worker's device, by rank: with 0.5 a sample takes twice compute_us_per_sample."""
    parallel: int = setting(1, between=(1, MOST_TASKS))
    """Micro-batches that a worker computes at a time, with policies that have parameters on a server, and sync-opt. Falcon
    controls it itself."""
    parallel_gain: tuple[float, ...] = setting(MEASURED, each=(0.001, 1000.0), used_with=_TASKS)
    """Throughput of a device that computes 1, 2, 4 and 8 micro-batches at a time, relative to one; linear between. The
    default was measured: docs/policies.md, Several tasks at a time."""
    worker_parallel_gain: tuple[tuple[Any, ...], ...] = setting((), used_with=_TASKS)
    """The same for each worker's device, by rank; default: parallel_gain."""
    bits: int = setting(32, one_of=(32, 16))
    """Bits of a gradient's value in packets. 16: two values travel in a lane, rounded at random by the seed
    (docs/policies.md, Gradients in half the bytes). Not for policies that do not sum in the switch,
    for those with seats, or on flows."""
    error_feedback: bool = setting(True, used_with={"job.bits": (16,)})
    """Whether a worker adds what rounding took from a gradient to its next gradient. With help, no worker does."""
    jobs: int = setting(1, between=(1, 8), only_on=_MININET)
    """Number of such jobs that run concurrently on the same switches, each with its own workers."""
    device: str = setting("emulated", one_of=DEVICES, values_only_on={"cpu": _MININET})
    """emulated: a worker waits until its device would have finished. cpu: it uses CPU time, limited to cpu_share."""
    cpu_share: float = setting(
        0.25, between=(0.01, 64.0), unused_by=("local", "sim"), used_with={"job.device": ("cpu",)}
    )
    """CPU quota of a normal worker's host, in cores."""
    learning_rate: float = setting(0.05, between=(0.0, 100.0), used_with=_ON_WORKERS)
    """Learning rate of SGD with momentum on the workers. Policies with parameters on a server have one of their own."""
    momentum: float = setting(0.9, between=(0.0, 0.999), used_with=_ON_WORKERS)
    """Momentum of SGD on the workers. Parameters on a server have plain SGD."""

    @property
    def shard_us(self) -> int:
        """Compute time of a shard of batch_size samples on a device of speed 1."""
        return self.batch_size * self.compute_us_per_sample + self.micro_batches * self.compute_us_per_pass

    def parallel_curve(self, rank: int) -> Curve:
        """Throughput of a worker's device with several micro-batches at a time; a real CPU has no model of it."""
        if self.device == "cpu":
            return NO_GAIN
        return self.worker_parallel_gain[rank] if self.worker_parallel_gain else self.parallel_gain


@dataclass(frozen=True, kw_only=True, slots=True)
class StragglerPlan:
    """[straggler]"""

    pattern: str = setting("constant", one_of=PATTERNS, values_only_on={"contention": _SIM})
    """constant: the same workers are slow in every step. random: one worker is, drawn anew for each step. pause: the
    workers pause in the middle of every `every`-th step. random-pause: in each step each worker pauses with `probability`,
    for a time in `pause_range`. tail: in each step each worker's slow-down is drawn, log-normal, with a median of 1.
    contention: other traffic takes the workers' links for spells of time. trace: from a file."""
    by: str = setting(
        "device",
        one_of=CAUSES,
        values_only_on={"cpu-quota": _MININET, "hog": _MININET, "congestion": _LINKS},
        used_with={"straggler.pattern": ("constant",)},
    )
    """The cause of slowness. device: emulated devices. cpu-quota: hosts with 1/slowdown of the CPU time. hog: other
    processes that take the rest of it. congestion: other traffic that takes the rest of their uplinks
    (not on flows, see sim.network)."""
    from_step: int = setting(0, between=(0, 100_000), used_with=_STRAGGLING)
    """First step in which there are stragglers; before it all workers have their normal speed. Steps are counted from 0."""
    until_step: int = setting(0, between=(0, 100_000), used_with=_STRAGGLING)
    """First step in which there are none any more; 0: there are to the end. In Mininet, causes other than `device` begin
    and end when worker 0 is done with the step before."""
    workers: tuple[int, ...] = setting(
        (3,), each=(0, MOST_WORKERS - 1), used_with={"straggler.pattern": ("constant", "pause", "contention")}
    )
    """Ranks of the slow workers."""
    slowdown: float = setting(4.0, between=(1.0, 1000.0), used_with={"straggler.pattern": ("constant",)})
    """Factor on the time of a slow worker."""
    slowdown_range: tuple[float, ...] = setting(
        (2.0, 8.0), each=(1.0, 1000.0), used_with={"straggler.pattern": ("random",)}
    )
    """Uniform range of the slow-down."""
    pause_s: float = setting(1.0, between=(0.0, 60.0), used_with={"straggler.pattern": ("pause",)})
    """Length of a pause, in seconds."""
    every: int = setting(10, between=(1, 100_000), used_with={"straggler.pattern": ("pause",)})
    """The workers pause in one step of so many."""
    probability: float = setting(0.1, between=(0.0, 1.0), used_with={"straggler.pattern": ("random-pause",)})
    """Probability that a worker pauses in a step."""
    pause_range: tuple[float, ...] = setting(
        (0.5, 2.0), each=(0.0, 1000.0), used_with={"straggler.pattern": ("random-pause",)}
    )
    """Uniform range of a pause's length, in iterations (the time of a shard on a device of speed 1)."""
    points: int = setting(1, between=(1, 1000), used_with={"straggler.pattern": ("random-pause",)})
    """Points of a step at each of which a worker may pause, with `probability`. It makes the pauses
    of a step in its middle, one after another."""
    among: tuple[int, ...] = setting(
        (), each=(0, MOST_WORKERS - 1), used_with={"straggler.pattern": ("random", "random-pause", "tail")}
    )
    """Ranks that may be slow or pause; empty: all."""
    tail: float = setting(1.0, between=(1.0, 1000.0), used_with={"straggler.pattern": ("tail", "contention")})
    """99th percentile over median of the slow-down (pattern tail). With more than 1 the share of a link that is left is
    drawn so for each spell, in place of `share` (pattern contention)."""
    share: float = setting(
        0.2, between=(0.001, 1.0), used_with={"straggler.pattern": ("contention",), "straggler.tail": (1.0,)}
    )
    """Share of a link's rate that is left during a spell."""
    spell_s: tuple[float, ...] = setting(
        (0.5, 2.0), each=(0.001, 3600.0), used_with={"straggler.pattern": ("contention",)}
    )
    """Uniform range of a spell's length, in seconds."""
    calm_s: tuple[float, ...] = setting(
        (1.0, 4.0), each=(0.001, 3600.0), used_with={"straggler.pattern": ("contention",)}
    )
    """Uniform range of the time between two spells, in seconds."""
    trace: str = setting("", used_with={"straggler.pattern": ("trace",)})
    """A file in the plan's folder: CSV with the columns step, worker, slowdown, or a JSON list of objects with these keys.
    Other steps and workers have normal speed; a longer run repeats the trace."""
    rows: tuple[tuple[Any, ...], ...] = setting((), derived_from="trace", used_with={"straggler.pattern": ("trace",)})
    """The rows of a trace, each [step, worker, slowdown], in place of a file. The records of a run that had
    a file have its rows here, and so do not depend on it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkPlan:
    """[network]: faults of links, as shares of packets. Flows have none (sim.network)."""

    loss: float = setting(0.0, between=(0.0, 0.5), only_on=_LINKS)
    """Share of packets that a link loses, in each direction."""
    duplicate: float = setting(0.0, between=(0.0, 0.5), only_on=_LINKS)
    """Share of packets that a link delivers twice."""
    reorder: float = setting(0.0, between=(0.0, 0.5), only_on=_LINKS)
    """Share of packets that a link delays, so that later ones overtake them."""
    jitter_us: int = setting(0, between=(0, 1_000_000), only_on=_LINKS)
    """Largest further delay of a packet, uniformly drawn, without reordering."""

    @property
    def is_perfect(self) -> bool:
        return not (self.loss or self.duplicate or self.reorder or self.jitter_us)


@dataclass(frozen=True, kw_only=True, slots=True)
class HelpPlan:
    """[help]"""

    grade: str = setting("steal", one_of=GRADES, used_with=_HELPING)
    """steal: helpers take micro-batches over one by one. clone: a helper computes the straggler's whole shard as well."""
    patience: float = setting(0.02, between=(0.0, 10.0), used_with=_HELPING)
    """How long a leader waits before it offers help, as a share of the time of its own shard."""
    cancels: bool = setting(True, used_with=_HELPING)
    """Whether a micro-batch ends at once when its step's sum is there; false: it runs to its end, as one long call
    of a framework does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficPlan:
    """[traffic]: background traffic, by iperf3."""

    udp_mbps: float = setting(0.0, between=(0.0, 1e5), only_on=_MININET)
    """Rate of a UDP stream through the trunk of a dumbbell, or between two additional hosts of other networks."""
    tcp_flows: int = setting(0, between=(0, 64), only_on=_MININET)
    """Number of additional TCP connections, which send as fast as they can."""

    @property
    def is_wanted(self) -> bool:
        return bool(self.udp_mbps or self.tcp_flows)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimPlan:
    """[sim]: how the simulated backend simulates."""

    network: str = setting("auto", one_of=NETWORKS, unused_by=("local", "mininet"))
    """packets: each packet goes through the compiled switch program. flows: transfers share links without packets, for
    hundreds of workers (docs/flow-model.md). auto: packets; flows if workers and micro-batches make more contributions than
    a packet has bits for, and for policies with parameters on a server."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """[sweep]: runs with several values of one key, shown in one figure."""

    key: str = setting("")
    """A key of this file, for example straggler.slowdown."""
    values: tuple[Any, ...] = setting(())
    """The values of that key, each a run of all policies."""
    figure: str = setting("iteration-time", one_of=FIGURES)
    """The quantity that the figure shows over the key's values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The complete description of an experiment."""

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
        """Values per packet. Raises: UserError: they do not fit the links' MTU."""
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
        """Width of the switches' bitmap: the plan's, else the smallest sufficient one of a build."""
        return self._bits_with(self.lanes)

    def _bits_with(self, lanes: int) -> int:
        """Width of the bitmap in the build with so many lanes. Raises: UserError: the plan's build does not exist."""
        wanted = self.switch.contributions
        if not wanted:
            return artefacts.contributions_for(lanes, self._bits_needed) or CONTRIBUTION_BITS
        exists = wanted == CONTRIBUTION_BITS or (self.switch.program in V1MODEL and (lanes, wanted) in WIDE_BUILDS)
        if not exists:
            known = join([f"{bits} with {width} lanes" for width, bits in WIDE_BUILDS])
            raise UserError(
                f"switch.contributions = {wanted} with {lanes} lanes and switch.program = {self.switch.program!r}: "
                f"there is no such build; there are {known}, for {join(V1MODEL)}"
            )
        return wanted

    @property
    def _bits_needed(self) -> int:
        """Bits that a bitmap needs; those of the smallest build if no switch has enough."""
        if self.topology.workers > MOST_RANKS or self.switch.program not in V1MODEL:
            return CONTRIBUTION_BITS
        return self.contributions if self.contributions <= MOST_CONTRIBUTIONS else CONTRIBUTION_BITS

    @property
    def contributions(self) -> int:
        """The largest number of contributions to a sum."""
        return self.topology.workers * self.job.micro_batches

    def settings_of(self, table: str) -> Any:
        """A policy's own table, with defaults for keys that the plan leaves out."""
        return self.settings[table] if table in self.settings else policies.settings()[table]()

    def as_dict(self) -> dict[str, Any]:
        """The plan as TOML-like tables, with all defaults, and the own tables of its policies."""
        tables = {name: dataclasses.asdict(getattr(self, name)) for name in TABLES}
        own = {*self.settings, *policies.tables_of(self.run.policies)}
        return tables | {
            name: dataclasses.asdict(self.settings_of(name)) for name in policies.settings() if name in own
        }


TABLES: dict[str, Any] = {f.name: f.default_factory for f in dataclasses.fields(Plan) if f.name != "settings"}
"""The tables that every plan has, by name, with the dataclass of each."""


DERIVED = {
    f"{table}.{f.name}": f"{table}.{f.metadata['derived_from']}"
    for table, kind in TABLES.items()
    for f in dataclasses.fields(kind)
    if "derived_from" in f.metadata
}
"""The keys whose values follow from another key's, each with that key: `plan_files` derives them."""


def placed(plan: Plan, backend: str = "auto", switch: str = "auto") -> Plan:
    """The plan with the backend and the switch of the command line.

    Args: backend, switch: "auto" keeps those of the plan.
    """
    run, program = plan.run, plan.switch
    if backend != "auto":
        run = dataclasses.replace(run, backend=backend)
    if switch != "auto":
        program = dataclasses.replace(program, program=switch)
    return dataclasses.replace(plan, run=run, switch=program)


def with_lanes(plan: Plan, lanes: int = 0) -> Plan:
    """The plan with its actual number of lanes in place of 0.

    Args: lanes: of a run; 0: those of a run on this machine. Raises: UserError, see Plan.lanes.
    """
    return dataclasses.replace(plan, switch=dataclasses.replace(plan.switch, lanes=lanes or plan.lanes))


def differences(one: Plan, other: Plan) -> list[str]:
    """The differences of two plans: "table.key = value of one, not value of the other"."""
    tables, others = one.as_dict(), other.as_dict()
    found = []
    for name in {**tables, **others}:
        table, other_table = tables.get(name, {}), others.get(name, {})
        for key in {**table, **other_table}:
            value, other_value = table.get(key), other_table.get(key)
            if value != other_value:
                found.append(f"{name}.{key} = {short(value)}, not {short(other_value)}")  # a trace is long
    return found
