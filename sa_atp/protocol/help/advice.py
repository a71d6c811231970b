"""Advice to workers for the steps to come: the plan of the next step. (protocol section 10.2)

A worker that follows it saves questions and answers; correctness does not depend on it.
"""

from collections.abc import Sequence

from sa_atp.protocol.help.believing import LONGEST_US
from sa_atp.protocol.help.plan import PLAIN, Kernels, Machine, Plan
from sa_atp.protocol.help.progress import Worker
from sa_atp.protocol.help.projection import Projection
from sa_atp.protocol.help.racks import Racks
from sa_atp.protocol.help.rules import Rule
from sa_atp.protocol.records import Records

ADVICE = Rule("advice", "Every answer says what the plan of the next step has for its worker, which begins with that.")


class Advice:
    def __init__(
        self,
        workers: Sequence[Worker],
        micro_batches: int,
        projection: Projection,
        racks: Racks,
        kernels: Kernels = PLAIN,
    ) -> None:
        """Args: workers: what is known of each, by rank. micro_batches: of each shard. kernels: for plans."""
        self._workers = workers
        self._micro_batches = micro_batches
        self._projection = projection
        self._racks = racks
        self._machines = [Machine() for _ in workers]
        self._seen: Sequence[tuple[float | None, ...]] = [()] * len(workers)  # what these were made from
        self._records = None if kernels is PLAIN else Records(Machine, len(workers))
        self._planned: tuple[object, Plan] | None = None  # for what it was made from

    def of(self, rank: int, *, is_usual: bool = False) -> tuple[int, bool]:
        """Args: is_usual: whether help was given in most of the recent steps.

        Returns: how many of its own micro-batches a worker should hold at the beginning of a step; and whether there
        will be work for it as a helper.
        """
        plan = self._plan()
        if plan is None:
            return self._micro_batches, False
        own = plan.own[rank]
        if own == self._micro_batches:
            return own, is_usual or bool(plan.parts[rank])
        if not own and self._projection.has_slow_link(rank):
            return 0, False  # a single piece would take its link as long as all of them
        # half of it, since it can ask for more in time; but enough to last until that is answered, even if it is faster
        # this time
        soon = self._workers[rank].answer_us // max(1, self._projection.least_us(rank))
        return min(self._micro_batches, max(own // 2, soon)), False

    @ADVICE.or_else(None)
    def _plan(self) -> Plan | None:
        """The plan of the next step, made once for given speeds and leaves; None: not all speeds are known."""
        times = [(w.forecast.mean_us, w.send_us, w.least_send_us) for w in self._workers]
        if any(mean_us is None for mean_us, _, _ in times) or not all(w.answer_us for w in self._workers):
            return None
        known = self._racks.leaves, times
        if self._planned is None or self._planned[0] != known:
            seen = [(*each, w.weight, w.answer_us) for each, w in zip(times, self._workers, strict=True)]
            for rank in (r for r, (old, new) in enumerate(zip(self._seen, seen, strict=True)) if old != new):
                self._machines[rank] = m = self._machine(rank)
                if self._records is not None:
                    self._records.write(rank, m)
            self._seen = seen
            given = self._machines if self._records is None else self._records.array
            self._planned = known, self._racks.plan((), given)
        return self._planned[1]

    def _machine(self, rank: int) -> Machine:
        """A worker as the planner sees it at the beginning of the next step."""
        worker = self._workers[rank]
        return Machine(
            unit_us=min(worker.unit_us or 0.0, LONGEST_US / worker.weight),
            weight=worker.weight,
            held=self._micro_batches,
            told_us=worker.answer_us,
            release_us=worker.answer_us // 2,
            link_us=self._projection.link_us(rank),
            joins=self._projection.has_slow_link(rank),
        )
