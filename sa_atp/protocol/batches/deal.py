"""The deal of a step's global batch: which samples belong to which micro-batch of which shard."""

from collections.abc import Sequence
from itertools import accumulate


class Deal:
    """The deal of one step: shards differ in size, and each is cut into the same number of pieces, as evenly as
    possible.

    A shard with fewer samples than pieces has empty pieces. They come first, because helpers take pieces from the end.
    Every sample is in one piece.
    """

    def __init__(self, sizes: Sequence[int], pieces: int) -> None:
        """Args: sizes: samples of each worker; pieces: micro-batches of each shard."""
        self.sizes = tuple(sizes)
        self.pieces = pieces
        self._first = (0, *accumulate(sizes))

    def empty(self, shard: int) -> int:
        """How many pieces of a shard have no samples; they are the first ones."""
        return max(0, self.pieces - self.sizes[shard])

    def samples(self, shard: int, piece: int) -> range:
        """The samples of a piece, as positions in the global batch."""
        empty = self.empty(shard)
        if piece < empty:
            return range(0)
        number, used = piece - empty, self.pieces - empty
        first, size = self._first[shard], self.sizes[shard]
        return range(first + size * number // used, first + size * (number + 1) // used)

    def piece_size(self, shard: int) -> float:
        """Mean number of samples of the pieces that are not empty."""
        return self.sizes[shard] / max(1, self.pieces - self.empty(shard))
