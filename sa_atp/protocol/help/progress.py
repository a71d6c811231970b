"""Workers' speed, and their progress in a step, as the ledger knows them from reports. (protocol section 10.2)"""

from dataclasses import dataclass, field

from sa_atp.protocol.help.belief import Belief, Forecast
from sa_atp.protocol.packets.help_messages import WorkReport
from sa_atp.protocol.records import Records

NOBODY = -1
SMOOTHING = 0.5  # weight of the newest measurement of a worker's link


@dataclass(frozen=True, slots=True)
class SendProgress:
    """How much of a worker's own contribution to a sum has left."""

    pending: float
    """Share of the fragments whose sum the worker does not have yet."""
    send_us: int
    """How long all fragments take to the switch, at the pace of those that have arrived; 0: not known."""

    def since(self, before: "SendProgress | None") -> "SendProgress":
        """Corrected by an earlier measurement: this one may include time with nothing left to send, so the shorter
        time counts.
        """
        known = [p.send_us for p in (self, before) if p is not None and p.send_us]
        return SendProgress(self.pending, min(known, default=0))


@dataclass(slots=True)
class Worker:
    """The ledger's knowledge of a worker from step to step."""

    forecast: Forecast = field(default_factory=Forecast)
    """How long a unit of work takes it."""
    _measured_in: int = -1
    """The newest step with a measurement."""
    weight: int = 1
    """Units in a micro-batch of its shard."""
    answer_us: int = 0
    """How long an answer takes to reach it."""
    send_us: int = 0
    """How long its contribution keeps its link busy."""
    least_send_us: int = 0
    """The shortest such time: help must not be justified by the load that help itself adds to the link."""
    newest_step: int = -1
    """The newest step that it has reported to be in."""
    waited_us: int | None = None
    """When it last reported to be waiting for a sum that others have, with its own work done."""

    @property
    def unit_us(self) -> float | None:
        """How long a unit of work should take it; None: not measured yet."""
        return self.forecast.mean_us

    @property
    def unsure_us(self) -> float:
        """The largest recent error of `unit_us`; older ones count less."""
        return self.forecast.error_us

    @property
    def micro_batch_us(self) -> float | None:
        """How long a micro-batch of its own shard takes it; None: not measured yet."""
        return None if self.unit_us is None else self.unit_us * self.weight

    def note_duration(self, report: WorkReport) -> None:
        """Notes how long one of its own micro-batches took."""
        if report.took_us > 0:
            measured_in = report.step if report.is_of_this_step else report.step - 1
            self.forecast.note(report.took_us / report.weight, is_new_step=measured_in != self._measured_in)
            self._measured_in = measured_in

    def learn(self, report: WorkReport) -> None:
        """Notes a report."""
        if report.spent_us:
            self.newest_step = max(self.newest_step, report.step)
        self.weight = report.weight
        self.note_duration(report)
        self.answer_us = report.answer_us
        if report.sent_us:
            old_us = self.send_us
            self.least_send_us = min(self.least_send_us or report.sent_us, report.sent_us)
            self.send_us = int(report.sent_us if not old_us else old_us + SMOOTHING * (report.sent_us - old_us))


@dataclass(slots=True)
class Course:
    """A worker's progress in one step, as reported."""

    began_us: int | None = None
    """When it began the step; None: not reported."""
    begun: int = 0
    """Micro-batches of its own shard that it had begun at its newest report."""
    newest_us: int | None = None
    """When it began the last of them, or reported it done; None: no report."""
    is_computing: bool = False
    """Whether that micro-batch was still being computed at the report."""
    granted: int = 0
    """Micro-batches granted in answer to its newest report."""
    granted_us: int = 0
    """When that answer reaches the worker, which neither begins them before nor reports to be done. 0: no report yet."""
    was_overdue: bool = False
    """Whether the micro-batch under way had taken longer than usual at the report: the worker may have stopped."""
    micro_batch_us: int | None = None
    """How long a micro-batch took it in this step; None: not known."""
    idle_us: int | None = None
    """When it reported to have computed all that it held of its own; None: not yet."""
    lot: list[tuple[int, int]] = field(default_factory=list)
    """The lot: (shard, micro-batch) given to it as a helper that it has not sent yet."""
    lot_until_us: int = 0
    """When the newest part of the lot should be computed."""
    is_gathering: bool = False
    """Whether the lot stays with it, and may grow, before it is sent."""
    joins_lot: bool = False
    """Whether its own contribution leaves with the lot, which it was given before its own was computed."""
    own_in_lot: int = 0
    """How many of its own micro-batches, from the first on, are in the lot for that reason."""
    link_until_us: int = 0
    """Until when its link is busy with what it has computed for others."""
    asks_again_us: int = 0
    """When its next offer should be here; it cannot be given work before."""
    offered_us: int | None = None
    """It can be called: it has offered to work, and will be done with what it has then. None: it cannot."""
    given: int = 0
    """Contributions that it was given to compute as a helper (a bitmap)."""
    known: int = 0
    """Those of them of which it knew when it last offered."""
    called_us: int = 0
    """When it was last called."""
    asked_us: int | None = None
    """When the newest revocation was sent."""

    def trim_lot(self, rank: int, held: int) -> None:
        """Takes out of the lot those of its own micro-batches that it no longer holds.

        Args: held: how many it holds.
        """
        if held < self.own_in_lot:
            self.lot = [(shard, m) for shard, m in self.lot if shard != rank or not held <= m < self.own_in_lot]
            self.own_in_lot = held

    def learn(self, report: WorkReport, sent_us: int) -> None:
        """Notes a report. Args: sent_us: when it was sent."""
        if report.spent_us:
            self.began_us = sent_us - report.spent_us
        if report.is_of_this_step:
            self.micro_batch_us = report.took_us


@dataclass(slots=True)
class Step:
    """One step: the owner of every micro-batch, at first the shard's own rank, and the progress of every worker."""

    owner: list[list[int]]
    """[shard][micro-batch]: the rank that computes it; NOBODY: it is free."""
    began_us: int
    """When the first worker began the step, as far as is known."""
    courses: list[Course]
    """By rank."""
    number: int = 1
    is_helped: bool = False
    """Whether any work was given to a helper."""
    copied: set[tuple[int, int]] = field(default_factory=set)
    """(shard, micro-batch) with a backup."""
    cloned_by: dict[int, int] = field(default_factory=dict)
    """The helper that computes a clone of a shard."""
    ended: set[int] = field(default_factory=set)
    """Shards whose owner was told that it gets no more."""
    crossed: set[int] = field(default_factory=set)
    """Shards with a helper below another leaf: the leaf of the shard's owner will not complete their sum."""
    beliefs: list[Belief] = field(default_factory=list)
    """What is believed of each worker, by rank, as far as there is no news (Projection.beliefs)."""
    records: Records | None = None
    """The beliefs as records, for compiled kernels; None: kernels are not compiled."""
    news: set[int] = field(default_factory=set)
    """Ranks of which something was heard, or decided, since what is believed of them was worked out."""
    unmeasured: set[int] = field(default_factory=set)
    """Ranks whose speed is not measured yet. Each is believed to be as fast as the median rank, so what is believed of it
    changes with the reports of others."""

    @classmethod
    def begin(cls, world_size: int, micro_batches: int, now_us: int, number: int = 1) -> "Step":
        return cls(
            number=number,
            owner=[[rank] * micro_batches for rank in range(world_size)],
            began_us=now_us,
            courses=[Course() for _ in range(world_size)],
            beliefs=[Belief() for _ in range(world_size)],
            unmeasured=set(range(world_size)),
        )

    @property
    def is_first(self) -> bool:
        """Whether it is the job's first step, in which no speed is known."""
        return self.number == 0

    def free(self, shard: int) -> int:
        """How many of a shard's micro-batches have no owner."""
        return self.owner[shard].count(NOBODY)

    def held(self, rank: int) -> int:
        """How many micro-batches of its own shard, from the first on, a rank owns."""
        owners = self.owner[rank]
        for m, owner in enumerate(owners):
            if owner != rank:
                return m
        return len(owners)

    def last_free(self, shard: int) -> int:
        """The last micro-batch of a shard without an owner. There must be one."""
        return max(m for m, owner in enumerate(self.owner[shard]) if owner == NOBODY)
