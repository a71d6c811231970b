"""The description of a world as plain data: its network, its jobs, and its faults."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from sa_atp.basics.words import plural
from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS
from sa_atp.protocol.rank.server_link import LEAVE_TIMEOUT_US

# If faults keep hosts apart for at most so long, no job ends: that is ServerSettings.dead_after_us, less the time that a
# sign of life may need.
SILENCE_US = 7_000_000
SILENCE_WITH_LOSS_US = 2_500_000
# The same for a rank that leaves: after 2 s without an answer it goes anyway.
LEAVING_SILENCE_US = LEAVE_TIMEOUT_US // 2
MUCH_LOSS = 0.05  # on one link; a packet crosses several
TOO_MUCH_LOSS = 0.2  # a question and its answer cross four links: once in 200 times ten in a row are lost
PLAIN = LinkSettings()


class FaultKind(Enum):
    """A kind of fault; the value describes it."""

    RESTART_SWITCH = "a switch loses all state"
    PAUSE_SWITCH = "a switch forwards nothing"
    CUT_LEAF = "a leaf is cut off from the root"
    CUT_WORKER = "a worker's link carries nothing"
    PAUSE_WORKER = "a worker's process is paused"
    RESTART_WORKER = "a worker dies and is started again"
    KILL_WORKER = "a worker dies for good"
    PAUSE_SERVER = "the parameter server is paused"
    RESTART_SERVER = "the parameter server dies and is started again"


OF_SWITCHES = (FaultKind.RESTART_SWITCH, FaultKind.PAUSE_SWITCH, FaultKind.CUT_LEAF)
OF_WORKERS = (FaultKind.CUT_WORKER, FaultKind.PAUSE_WORKER, FaultKind.RESTART_WORKER, FaultKind.KILL_WORKER)
END_JOBS = (FaultKind.RESTART_WORKER, FaultKind.KILL_WORKER, FaultKind.RESTART_SERVER)
"""Faults that end a job with an error, however short they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    kind: FaultKind
    at_us: int
    """Time after the first rank joined; a negative value counts from the beginning of the world."""
    for_us: int
    switch: int = 0
    """0: the root; 1: the first leaf, ..."""
    job: int = 0
    rank: int = 0

    def words(self) -> str:
        when = f"{self.at_us} us after the first rank has joined"
        if self.at_us < 0:
            when = f"{-self.at_us} us after the beginning"
        who = ""
        if self.kind in OF_SWITCHES:
            who = f", leaf {self.switch - 1}" if self.switch else ", the root"
        elif self.kind in OF_WORKERS:
            who = f", rank {self.rank} of job {self.job}"
        lasting = "" if self.kind is FaultKind.KILL_WORKER else f", for {self.for_us} us"
        return f"{when}: {self.kind.value}{who}{lasting}"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobScene:
    """The description of a job: its ranks, and the sums that they make one after the other."""

    ranks: int = 1
    micro_batches: int = 1
    help: HelpGrade = HelpGrade.NONE
    lengths: tuple[int, ...] = (1,)
    """Values of each sum, or where results are scattered of each part of it; with help, all are as long as the first."""
    scattered: bool = False
    """Whether each rank gets a part of the sums."""
    gathers: bool = False
    """Whether the first sum, the third, ... are all-gathers of what ranks would have contributed, bit for bit."""
    magnitudes: tuple[int, ...] = (0,)
    """The values of each sum are about 2 to the power of this."""
    shapes: tuple[str, ...] = ("normal",)
    """The distribution of each sum's values (`values.SHAPES`)."""
    keyed: bool = False
    """Whether sums of equal length share a key, by which their scales are predicted."""
    ahead: int = 1
    """Sums that a rank may have under way at once; with help, 1."""
    compute_us: int = 0
    """Compute time of a micro-batch on a rank that is not slow."""
    slow: tuple[int, ...] = ()
    """Slow ranks."""
    slowdown: int = 1
    """Factor on the compute time of slow ranks."""
    lossy: tuple[int, ...] = ()
    """Ranks whose links have a loss of their own."""
    loss: tuple[float, float] = (0.0, 0.0)
    """Loss on the links of lossy ranks: up, down."""
    not_finite: tuple[int, int] | None = None
    """(sum, rank) of the contribution that has a NaN; None: there is none."""

    @property
    def contributions(self) -> int:
        return self.ranks * self.micro_batches

    def values(self, step: int) -> int:
        """Values of a sum, of all parts."""
        return self.lengths[step] * (self.ranks if self.scattered else 1)

    def is_gather(self, step: int) -> bool:
        return self.gathers and step % 2 == 0

    @property
    def step_us(self) -> int:
        """Compute time of a step on the slowest rank, without help."""
        return self.micro_batches * self.compute_us * (self.slowdown if self.slow else 1)

    def words(self) -> str:
        parts = [f"{plural(self.ranks, 'rank')} with {plural(self.micro_batches, 'contribution')} each"]
        if self.help is not HelpGrade.NONE:
            parts.append(f"help: {self.help.value}")
        sums = ", ".join(
            f"{length} ({shape}, 2**{magnitude})"
            for length, shape, magnitude in zip(self.lengths, self.shapes, self.magnitudes, strict=True)
        )
        parts.append(f"{plural(len(self.lengths), 'sum')} of values: {sums}")
        if self.scattered:
            parts.append("of each rank's part")
        if self.gathers:
            parts.append("every second one an all-gather")
        parts.append(f"{'with' if self.keyed else 'without'} keys, {self.ahead} under way at once")
        if self.compute_us:
            parts.append(f"{self.compute_us} us to compute")
        if self.slow and self.slowdown > 1:
            parts.append(f"{self.slowdown} times that for {plural(len(self.slow), 'rank')}: {self.slow}")
        if self.lossy:
            parts.append(f"links of {self.lossy} lose {self.loss[0]:.3f} up and {self.loss[1]:.3f} down")
        if self.not_finite is not None:
            parts.append(f"NaN in sum {self.not_finite[0]} from rank {self.not_finite[1]}")
        return "; ".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    seed: int
    """Seed of the world's generator."""
    lanes: int = 64
    contributions: int = CONTRIBUTION_BITS
    """Bits of the bitmap of the switches' program."""
    leaves: int = 0
    """Leaf switches below a root; 0: a single switch."""
    aggregates: bool = True
    """False: switches only forward, and the parameter server sums."""
    slots: int = 1024
    quota: int = 1024
    """Slots of a job."""
    ttl_ticks: int = 50
    compiled: bool = False
    """Whether connections use the compiled kernels, as they do in real time."""
    gather_us: int = 0
    """How long hosts collect arriving packets before they process them together."""
    links: LinkSettings = PLAIN
    trunk: LinkSettings = PLAIN
    """Links between switches, and the parameter server's link."""
    jobs: tuple[JobScene, ...] = ()
    faults: tuple[Fault, ...] = ()
    peer: bool = False
    """Whether the first job's tensors are summed under SwitchML as well (`soak.peers`)."""

    @property
    def apart_us(self) -> int:
        """The longest time that faults can keep hosts apart: the sum of their durations."""
        return sum(fault.for_us for fault in self.faults)

    @property
    def computing_us(self) -> int:
        """The longest time that ranks may have to wait for the compute of another."""
        return max((job.step_us for job in self.jobs), default=0)

    @property
    def may_fail(self) -> bool:
        """Whether any job may end with an error: a fault ends it, or keeps hosts apart for too long."""
        return any(self.has_end(number) or self.is_apart(number) for number in range(len(self.jobs)))

    def faults_for(self, number: int) -> list[Fault]:
        """The faults that a job may notice: all but those of other jobs' workers."""
        return [fault for fault in self.faults if fault.kind not in OF_WORKERS or fault.job == number]

    def has_end(self, number: int, kinds: Sequence[FaultKind] = END_JOBS) -> bool:
        """Whether a job has a fault of these kinds."""
        return any(fault.kind in kinds for fault in self.faults_for(number))

    def is_apart(self, number: int) -> bool:
        """Whether faults may keep a job's hosts apart for longer than the protocol's bound."""
        return self._apart_us(number) > (SILENCE_US if self._loss(number) < MUCH_LOSS else SILENCE_WITH_LOSS_US)

    def may_lose_answers(self, number: int) -> bool:
        """Whether a job's links lose so much that a rank may hear nothing for as long as a server's silence may last."""
        return self._loss(number) >= TOO_MUCH_LOSS

    def _loss(self, number: int) -> float:
        job = self.jobs[number]
        return max(self.links.loss, self.trunk.loss, *(job.loss if job.lossy else ()))

    def may_leave_unheard(self, number: int) -> bool:
        """Whether the server may miss that a rank has left, and count it as lost."""
        return self._apart_us(number) > LEAVING_SILENCE_US

    def _apart_us(self, number: int) -> int:
        return sum(fault.for_us for fault in self.faults_for(number))

    def words(self) -> list[str]:
        """The description in words, as lines."""
        shape = f"a root and {plural(self.leaves, 'leaf', 'leaves')}" if self.leaves else "one switch"
        sums = "" if self.aggregates else ", which only forwards: the parameter server sums"
        lines = [
            f"network: {shape}{sums}; {self.lanes} lanes, bitmaps of {self.contributions} bits, {self.slots} slots, "
            f"{self.quota} a job, "
            f"time to live {plural(self.ttl_ticks, 'tick')}",
            f"hosts: {'with' if self.compiled else 'without'} kernels, packets wait {self.gather_us} us for others",
            f"links: {_link(self.links)}",
        ]
        if self.trunk != self.links:
            lines.append(f"between switches, and to the parameter server: {_link(self.trunk)}")
        lines += [f"job {number}: {job.words()}" for number, job in enumerate(self.jobs)]
        lines += ["job 0 once more, under SwitchML"] if self.peer else []
        lines += [f"fault: {fault.words()}" for fault in self.faults] or ["faults: none"]
        return lines

    def as_dict(self) -> dict[str, Any]:
        """The description as JSON-able data."""
        return asdict(self, dict_factory=_with_names)


def _link(link: LinkSettings) -> str:
    parts = [f"{link.rate_mbps:g} Mbit/s", f"{link.delay_us} us", f"queues of {link.queue_packets}"]
    for name, share in (("lost", link.loss), ("doubled", link.duplicate), ("damaged", link.corrupt)):
        if share:
            parts.append(f"{share:.3f} {name}")
    if link.reorder:
        parts.append(f"{link.reorder:.3f} held back by up to {link.reorder_by_us} us")
    if link.jitter_us:
        parts.append(f"jitter {link.jitter_us} us")
    return ", ".join(parts)


def _with_names(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a dataclass, with members of enumerations by name."""
    return {key: value.name.lower() if isinstance(value, Enum) else value for key, value in items}
