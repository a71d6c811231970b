"""The scenarios of PyTorch's own tests of DDP communication hooks, written anew and run through sa_atp_hook.

Adapted, because they show what a hook must get right:

    distributed_test  ddp_hook_parity_*, ddp_control_flow_different_across_ranks -> test_torch_hook (loss curves)
                      accumulate_gradients_no_sync_*hook     -> left_to_group, and no_sync with a chained future
                      ddp_uneven_inputs (models with a hook) -> left_to_group, with join
                      ddp_hook_pickling_powerSGD             -> test_torch_launch
                      ddp_hook_with_optimizer_parity_sgd     -> fused_optimiser
    test_c10d_common  ddp_checkpointing_weight_sharing       -> shared_weights
    test_c10d_gloo    ddp_comm_hook_future_passing_cpu       -> no_sync with a chained future
                      ddp_comm_hook_sparse_gradients         -> sparse
    test_ddp_hooks    fp16 compression                       -> test_torch_hook

Left out: what tests DDP's own checks of hooks (registered twice, wrong annotations), NCCL and CUDA, quantisation and
PowerSGD themselves, and hooks on buffers, which do not go through a gradient hook.
"""

from typing import Any

import pytest
from rank_pool import Ranks

# Gradients of magnitude 1 to 100 in float32; Gloo's own sums of them differ by as much when their order changes.
CLOSE = 2e-5


def test_no_sync(ranks: Ranks) -> None:
    assert max(ranks.run("no_sync", 2, module="ddp_scenarios")) < CLOSE


def test_optimiser_in_the_backward_pass(ranks: Ranks) -> None:
    assert max(ranks.run("fused_optimiser", 2, module="ddp_scenarios")) < CLOSE


def test_shared_weights_and_activation_checkpointing(ranks: Ranks) -> None:
    assert max(ranks.run("shared_weights", 2, module="ddp_scenarios")) < CLOSE


TYPES = ["float32", "bfloat16", "float64"]


def worst(answers: list[dict[str, Any]]) -> dict[str, float]:
    return {kind: max(answer["worst"][kind] for answer in answers) for kind in answers[0]["worst"]}


def test_what_the_switch_cannot_sum_is_summed_as_by_gloo(ranks: Ranks) -> None:
    answers = ranks.run("left_to_group", 3, module="ddp_scenarios", types=["float64"] * 3)
    assert worst(answers) == {"float64": 0.0}
    assert [len(answer["warned"]) for answer in answers] == [1, 0, 0]
    assert (
        "4,920 values of float64 are summed by the process group (gloo), not in the switch" in answers[0]["warned"][0]
    )


def test_complex_numbers_are_pairs_of_float32(ranks: Ranks) -> None:
    answers = ranks.run("left_to_group", 3, module="ddp_scenarios", types=["complex64"] * 3)
    assert 0.0 < worst(answers)["complex64"] < 2e-7
    assert [answer["warned"] for answer in answers] == [[], [], []]


@pytest.mark.parametrize("mode", ["", "no_sync", "unused", "join"])
@pytest.mark.parametrize("types", [TYPES, TYPES[::-1]], ids=["float64 first", "float64 last"])
def test_layers_of_several_types(ranks: Ranks, types: list[str], mode: str) -> None:
    found = worst(ranks.run("left_to_group", 3, module="ddp_scenarios", types=types, mode=mode))
    assert found["float64"] == 0.0
    assert found["float32"] < 2e-7
    assert 0.0 < found["bfloat16"] < 2**-7  # Gloo rounds the sum of each two ranks, the hook the mean


def test_sparse_gradients(ranks: Ranks) -> None:
    for rank, answer in enumerate(ranks.run("sparse", 3, module="ddp_scenarios")):
        assert answer["found"] == answer["expected"]
        assert ["40 values of sparse_coo float32" in each for each in answer["warned"]] == [True] * (rank == 0)
