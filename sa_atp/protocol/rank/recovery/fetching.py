"""Results that others have: asking the parameter server for those that we missed, and giving ours to it. (section 5.7)"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from sa_atp.basics.arrays import Indices
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.job.serial import SEQ_MASK, serial_distance
from sa_atp.protocol.log.event import Log, nobody
from sa_atp.protocol.log.rank_events import FetchAsked
from sa_atp.protocol.packets.control import Fetch, MalformedError, Recall, encode
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.rank.pace.timing import MAX_TIMEOUT_US, MIN_TIMEOUT_US
from sa_atp.protocol.rank.sums.operation import Operation
from sa_atp.protocol.rank.sums.stamp import contributions_again, known_results

FETCH_FRAGMENTS = 256  # results asked of the parameter server at once
QUICK_TRIES = 2  # of a batch of which nothing comes, before silence decides when the next one is


def runs_of(missing: Indices) -> list[tuple[int, int]]:
    """Finds runs of missing numbers: where each begins and ends. Two with one number between them are one: another
    question costs about as much as a result that is known already.
    """
    breaks = np.flatnonzero(np.diff(missing) > 2) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(missing, breaks) if len(run)]


class Fetching:
    def __init__(self, membership: Membership, answer_us: Callable[[], int], log: Log = nobody) -> None:
        """Args: answer_us: how long the parameter server's answers take to come; 0: not known."""
        self._log = log
        self.packets: deque[Burst] = deque()
        """Questions and results, for the parameter server."""
        self._member = membership
        self._answer_us = answer_us
        self._kept: list[Operation] = []  # over for us, but others may still miss results of them; in order
        self._until_us = 0  # a batch that was asked for may come until then
        self._asked_to = membership.first_seq  # where it ends
        self._batch = FETCH_FRAGMENTS  # how many are asked for the next time
        self._tries = 0  # since something of it has come
        self._asked_of: int | None = None  # the operation's first sequence number

    def ask(
        self, active: Iterable[Operation], now_us: int, *, by_order: bool = False, before: int | None = None
    ) -> None:
        """Asks once for a batch from the oldest fragment that is missing, unless one may still be coming.

        Args: active: the operations that are not done, in order. by_order: see Operation.missed. before: the place from
            which on nothing is asked for.
        """
        for question in self._questions(active, now_us, by_order=by_order, before=before):
            packet = encode(question, request=0, job=self._member.job, epoch=self._member.epoch)
            self.packets.append(Burst.of(self._member.server_address, packet))

    def _questions(
        self, active: Iterable[Operation], now_us: int, *, by_order: bool, before: int | None
    ) -> list[Fetch]:
        """One for each run of missing fragments."""
        for operation in active:
            missing = operation.missed(FETCH_FRAGMENTS, by_order=by_order)
            if before is not None:
                missing = missing[operation.place + operation.plan.numbers_of(missing) < before]
            if not len(missing):
                continue
            oldest, plan = int(missing[0]), operation.plan
            first = (operation.first_seq + plan.number_of(oldest)) & SEQ_MASK
            is_new = serial_distance(first, self._asked_to) <= 0  # all of the last one has come
            if is_new:
                self._batch, self._tries = FETCH_FRAGMENTS, 0
            elif now_us < self._until_us:
                return []
            missing = missing[missing < oldest + self._batch]
            runs = runs_of(plan.numbers_of(missing) - plan.number_of(oldest))
            end = (first + runs[-1][1]) & SEQ_MASK
            if is_new or serial_distance(self._asked_to, end) > 0:
                self._asked_to = end
            self._tries += 1
            self._asked_of = operation.first_seq
            self._until_us = now_us + self._patience_us
            # The batch may wait in a long queue, which asking for all of it again would make longer. It may also be lost,
            # so we must not ask rarely: half of it, a quarter, ... one fragment together cost no more than one batch.
            self._batch = max(self._batch // 2, 1)
            self._log(FetchAsked(operation.index, (first + runs[0][0]) & SEQ_MASK, sum(b - a for a, b in runs)))
            complete = operation.held_bits == self._member.fan_in
            return [Fetch((first + start) & SEQ_MASK, end - start, complete) for start, end in runs]
        return []

    def due_us(self, operation: Operation) -> int | None:
        """Returns when to ask again for missing results of a batch. None: none was asked for, or none comes at all: then
        the probe timer decides, as the path or the parameter server may be gone.
        """
        is_due = self._asked_of == operation.first_seq and self._tries <= QUICK_TRIES
        return self._until_us if is_due and operation.oldest_pending() is not None else None

    def note_coming(self, newest: int, now_us: int) -> None:
        """Some of a batch has come: another one may be asked for when it all has, or when no more of it does.

        Args: newest: the last of these fragments.
        """
        self._batch, self._tries = FETCH_FRAGMENTS, 0
        # results come in order: one that is missing when the last of the batch is there is lost
        is_last = serial_distance(newest, self._asked_to) <= 1
        self._until_us = now_us if is_last else now_us + self._patience_us

    @property
    def _patience_us(self) -> int:
        """For which what has been asked for, or the rest of it, is waited for on a path without a queue."""
        answer_us = self._answer_us()
        return min(max(2 * answer_us, MIN_TIMEOUT_US), MAX_TIMEOUT_US) if answer_us else MAX_TIMEOUT_US

    # --- the other way ------------------------------------------------------------------------------------------------

    def keep(self, operation: Operation) -> None:
        """Keeps the sums of an operation that is over for us."""
        if not self._kept or self._kept[-1].index < operation.index:
            self._kept.append(operation)
        else:  # they are over in another order
            insort(self._kept, operation, key=lambda kept: kept.index)

    def forget_passed(self, seq: int) -> None:
        """Every rank has passed this sequence number."""
        passed = 0
        for operation in self._kept:
            if serial_distance(operation.first_seq + operation.plan.numbers, seq) < 0:
                break
            operation.release()
            passed += 1
        del self._kept[:passed]

    def recall(self, asked: Recall, overlapping: Callable[[int, int], list[Operation]]) -> None:
        """Sends results that the parameter server asks for, because it missed them itself and another worker did too.

        Args: overlapping: those that are not over and have some of these numbers: the first one, and how many.
        Raises: MalformedError.
        """
        if asked.count > FETCH_FRAGMENTS:
            raise MalformedError(f"count must be at most {FETCH_FRAGMENTS}")
        first, count = asked.first, asked.count
        operations = self._kept_between(first, count) + overlapping(first, count)
        packets = known_results(self._member, operations, first, count)
        if packets is not None:
            self.packets.append(Burst(self._member.server_address, packets))
        again = contributions_again(self._member, operations, first, count)
        if again is not None:
            self.packets.append(Burst(self._member.data_address, again))

    def _kept_between(self, first: int, count: int) -> list[Operation]:
        """The operations kept that have some of these consecutive numbers."""
        if not self._kept:
            return []
        front = self._kept[0].first_seq
        low = serial_distance(front, first)
        start = bisect_right(self._kept, low, key=lambda kept: serial_distance(front, kept.first_seq))
        end = bisect_left(self._kept, low + count, key=lambda kept: serial_distance(front, kept.first_seq))
        return self._kept[max(0, start - 1) : end]
