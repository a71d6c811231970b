"""Advice to workers for the steps to come: the plan of the next step. (protocol section 10.2)

A worker that follows it saves questions and answers; correctness does not depend on it.
"""

from collections.abc import Sequence

from sa_atp.protocol.help.plan import Machine, Plan
from sa_atp.protocol.help.planning import piece_us
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
        self._planned: tuple[object, Plan] | None = None  # for what it was made from

    def of(self, rank: int, price_us: float = 0.0, *, is_usual: bool = False) -> tuple[int, bool]:
        """Args: price_us: what help costs (`Price`). is_usual: whether help was given in most of the recent steps.

        Returns: how many of its own micro-batches a worker should hold at the beginning of a step; and whether there
        will be work for it as a helper.
        """
        plan = self._plan(price_us)
        if plan is None:
            return self._micro_batches, False
        own = plan.own[rank]
        if own == self._micro_batches:
            return own, is_usual or bool(plan.parts[rank])
        # half of it, since it can claim more in time; but enough to last until a claim is answered, even if it is faster
        # this time
        soon = self._workers[rank].answer_us // max(1, self._projection.least_us(rank))
        return min(self._micro_batches, max(own // 2, soon)), False

    def _plan(self, price_us: float) -> Plan | None:
        """The plan of the next step, made once for given speeds, costs and leaves; None: not all speeds are known."""
        units_us = [w.forecast.mean_us for w in self._workers]
        sending_us = [(w.send_us, w.least_send_us) for w in self._workers]
        known = price_us, self._racks.leaves, units_us, sending_us
        if None in units_us or not all(w.answer_us for w in self._workers):
            return None
        if self._planned is None or self._planned[0] != known:
            machines = [
                Machine(
                    free_us=0,
                    unit_us=w.unit_us or 0.0,
                    weight=w.weight,
                    held=self._micro_batches,
                    told_us=w.answer_us,
                    release_us=w.answer_us // 2,
                    link_us=self._projection.link_us(rank),
                    joins=self._projection.has_slow_link(rank),
                )
                for rank, w in enumerate(self._workers)
            ]
            usual_us = sorted(map(piece_us, machines))[len(machines) // 2]
            self._planned = known, self._racks.plan((), machines, max(usual_us, price_us))
        return self._planned[1]
