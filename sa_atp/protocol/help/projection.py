"""What the ledger believes of each worker now: when it is free, and how long work takes it. (protocol section 10.3)

All times are microseconds of the parameter server's clock.
"""

from collections.abc import Sequence

from sa_atp.protocol.help.plan import Machine
from sa_atp.protocol.help.progress import Step, Worker

LEAST_SENDING_US = 50_000  # a link on which a contribution takes less is not slow: a busy host may be the reason
WRITTEN_AHEAD_US = 25_000  # a host writes packets ahead for so much of its link's time (net.loop.send_pacer)


class Projection:
    def __init__(self, workers: Sequence[Worker]) -> None:
        """Args: workers: what is known of each, by rank."""
        self._workers = workers

    def duration(self, state: Step, rank: int, shard: int | None = None) -> int | None:
        """The measured time of a worker for a micro-batch of a shard (default: its own), in this step if possible."""
        worker = self._workers[rank]
        measured = state.courses[rank].micro_batch_us or worker.micro_batch_us
        weight = worker.weight if shard is None else self._workers[shard].weight
        return None if measured is None else int(measured * weight / worker.weight)

    def least_us(self, rank: int) -> int:
        """The least that a micro-batch of its own may take a worker in the next step, given how its speed changed so
        far.
        """
        worker, typical_us = self._workers[rank], self.typical(rank) or 0
        each_us = worker.micro_batch_us or 0
        return int(max(each_us - worker.unsure_us * worker.weight, min(each_us, typical_us)))

    def typical(self, shard: int) -> int | None:
        """The time that the median worker takes for a micro-batch of a shard; None: no speed is known."""
        known = sorted(w.unit_us for w in self._workers if w.unit_us is not None)
        return int(known[len(known) // 2] * self._workers[shard].weight) if known else None

    def expected_us(self, state: Step, rank: int, shard: int) -> int:
        """The expected time of a worker for a micro-batch of a shard, from its own measurements, or else the others'."""
        return self.duration(state, rank, shard) or self.typical(shard) or 1

    def due_us(self, state: Step, rank: int) -> int:
        """When a worker should be done with what it holds of its own shard."""
        duration = self.duration(state, rank) or self.typical(rank) or 0
        course, held = state.courses[rank], state.held(rank)
        # a worker that has not begun this step may have stopped in the one before: its report tells nothing of its
        # progress
        if course.newest_us is None or course.began_us is None:
            began_us = state.began_us + self._workers[rank].lag_us if course.began_us is None else course.began_us
            return began_us + held * duration
        done_us = course.newest_us + (held - course.granted - course.begun + course.is_computing) * duration
        # a worker that was late at its report still computes, and does not wait for the grant
        is_late = course.is_computing and done_us < course.granted_us - self._workers[rank].answer_us
        begins_us = max(done_us, course.granted_us) if course.granted and not is_late else done_us
        return begins_us + course.granted * duration

    def held_until(self, state: Step, rank: int, now_us: int) -> int:
        """When a worker will be done with what it holds, without help. An overdue one is expected to take as much
        longer as it is late already.
        """
        course = state.courses[rank]
        if course.idle_us is not None or (course.began_us is not None and not state.held(rank)):
            return now_us
        if course.was_overdue and course.newest_us is not None:
            duration = self.duration(state, rank) or 0
            late_us = max(0, now_us - course.newest_us - duration)
            return now_us + late_us + (state.held(rank) - course.begun) * duration
        return now_us + abs(self.due_us(state, rank) - now_us)

    def free_us(self, state: Step, rank: int, now_us: int) -> int:
        """When a worker will be done with what it holds of its own and with its lot."""
        return max(self.held_until(state, rank, now_us), state.courses[rank].lot_until_us)

    def has_slow_link(self, rank: int) -> bool:
        """Whether a contribution keeps a worker's link busy for longer than a busy host would explain."""
        return self._workers[rank].send_us >= LEAST_SENDING_US

    def link_us(self, rank: int) -> int:
        """How long a contribution keeps a worker's link busy: the usual time on a slow link, else the shortest time (a
        busy host may explain the rest), and 0 where writing ahead explains all of it.
        """
        worker = self._workers[rank]
        if self.has_slow_link(rank):
            return worker.send_us
        return worker.least_send_us if worker.least_send_us > WRITTEN_AHEAD_US else 0

    def note_sending(self, state: Step, rank: int) -> None:
        """Notes that a worker sends its lot, because there is no more work for it."""
        course = state.courses[rank]
        if course.is_gathering:
            own_us = 0 if course.joins_lot or course.idle_us is None else course.idle_us + self.link_us(rank)
            begins_us = max(own_us, course.link_until_us, course.lot_until_us)
            course.link_until_us, course.is_gathering = begins_us + self.link_us(rank), False

    def machine(
        self, state: Step, rank: int, now_us: int, spared_us: int, copy_us: int, busy_until_us: int | None = None
    ) -> Machine:
        """A worker as the planner sees it.

        Args:
            spared_us: until when nobody else is to do its work.
            copy_us: from when others may copy what it has begun.
            busy_until_us: when it says that it will be done with all that it has; None: it has not just said so.
        """
        worker, course = self._workers[rank], state.courses[rank]
        each_us = self.expected_us(state, rank, rank)
        link_us, answer_us, is_done = self.link_us(rank), worker.answer_us, course.idle_us is not None
        held, free = state.held(rank), state.free(rank)
        free_us, left = busy_until_us, 0
        if free_us is None:
            held_until_us = self.held_until(state, rank, now_us)
            free_us = max(held_until_us, course.lot_until_us)
            if not is_done:
                # it has gone on since its last report
                left = min(held - course.begun, (held_until_us - now_us) // each_us)
                free_us -= left * each_us
        is_ended = rank in state.ended
        own_us = 0 if course.joins_lot or course.idle_us is None or not held else course.idle_us + link_us
        return Machine(
            free_us=free_us,
            unit_us=each_us / worker.weight,
            weight=worker.weight,
            held=left,
            open=0 if is_ended else free,
            loose=free if is_ended else 0,
            # it is given work when it asks next, and hears of it later
            told_us=max(now_us, course.asks_again_us) + answer_us // 2,
            spared_us=spared_us,
            release_us=max(now_us + answer_us, spared_us),
            link_us=link_us,
            link_free_us=max(own_us, course.link_until_us),
            unsent=(0 if is_done else held - left) + len(course.lot) * course.is_gathering,
            copy_us=max(copy_us, now_us),
            joins=is_done or (busy_until_us is not None and self.has_slow_link(rank)),
        )
