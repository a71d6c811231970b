"""What is known of workers, from what they told: how fast they are, and how far in a step. (protocol section 10.2)"""

from dataclasses import dataclass, field

NOBODY = -1
SMOOTHING = 0.5  # weight of the newest measurement of a worker's speed
KEPT = 0.5  # of what is unsure of a worker's speed, from step to step


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
class Told:
    """What a worker says of itself with every question; see packets.control.AboutStep."""

    took_us: int = 0
    spent_us: int = 0
    answer_us: int = 0
    sent_us: int = 0
    weight: int = 1
    """How much work a micro-batch of its shard is, in a unit that all workers have."""

    @property
    def is_of_this_step(self) -> bool:
        """Whether what a micro-batch took was in the step in which it says so, and not in an earlier one."""
        return 0 < self.took_us <= self.spent_us


@dataclass(slots=True)
class Worker:
    """What is known of a worker from step to step."""

    unit_us: float | None = None
    """How long it takes for a unit of work; None: not measured yet."""
    unsure_us: float = 0.0
    """How far that was from what it had been taken for before, at most; the longer ago, the less that counts."""
    _measured_in: int = -1
    """The last step of which it said how long one took."""
    weight: int = 1
    """Units in a micro-batch of its shard."""
    answer_us: int = 0
    """How long answers take to come to it."""
    send_us: int = 0
    """How long its contribution keeps its link busy."""
    least_send_us: int = 0
    """The shortest that this took: what sending more makes of it is no reason to send more."""
    lag_us: int = 0
    """How much later than the first one it begins a step: the sum comes down its link."""
    lag_after_resending_us: int = 0
    """The same in the step after one in which others sent its data anew: then only its link down holds it up."""
    newest_step: int = -1
    """The last step that it has said to be in."""
    waited_us: int | None = None
    """When it was last heard to wait for a sum, done with its own."""
    resent_in: int = -1 << 40
    """The last step in which its data was late."""

    @property
    def micro_batch_us(self) -> float | None:
        """How long it takes for one of its own; None: not measured yet."""
        return None if self.unit_us is None else self.unit_us * self.weight

    def took(self, step: int, told: Told) -> None:
        """It says how long one of its own took. Args: step: of which it speaks."""
        if told.took_us > 0:
            old, new = self.unit_us, told.took_us / told.weight
            measured_in = step if told.is_of_this_step else step - 1
            if old is not None and measured_in != self._measured_in:
                self.unsure_us = max(KEPT * self.unsure_us, abs(new - old))
            self._measured_in = measured_in
            self.unit_us = new if old is None else old + SMOOTHING * (new - old)

    def learn(self, step: int, told: Told) -> None:
        """It says how things are. Args: step: of which it speaks."""
        if told.spent_us:
            self.newest_step = max(self.newest_step, step)
        self.weight = told.weight
        self.took(step, told)
        self.answer_us = told.answer_us
        if told.sent_us:
            old_us = self.send_us
            self.least_send_us = min(self.least_send_us or told.sent_us, told.sent_us)
            self.send_us = int(told.sent_us if not old_us else old_us + SMOOTHING * (told.sent_us - old_us))

    def lagged(self, step: int, later_us: int) -> None:
        """It began a step so much later than the first one."""
        if step == self.resent_in + 1:
            self.lag_after_resending_us = later_us
        self.lag_us += int(SMOOTHING * (max(0, later_us) - self.lag_us))


@dataclass(slots=True)
class Course:
    """How far a worker is in a step."""

    began_us: int | None = None
    """When it began the step, as far as it has said."""
    begun: int = 0
    """Micro-batches of its own shard that it had begun when it last said so."""
    at_us: int | None = None
    """When it began the last of them, or when it said that this is done; None: it has said nothing."""
    is_at_it: bool = False
    """Whether that one was not done then."""
    granted: int = 0
    """So many of what it holds were granted to it in answer to its newest claim."""
    granted_us: int = 0
    """When that answer reaches it: before that it neither begins them nor says that it is done. 0: it has not claimed."""
    was_overdue: bool = False
    """Whether it had been at that one for longer than one takes it when it said so: it may have stopped."""
    micro_batch_us: int | None = None
    """How long one took in this step; None: not known."""
    idle_us: int | None = None
    """When it said that it has computed what it held of its own; None: it has not."""
    waits_until_us: int | None = None
    """Until then it is left its own: it waits for the sum of the step before. None: not known of it; 0: it is here."""
    lot: list[tuple[int, int]] = field(default_factory=list)
    """(shard, micro-batch) that it was given last, as a helper, and what it had not sent by then."""
    lot_from_us: int = 0
    lot_until_us: int = 0
    """When it should be done with those."""
    gathers: bool = False
    """Whether it has not been told to send what it was given, and may be given more to send with it."""
    joins: bool = False
    """Whether its own contribution leaves with what it was given: it was given that before its own was computed."""
    joined: int = 0
    """So many of its own, from the first on, are in the lot for that reason."""
    link_until_us: int = 0
    """Until then its link is busy with what it has computed for others."""
    hears_us: int = 0
    """Before that it will not hear of something to do: it was told to ask again then."""
    revoked_us: int | None = None
    """When it was first asked how far it is, and has not answered; None: it owes no answer."""
    asked_us: int | None = None
    """... and last."""

    def keep_joined(self, rank: int, held: int) -> None:
        """It holds only so many of its own any more: what it has left to others will not leave with what it was given."""
        if held < self.joined:
            self.lot = [(shard, m) for shard, m in self.lot if shard != rank or not held <= m < self.joined]
            self.joined = held

    def learn(self, told: Told, sent_us: int) -> None:
        """Args: sent_us: when it said so."""
        if told.spent_us:
            self.began_us = sent_us - told.spent_us
        if told.is_of_this_step:
            self.micro_batch_us = told.took_us


@dataclass(slots=True)
class Step:
    """Whose every micro-batch of a step is. At first each is its shard's."""

    owner: list[list[int]]
    """[shard][micro-batch]: who computes it; NOBODY: it is free."""
    began_us: int
    """When the first worker began it, as far as is known."""
    courses: list[Course]
    is_first: bool = False
    """Of the job: nobody knows how long sending takes."""
    is_helped: bool = False
    copied_us: dict[tuple[int, int], int] = field(default_factory=dict)
    """(shard, micro-batch) that somebody backs up: when that should be computed."""
    cloned_by: dict[int, int] = field(default_factory=dict)
    """shard: helper"""
    ended: set[int] = field(default_factory=set)
    """Shards whose owner was told to stop."""
    resent: set[int] = field(default_factory=set)
    """Shards that are computed anew because their data is late."""
    crossed: set[int] = field(default_factory=set)
    """Shards that their owner's leaf will not complete: somebody who is not below it computes a part of them."""

    @classmethod
    def begin(cls, world_size: int, micro_batches: int, now_us: int, number: int = 1) -> "Step":
        return cls(
            is_first=number == 0,
            owner=[[rank] * micro_batches for rank in range(world_size)],
            began_us=now_us,
            courses=[Course() for _ in range(world_size)],
        )

    def free(self, shard: int) -> int:
        """How many of a shard's micro-batches are nobody's."""
        return self.owner[shard].count(NOBODY)

    def held(self, rank: int) -> int:
        """How many micro-batches of its shard, from the first on, are its owner's."""
        owners = self.owner[rank]
        return next((m for m, owner in enumerate(owners) if owner != rank), len(owners))

    def last_free(self, shard: int) -> int:
        """The last micro-batch of a shard that is nobody's; there is one."""
        return max(m for m, owner in enumerate(self.owner[shard]) if owner == NOBODY)

    @property
    def unfinished(self) -> list[int]:
        """Shards whose owner has not said that it has computed what it held, or of which something is nobody's."""
        owned = zip(self.courses, self.owner, strict=True)
        return [shard for shard, (course, owner) in enumerate(owned) if course.idle_us is None or NOBODY in owner]
