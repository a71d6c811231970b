"""Revocations: which owners are asked for their progress and to give up micro-batches. (protocol section 10.3, *steal,
what is asked for*)
"""

from collections import deque
from collections.abc import Iterator, Sequence

from sa_atp.protocol.help.assignment import worth_helping
from sa_atp.protocol.help.progress import Step, Worker
from sa_atp.protocol.help.projection import Projection
from sa_atp.protocol.help.racks import Racks
from sa_atp.protocol.help.silence import Silence

ASK_AGAIN_US = 20_000  # after which a revocation that was not answered is repeated


class Revocation:
    def __init__(self, workers: Sequence[Worker], projection: Projection, racks: Racks, silence: Silence) -> None:
        """Args: workers: what is known of each, by rank."""
        self.to_revoke: deque[tuple[int, int, int]] = deque()
        """Revocations to send, as (rank, step, held). held: how much of its own shard the owner is thought to hold."""
        self._workers = workers
        self._projection = projection
        self._racks = racks
        self._silence = silence

    def ask_for_work(self, state: Step, step: int, rank: int, free_us: int, now_us: int) -> None:
        """Revokes what a helper would be done with clearly before the owner; asks overdue owners as well."""
        self.ask_overdue(state, step, rank, now_us)
        for shard in self._computing(state, step, rank, now_us):
            each_us = self._projection.expected_us(state, rank, shard)
            course = state.courses[shard]
            if state.held(shard) <= course.begun and course.newest_us is not None:
                continue  # it has begun all that it holds
            back_us = now_us + self._workers[shard].answer_us
            finish_us = self._projection.held_until(state, shard, now_us)
            is_worth_it = worth_helping(max(free_us, back_us) + each_us, finish_us, each_us)
            if is_worth_it and rank in self._racks.helpers_of(state, shard, now_us):
                self._ask(state, step, shard, now_us)

    def ask_overdue(self, state: Step, step: int, rank: int, now_us: int) -> None:
        """Asks owners that should have been done by now for their progress."""
        for shard in self._computing(state, step, rank, now_us):
            course = state.courses[shard]
            if course.newest_us is not None and not course.begun and not state.held(shard):
                continue  # it is not in this step yet, and holds nothing of it
            heard_us = course.newest_us or 0
            if self._projection.due_us(state, shard) < now_us and now_us - heard_us > (
                self._projection.duration(state, shard) or 0
            ):
                self._ask(state, step, shard, now_us)

    def _computing(self, state: Step, step: int, rank: int, now_us: int) -> Iterator[int]:
        """Ranks other than this one that still compute their own shard, and are not steps behind (`Silence.is_behind`)."""
        for shard, course in enumerate(state.courses):
            is_computing = shard != rank and course.idle_us is None and shard not in state.ended
            if is_computing and not self._silence.is_behind(step, shard, now_us):
                yield shard

    def _ask(self, state: Step, step: int, rank: int, now_us: int) -> None:
        course = state.courses[rank]
        # an owner that has answered has no news before it has had time for a micro-batch
        usual_us = (self._projection.duration(state, rank) or 0) if course.revoked_us is None else ASK_AGAIN_US
        if course.asked_us is not None and now_us - course.asked_us < max(usual_us, 2 * self._workers[rank].answer_us):
            return
        if course.revoked_us is None:
            course.revoked_us = now_us
        course.asked_us = now_us
        self.to_revoke.append((rank, step, state.held(rank)))
