"""Concurrent points: in processes, on a Dask cluster with a worker that is killed, and after an interruption."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.lab.runs.points import Kept, Point, run
from sa_atp.lab.runs.processes import Group

HERE = Path(__file__).parent
PATIENCE_S = 120.0


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets processes import point_works."""
    path = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)


def squares(count: int) -> list[Point]:
    return [Point(f"point {n}", "point_works:square", n) for n in range(count)]


def careful(count: int, folder: Path, **more: Any) -> list[Point]:
    return [
        Point(f"point {n}", "point_works:careful", {"number": n, "folder": str(folder), **more}) for n in range(count)
    ]


def begun(folder: Path, number: int | str = "*") -> list[Path]:
    return sorted(folder.glob(f"begun-{number}-*"))


def wait_until(what: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- on this machine --------------------------------------------------------------------------------------------------


def test_results_of_all(tmp_path: Path) -> None:
    found = {point.name: result for point, result in run(squares(5), tmp_path, jobs=2)}
    assert found == {f"point {n}": n * n for n in range(5)}
    assert len(list(tmp_path.glob("process-*.log"))) == 2
    assert "not an answer" in (tmp_path / "process-1.log").read_text()


def test_a_process_that_dies_costs_its_point_another_try(tmp_path: Path) -> None:
    points = [*squares(3), Point("the mortal", "point_works:dies", str(tmp_path))]
    found = {point.name: result for point, result in run(points, tmp_path, jobs=2)}
    assert found == {"point 0": 0, "point 1": 1, "point 2": 4, "the mortal": "alive"}


@pytest.mark.parametrize(
    ("work", "kind", "says"),
    [
        ("point_works:always_dies", SaAtpError, "it: its process died 2 times: process 2 ended with status -9"),
        ("point_works:refuses", UserError, "it: tea is not accepted"),
        ("point_works:has_a_bug", SaAtpError, "ZeroDivisionError"),
        ("nowhere:nothing", SaAtpError, "No module named 'nowhere'"),
    ],
)
def test_points_that_fail(tmp_path: Path, work: str, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=re.escape(says)) as found:
        list(run([Point("it", work, "tea")], tmp_path, jobs=2))
    assert type(found.value) is kind


# --- kept -------------------------------------------------------------------------------------------------------------


def test_goes_on_after_an_interruption(tmp_path: Path) -> None:
    points = careful(4, tmp_path)
    kept = Kept(tmp_path / "kept", "today")
    interrupted = kept.run(points)
    assert [next(interrupted)[1] for _ in range(2)] == [0, 1]
    interrupted.close()
    (tmp_path / "kept" / "point-3-x.json").write_text("cut o")
    assert [(point.name, result) for point, result in kept.run(points)] == [
        ("point 0", 0), ("point 1", 1), ("point 2", 4), ("point 3", 9),
    ]  # fmt: skip
    assert [len(begun(tmp_path, n)) for n in (0, 1, 3)] == [1, 1, 1]
    assert [result for _, result in kept.run(points)] == [0, 1, 4, 9]
    assert len(begun(tmp_path, 3)) == 1


def test_what_has_changed_is_computed_again(tmp_path: Path) -> None:
    points = careful(1, tmp_path)
    for kept in (Kept(tmp_path / "kept", "today"), Kept(tmp_path / "kept", "tomorrow")):
        assert [result for _, result in kept.run(points)] == [0]
    (tmp_path / "go").touch()
    assert [result for _, result in Kept(tmp_path / "kept", "tomorrow").run(careful(1, tmp_path, wait=True))] == [0]
    assert len(begun(tmp_path, 0)) == 3


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be made"):
        list(Kept(tmp_path / "file" / "kept", "").run(squares(1)))


# --- on a cluster -----------------------------------------------------------------------------------------------------


class DaskCluster:
    """A scheduler, and worker processes with one thread each."""

    def __init__(self, group: Group, folder: Path) -> None:
        self._group = group
        self._folder = folder
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{found.getsockname()[1]}"
        self._start("scheduler", "scheduler", "--host", self.address, "--no-dashboard", "--no-jupyter")
        for number in range(2):
            self._start(
                f"worker{number}", "worker", self.address, "--nthreads", "1", "--nworkers", "1", "--no-dashboard",
                "--local-directory", str(folder), "--host", "127.0.0.1",
            )  # fmt: skip

    def _start(self, name: str, *arguments: str) -> None:
        self._group.start(name, ["distributed.cli.dask_" + arguments[0], *arguments[1:]], self._folder / f"{name}.log",
                          talks=False)  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    with Group() as group:
        yield DaskCluster(group, tmp_path)


@pytest.mark.needs("distributed")
def test_a_worker_of_the_cluster_that_is_killed(cluster: DaskCluster, tmp_path: Path) -> None:
    points = careful(6, tmp_path, wait=True)
    results = run(points, tmp_path, scheduler=cluster.address)
    found: dict[str, Any] = {}
    gathering = threading.Thread(target=lambda: found.update({point.name: result for point, result in results}))
    gathering.start()
    wait_until(lambda: len({path.read_text() for path in begun(tmp_path)}) == 2)  # both workers are at a point
    victim = begun(tmp_path)[0]
    number = victim.name.split("-")[1]
    os.kill(int(victim.read_text()), signal.SIGKILL)
    (tmp_path / "go").touch()
    gathering.join(PATIENCE_S)
    assert found == {f"point {n}": n * n for n in range(6)}
    tries = {n: len(begun(tmp_path, n)) for n in range(6)}
    assert tries[int(number)] == 2
    assert sum(tries.values()) == 7, "no other point was computed again"


@pytest.mark.needs("distributed")
def test_errors_of_points_on_a_cluster(cluster: DaskCluster, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it: tea is not accepted"):
        list(run([Point("it", "point_works:refuses", "tea")], tmp_path, scheduler=cluster.address))


@pytest.mark.needs("distributed", "torch", "sklearn")
@pytest.mark.parametrize(
    ("address", "says"),
    [("tcp://127.0.0.1:1", "no Dask scheduler answers"), ("nowhere", "expected the address of a Dask scheduler")],
)
def test_a_scheduler_that_is_not_there(tmp_path: Path, address: str, says: str) -> None:
    """The command line prints one line, and exits with status 2."""
    plan = tmp_path / "plan.toml"
    plan.write_text('[run]\nsteps = 1\nbackend = "sim"\n[sweep]\nkey = "straggler.slowdown"\nvalues = [1.0, 2.0]\n')
    done = subprocess.run(
        [sys.executable, "-m", "sa_atp", "run", str(plan), "--out", str(tmp_path / "out"), "--scheduler", address],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"--scheduler {address}: {says}" in done.stderr
    assert "Traceback" not in done.stderr
