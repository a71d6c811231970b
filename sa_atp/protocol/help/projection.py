"""Projected finish times of workers, on which the ledger's decisions rest. (protocol section 10.3)

All times are microseconds of the parameter server's clock.
"""

from collections.abc import Collection, Sequence

from sa_atp.protocol.help.assignment import Capacity
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

    def times(self) -> tuple[int, ...] | None:
        """How long a micro-batch of its own takes each worker; None: not all are known."""
        known = [w.unit_us * w.weight for w in self._workers if w.unit_us is not None]
        return tuple(map(int, known)) if len(known) == len(self._workers) else None

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

    def open_work(self, state: Step, shard: int, among: Collection[int]) -> int:
        """Work that helpers could do: what is free of a shard, and of all shards whose owner was told to stop.

        Args: among: ranks whose shards count.

        Returns: the work in micro-batches of this shard.
        """
        each = self._workers[shard].weight
        others = [
            state.free(other) * self._workers[other].weight
            for other in state.ended
            if other != shard and other in among
        ]
        return state.free(shard) + sum(-(-work // each) for work in others)

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
        if course.idle_us is not None:
            return now_us
        if course.was_overdue and course.newest_us is not None:
            duration = self.duration(state, rank) or 0
            late_us = max(0, now_us - course.newest_us - duration)
            return now_us + late_us + (state.held(rank) - course.begun) * duration
        return now_us + abs(self.due_us(state, rank) - now_us)

    def free_us(self, state: Step, rank: int, now_us: int) -> int:
        """When a worker will be done with what it holds of its own and with its lot."""
        return max(self.held_until(state, rank, now_us), state.courses[rank].lot_until_us)

    def finish_us(self, state: Step, shard: int, now_us: int) -> int:
        """When the owner would finish its shard, free micro-batches included, unless it was told to stop."""
        left = 0 if shard in state.ended else state.free(shard)
        duration = self.duration(state, shard) or self.typical(shard) or 0
        return self.free_us(state, shard, now_us) + left * duration

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

    def link_free_us(self, state: Step, rank: int, done_us: int) -> int:
        """When a worker's link is free for results of helping: its own contribution, and earlier results, have left.

        Args: done_us: when it will have computed its own shard.
        """
        link_us, course = self.link_us(rank), state.courses[rank]
        if not link_us or course.joins_lot or (rank in state.ended and not state.held(rank)):
            return course.link_until_us  # no contribution of its own is before them
        own_us = done_us if course.idle_us is None else course.idle_us
        return max(own_us + link_us, course.link_until_us)

    def keeps_us(self, rank: int) -> int:
        """How long a worker keeps a lot at least: until its next offer is answered, where that takes no longer than
        sending, so that work which it is given then can leave with it. The offer leaves when the lot is begun.
        """
        worker = self._workers[rank]
        return worker.answer_us if worker.send_us >= worker.answer_us else 0

    def note_sending(self, state: Step, rank: int, done_us: int) -> None:
        """Notes that a worker sends its lot, because there is no more work for it. Args: done_us: see link_free_us."""
        course = state.courses[rank]
        if course.is_gathering:
            begins_us = max(self.link_free_us(state, rank, done_us), course.lot_until_us)
            course.link_until_us, course.is_gathering = begins_us + self.link_us(rank), False

    def capacities_of_others(
        self, state: Step, rank: int, shard: int, among: Collection[int], now_us: int
    ) -> list[Capacity]:
        """Capacities of ranks other than this one for a shard. Each is free when its own shard is done; the shard's
        owner, when it is done with what it holds.

        Args: among: the ranks that may work on the shard.
        """
        found = []
        for other in among:
            duration = self.duration(state, other, shard)
            if other == rank or duration is None or (other == shard and other in state.ended):
                continue
            left = 0 if other == shard or other in state.ended else state.free(other)
            # it is given work when it asks next, and hears of it later
            answer_at_us = max(now_us, state.courses[other].asks_again_us) + self._workers[other].answer_us // 2
            own_us = self.duration(state, other) or 0
            done_us = max(answer_at_us, self.free_us(state, other, now_us) + left * own_us)
            # the owner's work leaves in its own contribution; a helper computes while its own leaves, and sends after
            # it
            link_free_us = 0
            if other != shard:
                link_free_us = max(self.link_free_us(state, other, done_us), done_us + self.keeps_us(other))
            found.append(Capacity(done_us, duration, link_free_us, self.link_us(other)))
        return found
