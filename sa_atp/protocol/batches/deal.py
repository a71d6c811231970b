"""Which samples of a step's global batch each piece of each worker's shard has."""

from collections.abc import Sequence
from itertools import accumulate


class Deal:
    """Of one step: shards are of different size, and each has the same number of pieces, cut as evenly as possible.

    A shard with fewer samples than pieces has some without samples. They come first, so that those that helpers take, from
    the end, have some. Every sample is in one piece.
    """

    def __init__(self, sizes: Sequence[int], pieces: int) -> None:
        """Args: sizes: samples of each worker; pieces: of each shard, each has a contribution bit of its own."""
        self.sizes = tuple(sizes)
        self.pieces = pieces
        self._first = (0, *accumulate(sizes))

    def empty(self, shard: int) -> int:
        """How many of its pieces have no samples: the first ones."""
        return max(0, self.pieces - self.sizes[shard])

    def samples(self, shard: int, piece: int) -> range:
        """Places in the global batch."""
        empty = self.empty(shard)
        if piece < empty:
            return range(0)
        number, used = piece - empty, self.pieces - empty
        first, size = self._first[shard], self.sizes[shard]
        return range(first + size * number // used, first + size * (number + 1) // used)

    def piece_size(self, shard: int) -> float:
        """Samples of a piece that has some, the mean."""
        return self.sizes[shard] / max(1, self.pieces - self.empty(shard))
