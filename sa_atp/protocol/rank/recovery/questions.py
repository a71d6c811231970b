"""Probes that are on their way, in the order in which they left. (protocol section 5.4)

Several about one fragment may be, and what they see of it differs: each answer is to the question with its number. Waited
for is the answer to the latest of them.
"""

from collections import OrderedDict
from dataclasses import dataclass

from sa_atp.protocol.packets.question_numbers import QUESTION_NUMBERS
from sa_atp.protocol.rank.sums.operation import Operation

_Fragment = tuple[int, int]  # operation, place in it


@dataclass(slots=True)
class Question:
    operation: Operation
    local: int
    asked_us: int
    behind: int
    """The newest transmission when it left: an answer shows that this one, and all before, are not in the network."""
    tells: bool
    """Whether somebody wants to know whom the sum waits for."""
    reused: bool
    """Whether an earlier one with the same number may still be answered. The parameter server's answer to that may be under
    way however much the switch has answered since."""
    again: bool
    """... nor any later one: whoever answers, which of the two is answered, nobody knows."""
    is_passed: bool = False
    """Whether a later one has been answered: what was held before that is not of interest any more."""


class Questions:
    def __init__(self) -> None:
        self._latest: OrderedDict[_Fragment, Question] = OrderedDict()  # whose answers are waited for
        self._open: dict[tuple[int, int, int], Question] = {}  # by number too: all that may still be answered
        self._counts: dict[int, dict[int, int]] = {}  # operation: how often each of its fragments has been asked for
        self._last: dict[int, int] = {}  # operation: the last of its fragments that have been asked for

    def __len__(self) -> int:
        """Fragments of which an answer is waited for."""
        return len(self._latest)

    def ask(
        self, operation: Operation, local: int, asked_us: int, behind: int, *, tells: bool, since_us: int = 0
    ) -> int:
        """Args: since_us: what was asked before that gets no answer any more.

        Returns: the number that the question has to carry.
        """
        counts = self._counts.setdefault(operation.index, {})
        count = counts.get(local, 0)
        counts[local] = count + 1
        self._last[operation.index] = max(local, self._last.get(operation.index, -1))
        number = count % QUESTION_NUMBERS
        fragment = operation.index, local
        before = self._latest.pop(fragment, None)
        same = self._open.get((*fragment, number))
        if same is not None and same.asked_us < since_us:
            same = None
        again = same is not None and not same.is_passed
        if same is not None and again:  # the answer may be to that one, which did not see what was sent since
            behind = same.behind
        tells |= before is not None and before.tells
        question = Question(operation, local, asked_us, behind, tells, same is not None, again)
        self._latest[fragment] = self._open[*fragment, number] = question
        return number

    def last_of(self, operation: Operation) -> int:
        """The last fragment of an operation that has ever been asked for; -1: none has."""
        return self._last.get(operation.index, -1)

    def open_of(self, operation: Operation) -> list[tuple[int, int, int]] | None:
        """The questions that wait for answers, in the order in which they left: about which fragment, when, and the newest
        transmission then. None: not all are of this operation, the first about their fragment, and for nobody else.
        """
        for (index, local), question in self._latest.items():
            if index != operation.index or question.tells or self._counts[index][local] != 1:
                return None
        return [(question.local, question.asked_us, question.behind) for question in self._latest.values()]

    def answered(self, operation: Operation, local: int, number: int) -> Question | None:
        """What was asked; None: nothing, or it is not known any more.

        One that was overdue may be answered all the same: where the switch holds nothing the parameter server answers, and
        that comes after what the switch says to later questions.
        """
        fragment = operation.index, local
        found = self._open.pop((*fragment, number), None)
        if found is None:
            return None
        if self._latest.get(fragment) is found:
            del self._latest[fragment]
        if found.again:
            return found  # perhaps it is the earlier one that is answered, and those since are not passed
        count = self._counts[operation.index][local]
        age = (count - 1 - number) % QUESTION_NUMBERS  # questions that were asked after it
        for n in range(age + 1, min(count, QUESTION_NUMBERS)):
            earlier = self._open.get((*fragment, (count - 1 - n) % QUESTION_NUMBERS))
            if earlier is not None:
                earlier.is_passed = True
        return found

    def overdue(self, asked_before_us: int) -> list[Question]:
        """The questions whose answers should have come by now. They are not waited for any longer."""
        found = []
        while self._latest:
            fragment, question = next(iter(self._latest.items()))
            if question.asked_us >= asked_before_us:
                break
            del self._latest[fragment]
            found.append(question)
        return found

    def forget(self, operation: Operation) -> None:
        """The operation is over: answers that have not come are not waited for."""
        if operation.index not in self._counts:
            return
        self._last.pop(operation.index, None)
        for local, count in self._counts.pop(operation.index, {}).items():
            self._latest.pop((operation.index, local), None)
            for number in range(min(count, QUESTION_NUMBERS)):
                self._open.pop((operation.index, local, number), None)
