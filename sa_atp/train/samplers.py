"""Samplers whose batches every rank can compute for every other rank, as a function of step and rank.

sampler = ShardedSampler(dataset, batch_size=32)
backup = BackupCompute(model, loss_fn, sampler.batch_of)
"""

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, DistributedSampler, Sampler, default_collate

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural

Collate = Callable[[list[Any]], Any]


class ShuffledOrder:
    """The order in which each epoch goes through a data set: a function of (seed, epoch)."""

    def __init__(self, length: int, *, seed: int, shuffle: bool) -> None:
        self.length = length
        self._seed = seed
        self._shuffle = shuffle
        self._orders: dict[int, Sequence[int]] = {}

    def of(self, epoch: int) -> Sequence[int]:
        """Indices of all samples in an epoch's order."""
        if epoch not in self._orders:
            for old in [e for e in self._orders if abs(e - epoch) > 1]:
                del self._orders[old]
            generator = torch.Generator().manual_seed(self._seed + epoch)
            self._orders[epoch] = (
                torch.randperm(self.length, generator=generator).tolist() if self._shuffle else range(self.length)
            )
        return self._orders[epoch]


class ShardedSampler(Sampler[list[int]]):
    """A batch sampler: iterating gives this rank's batches of one epoch, `batch_of` the batch of any rank in any step.

    Every epoch goes through the data set in a new order, a function of (seed, epoch). Samples that do not fill a batch
    of every rank are left out of the epoch.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        collate_fn: Collate = default_collate,
    ) -> None:
        """Args:
        dataset: has a length, and is the same on every rank.
        batch_size: samples of each rank's batch.
        rank, world_size: default: of the default process group, or else of the environment (RANK, WORLD_SIZE).
        collate_fn: makes (inputs, targets) of a list of samples, as DataLoader's does.

        Raises: UserError.
        """
        self.dataset = dataset
        self.batch_size = batch_size
        self.rank, self.world_size = place_of(rank, world_size)
        self.seed = seed
        self.shuffle = shuffle
        self.collate_fn = collate_fn
        self.epoch = 0
        self._length = len(dataset)  # type: ignore[arg-type]
        self._order = ShuffledOrder(self._length, seed=seed, shuffle=shuffle)
        if batch_size < 1 or self.steps_per_epoch < 1:
            raise UserError(
                f"batch_size = {batch_size}: expected 1 to {self._length // self.world_size}, since "
                f"{plural(self.world_size, 'rank shares', 'ranks share')} {plural(self._length, 'sample')}"
            )

    @property
    def steps_per_epoch(self) -> int:
        return self._length // (self.world_size * max(self.batch_size, 1))

    def indices(self, step: int, rank: int) -> list[int]:
        """The samples of a rank's batch. Args: step: counted through all epochs."""
        epoch, within = divmod(step, self.steps_per_epoch)
        first = (within * self.world_size + rank) * self.batch_size
        return list(self._order.of(epoch)[first : first + self.batch_size])

    def batch_of(self, step: int, rank: int) -> Any:
        """A rank's batch, loaded and collated."""
        return self.collate_fn([self.dataset[i] for i in self.indices(step, rank)])

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        first = self.epoch * self.steps_per_epoch
        return (self.indices(first + step, self.rank) for step in range(self.steps_per_epoch))

    def __len__(self) -> int:
        return self.steps_per_epoch


class DistributedBatches:
    """As ShardedSampler, for a script that has a DistributedSampler: the batches that a DataLoader would make of it.

    sampler = DistributedSampler(dataset)
    batches = DistributedBatches(sampler, batch_size=32)
    backup = BackupCompute(model, loss_fn, batches.batch_of)
    """

    def __init__(
        self,
        sampler: "DistributedSampler[Any]",
        batch_size: int,
        *,
        drop_last: bool = False,
        collate_fn: Collate = default_collate,
    ) -> None:
        """Args: drop_last: whether to leave out the last batch of an epoch if it is smaller, as in DataLoader.

        Raises: UserError.
        """
        if batch_size < 1:
            raise UserError(f"batch_size = {batch_size}: expected 1 or more")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.collate_fn = collate_fn
        self._epochs: dict[tuple[int, int], list[int]] = {}

    @property
    def steps_per_epoch(self) -> int:
        whole, rest = divmod(self.sampler.num_samples, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def indices(self, step: int, rank: int) -> list[int]:
        """The samples of a rank's batch. Args: step: counted through all epochs, from the sampler's epoch 0."""
        epoch, within = divmod(step, self.steps_per_epoch)
        return self._epoch(epoch, rank)[within * self.batch_size :][: self.batch_size]

    def batch_of(self, step: int, rank: int) -> Any:
        """A rank's batch, loaded and collated."""
        return self.collate_fn([self.sampler.dataset[i] for i in self.indices(step, rank)])

    def _epoch(self, epoch: int, rank: int) -> list[int]:
        key = epoch, rank
        if key not in self._epochs:
            for old in [k for k in self._epochs if abs(k[0] - epoch) > 1]:
                del self._epochs[old]
            as_rank = copy.copy(self.sampler)
            as_rank.rank = rank
            as_rank.set_epoch(epoch)
            self._epochs[key] = list(as_rank)
        return self._epochs[key]


def place_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, number of ranks) as given, else of the default process group, else of the environment.

    Raises: UserError.
    """
    ready = dist.is_available() and dist.is_initialized()
    if rank is None:
        rank = dist.get_rank() if ready else int(os.environ.get("RANK", "0"))
    if world_size is None:
        world_size = dist.get_world_size() if ready else int(os.environ.get("WORLD_SIZE", "1"))
    if not 0 <= rank < world_size:
        raise UserError(f"rank = {rank}: expected 0 to {world_size - 1}")
    return rank, world_size
