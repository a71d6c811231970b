"""Whom to ask how far it is, and for what it need not hold. (protocol section 10.3, *steal, what is asked for*)"""

from collections import deque
from collections.abc import Iterator, Sequence

from sa_atp.protocol.help.assignment import worth_helping
from sa_atp.protocol.help.progress import Step, Worker
from sa_atp.protocol.help.projection import Projection
from sa_atp.protocol.help.racks import Racks
from sa_atp.protocol.help.silence import Silence

ASK_AGAIN_US = 20_000  # after which an owner that has not answered is asked once more how far it is


class Revocation:
    def __init__(self, workers: Sequence[Worker], now: Projection, racks: Racks, silence: Silence) -> None:
        """Args: workers: what is known of each, by rank."""
        self.to_revoke: deque[tuple[int, int, int]] = deque()
        """(rank, step, held): who is to be asked, and what of its own shard it is thought to hold."""
        self._workers = workers
        self._now = now
        self._racks = racks
        self._silence = silence

    def from_the_last(self, state: Step, step: int, rank: int, free_us: int, now_us: int) -> None:
        """Asks those for what they hold that a helper would be done with clearly before them."""
        self.from_the_silent(state, step, rank, now_us)
        for shard in self._still_at_it(state, step, rank, now_us):
            mine = self._now.mine(state, rank, shard)
            course = state.courses[shard]
            if state.held(shard) <= course.begun and course.at_us is not None:
                continue  # it has begun all that it holds
            back_us = now_us + self._workers[shard].answer_us
            finish_us = self._now.held_until(state, shard, now_us)
            is_worth_it = worth_helping(max(free_us, back_us) + mine, finish_us, mine)
            if is_worth_it and rank in self._racks.helpers_of(state, shard, now_us):
                self._ask(state, step, shard, now_us)

    def from_the_silent(self, state: Step, step: int, rank: int, now_us: int) -> None:
        """Asks those how far they are who should have been done by now."""
        for shard in self._still_at_it(state, step, rank, now_us):
            course = state.courses[shard]
            if course.at_us is not None and not course.begun and not state.held(shard):
                continue  # it is not in this step yet, and holds nothing of it
            heard_us = course.at_us or 0
            if self._now.due_us(state, shard) < now_us and now_us - heard_us > (self._now.duration(state, shard) or 0):
                self._ask(state, step, shard, now_us)

    def _still_at_it(self, state: Step, step: int, rank: int, now_us: int) -> Iterator[int]:
        """Others that have not computed their own, and could say more of that than that they wait for earlier sums."""
        for shard, course in enumerate(state.courses):
            is_at_it = shard != rank and course.idle_us is None and shard not in state.ended
            if is_at_it and not self._silence.is_behind(step, shard, now_us):
                yield shard

    def _ask(self, state: Step, step: int, rank: int, now_us: int) -> None:
        course = state.courses[rank]
        # where it has answered, there is no news before it has had time for a micro-batch
        usual_us = (self._now.duration(state, rank) or 0) if course.revoked_us is None else ASK_AGAIN_US
        if course.asked_us is not None and now_us - course.asked_us < max(usual_us, 2 * self._workers[rank].answer_us):
            return
        if course.revoked_us is None:
            course.revoked_us = now_us
        course.asked_us = now_us
        self.to_revoke.append((rank, step, state.held(rank)))
