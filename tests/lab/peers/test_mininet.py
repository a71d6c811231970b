"""Other protocols' programs in Mininet: they have a network of their own, after the others."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.needs import MININET
from helpers.plans import small_plan

from sa_atp.basics.errors import UserError
from sa_atp.lab.backends.mininet import parts, run
from sa_atp.lab.plans import plan_files

PLAN: dict[str, Any] = {
    "run": {"policies": ["switchml", "atp"], "steps": 3, "backend": "mininet"},
    "topology": {"workers": 3, "link_mbps": 50},
    "network": {"loss": 0.01},
}


def sa_atp(folder: Path, *arguments: str) -> Any:
    """What a command prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "sa_atp", *arguments, "--json"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@MININET
@pytest.mark.needs("iperf3")
def test_a_run_with_loss_and_background_traffic(tmp_path: Path) -> None:
    """SwitchML's program forwards the traffic, and hosts without a program of ours find one another."""
    (tmp_path / "plan.toml").write_text(small_plan(**PLAN, traffic={"udp_mbps": 5}))
    found = sa_atp(tmp_path, "run", "plan.toml", "--out", "out")
    sums = {name: (each["sums_checked"], each["sums_wrong"]) for name, each in found["policies"].items()}
    assert sums == {"switchml": (9, 0), "atp": (9, 0)}


@MININET
def test_the_benchmark(tmp_path: Path) -> None:
    options = ["--backend", "mininet", "--link-mbps", "100", "--mbytes", "1", "--workers", "2", "--iterations", "2"]
    found = sa_atp(tmp_path, "bench", "allreduce", *options, "--lanes", "64", "--against", "switchml")
    assert found["sums_wrong"] == 0
    assert (found["peer"]["name"], found["peer"]["lanes"]) == ("switchml", 64)
    assert 0 < found["peer"]["goodput_mbps"] < 100


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("job.jobs=2", "switchml: job.jobs = 2: its switch has one job at a time"),
        ("traffic.udp_mbps=5", "switchml: its switch program does not forward the plan's background traffic"),
    ],
)
def test_plans_that_it_cannot_run(override: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "require", lambda *_, **__: None)  # as on a machine that has Mininet
    monkeypatch.setattr("sa_atp.lab.peers.switchml.SwitchMl.forwards", False)
    plan = plan_files.parse(small_plan(**PLAN), "here", [override])
    with pytest.raises(UserError, match=said):
        run.check(plan, Path("here"))
