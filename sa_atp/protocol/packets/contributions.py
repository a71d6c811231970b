"""The map between contribution bits, ranks and micro-batches. (protocol section 1.1)

A bit names a piece of work, not the machine that sent it: rank r with m micro-batches owns the bits r * m to r * m + m
- 1, and micro-batch i of its shard is bit r * m + i. In a job with seats, of which there are fewer than ranks, bits
belong to seats in the same way, and the rank that has a seat differs from step to step (section 10.6). All other code
asks this map.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sa_atp.protocol.packets.spec import MOST_CONTRIBUTIONS, MOST_RANKS


@dataclass(frozen=True, slots=True)
class ContributionMap:
    """The map of a job with `world_size` ranks, each with `micro_batches` contributions."""

    world_size: int
    micro_batches: int
    seats: int = 0
    """The sum is that of the first so many ranks; 0: of all ranks."""

    @property
    def contributions(self) -> int:
        """Contributions in a complete sum."""
        return (self.seats or self.world_size) * self.micro_batches

    @property
    def fits(self) -> bool:
        """Whether some build of the P4 program has a bit for each contribution, and ranks are within the protocol's
        limit.
        """
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
        """The number of a micro-batch's contribution bit, from 0."""
        return rank * self.micro_batches + micro_batch

    def bits_of(self, rank: int) -> int:
        """A rank's whole shard, as a bitmap; 0 in a job with seats, whose bits belong to seats."""
        return 0 if self.seats else ((1 << self.micro_batches) - 1) << (rank * self.micro_batches)

    def bits_of_seat(self, seat: int) -> int:
        """The contributions of a seat, as a bitmap."""
        return ((1 << self.micro_batches) - 1) << (seat * self.micro_batches)

    def summed_below(self, ranks: Iterable[int]) -> int:
        """Contributions that a switch with these ranks below it can sum, as a bitmap; with seats, any rank may have
        any.
        """
        return self.fan_in if self.seats else sum(map(self.bits_of, ranks))

    def rank_of(self, contribution: int) -> int:
        """The rank (in a job with seats, the seat) of a contribution."""
        return contribution // self.micro_batches

    def lowest_rank(self, bits: int) -> int:
        """The rank of the lowest contribution in a bitmap that is not 0."""
        return self.rank_of((bits & -bits).bit_length() - 1)

    def ranks_of(self, bits: int) -> list[int]:
        """The ranks that have at least one contribution in a bitmap."""
        return [rank for rank in range(self.world_size) if bits & self.bits_of(rank)]

    def micro_batches_of(self, bits: int) -> dict[int, list[int]]:
        """The micro-batches in a bitmap, ascending, by rank."""
        first = {rank: rank * self.micro_batches for rank in self.ranks_of(bits)}
        return {rank: [m for m in range(self.micro_batches) if bits >> at + m & 1] for rank, at in first.items()}
