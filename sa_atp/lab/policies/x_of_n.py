"""X of N: a sum has the gradients of a group of workers that is agreed on a step ahead, and the others go on computing.

Z. Zhang, H. Shen, Straggler Tolerant and Resilient DL Training on Homogeneous GPUs (STAR), arXiv 2512.09685: each update
has the gradients of x workers; when each worker will be done is predicted, and x is what makes most progress in a time.
Here all workers know the same measurements, and name the same group for the next sum; one of the group claims the bits
of those that are left out, whose gradients are in a later sum.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import UserError
from sa_atp.basics.tables import setting
from sa_atp.lab.policies.policy import PlanTables, SwitchPolicy
from sa_atp.net.promise import first_of
from sa_atp.steps.effects import Beside, Compute, Host, StepRunner, Steps, Wait, WeightedWorkload, Workload
from sa_atp.steps.step_record import Activity, Piece, StepRecord, account
from sa_atp.steps.sum_pair import SumPair

# Times travel in digits of 16 bits: sums of such whole numbers are exact (steps/workloads/exact.py).
_BASE = 1 << 16
TOOK_DIGITS = 2
DONE_DIGITS = 3
NUMBERS = TOOK_DIGITS + DONE_DIGITS
"""Values of each worker in the small sum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class XOfNSettings:
    """[x-of-n]"""

    x: int = setting(0, between=(0, 1 << 20))
    """How many gradients an update has; 0: in each step what is predicted to make most progress in a time."""
    noise: float = setting(200.0, between=(0.0, 1e9), used_with={"x-of-n.x": (0,)})
    """The gradient noise scale in samples: an update of b samples is worth 1 / (1 + noise / b) of one without noise."""
    weight: float = setting(0.5, between=(0.01, 1.0))
    """Weight of the newest measurement in a worker's time, a moving average; 1: the last one alone."""


@dataclass(frozen=True, slots=True)
class Done:
    """A worker's measurement: when its gradient was done, and how long it took, in microseconds.

    All workers' clocks begin with the job's first step.
    """

    took_us: int
    done_us: int


class Groups:
    """Decides who is in the next sum, from numbers that all workers have: so all of them decide alike."""

    def __init__(self, workers: int, *, x: int, noise: float, weight: float) -> None:
        """Args: x: 0: chosen in each step; noise: the gradient noise scale in shards; weight: see XOfNSettings."""
        self.members = tuple(range(workers))
        """The ranks in the present step's sum: in the first step all."""
        self._x, self._noise, self._weight = x, noise, weight
        self._began_us = [0] * workers  # when each began the gradient that it computes
        self._takes_us: list[float] = [0.0] * workers  # how long each is predicted to need for a gradient
        self._sums = [0] * workers  # how many sums each has been in
        self._end_us = 0  # when the last sum's contributions were there
        self._sum_us = 0  # time of a sum after that

    def follow(self, measured: Mapping[int, Done]) -> None:
        """Decides on the next sum. Args: measured: of each member of the present one."""
        first = not any(self._takes_us)
        # a member that began with the last sum shows when it had that
        fresh = [each.done_us - each.took_us for rank, each in measured.items() if self._began_us[rank] == self._end_us]
        if fresh and not first:
            self._sum_us = max(0, min(fresh) - self._end_us)
        self._end_us = max(self._end_us + self._sum_us, *(each.done_us for each in measured.values()))
        for rank, each in measured.items():
            before = self._takes_us[rank] or each.took_us
            self._takes_us[rank] = before + self._weight * (each.took_us - before)
            self._began_us[rank] = self._end_us
            self._sums[rank] += 1
        self.members = self._next()

    def _next(self) -> tuple[int, ...]:
        due_us = [began + takes for began, takes in zip(self._began_us, self._takes_us, strict=True)]
        order = sorted(range(len(due_us)), key=lambda rank: (due_us[rank], self._sums[rank], rank))  # equals take turns

        def time_to_progress(x: int) -> tuple[float, int]:
            left_us = max(0.0, due_us[order[x - 1]] - self._end_us)
            return (left_us + self._sum_us) * (1 + self._noise / x), -x  # of groups of equal worth the largest

        x = self._x or min(range(1, len(order) + 1), key=time_to_progress)
        return tuple(sorted(order[:x]))


@dataclass(slots=True, eq=False)
class Gradient:
    """A gradient that a worker computes, in one step or over several."""

    record: StepRecord
    """Of the step in which it was begun, which determines its samples; the end of an activity under way is 0."""
    weights: Values
    ready: "Future[Any]" = field(default_factory=Future)
    """Done when it is, or when the job is over."""

    def during(self, start_us: int, end_us: int) -> Iterator[Activity]:
        """The parts of its activities that are within a step."""
        for each in self.record.activities:
            since, until = max(start_us, each.start_us), min(end_us, each.end_us or end_us)
            if since < until:
                yield Activity(each.kind, since, until, each.label)


class GroupStepper:
    """A worker's steps: it takes every sum, and contributes to those whose group it is in.

    A gradient is computed beside the steps, with the weights that the worker had when it began.
    """

    def __init__(
        self,
        host: Host,
        workload: WeightedWorkload,
        groups: Groups,
        *,
        steps: int,
        pause_us: Callable[[int], int],
    ) -> None:
        """Args: groups: this worker's own, with the same settings as the others'; steps: how many the job has."""
        self.groups = groups
        self._host = host
        self._workload = workload
        self._steps = steps
        self._pause_us = pause_us
        self._rank, self._map = host.membership.rank, host.membership.map
        self._nothing = np.zeros(workload.values, np.float32)
        self._gradient: Gradient | None = None
        self._origin_us: int | None = None  # when the first step began
        self._over: Future[Any] = Future()  # done when no gradient is needed any more

    def run(self, step: int) -> Steps:
        """See `StepRunner`. The sum of the group's gradients is applied as it is: each has the weight that it has in a
        sum over all ranks.
        """
        record = StepRecord(step, self._host.now_us())
        if self._origin_us is None:
            self._origin_us = record.start_us
        values = NUMBERS * self._map.world_size
        sum_ = SumPair(self._host.begin(self._workload.values), self._host.begin(values, "times"))
        mine = self._gradient
        if mine is None:
            mine = self._gradient = Gradient(StepRecord(step, record.start_us), self._workload.snapshot())
            mine.ready = yield Beside(self._compute(mine))
        contributed_us = record.start_us
        if self._rank in self.groups.members:
            yield Wait(first_of(mine.ready, sum_.future))
            if mine.ready.done():
                mine.ready.result(timeout=0)
                contributed_us = self._host.now_us()
                self._contribute(sum_, mine, record)
        yield Wait(sum_.future)
        self._workload.apply(sum_.future.result())
        self.groups.follow(self._measured(sum_.beside.future.result()))
        if step + 1 == self._steps:
            record.dropped = 0 if self._gradient is None else len(mine.record.computed)
            self._over.set_result(None)
        record.end_us = self._host.now_us()
        record.activities += mine.during(record.start_us, record.end_us)
        account(record, contributed_us, sum_.sending)
        return record, sum_

    def _compute(self, mine: Gradient) -> Steps:
        """Computes a gradient, unless the job is over first."""
        step = mine.record.step
        pause_us = self._pause_us(step)
        for m in range(self._map.micro_batches):
            if pause_us and m == self._map.micro_batches // 2:
                pause = self._begin(mine, "pause")
                yield Wait(self._over, pause_us)
                pause.end_us = self._host.now_us()
            activity = self._begin(mine, "compute", f"shard {self._rank}, micro-batch {m}")
            outcome = yield Compute(step, self._rank, m, self._over, mine.weights)
            activity.end_us = self._host.now_us()
            if outcome is None:
                return
            gradient, loss = outcome
            mine.record.computed.append((self._rank, m, gradient))
            mine.record.losses.append(loss)
            mine.record.pieces.append(Piece(step, self._rank, m, activity.end_us))
        mine.record.end_us = self._host.now_us()

    def _begin(self, mine: Gradient, kind: str, label: str = "") -> Activity:
        activity = Activity(kind, self._host.now_us(), 0, label)
        mine.record.activities.append(activity)
        return activity

    def _contribute(self, sum_: SumPair, mine: Gradient, record: StepRecord) -> None:
        """Contributes the gradient; the first of the group also claims the bits of those that are left out, with zeros."""
        done = mine.record
        parts = {self._rank: [gradient for _, _, gradient in done.computed]}
        if self._rank == self.groups.members[0]:
            left_out = set(range(self._map.world_size)).difference(self.groups.members)
            parts |= {rank: [self._nothing] * self._map.micro_batches for rank in left_out}
        bits = sum(map(self._map.bits_of_seat, parts))
        numbers = np.zeros(NUMBERS * self._map.world_size, np.float32)
        assert self._origin_us is not None
        at = NUMBERS * self._rank
        numbers[at : at + TOOK_DIGITS] = _digits(done.end_us - done.start_us, TOOK_DIGITS)
        numbers[at + TOOK_DIGITS : at + NUMBERS] = _digits(done.end_us - self._origin_us, DONE_DIGITS)
        self._host.contribute(sum_.beside, [numbers], bits, on_behalf=False)  # the small one first, or it would wait
        in_order = [part for rank in sorted(parts) for part in parts[rank]]
        self._host.contribute(sum_.gradient, in_order, bits, on_behalf=False)
        record.micro_batches = len(done.computed)
        record.losses, record.pieces, record.computed = done.losses, done.pieces, done.computed
        self._gradient = None

    def _measured(self, numbers: Values) -> dict[int, Done]:
        rows = np.rint(numbers.astype(np.float64)).astype(np.int64).reshape(-1, NUMBERS).tolist()
        return {
            rank: Done(_number(rows[rank][:TOOK_DIGITS]), _number(rows[rank][TOOK_DIGITS:]))
            for rank in self.groups.members
        }


def _digits(us: int, count: int) -> list[int]:
    """A time in digits of 16 bits, the highest first."""
    return [us >> 16 * place & (_BASE - 1) for place in reversed(range(count))]


def _number(digits: list[int]) -> int:
    return sum(digit * _BASE**place for place, digit in enumerate(reversed(digits)))


class XOfN(SwitchPolicy):
    name = "x-of-n"
    title = "X of N"
    summary = (
        "A sum has the gradients of a group of workers that is agreed on a step ahead, by predicted times; the others go "
        "on computing, and their gradients are in a later sum."
    )
    source = (
        "the synchronisation modes of Zhang and Shen, Straggler Tolerant and Resilient DL Training on Homogeneous GPUs "
        "(STAR), arXiv 2512.09685"
    )
    colour = "#1B9E77"
    place = 35
    settings = XOfNSettings
    shards_vary = True

    def check(self, plan: PlanTables, where: str) -> None:
        workers, x = plan.topology.workers, self.settings_in(plan).x
        if x > workers:
            raise UserError(
                f"{where}: x-of-n.x = {x}: expected 1 to {workers} (topology.workers), or 0, which chooses in each step"
            )

    def seats(self, plan: PlanTables) -> int:
        """As many as ranks, and each rank has its own: so anyone may claim the bits of any other."""
        return plan.topology.workers

    def shards(self, plan: PlanTables) -> int:
        x: int = self.settings_in(plan).x
        return x or 1

    def expected_stretch(self, plan: PlanTables, slow: float) -> float:
        """The slowest of a group may be the slowest of all."""
        return slow

    def stepper(
        self, host: Host, workload: Workload, plan: PlanTables, *, pause_us: Callable[[int], int]
    ) -> StepRunner:
        own: XOfNSettings = self.settings_in(plan)
        noise = own.noise / plan.job.batch_size
        groups = Groups(plan.topology.workers, x=own.x, noise=noise, weight=own.weight)
        weighted = cast(WeightedWorkload, workload)
        return GroupStepper(host, weighted, groups, steps=plan.run.steps, pause_us=pause_us)


POLICIES = (XOfN(),)
