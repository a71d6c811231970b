"""What workers are told for the steps to come, as far as they can be foreseen. (protocol section 10.2)

Who follows it saves questions and answers; nothing depends on it.
"""

from collections.abc import Sequence

from sa_atp.protocol.help.assignment import Capacity, makespan
from sa_atp.protocol.help.progress import Worker
from sa_atp.protocol.help.projection import Projection
from sa_atp.protocol.help.racks import Racks


class Advice:
    def __init__(self, workers: Sequence[Worker], micro_batches: int, now: Projection, racks: Racks) -> None:
        """Args: workers: what is known of each, by rank. micro_batches: of each shard."""
        self._workers = workers
        self._micro_batches = micro_batches
        self._now = now
        self._racks = racks
        self._foreseen: tuple[tuple[int, ...], dict[frozenset[int], tuple[int, int]]] = ((), {})  # speeds; what follows

    def of(self, rank: int) -> tuple[int, bool]:
        """Returns: how many of its micro-batches a worker should hold from the beginning; and whether there will be
        something for it to do for others.
        """
        times = self._now.times()
        if times is None or not all(w.answer_us for w in self._workers):
            return self._micro_batches, False
        usual_us, helps = sorted(times)[len(times) // 2], False
        for ranks, helpers in self._racks.foreseen(lambda ranks: self._foresee(times, ranks)[0]):
            end_us, slowest_us = self._foresee(times, helpers)[0], self._foresee(times, ranks)[1]
            end_us = max(end_us, min(self._workers[r].answer_us for r in helpers))  # before nobody hears of what to do
            if self._micro_batches * slowest_us - end_us <= usual_us:
                continue  # nobody is slow
            if rank in ranks and self._micro_batches * times[rank] - end_us > usual_us:
                # half of what it will do at most: the rest it asks for in time, or leaves to others; and what it does until
                # it can have asked, though it may not be as slow as it was
                own = max(end_us // 2 // times[rank], self._workers[rank].answer_us // max(1, self._now.sure_us(rank)))
                return min(own, self._micro_batches), False
            helps |= rank in helpers and self._micro_batches * times[rank] + times[rank] <= end_us
        return self._micro_batches, helps

    def _foresee(self, times: tuple[int, ...], ranks: frozenset[int]) -> tuple[int, int]:
        """How long some workers take for all of theirs if everybody does what it can, and how long the slowest takes for
        one; made anew when speeds have changed.
        """
        if self._foreseen[0] != times:
            self._foreseen = times, {}
        known = self._foreseen[1]
        if ranks not in known:
            each = [times[rank] for rank in sorted(ranks)]
            end_us = makespan(len(each) * self._micro_batches, [Capacity(0, t) for t in each]) or 0
            known[ranks] = end_us, max(each)
        return known[ranks]
