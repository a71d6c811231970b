"""p4runtime-shell, unchanged, against both targets."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import P4, Switch


@pytest.fixture
def answers(switch: Switch) -> dict[str, Any]:
    script = Path(__file__).with_name("shell_script.py")
    done = subprocess.run(
        [sys.executable, str(script), switch.address, str(switch.device_id), str(P4)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.needs("p4runtime_sh")
def test_the_shell_drives_tables_groups_counters_and_packets(answers: dict[str, Any]) -> None:
    tables = answers["tables"]
    route, filtered = tables["entries"]
    assert 'metadata: "mine"' in route
    assert r'value: "\n\000\001\000"' in route
    assert r'value: "\010"' in route  # the port, as modified
    assert "priority: 10" in filtered
    assert tables["again"]
    assert tables["counted"] == [[5, 6]]
    assert tables["left"] == 0
    assert tables["const"] == ["46", "50"]
    assert tables["defaults"] == ["RouterIngress.flood"]
    assert answers["groups_and_counters"] == {
        "replicas": [[1, 1], [2, 1], [2, 1000], [3, 1]],
        "gone": True,
        "one": [[4, 10, 20]],
        "all": 256,
    }
    assert answers["packets"] == {
        "payload": bytes(range(20)).hex(),
        "metadata": {"1": "012c", "2": "00", "3": "88b5"},
    }
