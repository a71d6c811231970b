"""Runs in Mininet from the command line, small: right sums on two levels, counted links, and nothing left behind.

They need root and Mininet, and are skipped where those are missing, with a line that says how to get them.
"""

import contextlib
import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from helpers.descendants import command_of, descendants
from helpers.needs import MININET

from sa_atp.basics import needs
from sa_atp.lab.backends.mininet import cgroups, cleaning, parts

PLAN = """
[run]
steps = {steps}
warm_up = 1
policies = ["atp", "sa-atp"]
backend = "mininet"
[topology]
kind = "two-level"
workers = 3
racks = 2
link_mbps = 50
delay_us = 0
[switch]
lanes = 64
[job]
model = "resnet-50"
model_scale = 0.001
batch_size = 8
micro_batches = 4
compute_us_per_sample = {compute_us}
[straggler]
workers = [2]
"""
START_S = 100.0
INTERFACE = re.compile(r"(w[0-9]+|s1|leaf[0-9]+|ps)-eth[0-9]+")


pytestmark = MININET


def traces(run: "subprocess.Popen[str]") -> set[str]:
    """Objects of a run on the machine: processes, control groups, folders, and interfaces outside of namespaces."""
    found = {path.name for path in Path("/sys/class/net").iterdir() if INTERFACE.fullmatch(path.name)}
    found |= {path.name for path in Path(tempfile.gettempdir()).glob(f"{cleaning.FOLDER_PREFIX}{run.pid}-*")}
    found |= {path.name for path in cgroups.base().glob(f"{cgroups.PREFIX}{run.pid}-*")}
    mark = f"\0{cleaning.OWNER}={run.pid}:".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if mark in b"\0" + (entry / "environ").read_bytes():
                    found.add(f"{entry.name} {(entry / 'cmdline').read_bytes()[:80]!r}")
    return found


def left_by(run: "subprocess.Popen[str]", patience_s: float = 20.0) -> set[str]:
    """Objects that are left after a run; processes get some time to end."""
    deadline = time.monotonic() + patience_s
    while (found := traces(run)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def start(
    folder: Path, *options: str, steps: int = 3, compute_us: int = 2000, said: IO[str] | int = subprocess.PIPE
) -> "subprocess.Popen[str]":
    """Starts a run. Args: said: file for its standard error."""
    (folder / "plan.toml").write_text(PLAN.format(steps=steps, compute_us=compute_us))
    return subprocess.Popen(
        [sys.executable, "-m", "sa_atp", "run", "plan.toml", "--out", "out", "--json", *options],
        cwd=folder, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.fixture
def endless(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[str]"]:
    """A run in the middle of its first policy. It may be given options by the test's parameters."""
    with (tmp_path / "said").open("w") as said_file:
        run = start(tmp_path, *getattr(request, "param", ()), steps=10_000, said=said_file)
    try:
        deadline = time.monotonic() + START_S
        while "atp, repetition 1" not in (said := (tmp_path / "said").read_text()):
            assert run.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.1)
        yield run
    finally:
        if run.poll() is None:
            run.kill()
        run.communicate()


def test_sums_are_right_on_two_levels_and_each_rack_sends_one_stream(tmp_path: Path) -> None:
    run = start(tmp_path, steps=4, compute_us=4000)
    out, err = run.communicate(timeout=240)
    assert run.returncode == 0, err
    summary: dict[str, Any] = json.loads(out)
    for policy in summary["policies"].values():
        assert policy["sums_checked"] == 4 * 3
        assert policy["sums_wrong"] == 0
    atp = summary["policies"]["atp"]
    # headers of other packets, joining and probes come on top; two workers of rack 1 unsummed would be 2
    assert 0.95 < atp["streams_per_link"]["leaf1-s1"] < 1.5
    assert atp["streams_per_link"].keys() == {"leaf1-s1", "leaf2-s1"}
    assert summary["policies"]["sa-atp"]["help"]["micro_batches"] > 0
    assert not left_by(run)


def test_the_prompt_before_and_after_the_steps(tmp_path: Path) -> None:
    """On a terminal the prompt shows the running network: its nodes, and a command on a host before and after the run."""
    (tmp_path / "plan.toml").write_text(PLAN.format(steps=2, compute_us=2000))
    said = "nodes\nw0 echo before\nexit\nw0 echo after\nexit\n"
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "sa_atp", "run", "plan.toml", "--cli", "--out", "out", "--set", 'run.policies=["sa-atp"]'],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=theirs, stderr=theirs, text=True, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    assert run.stdin is not None
    run.stdin.write(said)
    run.stdin.close()
    shown = b""
    with contextlib.suppress(OSError):  # the other side is closed
        while more := os.read(ours, 1 << 16):
            shown += more
    os.close(ours)
    out = shown.decode().replace("\r", "")
    assert run.wait(240) == 0, out
    assert re.search(r"^leaf1 leaf2 ps s1 w0 w1 w2 *$", out, re.M), out
    first, steps, second = (out.index(text) for text in ("before\n", "sa-atp, repetition 1 of 1", "after\n"))
    assert first < steps < second
    assert out.count("mininet> ") == 5
    assert not left_by(run)


def test_a_slow_link_carries_no_faster_than_its_rate(tmp_path: Path) -> None:
    """Workers send super-packets: a link must not pass a whole one at the time of its first byte."""
    slow = ("topology.kind=star", "topology.worker_mbps=[50,50,2]", "switch.lanes=256", "straggler.pattern=none")
    policy = ("--set", 'run.policies=["atp"]')
    run = start(tmp_path, *policy, *(text for each in slow for text in ("--set", each)), steps=6, compute_us=4000)
    _, err = run.communicate(timeout=240)
    assert run.returncode == 0, err
    with (tmp_path / "out" / "iterations.csv").open() as file:
        steps = [float(row["iteration_s"]) for row in csv.DictReader(file) if row["worker"] == "2"]
    computing_s, on_the_link_s = 8 * 0.004, 25_557 * 4 * 8 / 2e6  # of the values alone
    assert len(steps) == 6
    assert min(steps) > computing_s + on_the_link_s


def test_parameters_live_on_a_server_of_the_network(tmp_path: Path) -> None:
    names = ["ssp", "flexrr", "dynsgd", "falcon"]
    run = start(tmp_path, "--set", f"run.policies={names}", steps=3, compute_us=4000)
    out, err = run.communicate(timeout=240)
    assert run.returncode == 0, err
    summary: dict[str, Any] = json.loads(out)
    assert list(summary["policies"]) == names
    for policy in summary["policies"].values():
        assert policy["iterations"] == 3
        assert policy["sums_checked"] >= 3
        assert policy["sums_wrong"] == 0
    assert not left_by(run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_an_ended_run_leaves_nothing(endless: "subprocess.Popen[str]", number: signal.Signals) -> None:
    assert len(traces(endless)) >= 3 + 3 + 1 + 7  # workers, switches, server, and the shells of seven nodes
    endless.send_signal(number)
    endless.wait(60)
    if number == signal.SIGKILL:  # it could not clean up: what its processes do not take with them is left for this
        subprocess.run([sys.executable, "-m", "sa_atp", "clean"], check=True, capture_output=True, timeout=60)
    assert not left_by(endless)


@pytest.mark.needs("iperf3")
@pytest.mark.parametrize(
    "endless", [("--set", "straggler.by=congestion", "--set", "straggler.slowdown=2")], indirect=True
)
def test_a_run_whose_straggler_is_no_longer_slowed_fails(endless: "subprocess.Popen[str]", tmp_path: Path) -> None:
    deadline = time.monotonic() + START_S
    while not (streams := [pid for pid in descendants(endless.pid) if command_of(pid).startswith("iperf3 --time")]):
        assert time.monotonic() < deadline, (tmp_path / "said").read_text()
        time.sleep(0.1)
    os.kill(streams[0], signal.SIGTERM)
    assert endless.wait(60) == 1
    assert "iperf3 udp w2 to t2 ended with status" in (tmp_path / "said").read_text()


@pytest.mark.skipif(needs.find(parts.BMV2) is not None, reason="BMv2 is here: it would run")
def test_without_bmv2_one_line_says_so(tmp_path: Path) -> None:
    run = start(tmp_path, "--switch", "bmv2")
    _, err = run.communicate(timeout=60)
    assert run.returncode == 3
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert "BMv2 is not installed" in lines[0]
    assert "--switch embedded" in lines[0]
