"""FlexRR: SSP, and rapid reassignment of work within helper groups (Harlap et al. 2016, section 3).

Workers tell those whom they may help how far they are. Who finds that it is clearly behind gives a small part of its
remaining tasks away (do this), the tail first. The helper computes it when it is done with its own tasks, says when it
begins, and gets the next part by that. Who comes to the end of its own tasks takes back what no helper has begun.

Each task is computed once: its owner gives it away at most once at a time, and takes it back only with the helper's word
that it has not begun it.
"""

import math
from collections import deque

from sa_atp.lab.parameters.rules.messages import Any, Begun, Cancel, Cancelled, DoThis, Outgoing, Report, Task, Tasks
from sa_atp.lab.parameters.rules.worker_rules import Taken, WorkerRules

# Of the size that Harlap et al. have; when workers report is ours.
BEHIND = 0.2  # of a clock: who is so far behind a helper is a straggler
FIRST_SHARE = 0.025  # of a clock's tasks: what a helper is given before it has begun
NEXT_SHARE = 0.05  # and what it is given when it begins
CHECKPOINTS = (0.5, 0.75, 1.0)  # of its tasks, after which a worker says how far it is


def helpers_of(rank: int, world_size: int, helpers: int) -> tuple[int, ...]:
    """Who may help a worker: those that follow it, around the circle. Args: helpers: how many; 0: all others."""
    count = min(helpers or world_size - 1, world_size - 1)
    return tuple((rank + n) % world_size for n in range(1, count + 1))


def helped_by(rank: int, world_size: int, helpers: int) -> tuple[int, ...]:
    """Whom a worker may help."""
    return tuple(other for other in range(world_size) if rank in helpers_of(other, world_size, helpers))


class Reassignment(WorkerRules):
    def __init__(self, rank: int, world_size: int, helpers: int = 0) -> None:
        super().__init__(rank, world_size)
        self.helpers = helpers_of(rank, world_size, helpers)
        self.helped = helped_by(rank, world_size, helpers)
        self._total = 1  # tasks of this clock
        self._left = 0  # of its own: not computed by itself yet, those that it gave away included
        self._number = 0
        self._given: dict[int, tuple[int, Tasks]] = {}  # assignments that the helper has not begun
        self._cancelling: set[int] = set()
        self._assigned: deque[tuple[int, int, Tasks]] = deque()  # to this worker: (owner, number, tasks)
        self._begun: set[tuple[int, int]] = set()  # (owner, number): what it has helped with
        self._void: set[tuple[int, int]] = set()  # (owner, number): cancelled before it came

    # --- own tasks --------------------------------------------------------------------------------------------------------

    def begin(self, clock: int, tasks: Tasks) -> None:
        super().begin(clock, tasks)
        self._total = self._left = max(1, len(tasks))

    def finished(self, task: Task, took_us: int) -> list[Outgoing]:
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
        """Share of the clock that is done, or begun by others."""
        return 1.0 - self._left / self._total

    def _report(self) -> list[Outgoing]:
        report = Report(clock=self.queue.clock, done=self._done)
        return [Outgoing(other, report) for other in self.helped]

    # --- others' tasks ----------------------------------------------------------------------------------------------------

    def take(self) -> Taken | None:
        if not self._assigned:
            return None
        owner, number, tasks = self._assigned.popleft()
        self._begun.add((owner, number))
        return Taken(tasks, (Outgoing(owner, Begun(number=number)),))

    # --- messages ---------------------------------------------------------------------------------------------------------

    def receive(self, sender: int, message: Any) -> list[Outgoing]:
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
            case Cancelled(number=number, returned=returned):
                self._cancelling.discard(number)
                if returned and number in self._given:
                    self.queue.take_back(self._given.pop(number)[1])
            case DoThis(number=number, tasks=tasks):
                if (sender, number) in self._void:
                    self._void.discard((sender, number))
                else:
                    self._assigned.append((sender, number, tasks))
            case Cancel(number=number):
                return [Outgoing(sender, Cancelled(number=number, returned=self._withdraw(sender, number)))]
        return []

    def _give(self, helper: int, share: float) -> list[Outgoing]:
        """An assignment, if there is something that is not begun; none while it takes everything back."""
        tasks = self.queue.give(math.ceil(share * self._total)) if not self._cancelling else ()
        if not tasks:
            return []
        self._number += 1
        self._given[self._number] = helper, tasks
        return [Outgoing(helper, DoThis(number=self._number, tasks=tasks))]

    def _withdraw(self, owner: int, number: int) -> bool:
        """Returns: whether it had not begun it."""
        for place, (who, which, _) in enumerate(self._assigned):
            if (who, which) == (owner, number):
                del self._assigned[place]
                return True
        if (owner, number) in self._begun:
            return False
        self._void.add((owner, number))  # the cancellation was faster than the assignment
        return True
