"""The DDP communication hook: the same training as with Gloo, for every kind of bucket; errors that say who and what."""

import copy
import functools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_pool import DEVICES, GPU, Ranks
from torch.torch_version import TorchVersion

from sa_atp.basics.errors import UserError
from sa_atp.ddp import SaAtpState
from sa_atp.protocol.numbers.quantise import quantise
from sa_atp.protocol.numbers.scaling import SUM_BITS, after_gather, gathered_exponent, magnitude_code
from sa_atp.train import ddp_state
from sa_atp.train.backup import BackupCompute
from sa_atp.train.fsdp import reduce_in_switch
from sa_atp.train.tensor_sums import NOT_FINITE, all_finite

ROOT = Path(__file__).parents[2]
STEPS = 200
# On four ranks, models and buckets are smaller: all their packets go through one software switch, which shares two
# cores with them.
CURVES: list[tuple[int, str, dict[str, Any]]] = [
    (2, "25 MB buckets", {"bucket_mb": 25.0}),
    (2, "1 MB buckets", {"width": 512, "bucket_mb": 1.0}),
    (2, "buckets as gradients", {"bucket_view": True, "static": True}),
    (2, "many buckets on a GPU", {"bucket_mb": 0.02, "device": "cuda"}),
    (4, "many buckets", {"bucket_mb": 0.02}),
    (4, "accumulation and unused parameters", {"accumulate": 2, "unused": True}),
]


@pytest.fixture(scope="module")
def gloo_curve(ranks: Ranks) -> Any:
    """Losses with DDP's own reduction over Gloo; buckets do not change them."""

    @functools.cache
    def curve(world_size: int, arguments: tuple[tuple[str, Any], ...]) -> list[float]:
        found: list[float] = ranks.run("loss_curve", world_size, hook=False, steps=STEPS, **dict(arguments))[0]
        return found

    def of(world_size: int, **arguments: Any) -> list[float]:
        kept = {k: v for k, v in arguments.items() if k not in ("bucket_mb", "bucket_view", "static")}
        return curve(world_size, tuple(sorted(kept.items())))

    return of


@pytest.mark.parametrize(
    ("world_size", "name", "arguments"),
    [
        pytest.param(*each, marks=[GPU] if "device" in each[2] else [], id=f"{each[0]} ranks, {each[1]}")
        for each in CURVES
    ],
)
def test_same_loss_curve_as_gloo(
    ranks: Ranks, gloo_curve: Any, world_size: int, name: str, arguments: dict[str, Any]
) -> None:
    expected = gloo_curve(world_size, **arguments)
    found = ranks.run("loss_curve", world_size, hook=True, steps=STEPS, **arguments)[0]
    worst = max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))
    assert expected[-1] < 0.2 * expected[0], "the task must be learnable, or equal curves prove nothing"
    assert worst < 1e-5


def test_half_the_bytes_for_about_the_same_loss_curve(ranks: Ranks, gloo_curve: Any) -> None:
    arguments: dict[str, Any] = {"bucket_mb": 0.02, "accumulate": 2}
    expected = gloo_curve(2, **arguments)
    found = ranks.run("loss_curve", 2, hook=True, steps=STEPS, bits=16, **arguments)[0]
    worst = max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))
    assert 1e-9 < worst < 1e-2


def test_half_the_bytes_from_the_third_sum_on(ranks: Ranks) -> None:
    answers = ranks.run("in_pairs", 3)
    for answer in answers:
        assert answer["digest"] == answers[0]["digest"]
        whole, half = answer["sent"][1], answer["sent"][2]  # the first gathers magnitudes
        assert whole / 2 <= half < 0.51 * whole + 1
        assert answer["sent"][2:] == [half] * 4
        assert max(answer["error"][:2]) < 1e-6 < min(answer["error"][2:])
        assert max(answer["error"][2:]) < 1e-2


def test_half_the_bytes_where_there_are_none() -> None:
    with pytest.raises(UserError, match="bits = 8: expected 32 or 16"):
        SaAtpState("udp://127.0.0.1", bits=8)
    state = pickle.loads(pickle.dumps(SaAtpState("udp://127.0.0.1", bits=16, error_feedback=False)))
    assert (state.bits, state.error_feedback, state.terms["bits"]) == (16, False, 16)
    model = torch.nn.Linear(2, 2)
    with pytest.raises(UserError, match="bits = 16 is for sa_atp_hook: expected 32 for BackupCompute"):
        BackupCompute(model, torch.nn.functional.mse_loss, lambda step, rank: (torch.ones(1, 2),) * 2, state=state)
    with pytest.raises(UserError, match="expected 32 for FSDP"):
        reduce_in_switch(model, state)


def test_infinity_in_half_the_bytes(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match="rank 1 contributed NaN or infinity between values 0 and 29999"):
        ranks.run("in_pairs", 2, bad_step=3)
    for bad in (1, 3):  # a sum with 32 bits, and one in pairs
        answers = ranks.run("in_pairs", 2, nonfinite="spread", bad_step=bad)
        assert answers[0]["digest"] == answers[1]["digest"]
        assert [step for step, error in enumerate(answers[0]["error"]) if error == "nan"] == [bad]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("nonfinite", ["raise", "spread"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_types(ranks: Ranks, dtype: str, nonfinite: str, device: str) -> None:
    for answer in ranks.run("gradients", 3, dtype=dtype, nonfinite=nonfinite, device=device):
        assert answer["dtype"] == f"torch.{dtype}"
        assert answer["same_rows"]
        assert answer["found"] == answer["expected"]  # small integers: exact in every type


def test_composes_with_fp16_compression(ranks: Ranks) -> None:
    for answer in ranks.run("gradients", 2, dtype="float32", wrapper=True):
        assert answer["dtype"] == "torch.float32"
        assert answer["found"] == answer["expected"]


def test_infinity_is_an_error_that_names_the_rank(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match="rank 1 contributed NaN or infinity"):
        ranks.run("gradients", 2, dtype="float32", bad_rank=1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_infinity_may_spread_to_all_ranks(ranks: Ranks, dtype: str) -> None:
    for answer in ranks.run("gradients", 2, dtype=dtype, nonfinite="spread", bad_rank=1):
        assert not answer["finite"]


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("magnitude", [1e-30, 1e9, 1e30])
def test_nan_spreads_beside_large_values(ranks: Ranks, magnitude: float, keyed: bool) -> None:
    usual = [f"{magnitude:.4g}"]
    for answer in ranks.run("spread", 4, magnitude=magnitude, keyed=keyed):
        assert answer == [usual, ["nan", "nan"], usual]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_is_found_wherever_it_is(dtype: torch.dtype, bad: float) -> None:
    for size in (1, 9, 65):
        tensor = torch.randn(size).to(dtype)
        assert all_finite(tensor)
        for place in range(size):
            other = tensor.clone()
            other[place] = bad
            assert not all_finite(other), (size, place)


@pytest.mark.parametrize("contributions", [1, 2, 64])
def test_the_mark_of_non_finite_values_survives_at_every_scale(contributions: int) -> None:
    """With any values beside it, and a scale that is gathered, or predicted from the largest possible sums."""
    exponents = []
    for largest in (np.finfo(np.float32).max, 2.0**120, 1.0, 2.0**-140):
        gathered = gathered_exponent(magnitude_code(np.array([largest, NOT_FINITE], np.float32)), contributions)
        exponents.append(gathered)
        history = after_gather(gathered, 1 << SUM_BITS - 1, contributions)
        for _ in range(50):
            exponents.append(history.exponent)
            history.after_sum(history.exponent, (1 << SUM_BITS) - 1, contributions)
            if 2.0**-history.exponent * 2.0**SUM_BITS > contributions * float(np.finfo(np.float32).max):
                break  # no sum is so large
    lanes = np.empty(1, np.int32)
    for exponent in exponents:
        bad = quantise([np.array([NOT_FINITE], np.float32)], exponent, contributions, lanes)
        assert lanes[0] > 0 or bad, "it is rounded away, and not done again"
    with np.errstate(over="raise"):
        assert np.float32(NOT_FINITE) * np.float32(contributions) / np.float32(contributions) > 0


def test_two_models_may_share_a_state(ranks: Ranks) -> None:
    """With the hook, their buckets have separate positions in the order of sums."""
    expected = ranks.run("two_models", 2, hook=False)[0]
    assert ranks.run("two_models", 2, hook=True)[0] == pytest.approx(expected, rel=1e-4)


# --- the state
# ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("SERVER", "JOB", "HELP", "RANK", "WORLD_SIZE", "JOIN_TIMEOUT_S", "MICRO_BATCHES"):
        monkeypatch.delenv(f"SA_ATP_{name}", raising=False)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_an_older_pytorch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f'torch = ["torch>={ddp_state.OLDEST_TORCH},' in (ROOT / "pyproject.toml").read_text()
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.8.0"))
    with pytest.raises(UserError, match=r"^PyTorch 2\.8\.0 is too old for sa_atp\.train: expected 2\.12 or newer$"):
        SaAtpState("udp://127.0.0.1")


def test_state_from_environment(no_environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="SA_ATP_SERVER is not set"):
        SaAtpState.from_env()
    values = {
        "SERVER": "udp://10.1.2.3:4",
        "JOB": "night",
        "HELP": "steal",
        "MICRO_BATCHES": "4",
        "JOIN_TIMEOUT_S": "2.5",
    }
    for name, value in values.items():
        no_environment.setenv(f"SA_ATP_{name}", value)
    no_environment.setenv("RANK", "3")
    no_environment.setenv("WORLD_SIZE", "5")
    state = SaAtpState.from_env(operation_timeout_s=7.0)
    assert (state.server, state.job, state.help, state.micro_batches) == ("udp://10.1.2.3:4", "night", "steal", 4)
    assert (state.join_timeout_s, state.operation_timeout_s) == (2.5, 7.0)
    assert state.place == (3, 5)
    no_environment.setenv("SA_ATP_WORLD_SIZE", "6")
    assert state.place == (3, 6)
    no_environment.setenv("SA_ATP_WORLD_SIZE", "4")
    with pytest.raises(UserError, match=r"world_size = 4, but the program has 5 processes"):
        _ = state.place


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("SA_ATP_JOIN_TIMEOUT_S", "soon", "SA_ATP_JOIN_TIMEOUT_S = 'soon': expected a number"),
        ("SA_ATP_MICRO_BATCHES", "1.5", "SA_ATP_MICRO_BATCHES = '1.5': expected a whole number"),
        ("SA_ATP_HELP", "sometimes", "help = 'sometimes': expected one of none, clone, steal"),
    ],
)
def test_environment_that_is_wrong(no_environment: pytest.MonkeyPatch, variable: str, value: str, message: str) -> None:
    no_environment.setenv("SA_ATP_SERVER", "udp://10.1.2.3:4")
    no_environment.setenv(variable, value)
    with pytest.raises(UserError, match=message):
        SaAtpState.from_env()


def test_a_missing_rank_in_the_environment(no_environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="start it with torchrun"):
        _ = SaAtpState("udp://127.0.0.1:9").place


def test_state_is_saved_without_its_connection(no_environment: pytest.MonkeyPatch) -> None:
    state = SaAtpState("udp://127.0.0.1:9", job="night", rank=1, world_size=2, operation_timeout_s=5.0)
    for copied in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state)):
        assert (copied.server, copied.job, copied.operation_timeout_s) == ("udp://127.0.0.1:9", "night", 5.0)
        assert copied.rank is None, "which rank a restarted program is, is not for a checkpoint to say"
        copied.close()


def test_a_parameter_server_that_does_not_answer(no_environment: pytest.MonkeyPatch) -> None:
    state = SaAtpState("udp://127.0.0.1:9", rank=0, world_size=1, join_timeout_s=0.3)
    with pytest.raises(Exception, match=r"no parameter server answers at 127.0.0.1:9 after 0.\d s"):
        _ = state.communicator
