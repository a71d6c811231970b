"""The ledger of a step: which micro-batch of which shard is whose. (protocol section 10.2)

The parameter server keeps one for each job. Every micro-batch has at most one owner, so nothing is computed twice, with
two exceptions that are meant to be: `clone`, where a helper computes a straggler's whole shard beside it, and backup,
where the owner of a claimed micro-batch has not been heard of for far longer than it should take. There the contribution
bitmap decides: whichever copy reaches a sum first is in it, the other is dropped.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from sa_atp.straggler.assignment import Capacity, should_do, worth_helping
from sa_atp.wire.contributions import ContributionMap
from sa_atp.wire.control import HelpMode

NOBODY = -1
STEPS_KEPT = 4  # leaders may run ahead of a straggler whose work they do
OVERDUE = 3.0  # a holder that takes so many times as long as it should is backed up
WORTH_RESENDING = 1.5  # data must be late by so many times what sending it anew costs
LEAST_SENDING_US = 50_000  # below, no link is slow: a busy host is as long about its next packets
REMEMBERED_STEPS = 8  # for which a worker whose data was late is not given its time again
SMOOTHING = 0.5  # weight of the newest measurement of a worker's speed


@dataclass(frozen=True, slots=True)
class SendProgress:
    """How far a worker's own fragments of a sum are."""

    pending: float
    """Share of the fragments whose sum is not known."""
    send_us: int
    """How long all of them take to the switch, at the pace of those that are there; 0: not known."""

    def since(self, before: "SendProgress | None") -> "SendProgress":
        """After an earlier answer: this one includes time in which nothing was left to send, so the shortest counts."""
        known = [p.send_us for p in (self, before) if p is not None and p.send_us]
        return SendProgress(self.pending, min(known, default=0))


@dataclass(frozen=True, slots=True)
class Assigned:
    """Micro-batches that a helper is to compute."""

    step: int
    shard: int
    micro_batches: tuple[int, ...]
    backup: bool = False  # someone else holds them, but has not been heard of


@dataclass(slots=True)
class _Step:
    owner: list[list[int]]  # [shard][micro-batch]
    backed_up: list[list[bool]]
    began_us: int  # when the first worker told of it
    cloned_by: dict[int, int] = field(default_factory=dict)  # shard: helper
    ended: set[int] = field(default_factory=set)  # shards whose owner was told to stop
    resent: set[int] = field(default_factory=set)  # shards that are computed anew because their data is late
    sends_since_us: dict[int, int] = field(default_factory=dict)  # worker: when it began to send its own

    def left(self, shard: int) -> int:
        return self.owner[shard].count(NOBODY)

    def is_shared(self, shard: int) -> bool:
        """Whether somebody else computes a part of a shard, too or instead of its owner."""
        return (
            shard in self.cloned_by
            or shard in self.resent
            or any(self.backed_up[shard])
            or any(owner not in (shard, NOBODY) for owner in self.owner[shard])
        )


@dataclass(slots=True)
class _Worker:
    unit_us: float | None = None  # how long it takes for a unit of work; None: not measured yet
    weight: int = 0  # units in a micro-batch of its shard; 0: not told yet
    holds: tuple[int, int, int] | None = None  # (step, shard, micro-batch) that it is at
    since_us: int = 0
    free_since_us: int = 0  # when it was last heard to be done with what it held
    resent_in: int = -1 << 40  # the last step in which its data was late


class Ledger:
    def __init__(self, world_size: int, micro_batches: int, mode: HelpMode) -> None:
        self.world_size = world_size
        self.micro_batches = micro_batches
        self._map = ContributionMap(world_size, micro_batches)
        self.mode = mode
        self.helped_micro_batches = 0
        self.backups = 0
        self._steps: dict[int, _Step] = {}
        self._send_us: float | None = None  # how long a worker takes to send a contribution; None: not measured yet
        self._workers = [_Worker() for _ in range(world_size)]

    # --- what workers say ---------------------------------------------------------------------------------------------

    def claim(self, step: int, rank: int, micro_batch: int, took_us: int, now_us: int, *, weight: int = 1) -> bool:
        """A worker wants to begin a micro-batch of its own shard.

        Those before it that are nobody's have no work in them (see batching.deal): they are its own, whatever the answer.

        Args:
            took_us: how long its previous micro-batch took; 0 if there was none. If that was of another shard: how long one
                of its own would have taken.
            weight: how much work one of its own is, in a unit that all workers have.

        Returns: False if it must leave it, and all that follow, to others.
        """
        self._finished(rank, took_us, now_us)
        self._workers[rank].weight = weight
        state = self._step(step, now_us)
        before = state.owner[rank][:micro_batch]
        state.owner[rank][:micro_batch] = [rank if other == NOBODY else other for other in before]
        owner = state.owner[rank][micro_batch]
        if owner == rank:
            return True  # a repeated question
        if owner != NOBODY or rank in state.ended:
            return False
        if self.mode is HelpMode.STEAL and not self._should_go_on(state, rank, now_us):
            state.ended.add(rank)
            return False
        self._hold(state, step, rank, rank, micro_batch, now_us)
        return True

    def ask(
        self,
        step: int,
        rank: int,
        missing: int,
        took_us: int,
        busy_us: int,
        now_us: int,
        progress: SendProgress | None = None,
    ) -> Assigned | None:
        """A leader offers to work.

        Args:
            missing: contributions that it misses (a bitmap).
            busy_us: for how long it will still be at what it was given before; 0: it is idle.
            progress: how far its own contribution is, where that is known.
        """
        self._finished(rank, took_us, now_us)
        if progress is not None:
            old_us, new_us = self._send_us, progress.send_us
            self._send_us = new_us if old_us is None else old_us + SMOOTHING * (new_us - old_us)
        state = self._step(step, now_us)
        if self.mode is HelpMode.CLONE:
            return None if busy_us else self._clone(state, step, rank, missing, now_us)
        if self.mode is HelpMode.STEAL:
            work = self._steal(state, step, rank, now_us, now_us + busy_us)
            if work is not None or busy_us:
                return work
            return self._back_up(state, step, rank, missing, now_us) or self._resend_speculatively(
                state, step, rank, missing, now_us, progress
            )
        return None

    def idle(self, step: int, rank: int, took_us: int, now_us: int) -> None:
        """A worker is done with what it held, and sends what it has computed."""
        self._finished(rank, took_us, now_us)
        self._step(step, now_us).sends_since_us[rank] = now_us

    def shared(self, step: int) -> list[int]:
        """The shards of a step of which somebody else than the owner computes a part."""
        state = self._steps.get(step)
        return [] if state is None else [shard for shard in range(self.world_size) if state.is_shared(shard)]

    # --- decisions ----------------------------------------------------------------------------------------------------

    def _should_go_on(self, state: _Step, rank: int, now_us: int) -> bool:
        mine = self._duration(rank)
        if mine is None:
            return True
        # as fast as the others but for what a busy host does to measurements: what is sent anew costs more than that
        return should_do(now_us + mine - mine // 8, self._wanted(state, rank), self._others(state, rank, rank, now_us))

    def _others(self, state: _Step, rank: int, shard: int, now_us: int) -> list[Capacity]:
        """Everyone else, free when their own work is done; of the shard in question only what its owner is at counts."""
        found = []
        for other in range(self.world_size):
            duration = self._duration(other, shard)
            if other == rank or duration is None or (other == shard and other in state.ended):
                continue
            left = 0 if other == shard else state.left(other)
            done_us = self._owner_finish(state, other, left, now_us)
            # it can compute while its link is busy with its own
            found.append(Capacity(max(done_us, self._link_free_us(state, other, done_us) - duration), duration))
        return found

    @property
    def _slow_link_us(self) -> int:
        """How long a contribution keeps a worker's link busy, where that counts; else 0."""
        return 0 if self._send_us is None or self._send_us < LEAST_SENDING_US else int(self._send_us)

    def _link_free_us(self, state: _Step, rank: int, done_us: int) -> int:
        """When a worker's own contribution has left. What it adds for others goes the same way after that.

        Args: done_us: when it will have computed its own.
        """
        return state.sends_since_us.get(rank, done_us) + self._slow_link_us if self._slow_link_us else 0

    def _steal(self, state: _Step, step: int, rank: int, now_us: int, free_us: int) -> Assigned | None:
        """The last unclaimed micro-batch of the shard that would be finished last, if this worker is the one for it."""
        begin_us, link_free_us = free_us, self._link_free_us(state, rank, now_us)
        candidates: list[tuple[bool, int, int]] = []
        for shard in range(self.world_size):
            left = state.left(shard)
            if left == 0:
                continue
            mine = self._duration(rank, shard) or self._typical(shard) or 0
            done_us = max(begin_us + mine, link_free_us)
            finish = self._owner_finish(state, shard, left, now_us)
            ended = shard in state.ended
            if not ended and not worth_helping(done_us, finish, mine):
                continue
            if should_do(done_us, self._wanted(state, shard), self._others(state, rank, shard, now_us)):
                candidates.append((ended, finish, shard))
        if not candidates:
            return None
        _, _, shard = max(candidates)
        tail = max(m for m in range(self.micro_batches) if state.owner[shard][m] == NOBODY)
        self._hold(state, step, rank, shard, tail, begin_us)
        if shard != rank:
            self.helped_micro_batches += 1
        return Assigned(step, shard, (tail,))

    def _back_up(self, state: _Step, step: int, rank: int, missing: int, now_us: int) -> Assigned | None:
        """A micro-batch whose holder has fallen silent, or any other that it has not sent either."""
        for holder, worker in enumerate(self._workers):
            if holder == rank or worker.holds is None or worker.holds[0] != step:
                continue
            expected = self._duration(holder, worker.holds[1]) or self._duration(rank, worker.holds[1])
            # what it has sent, and what it says of it, may wait behind its own contribution
            if expected is None or now_us - worker.since_us < OVERDUE * (expected + self._slow_link_us):
                continue
            for shard, m in self._held_by(state, holder):
                if missing & self._map.bit(shard, m) and not state.backed_up[shard][m]:
                    state.backed_up[shard][m] = True
                    self.backups += 1
                    return Assigned(step, shard, (m,), backup=True)
        return None

    def _resend_speculatively(
        self, state: _Step, step: int, rank: int, missing: int, now_us: int, progress: SendProgress | None
    ) -> Assigned | None:
        """What another worker has computed, and is so slow to send that computing and sending it anew is faster.

        Its link is slow, not its device. The whole lot goes to one helper: every helper would send as many fragments.
        """
        if progress is None:
            return None
        pending, send_us = progress.pending, progress.send_us
        for shard, sender in enumerate(self._workers):
            mine = self._duration(rank, shard)
            if mine is None:
                return None
            late = self._map.micro_batches_of(shard, missing)
            if shard == rank or not late or shard in state.resent or shard not in state.sends_since_us:
                continue
            if any(state.owner[shard][m] != shard for m in late):
                continue
            since_us = now_us - state.sends_since_us[shard]
            # as slow as it was so far; nothing at all has come of it after a time in which we would have sent everything
            left_us = since_us * pending / (1 - pending) if pending < 1 else math.inf
            cost_us = len(late) * mine + pending * send_us
            is_known = step - sender.resent_in <= REMEMBERED_STEPS
            if left_us > WORTH_RESENDING * cost_us and (
                is_known or since_us > WORTH_RESENDING * max(send_us, LEAST_SENDING_US)
            ):
                state.resent.add(shard)
                sender.resent_in = step
                self.backups += len(late)
                return Assigned(step, shard, tuple(late), backup=True)
        return None

    def _clone(self, state: _Step, step: int, rank: int, missing: int, now_us: int) -> Assigned | None:
        """The whole shard of the worker that would be finished last, unless another helper has it."""
        finish = {s: self._owner_finish(state, s, state.left(s), now_us) for s in range(self.world_size)}
        for shard in sorted(finish, key=lambda s: -finish[s]):
            if shard == rank or shard in state.cloned_by or not missing & self._map.bits_of(shard):
                continue
            mine = self._duration(rank, shard) or 0
            ready_us = max(now_us + self.micro_batches * mine, self._link_free_us(state, rank, now_us))
            if worth_helping(ready_us, finish[shard], mine // 2):
                state.cloned_by[shard] = rank
                self.helped_micro_batches += self.micro_batches
                return Assigned(step, shard, tuple(range(self.micro_batches)), backup=True)
        return None

    # --- projections --------------------------------------------------------------------------------------------------

    def _owner_finish(self, state: _Step, rank: int, left: int, now_us: int) -> int:
        """When a worker would be done with its own shard, if nobody helped."""
        duration = self._duration(rank) or self._typical(rank) or 0
        worker = self._workers[rank]
        free = now_us
        if worker.holds is not None:
            # one that is overdue is taken to be as long in coming as it is late already: it may have stopped
            held = worker.holds[1]
            free += abs(worker.since_us + (self._duration(rank, held) or self._typical(held) or 0) - now_us)
        else:
            # it should claim its next one, or ask for something to do: if it does not, the same holds
            free += max(0, now_us - max(worker.free_since_us, state.began_us) - duration)
        return free + (0 if rank in state.ended else left * duration)

    def _wanted(self, state: _Step, shard: int) -> int:
        """Micro-batches that others could do: the unclaimed ones of a shard, and of all whose owner was told to stop.

        Returns: how many of this shard's they come to.
        """
        each = self._weight(shard)
        others = [state.left(other) * self._weight(other) for other in state.ended if other != shard]
        return state.left(shard) + sum(-(-work // each) for work in others)

    def _weight(self, shard: int) -> int:
        """Of a micro-batch of it, in units of work. Of one whose owner has not told: as of the heaviest."""
        return self._workers[shard].weight or max(1, *(worker.weight for worker in self._workers))

    def _duration(self, rank: int, shard: int | None = None) -> int | None:
        """How long a worker takes for a micro-batch of a shard, its own by default; None: it was not measured yet."""
        measured = self._workers[rank].unit_us
        return None if measured is None else int(measured * self._weight(rank if shard is None else shard))

    def _typical(self, shard: int) -> int | None:
        known = sorted(w.unit_us for w in self._workers if w.unit_us is not None)
        return int(known[len(known) // 2] * self._weight(shard)) if known else None

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _finished(self, rank: int, took_us: int, now_us: int) -> None:
        worker = self._workers[rank]
        worker.free_since_us = now_us
        worker.holds = None
        if took_us > 0:
            old, new = worker.unit_us, took_us / self._weight(rank)
            worker.unit_us = new if old is None else old + SMOOTHING * (new - old)

    def _hold(self, state: _Step, step: int, rank: int, shard: int, micro_batch: int, now_us: int) -> None:
        state.owner[shard][micro_batch] = rank
        worker = self._workers[rank]
        worker.holds = (step, shard, micro_batch)
        worker.since_us = now_us

    def _held_by(self, state: _Step, rank: int) -> Iterator[tuple[int, int]]:
        for shard, owners in enumerate(state.owner):
            for m, owner in enumerate(owners):
                if owner == rank:
                    yield shard, m

    def _step(self, step: int, now_us: int) -> _Step:
        if step not in self._steps:
            self._steps[step] = _Step(
                owner=[[NOBODY] * self.micro_batches for _ in range(self.world_size)],
                backed_up=[[False] * self.micro_batches for _ in range(self.world_size)],
                began_us=now_us,
            )
            for old in [s for s in self._steps if s <= step - STEPS_KEPT]:
                del self._steps[old]
        return self._steps[step]
