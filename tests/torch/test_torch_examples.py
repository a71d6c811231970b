"""Every example runs, and learns."""

import socket
from pathlib import Path
from typing import Any

import pytest
from rank_pool import Ranks


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def run(ranks: Ranks, world_size: int, name: str, *arguments: str) -> Any:
    return ranks.run(
        "run", world_size, module="example_runner", backend="", name=name, arguments=list(arguments), port=free_port()
    )[0]


@pytest.mark.parametrize(
    ("name", "world_size", "arguments"),
    [
        ("ddp_digits.py", 2, ["--epochs", "3"]),
        ("transformer_text.py", 2, ["--steps", "30", "--width", "32", "--batch-size", "8"]),
        ("fsdp2.py", 2, ["--steps", "40"]),
        ("custom_loop.py", 3, ["--steps", "40"]),
    ],
)
def test_example_learns(ranks: Ranks, name: str, world_size: int, arguments: list[str]) -> None:
    losses = run(ranks, world_size, name, *arguments)["losses"]
    assert losses[-1] < 0.85 * losses[0]


def test_help(ranks: Ranks) -> None:
    arguments = ["--steps", "8", "--ms-per-sample", "4", "--batch-size", "32"]
    alone = run(ranks, 4, "ddp_digits_help.py", "--no-help", *arguments)
    helped = run(ranks, 4, "ddp_digits_help.py", *arguments)
    assert helped["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert sum(rank["helped"] for rank in helped["ranks"]) >= 4
    assert helped["ranks"][3]["abandoned"] >= 4
    assert sum(rank["helped"] for rank in alone["ranks"]) == 0


def test_continues_from_a_checkpoint(ranks: Ranks, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "digits.pt")
    first = run(ranks, 2, "ddp_digits.py", "--epochs", "1", "--checkpoint", checkpoint)
    second = run(ranks, 2, "ddp_digits.py", "--epochs", "2", "--checkpoint", checkpoint)
    assert (first["first_epoch"], second["first_epoch"]) == (0, 1)
    assert second["losses"][0] < first["losses"][0]
