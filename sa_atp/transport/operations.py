"""The operations of a job in their order: begun, open, done, taken. (protocol section 5.1)"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sa_atp.tensor.fragments import Plan
from sa_atp.transport.buffers import Buffers
from sa_atp.transport.contribution import Contribution
from sa_atp.transport.membership import Membership
from sa_atp.transport.operation import History, Operation
from sa_atp.transport.serial import SEQ_MASK, serial_distance


@dataclass(slots=True)
class _Waiting:
    """An operation that waits for another one with its key, from whose sum its scale follows."""

    index: int
    plan: Plan
    first_seq: int
    key: object
    groups: list[Contribution] = field(default_factory=list)


class Operations:
    """Gives each operation its number and its sequence numbers, the same on every rank, since all begin the same ones."""

    def __init__(self, membership: Membership) -> None:
        self.next_seq = membership.first_seq  # of the next operation
        self._member = membership
        self._next_index = 0
        self._waiting: deque[_Waiting] = deque()
        self._open: dict[int, Operation] = {}
        self._open_keys: set[object] = set()
        self._histories: dict[object, History] = {}
        self._buffers = Buffers()

    def begin(self, values: int, key: object | None) -> tuple[int, int]:
        """Returns: number and first sequence number. Opens nothing yet, see `open_waiting`."""
        waiting = _Waiting(self._next_index, Plan(values, self._member.lanes), self.next_seq, key)
        self._next_index += 1
        self.next_seq = (self.next_seq + waiting.plan.span) & SEQ_MASK
        self._waiting.append(waiting)
        return waiting.index, waiting.first_seq

    def open_waiting(self) -> bool:
        """Opens operations in order, up to one whose key is in use. Returns: whether there was one to open."""
        opened = False
        while self._waiting and (self._waiting[0].key is None or self._waiting[0].key not in self._open_keys):
            waiting = self._waiting.popleft()
            if waiting.key is not None:
                self._open_keys.add(waiting.key)
            operation = Operation(
                index=waiting.index,
                plan=waiting.plan,
                first_seq=waiting.first_seq,
                contributions=self._member.contributions,
                histories=self._histories,
                key=waiting.key,
                buffers=self._buffers,
            )
            for group in waiting.groups:
                operation.add(group)
            self._open[waiting.index] = operation
            opened = True
        return opened

    def add(self, index: int, group: Contribution) -> None:
        """Adds values to an operation, open or waiting."""
        if index in self._open:
            self._open[index].add(group)
            return
        for waiting in self._waiting:
            if waiting.index == index:
                waiting.groups.append(group)

    def finish(self, operation: Operation) -> None:
        """Its sum is complete: the key is free for the next operation."""
        operation.save_history()
        self._open_keys.discard(operation.key)

    def take(self, index: int, out: np.ndarray) -> Operation:
        """Writes the sums of a done operation into float32[values], and drops it from the book."""
        done = self._open.pop(index)
        done.groups.clear()
        done.result(out)
        return done

    # --- what there is ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Operation]:
        """Those that are open, or done and not taken."""
        return iter(tuple(self._open.values()))

    def __getitem__(self, index: int) -> Operation:
        return self._open[index]

    def get(self, index: int) -> Operation | None:
        return self._open.get(index)

    def active(self) -> list[Operation]:
        """Those that are open, in order."""
        return [operation for operation in self._open.values() if not operation.is_done()]

    def waiting(self) -> int:
        return len(self._waiting)

    def plan_of(self, index: int) -> Plan | None:
        """None if the operation is done."""
        operation = self._open.get(index)
        if operation is not None:
            return None if operation.is_done() else operation.plan
        return next((waiting.plan for waiting in self._waiting if waiting.index == index), None)

    def oldest_seq(self) -> int:
        """No result before this one will be asked for again."""
        for operation in self.active():
            oldest = operation.oldest_pending()
            if oldest is not None:
                return (operation.first_seq + oldest) & SEQ_MASK
        return self._waiting[0].first_seq if self._waiting else self.next_seq

    def has_begun(self, seq: int) -> bool:
        return serial_distance(self.next_seq, seq) < 0
