"""Probes that are on their way, in the order in which they left. (protocol section 5.4)

Several questions about one fragment may be on their way, and they may find it in different states, so each answer
carries the number of its question. Only the answer to the latest question is waited for.
"""

from collections import OrderedDict
from dataclasses import dataclass

from sa_atp.protocol.packets.question_numbers import FLAGS_OF_NUMBER, QUESTION_NUMBERS
from sa_atp.protocol.rank.recovery.asking import Asked
from sa_atp.protocol.rank.sums.operation import Operation

_Fragment = tuple[int, int]  # operation, place in it


@dataclass(slots=True)
class Question:
    operation: Operation
    local: int
    asked_us: int
    behind: int
    """The newest transmission when the question left: an answer shows that it and all before it have left the
    network."""
    tells: bool
    """Whether the answer is to say which ranks the sum waits for."""


class Questions:
    def __init__(self) -> None:
        self._latest: OrderedDict[_Fragment, Question] = OrderedDict()  # their answers are waited for
        # unanswered questions, by fragment and number; a later question replaces one with the same number
        self._open: dict[tuple[int, int, int], Question] = {}
        self._counts: dict[int, dict[int, int]] = {}  # operation: how often each of its fragments has been asked for
        self._last: dict[int, int] = {}  # operation: the last of its fragments that have been asked for

    def __len__(self) -> int:
        """Number of fragments for which an answer is waited for."""
        return len(self._latest)

    def ask(self, operation: Operation, local: int, asked_us: int, behind: int, *, tells: bool) -> int:
        """Notes a question that is to be sent. Returns: the number that its packet carries."""
        counts = self._counts.setdefault(operation.index, {})
        count = counts.get(local, 0)
        counts[local] = count + 1
        self._last[operation.index] = max(local, self._last.get(operation.index, -1))
        number = count % QUESTION_NUMBERS
        fragment = operation.index, local
        before = self._latest.pop(fragment, None)
        tells |= before is not None and before.tells
        question = Question(operation, local, asked_us, behind, tells)
        self._latest[fragment] = self._open[*fragment, number] = question
        return number

    def last_of(self, operation: Operation) -> int:
        """The highest fragment of an operation that a question was ever for; -1: there was none."""
        return self._last.get(operation.index, -1)

    def open_of(self, operation: Operation) -> list[Asked] | None:
        """The questions whose answers are waited for, in the order in which they left; None: one of them is of another
        operation, or asks for ranks (`tells`).
        """
        if any(question.operation is not operation or question.tells for question in self._latest.values()):
            return None
        counts = self._counts.get(operation.index, {})
        return [
            Asked(q.local, q.asked_us, q.behind, FLAGS_OF_NUMBER[(counts[q.local] - 1) % QUESTION_NUMBERS], False)
            for q in self._latest.values()
        ]

    def answered(self, operation: Operation, local: int, number: int) -> Question | None:
        """Takes an answer. Returns: its question; None: there was none, or it is forgotten.

        A question that was overdue may still be answered: where the switch holds nothing, the parameter server answers,
        later than the switch answers later questions.
        """
        fragment = operation.index, local
        found = self._open.pop((*fragment, number), None)
        if found is not None and self._latest.get(fragment) is found:
            del self._latest[fragment]
        return found

    def overdue(self, asked_before_us: int) -> list[Question]:
        """Removes and returns the questions that left before a time: their answers are not waited for any longer."""
        found = []
        while self._latest:
            fragment, question = next(iter(self._latest.items()))
            if question.asked_us >= asked_before_us:
                break
            del self._latest[fragment]
            found.append(question)
        return found

    def forget(self, operation: Operation) -> None:
        """Forgets the questions of an operation that is over."""
        if operation.index not in self._counts:
            return
        self._last.pop(operation.index, None)
        for local, count in self._counts.pop(operation.index, {}).items():
            self._latest.pop((operation.index, local), None)
            for number in range(min(count, QUESTION_NUMBERS)):
                self._open.pop((operation.index, local, number), None)
