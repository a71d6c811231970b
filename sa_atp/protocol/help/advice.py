"""Advice to workers for the steps to come. (protocol section 10.2)

A worker that follows it saves questions and answers; correctness does not depend on it.
"""

from collections.abc import Sequence

from sa_atp.protocol.help.assignment import Capacity, makespan
from sa_atp.protocol.help.progress import Worker
from sa_atp.protocol.help.projection import Projection
from sa_atp.protocol.help.racks import Racks


class Advice:
    def __init__(self, workers: Sequence[Worker], micro_batches: int, projection: Projection, racks: Racks) -> None:
        """Args: workers: what is known of each, by rank. micro_batches: of each shard."""
        self._workers = workers
        self._micro_batches = micro_batches
        self._projection = projection
        self._racks = racks
        self._foreseen: tuple[tuple[int, ...], dict[frozenset[int], tuple[int, int]]] = (
            (),
            {},
        )  # by speeds

    def of(self, rank: int, *, is_usual: bool = False) -> tuple[int, bool]:
        """Args: is_usual: whether help was given in most of the recent steps.

        Returns: how many of its own micro-batches a worker should hold at the beginning of a step; and whether there
        will be work for it as a helper.
        """
        times = self._projection.times()
        if times is None or not all(w.answer_us for w in self._workers):
            return self._micro_batches, False
        usual_us = sorted(times)[len(times) // 2]
        helps = is_usual and times[rank] <= usual_us * 3 // 2
        for ranks, helpers in self._racks.expected_helpers(lambda ranks: self._foresee(times, ranks)[0]):
            end_us, slowest_us = self._foresee(times, helpers)[0], self._foresee(times, ranks)[1]
            end_us = max(end_us, min(self._workers[r].answer_us for r in helpers))  # help begins with an answer
            if self._micro_batches * slowest_us - end_us <= usual_us:
                continue  # nobody is slow
            if rank in ranks and self._micro_batches * times[rank] - end_us > usual_us:
                # half of what it can do by then, since it can claim more in time; but enough to last until a claim is
                # answered, even if it is faster this time
                own = max(
                    end_us // 2 // times[rank], self._workers[rank].answer_us // max(1, self._projection.least_us(rank))
                )
                return min(own, self._micro_batches), False
            helps |= rank in helpers and self._micro_batches * times[rank] + times[rank] <= end_us
        return self._micro_batches, helps

    def _foresee(self, times: tuple[int, ...], ranks: frozenset[int]) -> tuple[int, int]:
        """How long some workers together take for all their shards, and how long the slowest takes for one micro-batch;
        computed once for given speeds.
        """
        if self._foreseen[0] != times:
            self._foreseen = times, {}
        known = self._foreseen[1]
        if ranks not in known:
            each = [times[rank] for rank in sorted(ranks)]
            end_us = makespan(len(each) * self._micro_batches, [Capacity(0, t) for t in each]) or 0
            known[ranks] = end_us, max(each)
        return known[ranks]
