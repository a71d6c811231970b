"""Processes of a run: errors name the process that failed, at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.descendants import command_of, descendants
from helpers.plans import small_plan

from sa_atp.lab.backends import local
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import with_lanes
from sa_atp.lab.runs.processes import STOPPED_S, Group, Process, ProcessError, stopped, wait_for
from sa_atp.lab.runs.progress import Progress

IDLE = ["-c", "import time; print('{}', flush=True); time.sleep(600)"]
PYTHON = (sys.executable,)
LONG_S = 100.0


def pid_of(process: Process) -> int:
    return process._process.pid


@pytest.fixture
def group(tmp_path: Path) -> "Starter":
    return Starter(tmp_path)


class Starter:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, group: Group, name: str, code: list[str] = IDLE, **options: object) -> Process:
        process = group.start(name, code, self.folder / f"{name}.log", program=PYTHON)
        if code is IDLE:
            assert process.answer(LONG_S) == {}
        return process


def test_waiting_fails_if_a_needed_process_ends(group: Starter) -> None:
    with Group(together=True) as together:
        needed, waited_for = group.start(together, "needed"), group.start(together, "waited for")
        os.kill(pid_of(needed), signal.SIGKILL)
        with pytest.raises(ProcessError, match=r"^needed ended with status -9 \(SIGKILL\); command: "):
            waited_for.answer(LONG_S)


def test_a_process_may_be_started_again_three_times(group: Starter, capfd: pytest.CaptureFixture[str]) -> None:
    with Group(together=True) as together:
        needed, waited_for = group.start(together, "needed"), group.start(together, "waited for")
        needed.may_start_again(["-c", "import sys; print('last words', file=sys.stderr); sys.exit(7)"])
        os.kill(pid_of(needed), signal.SIGKILL)
        with pytest.raises(ProcessError, match=r"^needed ended with status 7; it was started again 3 times") as failed:
            waited_for.answer(LONG_S)
    assert str(failed.value).count("    last words") == 3
    told = capfd.readouterr().err.splitlines()
    assert told == [
        "sa-atp: needed ended with status -9 (SIGKILL), and is started again: jobs go on",
        *["sa-atp: needed ended with status 7, and is started again: jobs go on"] * 2,
    ]


def test_output_before_the_end_is_read(group: Starter) -> None:
    with Group(together=True) as together:
        group.start(together, "other")
        brief = group.start(together, "brief", ["-c", "print('{\"done\": true}')"])
        assert brief.answer(LONG_S) == {"done": True}
        with pytest.raises(ProcessError, match=r"^brief ended with status 0"):
            brief.answer(LONG_S)


def test_a_process_ended_on_purpose_is_not_missed(group: Starter) -> None:
    with Group(together=True) as together:
        done, other = group.start(together, "done"), group.start(together, "other")
        done.end()
        assert wait_for([other], 0.0) == []


def test_processes_that_are_not_needed_may_end(group: Starter) -> None:
    with Group() as loose:
        one, other = group.start(loose, "one"), group.start(loose, "other")
        os.kill(pid_of(one), signal.SIGKILL)
        assert wait_for([other], 0.0) == []
        with pytest.raises(ProcessError, match=r"^one ended"):
            one.answer(LONG_S)


def test_a_stopped_process_is_named_and_can_continue(group: Starter, capsys: pytest.CaptureFixture[str]) -> None:
    with Group(together=True) as together:
        still, other = group.start(together, "the one"), group.start(together, "other")
        os.kill(pid_of(still), signal.SIGSTOP)
        said = f"the one is stopped: `kill -CONT {pid_of(still)}` lets it go on"
        until = time.monotonic() + LONG_S
        while said not in capsys.readouterr().err:
            assert time.monotonic() < until
            wait_for([other], STOPPED_S / 5)
        assert stopped([other]) == f"; {said}"
        with pytest.raises(ProcessError, match=r"^the one wrote nothing for 0 s; the one is stopped: `kill -CONT"):
            still.answer(0.0)
        os.kill(pid_of(still), signal.SIGCONT)
        while stopped([other]):
            assert time.monotonic() < until


def test_a_full_disk_for_logs_ends_no_process(tmp_path: Path) -> None:
    """The disk may be full from the start, or later."""
    (tmp_path / "log").symlink_to("/dev/full")
    with Group() as group:
        arguments = ["sa_atp", "switch", "none", "--grpc", "127.0.0.1:0"]
        assert group.start("switch", arguments, tmp_path / "log").answer(LONG_S)["ready"]


def test_a_log_that_cannot_be_read_is_told(group: Starter) -> None:
    with Group() as loose:
        process = group.start(loose, "one")
        process.log.unlink()
        os.kill(pid_of(process), signal.SIGKILL)
        with pytest.raises(ProcessError, match=r"its log .*one.log cannot be read: No such file or directory"):
            process.answer(LONG_S)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
from sa_atp.cli import main
sys.exit(main(["up", "--listen", "127.0.0.1:0", "--", "true"]))
"""


@pytest.mark.parametrize("files", [4, 8])
def test_too_few_files_are_told_in_a_line(files: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(files)], capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"too many open files: a process may have {files} (ulimit -n)" in done.stderr


# --- real runs ------------------------------------------------------------------------------------------------------------


class Assassin(Progress):
    """Kills a process of a run when the run reports a stage."""

    def __init__(self, victim: str, when: str) -> None:
        """Args: victim: text in its command; when: text in the report."""
        self.victim, self.when = victim, when

    def __call__(self, stage: str) -> None:
        if self.when in stage:
            self.kill()

    def steps(self, done: int, of: int, unit: str = "steps") -> None:
        if self.when == "step":
            self.kill()

    def kill(self) -> None:
        for pid in descendants(os.getpid()):
            if self.victim in command_of(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("policy", "victim", "when", "named"),
    [
        ("atp", "sa_atp ps", "step", "parameter server ended with status -9"),
        ("ssp", "sa_atp params", "repetition 1", "server of parameters ended with status -9"),
    ],
)
def test_a_service_that_dies_in_a_run_is_named(policy: str, victim: str, when: str, named: str, tmp_path: Path) -> None:
    """The error does not name the workers or the network, which fail a minute later because of it."""
    plan = with_lanes(plan_files.parse(small_plan(run={"policies": [policy], "steps": 50, "backend": "local"}), "here"))
    with pytest.raises(ProcessError, match=named):
        local.run(plan, tmp_path, Assassin(victim, when))


def test_a_switch_that_dies_in_a_run_is_started_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan = with_lanes(plan_files.parse(small_plan(run={"policies": ["atp"], "steps": 50, "backend": "local"}), "here"))
    [run] = local.run(plan, tmp_path, Assassin("sa_atp switch", "repetition 1"))
    assert run.sums_checked > 0
    assert run.sums_wrong == 0
    assert "sa-atp: switch ended with status -9 (SIGKILL), and is started again: jobs go on" in capfd.readouterr().err
