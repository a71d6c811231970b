"""What a step would have taken without help, as it is seen when it is over. (protocol section 10.3)

While a step is going on nobody knows how long a worker that is overdue will still be. Afterwards most of it is known: when
each had computed what it held, and how long it would have been at what others did for it.
"""

from collections.abc import Mapping, Sequence

from sa_atp.protocol.help.effect import Effect
from sa_atp.protocol.help.progress import Step, Worker
from sa_atp.protocol.help.projection import Projection
from sa_atp.protocol.help.racks import Racks


class Hindsight:
    def __init__(
        self, steps: Mapping[int, Step], workers: Sequence[Worker], now: Projection, racks: Racks, effect: Effect
    ) -> None:
        """Args: steps: those that are remembered, by number. workers: what is known of each, by rank."""
        self._steps = steps
        self._workers = workers
        self._now = now
        self._racks = racks
        self._effect = effect

    def judge(self, step: int, now_us: int) -> None:
        """A step is over: what was help good for? Args: now_us: when the next one began."""
        state = self._steps.get(step)
        if state is None or not step:  # in the first one everything takes longer
            return
        took_us = now_us - state.began_us
        network_us = max(
            # the shortest says nothing of one whose data was late
            (w.send_us if rank in state.resent else w.least_send_us) + w.answer_us // 2
            for rank, w in enumerate(self._workers)
        )
        done_us = max(max(c.idle_us or 0, c.lot_until_us) for c in state.courses) - state.began_us
        overhead_us = took_us - done_us - network_us
        self._racks.learn(state, overhead_us)
        if state.is_helped:
            computed_us = self._computed_us(step, now_us)
            if computed_us is not None:
                self._effect.with_help(step, computed_us + network_us, took_us, overhead_us)
            return
        ends_us = [course.idle_us for course in state.courses]
        if None not in ends_us:
            computed_us = max(end_us for end_us in ends_us if end_us is not None) - state.began_us
            self._effect.without_help(computed_us + network_us, took_us)

    def _computed_us(self, step: int, end_us: int) -> int | None:
        """How long the step would have taken without help until the last one had computed, as it is seen afterwards.

        Args: end_us: when it was over. Returns: None: longer than it took, nobody knows how long: somebody has stopped.
        """
        state = self._steps[step]
        last_us = state.began_us
        for rank, course in enumerate(state.courses):
            held = state.held(rank)
            left = len(state.owner[rank]) - held
            if course.idle_us is not None:
                done_us = course.idle_us
                if left:  # it said so when it had heard that there is no more for it
                    heard_us = course.idle_us - 2 * self._workers[rank].answer_us
                    done_us = max(min(done_us, self._now.due_us(state, rank)), heard_us)
            else:
                if course.began_us is None and course.at_us is not None:  # it said that it is not in this step
                    was_done = self._has_computed(rank, step)
                    if was_done:
                        continue  # the sum before has not come to it, which may be help's own doing
                    if was_done is not None:
                        return None
                done_us = self._now.due_us(state, rank)
                # not before it has heard whether there is more for it
                says_us = max(done_us, course.granted_us + self._workers[rank].answer_us // 2)
                if held and says_us < end_us:
                    return None
            last_us = max(last_us, done_us + left * self._now.mine(state, rank, rank))
        return last_us - state.began_us

    def _has_computed(self, rank: int, before: int) -> bool | None:
        """Whether a worker said of the last step that it was in, of those before some step, that it had computed its part.

        Returns: None: it has said nothing of them.
        """
        known = [self._steps[step].courses[rank] for step in sorted(self._steps, reverse=True) if step < before]
        return next((course.idle_us is not None for course in known if course.began_us is not None), None)
