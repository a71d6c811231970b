"""Recipes for libraries that make the training loop: each runs as its first lines say, and learns.

scripts/test --recipes makes an environment that has these libraries. torchft needs one of its own, see docs/pytorch.md.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "examples" / "recipes"
LIMIT_S = 300.0
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

pytestmark = pytest.mark.recipes


def lines(python: str, *arguments: str) -> list[dict[str, Any]]:
    """Runs a program under `sa-atp up`. Args: python: of the program. Returns: what it prints as JSON."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sa_atp", "up", "--", python, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        pytest.param("lightning", [], marks=pytest.mark.needs("lightning"), id="lightning, hook"),
        pytest.param("lightning", ["--backend"], marks=pytest.mark.needs("lightning"), id="lightning, backend"),
        pytest.param("accelerate", [], marks=pytest.mark.needs("accelerate"), id="accelerate"),
        pytest.param("trainer", [], marks=pytest.mark.needs("transformers", "accelerate"), id="trainer"),
    ],
)
def test_recipe_learns(name: str, arguments: list[str]) -> None:
    (found,) = lines(sys.executable, *TORCHRUN, str(RECIPES / f"{name}_digits.py"), *arguments)
    assert found["ranks"] == 2
    assert found["losses"][-1] < 0.5 * found["losses"][0]


@pytest.mark.needs("torchft")
def test_replicas_of_torchft_come_and_go() -> None:
    """Replica 1 is killed; the other one goes on alone. Whether it is back before the end is a matter of time."""
    python = os.environ["SA_ATP_TORCHFT"]
    first, second = sorted(
        lines(python, str(RECIPES / "torchft_digits.py"), "--steps", "120"), key=lambda found: found["replica"]
    )
    assert {1, 2} == set(first["replicas"])
    for found in (first, second):
        assert found["losses"][-1] < 0.5 * first["losses"][0]
