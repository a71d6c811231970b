"""Batches of any rank: what a DataLoader would give, disjoint between ranks, a function of step and rank alone."""

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sa_atp.basics.errors import UserError
from sa_atp.train import DistributedBatches, ShardedSampler


def make_dataset(samples: int) -> TensorDataset:
    return TensorDataset(torch.arange(samples), 100 + torch.arange(samples))


def test_an_epoch_has_every_sample_at_most_once() -> None:
    samplers = [ShardedSampler(make_dataset(50), 4, rank=r, world_size=3, seed=1) for r in range(3)]
    assert samplers[0].steps_per_epoch == len(samplers[0]) == 4
    for epoch in range(2):
        steps = range(4 * epoch, 4 * epoch + 4)
        seen = [i for step in steps for rank in range(3) for i in samplers[0].indices(step, rank)]
        assert len(seen) == len(set(seen)) == 48
    assert samplers[0].indices(0, 1) != samplers[0].indices(4, 1), "a new order in each epoch"
    assert all(s.indices(5, 2) == samplers[0].indices(5, 2) for s in samplers), "every rank knows every rank's"


def test_iterating_gives_the_own_batches() -> None:
    dataset = make_dataset(50)
    sampler = ShardedSampler(dataset, 4, rank=1, world_size=3)
    sampler.set_epoch(2)
    for step, (inputs, targets) in enumerate(DataLoader(dataset, batch_sampler=sampler), start=8):
        expected = sampler.batch_of(step, 1)
        assert inputs.tolist() == expected[0].tolist()
        assert targets.tolist() == expected[1].tolist()


def test_unshuffled() -> None:
    sampler = ShardedSampler(make_dataset(12), 2, rank=0, world_size=2, shuffle=False)
    assert [sampler.indices(1, rank) for rank in range(2)] == [[4, 5], [6, 7]]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_distributed_sampler(shuffle: bool, drop_last: bool) -> None:
    dataset = make_dataset(23)
    samplers: list[DistributedSampler[tuple[torch.Tensor, ...]]] = [
        DistributedSampler(dataset, 3, rank, shuffle=shuffle, seed=4) for rank in range(3)
    ]
    batches = DistributedBatches(samplers[1], 3, drop_last=drop_last)
    assert batches.steps_per_epoch == (2 if drop_last else 3)
    for epoch in range(2):
        for rank, sampler in enumerate(samplers):
            sampler.set_epoch(epoch)
            loader = DataLoader(dataset, 3, sampler=sampler, drop_last=drop_last)
            for step, (inputs, targets) in enumerate(loader, start=epoch * batches.steps_per_epoch):
                found = batches.batch_of(step, rank)
                assert found[0].tolist() == inputs.tolist()
                assert found[1].tolist() == targets.tolist()
    assert samplers[1].rank == 1
    assert samplers[1].epoch == 1, "the script's own sampler is left alone"


def test_wrong_sizes() -> None:
    with pytest.raises(UserError, match=r"batch_size = 9: expected 1 to 8, since 3 ranks share 26 samples"):
        ShardedSampler(make_dataset(26), 9, rank=0, world_size=3)
    with pytest.raises(UserError, match="rank = 3: expected 0 to 2"):
        ShardedSampler(make_dataset(26), 2, rank=3, world_size=3)
    with pytest.raises(UserError, match="batch_size = 0"):
        DistributedBatches(DistributedSampler(make_dataset(9), 3, 0), 0)
