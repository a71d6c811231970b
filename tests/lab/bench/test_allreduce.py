"""`sa-atp bench allreduce`: a short run with all its processes."""

import argparse
import json
from pathlib import Path

import pytest

from sa_atp.lab.bench import allreduce, allreduce_sizes


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    allreduce.add_arguments(parser)
    return allreduce.run(parser.parse_args([*arguments, "--json"]))


def test_all_reduce_of_the_requested_size(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--workers", "2", "--mbytes", "0.1", "--iterations", "2", "--lanes", "64") == 0
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


def test_sizes_side_by_side(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allreduce_sizes, "MOST_SUMS", 5)
    figure = tmp_path / "sizes.png"
    arguments = ("--workers", "2", "--sizes", "4,40000", "--iterations", "3", "--figure", str(figure))
    assert run(*arguments) == 0
    found = json.loads(capfd.readouterr().out)
    assert [(each["bytes"], each["iterations"], each["sums_wrong"]) for each in found["sizes"]] == [
        (4, 5, 0),
        (40_000, 5, 0),
    ]
    for each in found["sizes"]:
        assert 0 < each["p50_ms"] <= each["longest_ms"]
        assert each["p99_ms"] is None
        assert set(each["cpu_s_per_gbyte_by_process"]) == {"workers", "switch", "parameter server"}
    assert figure.read_bytes().startswith(b"\x89PNG")
    allreduce_sizes.print_table(found)
    assert "p99" in capfd.readouterr().out
