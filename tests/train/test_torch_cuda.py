"""The same through a GPU: pinned buffers, a stream of its own, and futures that know which stream to wait for."""

import pytest
import torch
from rank_pool import Ranks

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="no GPU that PyTorch can use: this needs an NVIDIA GPU, its driver, and a PyTorch that is built for CUDA",
)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("nonfinite", ["raise", "spread"])
def test_types(ranks: Ranks, dtype: str, nonfinite: str) -> None:
    for answer in ranks.run("gradients", 2, dtype=dtype, nonfinite=nonfinite, device="cuda"):
        assert answer["dtype"] == f"torch.{dtype}"
        assert answer["found"] == answer["expected"]


def test_same_loss_curve_as_gloo(ranks: Ranks) -> None:
    expected = ranks.run("loss_curve", 2, hook=False, device="cuda")[0]
    found = ranks.run("loss_curve", 2, hook=True, bucket_mb=0.02, device="cuda")[0]
    assert max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True)) < 1e-5


def test_streams(ranks: Ranks) -> None:
    for answer in ranks.run("streams", 2, module="cuda_scenarios"):
        assert answer["early"] == [3.0, 3.0, 7.0, 7.0, 11.0, 11.0]
        assert answer["late"] == [5.0, 5.0, 9.0, 9.0]


def test_memory_stays_until_the_copies_are_done(ranks: Ranks) -> None:
    assert ranks.run("lifetimes", 2, module="cuda_scenarios") == [0.0, 0.0]


def test_generators(ranks: Ranks) -> None:
    assert ranks.run("generators", 1, module="cuda_scenarios") == [True]


def test_errors_name_the_rank(ranks: Ranks) -> None:
    for message in ranks.run("error", 2, module="cuda_scenarios"):
        assert "rank 1 contributed NaN or infinity" in message


def test_backend(ranks: Ranks) -> None:
    for answer in ranks.run("collectives", 2, module="cuda_scenarios", backend="sa_atp"):
        assert answer == {
            "sum": [3.0, 3.0], "mean": [1.5, 1.5], "max": [2.0, 2.0], "part": [3.0, 3.0], "broadcast": 20.0,
        }  # fmt: skip


def test_help(ranks: Ranks) -> None:
    for answer in ranks.run("against_ddp", 2, module="backup_scenarios", micro_batches=1, device="cuda"):
        assert answer["gradient"] < 1e-5
        assert answer["loss"] < 1e-5
        assert answer["statistics"] < 1e-5


def test_balanced_batches_take_their_times_from_the_gpu(ranks: Ranks) -> None:
    answers = ranks.run("follows_speed", 2, module="balanced_scenarios", ms=[1.0, 12.0], steps=15, device="cuda")
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] == (20, 20)
    assert answers[0][-1][1] < 20


@pytest.mark.parametrize(("mode", "backend"), [("switch", "gloo"), ("native", "sa_atp")])
def test_fsdp(ranks: Ranks, mode: str, backend: str) -> None:
    expected = ranks.run("fsdp", 2, module="backend_scenarios", mode="native")[0]
    found = ranks.run("fsdp", 2, module="backend_scenarios", mode=mode, backend=backend, device="cuda")[0]
    assert found == pytest.approx(expected, rel=1e-4)
