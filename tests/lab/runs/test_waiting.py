"""Waiting for a process: notices name it, and its timeout counts its own CPU time."""

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sa_atp.basics import waiting
from sa_atp.lab.runs import processes
from sa_atp.lab.runs.processes import Group, ProcessError

WAITS = """
import sys
print("sa-atp test: reading", file=sys.stderr, flush=True)
print("a warning: of somebody else", file=sys.stderr, flush=True)
print(sys.stdin.readline().strip(), flush=True)
"""
COMPUTES = """
import select, sys
while not select.select([sys.stdin], [], [], 0)[0]:
    pass
print('{"done": true}', flush=True)
"""
SLEEPS = "import time; time.sleep(600)"
PYTHON = ["-c"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TICK_S", 0.02)
    monkeypatch.setattr(processes, "SHARE_EVERY_S", 0.05)
    for name, value in {"SILENCE_S": 0.0, "LOOK_EVERY_S": 0.02, "SAID_AGAIN_S": (), "THEN_EVERY_S": 0.05}.items():
        monkeypatch.setattr(waiting, name, value)


def program(group: Group, text: str, folder: Path) -> processes.Process:
    return group.start("helper", [text], folder / "helper.log", program=[sys.executable, *PYTHON])


def after_20_notices(act: Callable[[], None]) -> Callable[[str], None]:
    heard = itertools.count(1)
    return lambda _: act() if next(heard) == 20 else None


def test_waiting_reports_the_process_and_its_activity(tmp_path: Path) -> None:
    said: list[str] = []

    def hear(text: str) -> None:
        said.append(text)
        if text.endswith(": reading"):
            process.tell({"heard": len(said)})  # it has been waiting for this all the time

    with Group(hear) as group:
        process = program(group, WAITS, tmp_path)
        heard = process.answer(60.0)["heard"]
    assert said[heard - 1].endswith(": reading")  # on a busy machine more is said before its answer comes
    assert said.count("waiting for helper: reading") == 1
    again = [text for text in said if not text.endswith(", 0 s so far")]
    assert set(said) <= {*again, *(f"{text}, 0 s so far" for text in again)}
    assert set(again) <= {"waiting for helper: it is starting", "waiting for helper: reading"}


def test_timeouts_count_cpu_time_of_computing_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LEAST_SHARE", 0.0)  # this machine may be busy
    with Group(after_20_notices(lambda: process.tell({}))) as group:  # twice as many as there are within the time
        process = program(group, COMPUTES, tmp_path)
        monkeypatch.setattr(process, "cpu_s", lambda: 0.0)  # the others have the processors
        assert process.answer(0.5) == {"done": True}


def test_a_process_may_wait_for_another_that_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the code that it compiles, under a lock."""
    monkeypatch.setattr(processes, "LEAST_SHARE", 0.0001)
    with Group(after_20_notices(lambda: process.tell({"done": True}))) as group:  # later than its timeout
        sibling = program(group, SLEEPS, tmp_path)
        monkeypatch.setattr(sibling, "cpu_s", time.monotonic)
        process = group.start("helper", [WAITS], tmp_path / "waits.log", program=[sys.executable, *PYTHON])
        assert process.answer(0.5) == {"done": True}


def test_timeouts_count_wall_time_of_idle_processes(tmp_path: Path) -> None:
    with Group() as group:
        process = program(group, SLEEPS, tmp_path)
        with pytest.raises(
            ProcessError, match=r"helper wrote nothing for 1 s; command: .*its log .*helper\.log ends with"
        ):
            process.answer(0.6)


def test_timeouts_of_computing_processes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LEAST_SHARE", 0.0)
    with Group() as group:
        process = program(group, COMPUTES, tmp_path)
        with pytest.raises(ProcessError, match="wrote nothing for 0 s"):
            process.answer(0.3)
