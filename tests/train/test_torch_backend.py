"""The process-group backend: the answers of Gloo, and the sums through the switch; FSDP2 by its own means."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rank_pool import GPU, Ranks

from sa_atp.train.ddp_state import SaAtpState

MODULE = "backend_scenarios"


def test_what_is_made_of_collectives_is_that_of_gloo(ranks: Ranks) -> None:
    expected = ranks.run("collectives", 3, module=MODULE, backend="gloo")
    assert ranks.run("collectives", 3, module=MODULE, backend="sa_atp") == expected


def test_collectives_of_gloo_in_close_order(ranks: Ranks) -> None:
    """Where PyTorch calls Gloo with the interpreter's lock held, ranks hang within some dozen of these."""
    assert ranks.run("one_after_another", 3, module=MODULE, backend="sa_atp", times=300) == [300] * 3


def test_sums_go_through_the_switch_and_the_rest_through_gloo(ranks: Ranks) -> None:
    for sent in ranks.run("through_switch", 2, module=MODULE, backend="sa_atp"):
        assert sent.pop("everything else") == 0
        assert all(count > 0 for count in sent.values()), sent


@pytest.mark.parametrize("values", [200, 40_001])
def test_all_gather_keeps_every_bit(ranks: Ranks, values: int) -> None:
    for found in ranks.run("gathers", 3, module=MODULE, backend="sa_atp", values=values):
        assert len(found) == 14
        assert all(found.values()), found


@pytest.mark.parametrize(
    ("how", "ranks_in_all", "is_local", "wanted"),
    [
        ("auto", 3, False, True),
        ("auto", 2, False, False),  # each sends the other no more than its part
        ("auto", 3, True, False),  # there are no links
        ("always", 2, True, True),
        ("never", 3, False, False),
    ],
)
def test_all_gather_goes_through_the_switch_where_that_spares_links(
    monkeypatch: pytest.MonkeyPatch, how: str, ranks_in_all: int, is_local: bool, wanted: bool
) -> None:
    member = SimpleNamespace(is_local=is_local, world_size=ranks_in_all)
    monkeypatch.setattr(SaAtpState, "communicator", SimpleNamespace(membership=member))
    monkeypatch.setenv("SA_ATP_GATHER", how)
    assert SaAtpState("udp://127.0.0.1", rank=0, world_size=ranks_in_all).may_gather is wanted


@pytest.mark.parametrize("how", ["auto", "never"])
def test_all_gather_stays_with_gloo_on_one_machine(ranks: Ranks, how: str) -> None:
    for sent in ranks.run("through_switch", 3, module=MODULE, backend="sa_atp", environment={"SA_ATP_GATHER": how}):
        assert (sent["all_gather"], sent["all_gather_into_tensor"]) == (0, 0)


def test_metrics_of_mixed_magnitude(ranks: Ranks) -> None:
    for found in ranks.run("metrics", 2, module=MODULE, backend="sa_atp"):
        assert found == {
            "sum": [6e9, 10.0],
            "mean": [3e9, 5.0],
            "columns": [[6e9, 5.0], [6e9, 5.0]],
            "reduce_scatter": [6e9, 10.0],
            "together": [6e9, 10.0, 2.0, 2.0],
        }


@pytest.mark.parametrize("values", [10, 1000])
def test_results_under_inference_mode_and_no_grad(ranks: Ranks, values: int) -> None:
    for found in ranks.run("modes", 2, module=MODULE, backend="sa_atp", values=values):
        assert len(found) == 12
        for name, distinct in found.items():
            assert distinct == [1.0 if name.startswith("mean") else 2.0], name


def test_a_wait_may_be_limited(ranks: Ranks) -> None:
    first, second = ranks.run("limited_wait", 2, module=MODULE, backend="sa_atp")
    assert first["said"] == "the sum was not there after the 0.2 s that wait() was given"
    for found in (first, second):
        assert found["waits"] == [True, True, True]
        assert found["values"] == [2.0]


def test_without_a_server(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match="SA_ATP_SERVER is not set"):
        ranks.run("through_switch", 2, module=MODULE, backend="sa_atp", environment={"SA_ATP_SERVER": ""})


@pytest.mark.parametrize(
    ("world_size", "native", "mode", "options"),
    [
        (2, "native", "switch", {}),
        (4, "hybrid", "replicas", {}),
        (2, "native", "native", {"backend": "sa_atp"}),
        (2, "native", "switch", {"dtype": "float64"}),
        (4, "hybrid", "replicas", {"dtype": "float64"}),
        pytest.param(2, "native", "switch", {"device": "cuda"}, marks=GPU),
        pytest.param(2, "native", "native", {"device": "cuda", "backend": "sa_atp"}, marks=GPU),
    ],
)
def test_fsdp(ranks: Ranks, world_size: int, native: str, mode: str, options: dict[str, Any]) -> None:
    dtype = options.get("dtype", "float32")
    expected = ranks.run("fsdp", world_size, module=MODULE, mode=native, dtype=dtype)[0]
    found = ranks.run("fsdp", world_size, module=MODULE, mode=mode, **options)[0]
    # of float64 everything goes by Gloo; a GPU rounds in another way
    assert found == (
        expected if dtype == "float64" else pytest.approx(expected, rel=1e-4 if "device" in options else 1e-5)
    )


def test_an_import_does_not_look_for_gpus() -> None:
    """What starts CUDA's driver takes CUDA away from all processes that are forked later."""
    program = (
        "import torch\n"
        "def fail(*_): raise SystemExit('something asked for GPUs')\n"
        "torch.cuda.is_available = torch.cuda.device_count = torch._C._cuda_getDeviceCount = fail\n"
        "import sa_atp.ddp\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
