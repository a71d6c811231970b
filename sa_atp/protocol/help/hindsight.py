"""How long a step would have taken without help, judged after its end. (protocol section 10.3)

During a step nobody knows how much longer an overdue worker will take. Afterwards most of it is known: when each worker
had computed what it held, and how long the work that others did for it would have taken it.
"""

from collections.abc import Mapping, Sequence

from sa_atp.protocol.help.effect import Effect
from sa_atp.protocol.help.progress import Step, Worker
from sa_atp.protocol.help.projection import Projection
from sa_atp.protocol.help.racks import Racks


class Hindsight:
    def __init__(
        self, steps: Mapping[int, Step], workers: Sequence[Worker], projection: Projection, racks: Racks, effect: Effect
    ) -> None:
        """Args: steps: the remembered steps, by number. workers: what is known of each, by rank."""
        self._steps = steps
        self._workers = workers
        self._projection = projection
        self._racks = racks
        self._effect = effect

    def judge(self, step: int, now_us: int) -> None:
        """Judges a step that is over: whether help shortened it, what crossing racks cost.

        Args: now_us: when the next began.
        """
        state = self._steps.get(step)
        if state is None or not step:  # in the first step everything takes longer
            return
        took_us = now_us - state.began_us
        network_us = max(
            # the shortest time does not describe a worker whose data was late
            (w.send_us if rank in state.resent else w.least_send_us) + w.answer_us // 2
            for rank, w in enumerate(self._workers)
        )
        done_us = max(max(c.idle_us or 0, c.lot_until_us) for c in state.courses) - state.began_us
        overhead_us = took_us - done_us - network_us
        self._racks.learn(state, overhead_us)
        if state.is_helped:
            computed_us = self._computed_us(step, now_us)
            if computed_us is not None:
                self._effect.note_step_with_help(step, computed_us + network_us, took_us, overhead_us)
            return
        ends_us = [course.idle_us for course in state.courses]
        if None not in ends_us:
            computed_us = max(end_us for end_us in ends_us if end_us is not None) - state.began_us
            self._effect.note_step_without_help(computed_us + network_us, took_us)

    def _computed_us(self, step: int, end_us: int) -> int | None:
        """How long the step would have taken without help until the last worker had computed.

        Args: end_us: when the step was over. Returns: None: not known, because a worker had stopped.
        """
        state = self._steps[step]
        last_us = state.began_us
        for rank, course in enumerate(state.courses):
            held = state.held(rank)
            left = len(state.owner[rank]) - held
            if course.idle_us is not None:
                done_us = course.idle_us
                if left:  # it reported to be done only after an answer that there is no more for it
                    heard_us = course.idle_us - 2 * self._workers[rank].answer_us
                    done_us = max(min(done_us, self._projection.due_us(state, rank)), heard_us)
            else:
                if course.began_us is None and course.newest_us is not None:  # it reported not to have begun this step
                    was_done = self._has_computed(rank, step)
                    if was_done:
                        continue  # it waits for the sum before, perhaps because of help: it does not count
                    if was_done is not None:
                        return None
                done_us = self._projection.due_us(state, rank)
                # it reports no earlier than the answer to its claim arrives
                says_us = max(done_us, course.granted_us + self._workers[rank].answer_us // 2)
                if held and says_us < end_us:
                    return None
            last_us = max(last_us, done_us + left * self._projection.expected_us(state, rank, rank))
        return last_us - state.began_us

    def _has_computed(self, rank: int, before: int) -> bool | None:
        """Whether a worker reported to be done in the last step that it began before the step `before`.

        Returns: None: it has begun none of the remembered ones.
        """
        known = [self._steps[step].courses[rank] for step in sorted(self._steps, reverse=True) if step < before]
        return next((course.idle_us is not None for course in known if course.began_us is not None), None)
