"""The scenarios of PyTorch's own tests of DDP communication hooks, written anew and run through sa_atp_hook.

Adapted, because they show what a hook must get right:

    distributed_test  ddp_hook_parity_*                      -> parity
                      accumulate_gradients_no_sync_*hook     -> no_sync, and with a chained future
                      ddp_uneven_inputs (models with a hook) -> uneven_inputs
                      ddp_hook_pickling_powerSGD             -> checkpointed
                      ddp_comm_hook_logging                  -> logging_name
                      ddp_hook_with_optimizer_parity_sgd     -> fused_optimiser
                      ddp_control_flow_different_across_ranks -> control_flow
    test_c10d_common  ddp_checkpointing_weight_sharing       -> shared_weights
    test_c10d_gloo    ddp_comm_hook_future_passing_cpu       -> no_sync with a chained future
                      ddp_comm_hook_sparse_gradients         -> test_torch_hook: refused, with a message
    test_ddp_hooks    fp16 compression                       -> test_torch_hook

Left out: what tests DDP's own checks of hooks (registered twice, wrong annotations), NCCL and CUDA, quantisation and
PowerSGD themselves, and hooks on buffers, which do not go through a gradient hook.
"""

from pathlib import Path

import pytest
from rank_pool import Ranks

# Gradients of magnitude 1 to 100 in float32; Gloo's own sums of them differ by as much when their order changes.
CLOSE = 2e-5


def test_parity(ranks: Ranks) -> None:
    assert max(ranks.run("parity", 3, module="ddp_scenarios", iterations=60)) < 1e-6


@pytest.mark.parametrize("then", [False, True])
def test_no_sync(ranks: Ranks, then: bool) -> None:
    assert max(ranks.run("no_sync", 2, module="ddp_scenarios", then=then)) < CLOSE


def test_uneven_inputs(ranks: Ranks) -> None:
    answers = ranks.run("uneven_inputs", 3, module="ddp_scenarios")
    assert [answer["steps"] for answer in answers] == [3, 5, 7]
    # every rank gives a gradient of 1 for as long as it has data, and 0 afterwards; the mean is over all three
    expected = 1.0 - 0.125 * (3 * 1 + 2 * 2 / 3 + 2 * 1 / 3)
    for answer in answers:
        assert answer["weight"] == pytest.approx(expected, abs=1e-6)


def test_checkpoint(ranks: Ranks, tmp_path: Path) -> None:
    for answer in ranks.run("checkpointed", 2, module="ddp_scenarios", folder=str(tmp_path)):
        assert answer["hook"] == "sa_atp_hook"
        assert answer["difference"] < 1e-6


def test_logging(ranks: Ranks) -> None:
    assert ranks.run("logging_name", 2, module="ddp_scenarios") == ["sa_atp_hook", "sa_atp_hook"]


def test_optimiser_in_the_backward_pass(ranks: Ranks) -> None:
    assert max(ranks.run("fused_optimiser", 2, module="ddp_scenarios")) < CLOSE


def test_control_flow_that_differs_between_ranks(ranks: Ranks) -> None:
    for answer in ranks.run("control_flow", 2, module="ddp_scenarios"):
        assert answer["difference"] < CLOSE
        assert answer["left_alone"], "a parameter that nobody used must keep its gradient, or lack of one"


def test_shared_weights_and_activation_checkpointing(ranks: Ranks) -> None:
    assert max(ranks.run("shared_weights", 2, module="ddp_scenarios")) < CLOSE
