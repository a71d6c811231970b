"""When workers will be done: what the ledger's decisions follow from. (protocol section 10.3)

All times are microseconds of the parameter server's clock.
"""

from collections.abc import Collection, Sequence

from sa_atp.protocol.help.assignment import Capacity
from sa_atp.protocol.help.progress import Step, Worker

LEAST_SENDING_US = 50_000  # below, no link is slow: a busy host is as long about its next packets
WRITTEN_AHEAD_US = 25_000  # a link may be busy for so long with what has been written (net.loop.send_pacer)


class Projection:
    def __init__(self, workers: Sequence[Worker]) -> None:
        """Args: workers: what is known of each, by rank."""
        self._workers = workers

    def duration(self, state: Step, rank: int, shard: int | None = None) -> int | None:
        """How long a worker takes for a micro-batch of a shard, its own by default; in this step if that is known."""
        worker = self._workers[rank]
        measured = state.courses[rank].micro_batch_us or worker.micro_batch_us
        weight = worker.weight if shard is None else self._workers[shard].weight
        return None if measured is None else int(measured * weight / worker.weight)

    def times(self) -> tuple[int, ...] | None:
        """How long each takes for one of its own; None: not all are known."""
        known = [w.unit_us * w.weight for w in self._workers if w.unit_us is not None]
        return tuple(map(int, known)) if len(known) == len(self._workers) else None

    def sure_us(self, rank: int) -> int:
        """How long a worker takes for one of its own in a step to come; longer than most only as far as that is sure."""
        worker, typical_us = self._workers[rank], self.typical(rank) or 0
        each_us = worker.micro_batch_us or 0
        return int(max(each_us - worker.unsure_us * worker.weight, min(each_us, typical_us)))

    def typical(self, shard: int) -> int | None:
        """How long most workers take for a micro-batch of a shard."""
        known = sorted(w.unit_us for w in self._workers if w.unit_us is not None)
        return int(known[len(known) // 2] * self._workers[shard].weight) if known else None

    def mine(self, state: Step, rank: int, shard: int) -> int:
        """How long a worker will take for a micro-batch of a shard, as far as is known of it or of the others."""
        return self.duration(state, rank, shard) or self.typical(shard) or 1

    def wanted(self, state: Step, shard: int, among: Collection[int]) -> int:
        """Micro-batches that others could do: the free ones of a shard, and of all whose owner was told to stop.

        Args: among: ranks whose shards count.

        Returns: how many of this shard's they come to.
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
        # That it is not in this step yet is no news of how far it will be: it may have stopped in the one before.
        if course.at_us is None or course.began_us is None:
            began_us = state.began_us + self._workers[rank].lag_us if course.began_us is None else course.began_us
            return began_us + held * duration
        done_us = course.at_us + (held - course.granted - course.begun + course.is_at_it) * duration
        # one that was late when it said so is not waiting for what it was granted
        is_late = course.is_at_it and done_us < course.granted_us - self._workers[rank].answer_us
        begins_us = max(done_us, course.granted_us) if course.granted and not is_late else done_us
        return begins_us + course.granted * duration

    def held_until(self, state: Step, rank: int, now_us: int) -> int:
        """When it will be, if nobody helps; one that is overdue is taken to be as long in coming as it is late already."""
        course = state.courses[rank]
        if course.idle_us is not None:
            return now_us
        if course.was_overdue and course.at_us is not None:
            duration = self.duration(state, rank) or 0
            late_us = max(0, now_us - course.at_us - duration)
            return now_us + late_us + (state.held(rank) - course.begun) * duration
        return now_us + abs(self.due_us(state, rank) - now_us)

    def free_us(self, state: Step, rank: int, now_us: int) -> int:
        """When a worker is done with its own and with what it was given."""
        return max(self.held_until(state, rank, now_us), state.courses[rank].lot_until_us)

    def finish_us(self, state: Step, shard: int, now_us: int) -> int:
        """When a shard would be finished by its owner, who does what is free of it as well, unless it was told to stop."""
        left = 0 if shard in state.ended else state.free(shard)
        duration = self.duration(state, shard) or self.typical(shard) or 0
        return self.free_us(state, shard, now_us) + left * duration

    def has_slow_link(self, rank: int) -> bool:
        """Whether a contribution keeps a worker's link busy for so long that no busy host explains it."""
        return self._workers[rank].send_us >= LEAST_SENDING_US

    def link_us(self, rank: int) -> int:
        """How long a contribution keeps a worker's link busy: as usual; or at least, where a busy host may be the reason
        for more; 0 where no more than what is written ahead may be the reason for all of it.
        """
        worker = self._workers[rank]
        if self.has_slow_link(rank):
            return worker.send_us
        return worker.least_send_us if worker.least_send_us > WRITTEN_AHEAD_US else 0

    def link_free_us(self, state: Step, rank: int, done_us: int) -> int:
        """When a worker's own contribution has left, and what it has sent for others. What it adds goes the same way.

        Args: done_us: when it will have computed its own.
        """
        link_us, course = self.link_us(rank), state.courses[rank]
        if not link_us or course.joins or (rank in state.ended and not state.held(rank)):
            return course.link_until_us  # or it has none
        own_us = done_us if course.idle_us is None else course.idle_us
        return max(own_us + link_us, course.link_until_us)

    def waits_us(self, rank: int) -> int:
        """For how long what a worker was given stays with it at least: it waits for the answer to its next question, which
        leaves when it begins, where that takes no longer than sending; so that what this adds can leave with it.
        """
        worker = self._workers[rank]
        return worker.answer_us if worker.send_us >= worker.answer_us else 0

    def sends(self, state: Step, rank: int, done_us: int) -> None:
        """A worker sends what it has computed for others, because there is no more for it. Args: see link_free_us."""
        course = state.courses[rank]
        if course.gathers:
            begins_us = max(self.link_free_us(state, rank, done_us), course.lot_until_us)
            course.link_until_us, course.gathers = begins_us + self.link_us(rank), False

    def others(self, state: Step, rank: int, shard: int, among: Collection[int], now_us: int) -> list[Capacity]:
        """The others of some ranks, free when their own is done; of the shard in question what its owner holds counts."""
        found = []
        for other in among:
            duration = self.duration(state, other, shard)
            if other == rank or duration is None or (other == shard and other in state.ended):
                continue
            left = 0 if other == shard or other in state.ended else state.free(other)
            # not sooner can it hear of something to do
            told_us = max(now_us + self._workers[other].answer_us // 2, state.courses[other].hears_us)
            own_us = self.duration(state, other) or 0
            done_us = max(told_us, self.free_us(state, other, now_us) + left * own_us)
            # what it does of its own is in its own contribution; the rest it can compute while that leaves
            link_free_us = 0
            if other != shard:
                link_free_us = max(self.link_free_us(state, other, done_us), done_us + self.waits_us(other))
            found.append(Capacity(done_us, duration, link_free_us, self.link_us(other)))
        return found
