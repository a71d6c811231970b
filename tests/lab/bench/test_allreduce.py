"""`sa-atp bench allreduce`: a short run with all its processes."""

import json
from pathlib import Path
from typing import Any

import pytest

from sa_atp.cli import main
from sa_atp.lab.bench import allreduce, allreduce_sizes


def test_all_reduce_of_the_requested_size(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--workers", "2", "--mbytes", "0.1", "--iterations", "2", "--lanes", "64", "--json"]
    assert main(["bench", "allreduce", *words]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["workers"], found["bytes"], found["iterations"], found["lanes"]) == (2, 100_000, 2, 64)
    assert found["sums_wrong"] == 0
    assert found["goodput_mbps"] > 0
    assert 0 < found["p50_ms"] <= found["longest_ms"]
    assert found["p99_ms"] is None  # of two sums
    assert (
        sum(found["memory"][part] for part in ("before_mb", "arrays_mb", "transport_mb")) >= found["memory"]["peak_mb"]
    )
    assert found["memory"]["arrays_mb"] == 0.3
    assert found["peer"] is None


def test_cpu_times_have_their_unit(capfd: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = dict.fromkeys(("peer", "limit_mbps", "ratio_to_peer"))
    found |= dict.fromkeys(
        ("goodput_mbps", "cpu_s_per_gbyte", "bytes", "workers", "lanes", "iterations", "sums_wrong"), 1
    )
    found |= {"switch": "embedded", "shares_memory": False}
    found["cpu_s_per_gbyte_by_process"] = {"workers": {"own_s": 1.5, "kernel_s": 0.25}}
    found["memory"] = dict.fromkeys(("peak_mb", "arrays_mb", "transport_mb", "before_mb"), 1)
    allreduce._print(found)
    said = "CPU of workers, per GB and worker: 1.50 s in its own code, 0.25 s in the kernel"
    assert said in capfd.readouterr().out


def test_sizes_side_by_side(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allreduce_sizes, "MOST_SUMS", 5)
    figure = tmp_path / "sizes.png"
    words = ["--workers", "2", "--sizes", "4,40000", "--iterations", "3", "--figure", str(figure), "--json"]
    words += ["--against", "switchml"]
    assert main(["bench", "allreduce", *words]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [(each["bytes"], each["iterations"], each["sums_wrong"]) for each in found["sizes"]] == [
        (4, 5, 0),
        (40_000, 5, 0),
    ]
    for each in found["sizes"]:
        assert 0 < each["p50_ms"] <= each["longest_ms"]
        assert each["p99_ms"] is None
        assert set(each["cpu_s_per_gbyte_by_process"]) == {"workers", "switch", "parameter server"}
        assert (each["peer"]["name"], each["peer"]["lanes"]) == ("switchml", 256)
    assert figure.read_bytes().startswith(b"\x89PNG")
    allreduce_sizes.print_table(found)
    assert "p99" in capfd.readouterr().out
