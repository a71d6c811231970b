"""`sa-atp bench scale`, small."""

import json
from pathlib import Path

import pytest

from sa_atp.cli import main
from sa_atp.lab.bench import scale


def test_policies_by_number_of_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scale", "--workers", "4,64", "--steps", "6", "--json", "--out", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    time = {(p["policy"], p["workers"], bool(p["stragglers"])): p["iteration_time_s"] for p in printed["points"]}
    assert len(time) == 20
    assert time["ps", 64, False] > 10 * time["ps", 4, False]  # its link carries what all send
    # the switch adds up what all send; a bitmap of 512 bits is 56 bytes more in each packet
    assert time["atp", 64, False] == pytest.approx(time["atp", 4, False], rel=0.04)
    assert time["atp", 64, False] < time["ring", 64, False]
    assert time["sa-atp", 4, True] < 0.8 * time["atp", 4, True]
    assert time["sa-atp", 64, True] < 0.8 * time["atp", 64, True]
    assert time["sa-atp+boa", 64, True] < 0.9 * time["sa-atp", 64, True]  # whose stragglers do one of four pieces, late
    for point in printed["points"]:
        assert point["iteration_time_s"] > point["shortest_s"]
    assert (tmp_path / scale.FIGURE).read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "scale.json").read_text()) == printed


def test_runs_with_hundreds_of_workers_on_one_server_end() -> None:
    """The server's link carries all gradients, so that steps take longer than the plan's other bounds."""
    point = scale.measure("ps", 256, scale.WARM_UP + 1, stragglers=False)
    assert point.iteration_time_s > 20
