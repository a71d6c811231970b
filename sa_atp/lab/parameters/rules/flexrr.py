"""FlexRR: SSP, and rapid reassignment of work within helper groups (Harlap et al. 2016, section 3).

A worker reports its progress to those that it may help. A worker that is clearly behind such a helper assigns it a small
part of its remaining tasks, from the tail (DoThis). The helper computes them after its own tasks, and reports when it
begins (Begun), upon which it is assigned the next part. A worker that has begun its last own task takes back assignments
that no helper has begun (Cancel).

Each task is computed once: it is assigned to one helper at a time, and taken back only if the helper confirms that it has
not begun it.
"""

import math

from sa_atp.lab.parameters.rules.messages import (
    AnyMessage,
    Begun,
    Cancel,
    CancelReply,
    DoThis,
    Outgoing,
    Report,
    Task,
    Tasks,
)
from sa_atp.lab.parameters.rules.worker_rules import TakenTasks, WorkerRules

# As Harlap et al. have them, but for CHECKPOINTS, which are ours.
BEHIND = 0.2  # clocks by which a straggler is behind a helper, at least
FIRST_SHARE = 0.025  # share of a clock's tasks in the first assignment to a helper
NEXT_SHARE = 0.05  # the same in each further one
CHECKPOINTS = (0.5, 0.75, 1.0)  # shares of its tasks after which a worker reports its progress


def helpers_of(rank: int, world_size: int, helpers: int) -> tuple[int, ...]:
    """Ranks that may help a worker: the next ones, cyclically. Args: helpers: how many; 0: all others."""
    count = min(helpers or world_size - 1, world_size - 1)
    return tuple((rank + n) % world_size for n in range(1, count + 1))


def helped_by(rank: int, world_size: int, helpers: int) -> tuple[int, ...]:
    """Ranks that a worker may help."""
    return tuple(other for other in range(world_size) if rank in helpers_of(other, world_size, helpers))


class Reassignment(WorkerRules):
    def __init__(self, rank: int, world_size: int, helpers: int = 0) -> None:
        super().__init__(rank, world_size)
        self.helpers = helpers_of(rank, world_size, helpers)
        self.helped = helped_by(rank, world_size, helpers)
        self._total = 1  # tasks of this clock
        self._left = 0  # own tasks that are neither computed nor begun by a helper
        self._number = 0
        self._given: dict[int, tuple[int, Tasks]] = {}  # assignments that the helper has not begun
        self._cancelling: set[int] = set()
        self._assigned: dict[tuple[int, int], Tasks] = {}  # to this worker, by (owner, number), in order of arrival
        self._begun: set[tuple[int, int]] = set()  # (owner, number): assignments that it has begun
        self._void: set[tuple[int, int]] = set()  # (owner, number): cancelled before it came

    # --- own tasks --------------------------------------------------------------------------------------------------------

    def begin(self, clock: int, tasks: Tasks) -> None:
        super().begin(clock, tasks)
        self._total = self._left = max(1, len(tasks))

    def note_computed(self, task: Task, took_us: int) -> list[Outgoing]:
        if task.shard != self.rank:
            return []
        before = self._done
        self._left -= 1
        if not any(before < point <= self._done for point in CHECKPOINTS):
            return []
        return self._report()

    def settle(self) -> list[Outgoing]:
        says = []
        for number in sorted(self._given.keys() - self._cancelling):
            self._cancelling.add(number)
            says.append(Outgoing(self._given[number][0], Cancel(number=number)))
        return says

    @property
    def is_settled(self) -> bool:
        return not self._given and not self.queue.blocked

    @property
    def _done(self) -> float:
        """Share of the clock's tasks that are computed, or begun by helpers."""
        return 1.0 - self._left / self._total

    def _report(self) -> list[Outgoing]:
        report = Report(clock=self.queue.clock, done=self._done)
        return [Outgoing(other, report) for other in self.helped]

    # --- others' tasks ----------------------------------------------------------------------------------------------------

    def take(self) -> TakenTasks | None:
        if not self._assigned:
            return None
        owner, number = first = next(iter(self._assigned))
        self._begun.add(first)
        return TakenTasks(self._assigned.pop(first), (Outgoing(owner, Begun(number=number)),))

    # --- messages ---------------------------------------------------------------------------------------------------------

    def receive(self, sender: int, message: AnyMessage) -> list[Outgoing]:
        match message:
            case Report(clock=clock, done=done):
                is_behind = clock + done - (self.queue.clock + self._done) >= BEHIND
                waits = any(helper == sender for helper, _ in self._given.values())
                return self._give(sender, FIRST_SHARE) if is_behind and not waits else []
            case Begun(number=number):
                tasks = self._given.pop(number, (sender, ()))[1]
                self._cancelling.discard(number)
                self._left -= len(tasks)
                return self._give(sender, NEXT_SHARE)
            case CancelReply(number=number, returned=returned):
                self._cancelling.discard(number)
                if returned and number in self._given:
                    self.queue.take_back(self._given.pop(number)[1])
            case DoThis(number=number, tasks=tasks):
                if (sender, number) in self._void:
                    self._void.discard((sender, number))
                else:
                    self._assigned[sender, number] = tasks
            case Cancel(number=number):
                return [Outgoing(sender, CancelReply(number=number, returned=self._withdraw(sender, number)))]
        return []

    def _give(self, helper: int, share: float) -> list[Outgoing]:
        """Assigns tasks that are not begun to a helper; none while assignments are being cancelled."""
        tasks = self.queue.give(math.ceil(share * self._total)) if not self._cancelling else ()
        if not tasks:
            return []
        self._number += 1
        self._given[self._number] = helper, tasks
        return [Outgoing(helper, DoThis(number=self._number, tasks=tasks))]

    def _withdraw(self, owner: int, number: int) -> bool:
        """Drops an assignment. Returns: whether it had not been begun."""
        if self._assigned.pop((owner, number), None) is not None:
            return True
        if (owner, number) in self._begun:
            return False
        self._void.add((owner, number))  # the cancellation overtook the assignment
        return True
