"""Probes that are on their way, in the order in which they left. (protocol section 5.4)"""

from collections import OrderedDict
from dataclasses import dataclass

from sa_atp.transport.operation import Operation


@dataclass(frozen=True, slots=True)
class Question:
    operation: Operation
    local: int
    asked_us: int
    behind: int
    """The newest transmission when it left: an answer shows that this one, and all before, are not in the network."""
    tells: bool
    """Whether somebody wants to know whom the sum waits for."""
    again: bool
    """Whether an earlier one about the same fragment has not been answered: which of them is, nobody knows."""


class Questions:
    def __init__(self) -> None:
        self._open: OrderedDict[tuple[int, int], Question] = OrderedDict()
        self._of: dict[int, set[int]] = {}  # operation: its fragments that are asked for
        self.behind = 0
        """The newest transmission behind which one has left."""

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, operation: Operation, local: int, asked_us: int, behind: int, *, tells: bool) -> None:
        key = operation.index, local
        before = self._open.pop(key, None)
        self.behind = max(self.behind, behind)
        if before is not None:  # the answer may be to that one, which did not see what was sent since
            tells, behind = tells or before.tells, before.behind
        self._open[key] = Question(operation, local, asked_us, behind, tells, before is not None)
        self._of.setdefault(operation.index, set()).add(local)

    def answered(self, operation: Operation, local: int) -> Question | None:
        """What was asked; None: nothing, or it is not known any more."""
        found = self._open.pop((operation.index, local), None)
        if found is not None:
            self._of[operation.index].discard(local)
        return found

    def overdue(self, asked_before_us: int) -> list[Question]:
        """Drops those that should have been answered by now, and returns them."""
        found = []
        while self._open:
            key, question = next(iter(self._open.items()))
            if question.asked_us >= asked_before_us:
                break
            del self._open[key]
            self._of[key[0]].discard(key[1])
            found.append(question)
        return found

    def forget(self, operation: Operation) -> None:
        """The operation is over: answers that have not come are not waited for."""
        for local in self._of.pop(operation.index, ()):
            del self._open[operation.index, local]
