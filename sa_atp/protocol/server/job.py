"""One job as the parameter server sees it: its members, their progress, its sums. (protocol section 7.1)

GATHERING ──all ranks joined──> ADMITTING ──control plane is done──> RUNNING ──all left──> ENDED
    ^                                                                   │
    └───────────── a rank joins again: next epoch ───────────── FAILED <┘ a rank is lost, or disagrees

A rank that falls silent before the job runs is dropped: ADMITTING goes back to GATHERING in the next epoch, and a job
without any rank left that asks to join is ENDED.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from sa_atp.basics.arrays import Mask, Seqs
from sa_atp.protocol.help.ledger import Ledger
from sa_atp.protocol.help.plan import PLAIN, Kernels
from sa_atp.protocol.help.seats import Seats
from sa_atp.protocol.job.errors import describe_ranks
from sa_atp.protocol.job.horizon import HORIZON
from sa_atp.protocol.job.membership import GONE_US
from sa_atp.protocol.job.serial import SEQ_MASK, serial_distance
from sa_atp.protocol.log.event import Log, nobody
from sa_atp.protocol.numbers.fragments import Plan, plan_of
from sa_atp.protocol.numbers.scattered import cut_of, scattered_plan_of
from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.packets.control import Alive, Failure, Terms, Welcome
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.message_fields import Results
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, MOST_RANKS
from sa_atp.protocol.packets.status_messages import JobCounters
from sa_atp.protocol.server.lateness import Lateness
from sa_atp.protocol.server.server_events import HostLeaf
from sa_atp.protocol.server.sums import SumStore

FAILURES_KEPT = 8  # the newest ones, for ranks that have not heard of them
GO_ON = ("restarted", "refused")  # after these failures, ranks that still ask to join begin the next epoch
WELCOMED_KEPT = 8 * MOST_RANKS  # connections of earlier epochs that are remembered
ALIKE = "every rank must run the same operations, with the same sizes, keys and scales, in the same order"
REPLIES_KEPT = 64  # for each rank: a repeated request gets the same answer, not another decision


class State(Enum):
    GATHERING = "gathering"
    ADMITTING = "admitting"
    RUNNING = "running"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Position:
    """The oldest operation that a rank has under way."""

    rank: int
    operation: int
    first: int  # sequence number of its first fragment
    values: int
    predicted: bool  # whether its scale follows from an earlier sum with its key
    tag: int | None  # that its fragments carry

    def disagreement(self, other: "Position", plan_of: Callable[[int], Plan | None]) -> str | None:
        """Why two ranks at these positions cannot be summing the same; None: they may be.

        Args: plan_of: returns the plan of an operation with that number of values, or None if there can be no such one.
        """
        if self.operation > other.operation:
            return other.disagreement(self, plan_of)
        if self.operation == other.operation:
            if self.values != other.values:
                return (
                    f"operation {self.operation} has {self.values} values for rank {self.rank} "
                    f"and {other.values} for rank {other.rank}"
                )
            if self.first != other.first:
                return f"before operation {self.operation} they summed something else"
            if self.predicted != other.predicted:
                known, new = (self, other) if self.predicted else (other, self)
                return (
                    f"operation {self.operation} has a key that it had before for rank {known.rank}, "
                    f"and for rank {new.rank} it has none, or a new one"
                )
            if self.tag != other.tag and None not in (self.tag, other.tag):
                ranks = f"for rank {self.rank} than for rank {other.rank}"
                return f"operation {self.operation} has another key or scale {ranks}"
            return None
        plan = plan_of(self.values)
        ends = None if plan is None else (self.first + plan.numbers) & SEQ_MASK
        if other.operation == self.operation + 1 and other.first != ends:
            return (
                f"operation {self.operation} has {self.values} values for rank {self.rank} "
                f"and had another size for rank {other.rank}"
            )
        return None


@dataclass(slots=True)
class Member:
    rank: int
    address: Address
    incarnation: int
    heard_us: int
    leaf: HostLeaf | None = None  # on its host, by which it can send
    is_welcomed: bool = False  # a welcome was sent to it, which it may have by now
    has_spoken: bool = False  # it has sent a request in this epoch, so it has its welcome
    spare_bytes: int = 0  # bytes of its last Join that have not been matched by bytes sent to it
    oldest: int | None = None  # the oldest result that it may still ask for
    left_at: int | None = None  # `oldest` when it asked to leave: it contributes no more
    leaving: int = 0  # number of that request until it is answered: the rank stays while others may need its sums
    position: Position | None = None  # its operation, as last reported
    waits_us: int | None = None  # since when each sign of life has said that it waits for `oldest`
    # for the diagnosis of a stuck job; no rule of the protocol depends on these
    moved_us: int = 0  # when `oldest` last changed
    waiting: bool = False  # whether it has sums under way
    given: int = 0  # contributions to the oldest of them that its program has handed over
    held: int | None = None  # contributions to its oldest fragment that the switch held at the last probe
    replies: dict[int, bytes] = field(default_factory=dict)
    helping: int | None = None  # number of its newest question about help

    def keeps_its_place(self, address: Address, now_us: int) -> bool:
        """Whether another worker at `address` cannot have this rank: the member is alive, and has not left."""
        has_left = self.left_at is not None and not self.leaving
        # another worker can have the member's own address only if the member's process has ended
        return address != self.address and not has_left and now_us - self.heard_us < GONE_US


class Job:
    def __init__(
        self,
        *,
        name: str,
        number: int,
        epoch: int,
        terms: Terms,
        lanes: int,
        slot_base: int,
        slot_count: int,
        first_seq: int,
        contribution_bits: int = CONTRIBUTION_BITS,
        log: Log = nobody,
        plan_kernels: Kernels = PLAIN,
    ) -> None:
        """Args:
        contribution_bits: bits in the bitmaps of packets.
        log: is called with each decision about the job.
        plan_kernels: of its ledger, compiled or not.
        """
        self.log = log
        self._plan_kernels = plan_kernels
        self.name = name
        self.number = number
        self.epoch = epoch
        self.adopt(terms)
        self.lanes = lanes
        self.contribution_bits = contribution_bits
        self.slot_base = slot_base
        self.slot_count = slot_count
        self.differs: tuple[int, str] | None = None  # the rank that was last refused for its terms, and why
        self.stats = JobCounters()
        self.state = State.GATHERING
        self.members: dict[int, Member] = {}
        self.failure: Failure | None = None
        self._failures: dict[int, tuple[Failure, tuple[Member, ...]]] = {}  # epoch: its failure, and its members
        self._welcomed: dict[int, None] = {}  # incarnations that were welcomed to earlier epochs, the oldest first
        self.refusal: str | None = None  # why the switches last refused the job
        self.by_leaf: frozenset[int] = frozenset()  # ranks that send by leaves on their hosts
        self.levels = 1  # switches that aggregate on the way from a rank to the server
        self.leaves: tuple[frozenset[int], ...] | None = None  # the ranks below each leaf; None: not known
        self.recalled: dict[int, set[int]] = {}  # results that the server itself misses: the ranks that wait for them
        self._start(first_seq)

    def adopt(self, terms: Terms) -> None:
        """Takes over the terms on which all ranks agree; an epoch that follows has them."""
        self.terms = terms
        self.world_size = terms.world_size
        self.micro_batches = terms.micro_batches
        self.help_grade = terms.help_grade
        self.seats = terms.seats
        self.results = terms.results

    def _start(self, first_seq: int) -> None:
        if self.results is not Results.TO_ALL:
            first_seq -= first_seq % self.slot_count  # the slot of a number says which part it is of
        self.first_seq = first_seq
        self.recalled.clear()
        self.sums = SumStore(self.lanes, self.fan_in, first_seq, self.contribution_bits)
        self.ledger = Ledger(self.world_size, self.micro_batches, self.help_grade, self._plan_kernels)
        self.seating = Seats(self.seats, self.terms.cut_off)
        self.lateness = Lateness(self.world_size)

    def next_epoch(self) -> None:
        """Begins the next epoch: forgets the last one, but for its failure, and does not use its sequence numbers
        again.
        """
        self.epoch = (self.epoch + 1) & 0xFF
        self.state = State.GATHERING
        self._welcomed.update((member.incarnation, None) for member in self.members.values() if member.is_welcomed)
        for incarnation in list(self._welcomed)[:-WELCOMED_KEPT]:
            del self._welcomed[incarnation]
        self.members = {}
        self.failure = None
        self.differs = None
        self._start((self.sums.oldest_seq + HORIZON) & SEQ_MASK)

    def end(self, state: State) -> None:
        """Ends the epoch as ENDED or FAILED, and frees its sums, results and replies.

        Members and counters stay for questions about the job, and sequence numbers for the next epoch.
        """
        self.state = state
        self.sums.clear()
        self.recalled.clear()
        for member in self.members.values():
            member.replies.clear()

    def fail(self, failure: Failure) -> None:
        """Ends the epoch with a failure, and remembers that."""
        self.end(State.FAILED)
        self.failure = failure
        self._failures[self.epoch] = failure, tuple(self.members.values())
        if len(self._failures) > FAILURES_KEPT:
            del self._failures[next(iter(self._failures))]

    def is_late(self, incarnation: int) -> bool:
        """Whether a Join is one too many: its sender was welcomed to an epoch that is over, and may be in it.

        In the next epoch it would end that for all: it joins with another incarnation when it hears that this one is over.
        """
        if incarnation in self._welcomed:
            return True
        is_over = self.state in (State.FAILED, State.ENDED)
        return is_over and any(m.is_welcomed and m.incarnation == incarnation for m in self.members.values())

    def missed_failure(self, incarnation: int) -> Failure | None:
        """Returns the newest epoch's failure to a member that has not been welcomed yet; None: it may join the next one."""
        if not self._failures:
            return None
        failure, members = self._failures[next(reversed(self._failures))]
        was_in_it = any(member.incarnation == incarnation for member in members)
        return failure if was_in_it and failure.reason not in GO_ON else None

    def failure_of(self, epoch: int, address: Address) -> tuple[Failure | None, bool]:
        """The failure of an earlier epoch, for a member that did not hear of it.

        Returns: the failure, and whether the member sent messages in that epoch, which proves its address.
        """
        failure, members = self._failures.get(epoch, (None, ()))
        member = next((member for member in members if member.address == address), None)
        return (None, False) if member is None else (failure, member.has_spoken)

    def drop(self, ranks: Collection[int]) -> None:
        """Drops ranks that no longer ask to join, before the job runs."""
        members = {rank: member for rank, member in self.members.items() if rank not in ranks}
        if self.state is State.ADMITTING:
            self.next_epoch()  # the switches are being configured for the former members
        self.members = members
        if not members:
            self.refusal = None  # it was about the former members' job
            self.end(State.ENDED)

    def discount_standstill(self, stood_us: int, now_us: int) -> None:
        """Does not count `stood_us`, in which this process did not run, as silence of members."""
        for member in self.members.values():
            member.heard_us = min(now_us, member.heard_us + stood_us)
            if member.waits_us is not None:
                member.waits_us = min(now_us, member.waits_us + stood_us)

    @property
    def map(self) -> ContributionMap:
        """The map between contribution bits and ranks."""
        return ContributionMap(self.world_size, self.micro_batches, self.seats)

    @property
    def fan_in(self) -> int:
        return self.map.fan_in

    @property
    def missing(self) -> list[int]:
        """Ranks that have not joined."""
        return [rank for rank in range(self.world_size) if rank not in self.members]

    def attach(self, leaves: tuple[frozenset[int], ...] | None) -> None:
        """Takes the ranks below each leaf from the control plane; a leaf may have none of this job's. None: not known."""
        self.leaves = None if leaves is None else tuple(leaf for leaf in leaves if leaf)
        self.ledger.racks.leaves = self.leaves or ()

    def below_leaf_of(self, rank: int) -> frozenset[int]:
        """The ranks below the same leaf; empty if the rank is attached to the root."""
        if self.leaves is None:
            return frozenset(range(self.world_size))
        return next((leaf for leaf in self.leaves if rank in leaf), frozenset())

    def is_anybody_there(self, now_us: int) -> bool:
        """Whether any member has been heard of recently."""
        return any(now_us - member.heard_us < GONE_US for member in self.members.values())

    def member_at(self, address: Address) -> Member | None:
        return next((m for m in self.members.values() if m.address == address), None)

    def welcome(
        self, rank: int, data_address: Address | None, alive_every_us: int, *, may_scatter: bool = False
    ) -> Welcome:
        """The welcome of a rank. Args: data_address: None: the switch is on the way to the server."""
        ip, port = data_address or ("", 0)
        return Welcome(
            job=self.number,
            epoch=self.epoch,
            rank=rank,
            world_size=self.world_size,
            micro_batches=self.micro_batches,
            lanes=self.lanes,
            slot_base=self.slot_base,
            slot_count=self.slot_count,
            first_seq=self.first_seq,
            data_ip=ip,
            data_port=port,
            alive_every_us=alive_every_us,
            help_grade=self.help_grade,
            levels=self.levels,
            leaf_ranks=sum(1 << other for other in self.below_leaf_of(rank)) if self.levels > 1 else 0,
            seats=self.seats,
            contribution_bits=self.contribution_bits,
            by_leaf=rank in self.by_leaf,
            results=self.results,
            may_scatter=may_scatter,
            is_local=all(member.address[0].startswith("127.") for member in self.members.values()),
        )

    def needs(self, rank: int, seqs: Seqs) -> Mask:
        """Returns bool[n]: whether a rank needs the values of results. If not, a bare result is enough. (section 5.9)"""
        cut = cut_of(self.world_size, self.slot_count) if self.results is Results.SCATTERED else None
        if cut is None:
            return np.ones(len(seqs), bool)
        part = cut.part_of(seqs)
        found: Mask = (part == rank) | (part >= self.world_size)
        return found

    def _plan_of(self, values: int) -> Plan | None:
        """Returns the plan of an operation with this number of values; None: no operation of the job can have so many."""
        if self.results is Results.TO_ALL:
            return plan_of(values, self.lanes, self.contribution_bits)
        if values % self.world_size:
            return None
        return scattered_plan_of(
            values, self.lanes, self.contribution_bits, ranks=self.world_size, slots=self.slot_count
        )

    def note_progress(self, rank: int, oldest: int) -> None:
        """Notes the oldest result that a rank may still ask for, and drops results that no rank needs."""
        self.members[rank].oldest = oldest
        known = [m.oldest for m in self.members.values()]
        if len(known) == self.world_size:
            behind = [serial_distance(self.sums.oldest_seq, o) for o in known if o is not None]
            if len(behind) == self.world_size and min(behind) > 0:
                self.sums.release((self.sums.oldest_seq + min(behind)) & SEQ_MASK)

    @property
    def ahead(self) -> int:
        """The sequence number before which everything is complete, because the furthest rank has all of it."""
        passed = self.sums.oldest_seq
        known = [serial_distance(passed, m.oldest) for m in self.members.values() if m.oldest is not None]
        return (passed + max(known, default=0)) & SEQ_MASK

    def check_position(self, member: Member, sign: Alive) -> tuple[list[int], str] | None:
        """Notes a rank's position, and compares it with the others'.

        Returns: ranks that disagree, and about what; or None.
        """
        if sign.operation is None or sign.first is None or sign.values is None:
            return None
        position = member.position = Position(
            rank=member.rank,
            operation=sign.operation,
            first=sign.first,
            values=sign.values,
            predicted=sign.predicted,
            tag=sign.tag,
        )
        for other in self.members.values():
            problem = (
                None
                if other.position is None or other is member
                else position.disagreement(other.position, self._plan_of)
            )
            if problem is not None:
                ranks = sorted((member.rank, other.rank))
                return ranks, (f"{describe_ranks(ranks)} disagree about what they sum: {problem}; {ALIKE}")
        return None

    def owing(self, waiting: Member) -> list[int]:
        """Ranks that have not contributed to the operation that a rank waits for, by the latest signs of life."""
        if waiting.position is None or waiting.oldest is None:
            return []
        given = 0
        behind = set()  # ranks that themselves wait for an earlier operation
        for member in self.members.values():
            if member.oldest is not None and serial_distance(waiting.oldest, member.oldest) > 0:
                return []  # it has the sum, so every rank has contributed
            if member.position is not None and member.waiting:
                if member.position.operation == waiting.position.operation:
                    given |= member.given
                elif member.position.operation < waiting.position.operation:
                    behind.add(member.rank)
        if self.seats:
            return [rank for rank in self._owing_seats(given) if rank not in behind]
        return [rank for rank in range(self.world_size) if self.map.bits_of(rank) & ~given and rank not in behind]

    def _owing_seats(self, given: int) -> list[int]:
        """Ranks that have a seat and have not contributed; and, while seats are free, ranks without one."""
        holders = self.seating.newest
        owing = {rank for seat, rank in enumerate(holders) if self.map.bits_of_seat(seat) & ~given}
        if len(holders) < self.seats:
            owing.update(rank for rank in range(self.world_size) if rank not in holders)
        return sorted(owing)

    def ranks_behind(self, numbers: Iterable[int]) -> list[int]:
        """The ranks that a worker means by these numbers, which in a job with seats are seats."""
        return self.seating.ranks_of(numbers) if self.seats else list(numbers)

    def may_leave(self, leaver: Member) -> bool:
        """Whether the ranks that stay have all results that a leaving rank has."""
        staying = [m for m in self.members.values() if m.left_at is None]
        return leaver.left_at is None or all(
            serial_distance(leaver.left_at, self.first_seq if m.oldest is None else m.oldest) >= 0 for m in staying
        )

    def silent_holders(self, waiting: Member, now_us: int, bound_us: int) -> list[int]:
        """Ranks that alone have the result that another rank waits for, if all of them have been silent for `bound_us`.

        To be called with each sign of life that says that the rank waits. It must have waited for `bound_us` too,
        because it may still find the result in the switch.
        """
        if waiting.waits_us is None:
            waiting.waits_us = now_us
        if now_us - waiting.waits_us <= bound_us or waiting.oldest is None:
            return []
        if len(self.sums.complete(np.array([waiting.oldest])).seqs):
            return []
        ahead = [
            m for m in self.members.values() if m.oldest is not None and serial_distance(waiting.oldest, m.oldest) > 0
        ]
        return [] if any(now_us - m.heard_us <= bound_us for m in ahead) else [m.rank for m in ahead]

    def departed_before(self, oldest: int) -> list[int]:
        """Returns the ranks that left before they contributed to an operation. Args: oldest: its sequence number."""
        return [
            m.rank for m in self.members.values() if m.left_at is not None and serial_distance(m.left_at, oldest) >= 0
        ]
