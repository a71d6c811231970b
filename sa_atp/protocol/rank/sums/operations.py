"""The operations of a job in their order: begun, open, done, taken. (protocol section 5.1)

A program may begin thousands at once. Those that are so far ahead that nothing of them may be sent yet only wait: they are
numbers in a queue, and nothing looks at them until their turn comes.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from sa_atp.basics.arrays import Addends
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.job.serial import SEQ_MASK, serial_distance
from sa_atp.protocol.log.event import Log, nobody
from sa_atp.protocol.log.rank_events import SumOpened
from sa_atp.protocol.numbers.fragments import Plan, plan_of
from sa_atp.protocol.numbers.scattered import scattered_plan_of
from sa_atp.protocol.rank.sums.buffers import Buffers
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.gathered_operation import GatheredOperation, gather_plan_of
from sa_atp.protocol.rank.sums.operation import History, Operation, WriteValues
from sa_atp.protocol.rank.sums.progress import name_of
from sa_atp.protocol.rank.sums.scattered_operation import ScatteredOperation
from sa_atp.protocol.rank.sums.under_way import UnderWay

NOWHERE = 1 << 62  # a place that no operation has


@dataclass(slots=True)
class _Waiting:
    """An operation whose turn has not come: it is too far ahead, or waits for another one with its key."""

    index: int
    plan: Plan
    place: int
    key: object
    name: int
    whole: bool
    gathers: bool
    groups: list[ContributionGroup] = field(default_factory=list)


class Operations:
    """Gives each operation its number and its sequence numbers, the same on every rank, since all begin the same ones.

    Inside, sequence numbers are *places*: counted from the job's first one, without wrapping around.
    """

    def __init__(self, membership: Membership, log: Log = nobody) -> None:
        self._log = log
        self.under_way = UnderWay()
        self._member = membership
        self.begun = 0
        """Operations begun so far."""
        self._opened = 0
        self.next_place = 0
        """The place of the operation that is begun next."""
        self.contributions = membership.contributions
        """Contributions of a complete sum."""
        self.oldest: Operation | None = None
        """The first operation that is open and not done."""
        self.queue: dict[int, _Waiting] = {}
        self._open: OrderedDict[int, Operation] = OrderedDict()  # those that are done and not taken, too
        self._active: OrderedDict[int, Operation] = OrderedDict()  # those that are not done, in order
        self._starts: list[int] = []  # places where operations begin: of number `_first`, and those that follow
        self._first = 0
        self.gathers = 0
        """Operations that are open, not done, and all-gathers."""
        self._open_keys: set[object] = set()
        self._histories: dict[object, History] = {}
        self._buffers = Buffers()
        self._complete = 0  # what is before this place somebody has all sums of

    def begin(self, values: int, key: object | None, scale: float = 1.0, *, whole: bool = False) -> int:
        """Args: see Collectives.begin. Returns: its number. Opens nothing yet, see `open_waiting`."""
        return self._begin(self._plan(values), key, name_of(("whole", key) if whole else key, scale), whole=whole)

    def begin_gather(self, words: int, name: object) -> int:
        """Args: see Collectives.begin_gather. Returns: as `begin`."""
        plan = gather_plan_of(words, self._member)
        return self._begin(plan, None, name_of(("gather", words, name), 1.0), whole=True, gathers=True)

    def _begin(self, plan: Plan, key: object | None, name: int, *, whole: bool, gathers: bool = False) -> int:
        waiting = _Waiting(self.begun, plan, self.next_place, key, name, whole, gathers)
        self.begun += 1
        self.next_place += waiting.plan.numbers
        self._starts.append(waiting.place)
        self.queue[waiting.index] = waiting
        return waiting.index

    def _plan(self, values: int) -> Plan:
        member = self._member
        if not member.scatters:
            return plan_of(values, member.lanes, member.contribution_bits)
        return scattered_plan_of(
            values, member.lanes, member.contribution_bits, ranks=member.world_size, slots=member.slot_count
        )

    def open_waiting(self) -> bool:
        """Opens operations in order, as far as something of them may be sent, and up to one whose key is in use.

        Returns: whether there was one to open.
        """
        if not self.queue:
            return False
        # A slot serves the fragments whose numbers differ by the quota: the older must be done first.
        return self._open_until(self.oldest_place() + self._member.slot_count)

    def _open_until(self, place: int) -> bool:
        opened = self._opened
        while (waiting := self.queue.get(self._opened)) is not None and waiting.place < place:
            if waiting.key is not None:
                if waiting.key in self._open_keys:
                    break
                self._open_keys.add(waiting.key)
            del self.queue[waiting.index]
            operation = self._operation(
                gathers=waiting.gathers,
                index=waiting.index,
                plan=waiting.plan,
                place=waiting.place,
                first_seq=self._seq(waiting.place),
                contributions=self.contributions,
                histories=self._histories,
                key=waiting.key,
                name=waiting.name,
                whole=waiting.whole,
                buffers=self._buffers,
                under_way=self.under_way,
                log=self._log,
            )
            if self._log is not nobody:
                plan, foretold = waiting.plan, waiting.plan.chunks if operation.foretold else 0
                self._log(SumOpened(waiting.index, operation.first_seq, plan.data_fragments, plan.chunks, foretold))
            self._opened += 1
            self.gathers += waiting.gathers
            self._open[waiting.index] = self._active[waiting.index] = operation
            self.oldest = self.oldest or operation
            for group in waiting.groups:
                operation.add(group)
        return self._opened > opened

    def _operation(self, *, gathers: bool, **settings: Any) -> Operation:
        """Makes an operation of the kind that the job's results, or an all-gather, need. Args: settings: see Operation."""
        if gathers:
            return GatheredOperation(part=self._member.rank, parts=self._member.world_size, **settings)
        if self._member.scatters:
            return ScatteredOperation(part=self._member.rank, **settings)
        return Operation(**settings)

    def add(self, index: int, group: ContributionGroup) -> None:
        """Adds values to an operation, open or waiting."""
        if index in self._open:
            self._open[index].add(group)
        elif index in self.queue:
            self.queue[index].groups.append(group)

    def finish(self, operation: Operation) -> None:
        """Its sum is complete: the key is free for the next operation."""
        del self._active[operation.index]
        self.gathers -= isinstance(operation, GatheredOperation)
        if operation is self.oldest:
            self.oldest = next(iter(self._active.values()), None)
        operation.save_history()
        self._open_keys.discard(operation.key)

    def take(self, index: int, out: Addends, factor: float = 1.0, write: WriteValues | None = None) -> Operation:
        """Writes the sums of a done operation into float32[values], or int32[values], and drops it from the book.

        Args: factor, write: see Operation.result.
        """
        done = self._open.pop(index)
        if not self._member.scatters:  # there, nobody but one rank has a sum, so that its addends may be needed again
            done.groups.clear()
        done.result(out, factor, write)
        gone = next(iter(self._open), self._opened) - self._first
        if 2 * gone > len(self._starts):
            del self._starts[:gone]
            self._first += gone
        return done

    # --- what there is ------------------------------------------------------------------------------------------------

    def __getitem__(self, index: int) -> Operation:
        return self._open[index]

    def get(self, index: int) -> Operation | None:
        return self._open.get(index)

    def active(self) -> Collection[Operation]:
        """The operations that are open and not done, in order."""
        return self._active.values()

    def note_complete(self, seq: int) -> None:
        """Some rank has all sums before this number, and gives them to whoever asks: our contributions are not needed."""
        if not self._member.scatters:  # "some rank has it" is of no use there, unless that is the one that needs it
            self._complete = max(self._complete, self.place_of(seq))

    def is_complete(self, operation: Operation) -> bool:
        """Whether some rank has all its sums, as far as we have heard."""
        return operation.place + operation.plan.numbers <= self._complete

    def wanting(self) -> Collection[Operation]:
        """The active operations to which we may still have to contribute, in order."""
        first = self.oldest
        if first is None or not self.is_complete(first):
            return self.active()
        return [operation for operation in self.active() if not self.is_complete(operation)]

    def waiting(self) -> int:
        return len(self.queue)

    def opens_at(self) -> int:
        """The place that the oldest fragment has to reach for the next operation to open; NOWHERE: none waits for that."""
        waiting = self.queue.get(self._opened)
        if waiting is None or (waiting.key is not None and waiting.key in self._open_keys):
            return NOWHERE
        return waiting.place - self._member.slot_count + 1

    def plan_of(self, index: int) -> Plan | None:
        """None if the operation is done."""
        known = self._active.get(index) or self.queue.get(index)
        return None if known is None else known.plan

    def oldest_place(self) -> int:
        operation = self.oldest
        if operation is None:
            waiting = self.queue.get(self._opened)
            return self.next_place if waiting is None else waiting.place
        return operation.place + operation.plan.number_of(operation.oldest_pending() or 0)

    def oldest_seq(self) -> int:
        """No result before this one will be asked for again."""
        return self._seq(self.oldest_place())

    def reach(self, seq: int) -> tuple[Operation | None, int]:
        """The operation that a result with this number belongs to, opened if its turn has not come: others have done
        without us what it waits for.

        Returns: the operation, None if it is over, not begun, or waits for its key; and how many numbers from this one on
        the same is true of.
        """
        place = self.place_of(seq)
        if self.queue:
            self._open_until(place + 1)
        return self._at(place)

    def find(self, seq: int) -> Operation | None:
        """The open operation that has this number."""
        return self._at(self.place_of(seq))[0]

    def overlapping(self, seq: int, count: int) -> list[Operation]:
        """The open operations that have some of these consecutive numbers."""
        found: list[Operation] = []
        first = self.place_of(seq)
        place = first
        while place < min(first + count, self.next_place):
            operation, following = self._at(place)
            found += [] if operation is None else [operation]
            place += following
        return found

    def _at(self, place: int) -> tuple[Operation | None, int]:
        if place >= self.next_place:
            return None, SEQ_MASK
        at = bisect_right(self._starts, place) - 1
        if at < 0:
            return None, (self._starts[0] if self._starts else self.next_place) - place
        end = self._starts[at + 1] if at + 1 < len(self._starts) else self.next_place
        return self._open.get(self._first + at), end - place

    @property
    def next_seq(self) -> int:
        """The first number of the operation that is begun next."""
        return self._seq(self.next_place)

    @property
    def opened_to(self) -> int:
        """The place of the first operation that is not open yet."""
        waiting = self.queue.get(self._opened)
        return self.next_place if waiting is None else waiting.place

    def _seq(self, place: int) -> int:
        return (self._member.first_seq + place) & SEQ_MASK

    def place_of(self, seq: int) -> int:
        """The nearest to where we are of all places that a number of 32 bits can mean."""
        if self.oldest is not None:
            return self.oldest.place + serial_distance(self.oldest.first_seq, seq)
        here = self.oldest_place()
        return here + serial_distance(self._seq(here), seq)
