"""Processes that are forked from one that has imported what they need."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sa_atp.lab.runs import nursery
from sa_atp.lab.runs.processes import Group, Process, ProcessError

TELLS = """
import json, os, random, sys
print("said to the log", file=sys.stderr)
print(json.dumps({
    "argv": sys.argv[1:], "folder": os.getcwd(), "mark": os.environ.get("MARK"), "name": __name__,
    "loaded": "sa_atp.net.parameter_server.server" in sys.modules, "random": random.random(),
}), flush=True)
for line in sys.stdin:
    sys.exit(int(line))
"""
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tells.py").write_text(TELLS)
    monkeypatch.chdir(tmp_path)


def start(group: Group, *arguments: str, environment: dict[str, str] | None = None) -> Process:
    return group.start("teller", ["tells", *arguments], Path("teller.log").absolute(), environment, forked=())


def test_a_forked_process_is_as_one_that_is_started(tmp_path: Path) -> None:
    with Group() as group:
        process = start(group, "one", "two", environment={"MARK": "set"})
        said = process.answer(WAIT_S)
        assert said.pop("loaded") is True
        other = start(group).answer(WAIT_S)
        assert said.pop("random") != other["random"]
        assert said == {"argv": ["one", "two"], "folder": str(tmp_path), "mark": "set", "name": "__main__"}
        assert other["mark"] is None
        number = process._process.pid
        assert os.getsid(number) == number
        assert Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")[1:5] == [b"-m", b"tells", b"one", b"two"]


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (lambda process: process.say("0"), "status 0"),
        (lambda process: process.say("3"), "status 3"),
        (lambda process: os.kill(process._process.pid, signal.SIGKILL), r"status -9 \(SIGKILL\)"),
    ],
)
def test_its_status_is_known_at_its_end(end: Callable[[Process], None], says: str) -> None:
    with Group() as group:
        process = start(group)
        process.answer(WAIT_S)
        process.check()
        end(process)
        with pytest.raises(ProcessError, match=f"teller ended with {says}"):
            process.line(WAIT_S)
        assert "said to the log" in process.log.read_text()


def test_a_module_that_is_not_there_is_named_in_the_log() -> None:
    with Group() as group:
        process = group.start("nobody", ["no_such_module"], Path("nobody.log"), forked=())
        with pytest.raises(ProcessError, match=r"nobody ended with status 1[\s\S]*No module named no_such_module"):
            process.line(WAIT_S)


def test_without_its_nursery_a_process_ends() -> None:
    with Group() as group:
        process = start(group, environment={"A_NURSERY": "of its own"})
        process.answer(WAIT_S)
        ((_, kept),) = [each for each in nursery._kept.items() if ("A_NURSERY", "of its own") in each[0][1]]
        kept._process.kill()
        with pytest.raises(ProcessError, match="SIGKILL"):
            process.line(WAIT_S)
        assert start(group, environment={"A_NURSERY": "of its own"}).answer(WAIT_S)["loaded"], "there is another one"


def test_a_nursery_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It has no log of its own."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no Python today >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with Group() as group, pytest.raises(ProcessError, match=r"teller[\s\S]*no Python today"):
        start(group, environment={"A_NURSERY": "that fails"}).line(WAIT_S)


def test_nothing_is_left_of_a_program_that_is_killed(tmp_path: Path) -> None:
    program = """
        from pathlib import Path
        from sa_atp.lab.runs.processes import Group
        with Group() as group:
            process = group.start("teller", ["tells"], Path("teller.log"), forked=())
            process.answer(60.0)
            print(process._process.pid, flush=True)
            process.line(600.0)
        """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        number = int(killed.stdout.readline())
        killed.kill()
    deadline = time.monotonic() + WAIT_S
    while Path(f"/proc/{number}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
