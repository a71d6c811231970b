"""Balanced batches: the gradient of the whole batch, sizes that follow speed, one line for what cannot be."""

import pickle
import re

import pytest
import torch
from rank_pool import DEVICES, Ranks
from torch.utils.data import TensorDataset

from sa_atp.basics.errors import UserError
from sa_atp.ddp import SaAtpState
from sa_atp.train import BalancedBatches
from sa_atp.train.balanced import _Clock


def make(
    samples: int = 50, batch_size: int = 12, rank: int = 0, world_size: int = 3, **settings: object
) -> BalancedBatches:
    dataset = TensorDataset(torch.arange(samples))
    return BalancedBatches(dataset, batch_size, rank=rank, world_size=world_size, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("world_size", "seconds", "bucket_mb", "dtype", "most"),
    [
        (3, [1.0, 2.0, 5.0], 25.0, "float32", 1.5e-5),
        (3, [1.0, 2.0, 5.0], 0.001, "float32", 1.5e-5),  # a bucket for each layer
        (2, [1.0, 1.0], 25.0, "float32", 1.5e-5),
        (3, [1.0, 2.0, 5.0], 25.0, "bfloat16", 4e-2),
    ],
)
def test_gradient_of_the_whole_batch(
    ranks: Ranks, world_size: int, seconds: list[float], bucket_mb: float, dtype: str, most: float
) -> None:
    answers = ranks.run(
        "mean_gradient", world_size, module="balanced_scenarios", seconds=seconds, bucket_mb=bucket_mb, dtype=dtype
    )
    first = tuple(answers[0]["sizes"][0])
    assert first == ((36, 17, 7) if world_size == 3 else (30, 30))
    for answer in answers:
        assert answer["sizes"] == answers[0]["sizes"]
        assert max(answer["errors"]) < most


def test_sizes_follow_speed(ranks: Ranks) -> None:
    answers = ranks.run("follows_speed", 3, module="balanced_scenarios", ms=[1.0, 1.0, 12.0], steps=10)
    assert all(answer == answers[0] for answer in answers), "every rank has the same sizes"
    first, last = answers[0][0], answers[0][-1]
    assert first == (14, 13, 13)
    assert sum(last) == 40
    assert last[2] < first[2]


@pytest.mark.parametrize("device", DEVICES)
def test_batches_that_are_drawn_ahead(ranks: Ranks, device: str) -> None:
    """On a GPU times are the GPU's."""
    answers = ranks.run(
        "follows_speed", 2, module="balanced_scenarios", ms=[1.0, 12.0], steps=15, lead=2, device=device
    )
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] == (20, 20)
    assert answers[0][-1][1] < 20


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("accumulation", "a backward pass must be of one batch|drawn before the gradients"),
        ("another loader", "a backward pass must be of one batch"),
        ("another job", r"of 3 with a job in which this is rank \d of 2"),
    ],
)
def test_gradients_without_a_common_weight_are_refused(ranks: Ranks, how: str, says: str) -> None:
    for answer in ranks.run("misuse", 2, module="balanced_scenarios", how=how):
        assert re.search(says, answer)


def test_a_step_whose_clock_was_not_started_has_no_time() -> None:
    """With `lead` the sum that starts it may come after the step's end."""
    clock, cpu = _Clock(), torch.device("cpu")
    clock.start()
    assert clock.stop(cpu)[0] > 0
    assert clock.stop(cpu) == (0.0, 0.0)


def test_an_epoch_has_every_sample_at_most_once() -> None:
    batches = make()
    assert len(batches) == batches.steps_per_epoch == 4
    for epoch in range(2):
        seen = [i for step in range(4 * epoch, 4 * epoch + 4) for i in batches.whole(step)]
        assert len(seen) == len(set(seen)) == 48
    assert batches.whole(0) != batches.whole(4), "a new order in each epoch"


def test_ranks_have_parts_of_the_same_batch_in_order() -> None:
    ranks = [make(rank=rank) for rank in range(3)]
    for each in ranks:
        each.set_epoch(1)
    parts = [next(iter(each)) for each in ranks]
    assert [i for part in parts for i in part] == ranks[0].whole(4)


def test_a_checkpoint_has_no_data() -> None:
    state = SaAtpState("udp://127.0.0.1:1", batches=make())
    again = pickle.loads(pickle.dumps(state))
    assert again.batches is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batch_size": 51}, "batch_size = 51: expected 1 to 50"),
        ({"batch_size": 0}, "batch_size = 0: expected 1 to 50"),
        ({"lead": -1}, "lead = -1"),
        ({"least": [1, 2]}, "least: 2 values for 3 ranks"),
        ({"most": 3}, "take 3 to 9"),
        ({"multiple_of": 5}, "units of 5"),
        ({"rank": 3}, "rank = 3: expected 0 to 2"),
    ],
)
def test_wrong_settings(settings: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make(**settings)  # type: ignore[arg-type]
