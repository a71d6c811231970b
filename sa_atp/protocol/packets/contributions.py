"""Which bit of a bitmap is whose work. (protocol section 1.1)

A bit names a piece of work, not the machine that sent it: rank r with m micro-batches owns the bits r * m to r * m + m - 1,
and micro-batch i of its shard is bit r * m + i. In a job with seats, which has fewer of them than ranks, bits belong to
seats in the same way, and which rank has a seat differs from step to step (section 10.6). Nothing else in the project does
that sum.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sa_atp.protocol.packets.spec import MOST_CONTRIBUTIONS, MOST_RANKS


@dataclass(frozen=True, slots=True)
class ContributionMap:
    """Of a job with `world_size` ranks, each with `micro_batches` contributions."""

    world_size: int
    micro_batches: int
    seats: int = 0
    """How many of the ranks are in a sum, if they are those who come first; 0: all are."""

    @property
    def contributions(self) -> int:
        """How many addends a complete sum has."""
        return (self.seats or self.world_size) * self.micro_batches

    @property
    def fits(self) -> bool:
        """Whether there is a build whose packets have a bit for each, and the protocol a number for each rank."""
        return (
            1 <= self.world_size <= MOST_RANKS
            and 0 <= self.seats <= self.world_size
            and self.micro_batches >= 1
            and self.contributions <= MOST_CONTRIBUTIONS
        )

    @property
    def fan_in(self) -> int:
        """Bitmap of a complete sum."""
        return (1 << self.contributions) - 1

    def bit(self, rank: int, micro_batch: int) -> int:
        """One micro-batch, as a bitmap."""
        return 1 << self.number(rank, micro_batch)

    def number(self, rank: int, micro_batch: int) -> int:
        """Which contribution a micro-batch is, from 0."""
        return rank * self.micro_batches + micro_batch

    def bits_of(self, rank: int) -> int:
        """A rank's whole shard, as a bitmap; in a job with seats no bits are a rank's."""
        return 0 if self.seats else ((1 << self.micro_batches) - 1) << (rank * self.micro_batches)

    def bits_of_seat(self, seat: int) -> int:
        """What whoever has a seat contributes, as a bitmap."""
        return ((1 << self.micro_batches) - 1) << (seat * self.micro_batches)

    def summed_below(self, ranks: Iterable[int]) -> int:
        """What a switch that has these ranks below it can sum of theirs, as a bitmap: with seats anybody may have any."""
        return self.fan_in if self.seats else sum(map(self.bits_of, ranks))

    def rank_of(self, contribution: int) -> int:
        """Whose shard a contribution is of; in a job with seats, of which."""
        return contribution // self.micro_batches

    def lowest_rank(self, bits: int) -> int:
        """The rank of the lowest contribution in a bitmap that is not 0."""
        return self.rank_of((bits & -bits).bit_length() - 1)

    def ranks_of(self, bits: int) -> list[int]:
        """The ranks of whose shards there is something in a bitmap."""
        return [rank for rank in range(self.world_size) if bits & self.bits_of(rank)]

    def micro_batches_of(self, rank: int, bits: int) -> list[int]:
        """The micro-batches of a rank's shard that are in a bitmap."""
        own = bits >> self.number(rank, 0)
        return [m for m in range(self.micro_batches) if own >> m & 1] if own else []
