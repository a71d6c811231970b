"""Help in PyTorch training: leaders compute what a straggler has not sent, sums stay the same, the straggler rejoins."""

from typing import Any

import pytest
from rank_pool import DEVICES, Ranks
from torch import nn

from sa_atp.basics.errors import UserError
from sa_atp.ddp import SaAtpState
from sa_atp.train import BackupCompute

MODULE = "backup_scenarios"


SECONDS = 0.05  # that a shard takes on a device of normal speed
# So slow that no step can do without help: on a machine as busy as it may be, a test that ends in time has been helped.
SLOWDOWN = 1000.0


def check_helped(answers: list[dict[str, Any]], alone: list[dict[str, Any]], straggler: int) -> None:
    """Args: alone: the same with devices of equal speed, and without help."""
    steps = len(answers[0]["losses"])
    for answer in answers:
        assert answer["weights"] == answers[0]["weights"], "ranks have drifted apart"
        for helped, expected in zip(answer["losses"], alone[0]["losses"], strict=True):
            assert helped == pytest.approx(expected, rel=1e-4)
    assert answers[straggler]["stats"]["abandoned"] == steps, "the slow one has been spared every step"
    assert sum(a["stats"]["helped"] for a in answers) >= steps
    assert answers[straggler]["stats"]["helped"] == 0
    assert [a["stats"]["abandoned"] for a in alone] == [0] * len(alone)


@pytest.fixture(scope="module")
def alone(ranks: Ranks) -> list[dict[str, Any]]:
    return ranks.run("slow_rank", 4, module=MODULE, help="none", seconds=0.0)


def test_clone(ranks: Ranks, alone: list[dict[str, Any]]) -> None:
    answers = ranks.run("slow_rank", 4, module=MODULE, help="clone", seconds=SECONDS, slowdown=SLOWDOWN)
    check_helped(answers, alone, 3)
    # Whoever computes a shard computes the same: not only close, but equal.
    assert [a["losses"] for a in answers] == [a["losses"] for a in alone]
    assert answers[0]["weights"] == alone[0]["weights"]


def test_steal(ranks: Ranks) -> None:
    arguments: dict[str, Any] = {"micro_batches": 4, "streams": False, "steps": 10}
    alone = ranks.run("slow_rank", 4, module=MODULE, help="none", seconds=0.0, **arguments)
    answers = ranks.run("slow_rank", 4, module=MODULE, help="steal", seconds=SECONDS, slowdown=SLOWDOWN, **arguments)
    check_helped(answers, alone, 3)
    assert sum(a["stats"]["computed"] + a["stats"]["helped"] for a in answers) <= 4 * 4 * 10 + 10, "computed twice"


def test_a_rank_that_cannot_stop_skips_steps_that_others_have_done(ranks: Ranks) -> None:
    """Its long call ends many steps late. It takes their sums, and goes on with the others' step."""
    steps = 16
    answers = ranks.run("one_long_call", 3, module=MODULE, steps=steps, seconds=1.5)
    assert answers[-1]["begun"] <= steps // 2, "it has computed what had been done without it"
    for answer in answers[1:]:
        assert (answer["weights"], answer["moments"]) == (answers[0]["weights"], answers[0]["moments"])


def test_statistics_of_a_straggler_that_computes_nothing(ranks: Ranks) -> None:
    """Rank 0's batches decide the running statistics, as under DDP; here others compute them."""
    arguments: dict[str, Any] = {"kind": "norm", "slow": 0}
    alone = ranks.run("slow_rank", 3, module=MODULE, help="none", seconds=0.0, **arguments)
    answers = ranks.run("slow_rank", 3, module=MODULE, help="clone", seconds=SECONDS, slowdown=SLOWDOWN, **arguments)
    check_helped(answers, alone, 0)
    for answer in answers:
        assert answer["statistics"] == alone[0]["statistics"]
        assert answer["statistics"]["1.num_batches_tracked"] == [12]


def test_a_state_serves_one_model() -> None:
    def backup(state: SaAtpState) -> BackupCompute:
        return BackupCompute(nn.Linear(2, 1), nn.functional.mse_loss, lambda step, rank: (None, None), state=state)

    state = SaAtpState("udp://127.0.0.1:9", job="night", rank=0, world_size=2, help="steal")
    with pytest.raises(UserError, match="no parameter that requires"):
        BackupCompute(nn.Flatten(), nn.functional.mse_loss, lambda step, rank: (None, None), state=state)
    backup(state)
    with pytest.raises(
        UserError, match=r"the state of job 'night' already: .*from_env\(help='steal', job=\"night, 2\"\)"
    ):
        backup(state)
    state.close()
    backup(state)  # joins anew


@pytest.mark.parametrize("device", DEVICES)
def test_same_as_ddp(ranks: Ranks, device: str) -> None:
    for answer in ranks.run("against_ddp", 3, module=MODULE, micro_batches=1, device=device):
        assert max(answer.values()) < (1e-6 if device == "cpu" else 1e-5)


def test_micro_batches_are_parts_of_the_mean(ranks: Ranks) -> None:
    for answer in ranks.run("against_ddp", 2, module=MODULE, micro_batches=3):  # 8 samples: 2, 3 and 3
        assert answer["gradient"] < 1e-6
        assert answer["loss"] < 1e-6
