"""The effects that a step yields, and the worker and the workload on which it runs.

A step is a generator: it yields whatever takes time (`Compute`, `Wait`), or runs at the same time (`Beside`), and is sent
the outcome. Everything else goes through `Host`, whose calls return at once.
"""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, cast

from sa_atp.basics.arrays import Values
from sa_atp.net.helping import Helping
from sa_atp.protocol.help.progress import SendProgress
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.packets.control import Seated, Taken
from sa_atp.steps.step_record import Activity, StepRecord


class Workload(Protocol):
    """A model and its data, the same on every worker."""

    values: int
    micro_batch_size: int

    def gradient(self, step: int, shard: int, micro_batch: int) -> tuple[Values, float]: ...
    def apply(self, gradient: Values) -> None: ...


class DealtWorkload(Workload, Protocol):
    """A workload whose shards may have any number of samples."""

    def gradient_of(self, step: int, shard: int, micro_batch: int, samples: range) -> tuple[Values, float]: ...


class WeightedWorkload(Workload, Protocol):
    """A workload whose gradients may be of other weights than its present ones."""

    def snapshot(self) -> Values:
        """Copies the weights. Returns: float32[values]."""

    def gradient_at(self, weights: Values, step: int, shard: int, micro_batch: int) -> tuple[Values, float]:
        """Computes as `gradient` does, with these weights; the workload's own stay as they are."""


class PendingSum(Protocol):
    """A sum under way."""

    @property
    def missing_bits(self) -> int | None: ...
    @property
    def progress(self) -> SendProgress | None: ...
    @property
    def overtaken(self) -> bool: ...
    @property
    def sending(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def sent_share(self) -> float: ...
    @property
    def future(self) -> "Future[Values]": ...


class Participant(Protocol):
    """A rank of a job, as hosts and connections have it; no call blocks."""

    membership: Membership
    helping: Helping

    def take_seat(self, step: int) -> "Future[Seated | Taken | None]": ...


class Host(Participant, Protocol):
    """The worker on which a step runs; no call blocks."""

    def now_us(self) -> int: ...
    def begin(self, values: int, key: object = "gradient") -> PendingSum: ...
    def contribute(self, sum_: Any, parts: Sequence[Values], bits: int, *, on_behalf: bool) -> None:
        """Adds to a sum. Args: parts: one for each of the bits, lowest first, or one for all; they stay as they are."""

    def probe(self, sum_: Any) -> None: ...


class HostAround:
    """What a host takes over from the host or connection that it wraps."""

    def __init__(self, inner: Participant, now_us: Callable[[], int]) -> None:
        """Args: now_us: the clock of the steps."""
        self.membership = inner.membership
        self.helping = inner.helping
        self.take_seat = inner.take_seat
        self.now_us = now_us


@dataclass(frozen=True, slots=True)
class Compute:
    """An order to compute a micro-batch, unless `stop` is done first. Sent back: (gradient, loss); None: it was
    stopped.
    """

    step: int
    shard: int
    micro_batch: int
    stop: "Future[Any] | None"
    weights: Values | None = None
    """float32[values]: the parameters to compute it with; None: the worker's own."""
    samples: range | None = None
    """Positions of its samples in the step's global batch, one or more; None: all micro-batches have the same size."""


def gradient_of(workload: Workload, work: Compute) -> tuple[Values, float]:
    """Computes a micro-batch: its gradient, float32[values], and its mean loss."""
    if work.weights is not None:
        weighted = cast(WeightedWorkload, workload)
        return weighted.gradient_at(work.weights, work.step, work.shard, work.micro_batch)
    if work.samples is None:
        return workload.gradient(work.step, work.shard, work.micro_batch)
    return cast(DealtWorkload, workload).gradient_of(work.step, work.shard, work.micro_batch, work.samples)


def samples_of(workload: Workload, work: Compute) -> int:
    """How many samples a micro-batch has."""
    return workload.micro_batch_size if work.samples is None else len(work.samples)


@dataclass(frozen=True, slots=True)
class Wait:
    """An order to wait for a future, at most so long (None: without a limit). Sent back: whether the future is done."""

    future: "Future[Any] | None"
    timeout_us: int | None = None


@dataclass(frozen=True, slots=True)
class Beside:
    """An order to carry out further effects at the same time, on the same device (steps/parallel.py).

    Sent back at once: a future of what that generator returns.
    """

    effects: "Steps"


Effect = Compute | Wait | Beside
Steps = Generator[Effect, Any, Any]


def computed(work: Compute, record: StepRecord, now_us: Callable[[], int], rank: int) -> Steps:
    """Computes a micro-batch. Returns: its gradient; None: it was stopped. Args: rank: of the worker that does it."""
    start_us = now_us()
    outcome = yield work
    kind = "compute" if work.shard == rank else "help"
    label = f"shard {work.shard}, micro-batch {work.micro_batch}{'' if outcome else ', cancelled'}"
    record.activities.append(Activity(kind, start_us, now_us(), label))
    if outcome is None:
        return None
    gradient, loss = outcome
    record.losses.append(loss)
    return gradient


def paused(pause_us: int, record: StepRecord, now_us: Callable[[], int], until: "Future[Any] | None" = None) -> Steps:
    """Pauses, where an experiment wants it. Args: until: ends the pause once it is done."""
    start_us = now_us()
    yield Wait(until, pause_us)
    record.activities.append(Activity("pause", start_us, now_us()))


class StepRunner(Protocol):
    """Runs one worker's steps."""

    def run(self, step: int) -> Steps:
        """Runs one step, up to and including the optimiser.

        Args: step: its number, the same on every rank, which determines the samples; it may be given more than once.
        Returns: (StepRecord, the sum). Raises: TransportError.
        """
