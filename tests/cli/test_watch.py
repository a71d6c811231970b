"""`sa-atp watch` and metrics: a real job on a real switch, in a terminal, in lines, as JSON, and for Prometheus."""

import itertools
import json
import os
import pty
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from helpers.committed import ROOT

import sa_atp
from sa_atp.basics.errors import UserError
from sa_atp.cli import main, watch
from sa_atp.lab.backends.cluster import LocalCluster
from sa_atp.lab.runs.processes import Group
from sa_atp.net.communicator import Communicator
from sa_atp.net.parameter_server.server import ServerProcess
from sa_atp.net.watching import door, looking, metrics, summary
from sa_atp.net.watching.looking import Cluster, View
from sa_atp.net.watching.states import ServerState, SwitchState, Told

STEPS = 3
WATCH = (sys.executable, "-m", "sa_atp", "watch")


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of doors for this file's processes, and no others."""
    place = tmp_path_factory.mktemp("doors")
    place.chmod(0o700)
    before = os.environ.get(door.VARIABLE)
    os.environ[door.VARIABLE] = str(place)
    yield place
    os.environ.pop(door.VARIABLE)
    if before is not None:
        os.environ[door.VARIABLE] = before


@pytest.fixture(scope="module")
def job(doors: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Communicator]]:
    """Two ranks after some sums; rank 0 waits for the next one, of which rank 1 has contributed nothing."""
    with Group() as group:
        url = "udp://{}:{}".format(*LocalCluster(group, tmp_path_factory.mktemp("logs"), lanes=64, slots=256).ready())
        with ThreadPoolExecutor(2) as pool:
            ranks = list(pool.map(lambda rank: join(url, rank), range(2)))
            for _ in range(STEPS):
                list(pool.map(lambda comm: comm.all_reduce(np.ones(5000, np.float32)), ranks))
        waiting = ranks[0].all_reduce_async(np.ones(5000, np.float32))
        while not is_known_to_wait(looking.look()):
            time.sleep(0.05)
        yield ranks
        ranks[1].all_reduce(np.ones(5000, np.float32))
        waiting.result()
        for comm in ranks:
            comm.close()


def join(url: str, rank: int) -> Communicator:
    # the tests of this file take longer than an operation may on a busy machine
    return sa_atp.connect(url, job="demo", rank=rank, world_size=2, timeout_s=120.0, operation_timeout_s=3600.0)


def is_known_to_wait(view: View) -> bool:
    """Whether rank 0's contribution is in the switch, and the parameter server has heard of it."""
    cluster = cluster_of(view)
    return bool(
        cluster.server and cluster.server.jobs[0].ranks[0].is_waiting and all(s.slots_open for s in cluster.switches)
    )


def cluster_of(view: View) -> Cluster:
    (cluster,) = view.clusters
    return cluster


def test_what_is_seen_of_a_job(job: list[Communicator]) -> None:
    cluster = cluster_of(looking.look())
    assert cluster.server is not None
    (state,) = cluster.server.jobs
    assert (state.name, state.state, state.world_size) == ("demo", "running", 2)
    assert [each.steps for each in cluster.connections] == [STEPS, STEPS]
    assert [each.is_waiting for each in cluster.connections] == [True, False]
    assert cluster.connections[0].waited_us > 0
    assert summary.waiting_for(cluster, state) == (
        state.verdict if state.is_stuck else "waits for rank 1, which computes"
    )
    (switch,) = cluster.switches
    assert switch.packets_in >= 2 * STEPS * 79  # fragments of 5000 values
    assert switch.slots_open == 1  # without a key magnitudes are gathered first, in one fragment
    assert switch.events[str(state.number)]["completed"] >= STEPS * 79


def test_the_slowest_rank_has_a_jobs_steps(job: list[Communicator]) -> None:
    cluster = cluster_of(looking.look())
    assert cluster.server is not None
    (state,) = cluster.server.jobs
    connections = [
        msgspec.structs.replace(each, steps=steps, connected_us=1_000_000)
        for each, steps in zip(cluster.connections, (20, 10), strict=True)
    ]
    assert summary.steps_a_second(msgspec.structs.replace(cluster, connections=connections), state, None) == 10


def test_rates_are_those_of_the_last_seconds(job: list[Communicator], monkeypatch: pytest.MonkeyPatch) -> None:
    now = looking.look()
    views = (msgspec.structs.replace(now, time=now.time + second) for second in itertools.count())
    monkeypatch.setattr(looking, "look", lambda server: next(views))
    looks = watch._looks(None, 0.0, once=False)
    ages = [None if before is None else view.time - before.time for view, before in itertools.islice(looks, 20)]
    assert ages[:3] == [None, 1.0, 2.0]
    assert ages[-1] == pytest.approx(watch.OVER_S, abs=1.0)


def test_a_look_at_the_processes_of_one_program(job: list[Communicator]) -> None:
    assert len(cluster_of(looking.look(children_of=os.getpid())).connections) == 2
    assert looking.look(children_of=1).is_empty


def test_a_parameter_server_without_a_door_describes_its_jobs(
    job: list[Communicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(door.VARIABLE, "")
    assert looking.look().is_empty
    cluster = cluster_of(looking.look(server=job[0].membership.server_address))
    assert cluster.server is not None
    assert [rank.rank for rank in cluster.server.jobs[0].ranks] == [0, 1]
    assert cluster.connections == []
    assert main(["watch", "--once"]) == 1


def test_once_as_tables_and_as_json(job: list[Communicator], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--once"]) == 0
    said = capsys.readouterr().out
    assert "job demo: running, 2 ranks" in said
    assert "collisions" in said
    rows = [line.split() for line in said.splitlines()]
    at = rows.index(
        ["rank", "does", "computing", "sending", "waiting", "late", "in", "helped", "window", "resent", "lost"]
    )
    assert [row[:2] for row in rows[at + 1 : at + 3]] == [["0", "waits"], ["1", "computes"]]

    where = "{}:{}".format(*job[0].membership.server_address)
    assert main(["watch", "--once", "--json", "--ps", where]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["clusters"][0]["address"] == where
    assert len(found["clusters"][0]["connections"]) == 2


def test_a_terminal_shows_a_screen_until_ctrl_c(job: list[Communicator]) -> None:
    own, other = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen([*WATCH, "--every", "0.1"], stdout=other, stderr=other, env=environment) as process:
        os.close(other)
        seen = b""
        while seen.count(b"resent") < 3:  # looks
            seen += os.read(own, 1 << 16)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0, seen
    os.close(own)
    assert b"Traceback" not in seen


@pytest.mark.needs("prometheus_client")
def test_metrics_can_be_parsed(job: list[Communicator]) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    with metrics.serving(("127.0.0.1", 0), looking.look) as url, urllib.request.urlopen(url) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    assert set(families) == {metric.name for metric in metrics.METRICS}

    def values(name: str, **labels: str) -> list[float]:
        return [s.value for s in families[name].samples if labels.items() <= s.labels.items()]

    server = "{}:{}".format(*job[0].membership.server_address)
    assert values("sa_atp_jobs", server=server, state="running") == [1.0]
    assert values("sa_atp_rank_steps", server=server, job_name="demo") == [STEPS, STEPS]
    assert values("sa_atp_rank_seconds", rank="0", activity="waiting")[0] > 0
    assert values("sa_atp_job_fragments", by="switch")[0] > 0
    assert values("sa_atp_switch_packets", direction="in")[0] > 0
    assert values("sa_atp_switch_slots_in_use") == [1.0]


def test_no_counter_falls_while_a_rank_waits_or_when_ranks_are_not_seen(job: list[Communicator]) -> None:
    view = looking.look()
    (cluster,) = view.clusters
    later = [
        msgspec.structs.replace(each, connected_us=each.connected_us + 5_000_000) for each in cluster.connections
    ]  # which wait, and so have done no more
    looks = [[msgspec.structs.replace(cluster, connections=ranks)] for ranks in (later, [], cluster.connections)]
    for metric in metrics.METRICS:
        found = [dict(metric.samples(each)) for each in (view, *(View(time=0.0, clusters=look) for look in looks))]
        if metric.kind == "counter":
            assert all(
                each[labels] == value for each in found[1:] for labels, value in found[0].items() if labels in each
            )
    seconds = next(metric for metric in metrics.METRICS if metric.name == "sa_atp_rank_seconds")
    told = {labels[-2:]: value for labels, value in seconds.samples(view)}
    assert (
        0 < sum(value for (rank, _), value in told.items() if rank == "0") < cluster.connections[0].connected_us / 1e6
    )


def test_fragments_are_counted_anew_in_each_epoch(job: list[Communicator]) -> None:
    view = looking.look()
    cluster = cluster_of(view)
    assert cluster.server is not None
    (state,) = cluster.server.jobs
    anew = msgspec.structs.replace(state, epoch=state.epoch + 1, counters=dict.fromkeys(state.counters, 0))
    server = msgspec.structs.replace(cluster.server, jobs=[anew])
    later = View(time=0.0, clusters=[msgspec.structs.replace(cluster, server=server, connections=[])])
    fragments = next(metric for metric in metrics.METRICS if metric.name == "sa_atp_job_fragments")
    assert any(value > 0 for _, value in fragments.samples(view))
    assert all(value == 0 for _, value in fragments.samples(later))


def test_of_two_processes_of_a_rank_the_newest_counts(job: list[Communicator]) -> None:
    """One of an earlier epoch may be left over. Prometheus refuses two samples with the same labels."""
    view = looking.look()
    cluster = cluster_of(view)
    left_over = [
        msgspec.structs.replace(each, epoch=each.epoch - 1, process=1, steps=99, connected_us=each.connected_us + 1)
        for each in cluster.connections
    ]
    both = msgspec.structs.replace(cluster, connections=[*cluster.connections, *left_over])
    for metric in metrics.METRICS:
        assert list(metric.samples(msgspec.structs.replace(view, clusters=[both]))) == list(metric.samples(view))


@pytest.mark.needs("prometheus_client")
def test_an_address_in_use_for_metrics_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["up", "--listen", "127.0.0.1:0", "--metrics", where, "--", "true"]) == 2
    assert f"sa-atp: --metrics {where}: Address already in use" in capsys.readouterr().err


def test_the_dashboard_has_only_metrics_that_there_are() -> None:
    known = {metric.exposed for metric in metrics.METRICS}
    text = (ROOT / "docker/grafana/sa-atp.json").read_text()
    assert json.loads(text)["panels"]
    used = set(re.findall(r"\bsa_atp_\w+", text))
    assert len(used) > 10
    assert used <= known


def test_the_document_has_every_metric() -> None:
    text = (ROOT / "docs/watching.md").read_text()
    for metric in metrics.METRICS:
        further = [label for label in metric.labels if label not in ("server", "job_name", "rank", "switch")]
        row = f"| `{metric.exposed}` | {', '.join(f'`{label}`' for label in further)} | {metric.help} |"
        assert row in text
    assert set(re.findall(r"\bsa_atp_\w+_(?:total|seconds|stuck)\b", text)) <= {
        each.exposed for each in metrics.METRICS
    }


def test_a_switch_in_mininet_is_called_by_its_name() -> None:
    other: dict[str, Any] = {"device_id": 0, "running_us": 1, "packets_in": 0, "packets_out": 0, "unattached": 0}
    assert SwitchState(grpc="unix:/tmp/sa-atp-net-1/leaf1.sock", **other).name == "leaf1"
    assert SwitchState(grpc="10.0.0.254:9559", **other).name == "10.0.0.254:9559"


# --- doors ----------------------------------------------------------------------------------------------------------------


def test_watching_ends_with_what_is_watched(tmp_path: Path) -> None:
    environment = {**os.environ, door.VARIABLE: str(tmp_path / "doors")}
    code = (
        "import sys\n"
        "from sa_atp.net.watching import door\n"
        "from sa_atp.net.watching.states import ServerState\n"
        "with door.telling(lambda: ServerState(address='127.0.0.1:21313')):\n"
        "    print(flush=True)\n"
        "    sys.stdin.read()\n"
    )
    arguments = [sys.executable, "-c", code]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as watched:
        assert watched.stdin is not None
        assert watched.stdout is not None
        watched.stdout.readline()
        assert stat.S_IMODE((tmp_path / "doors").stat().st_mode) == 0o700
        with subprocess.Popen([*WATCH, "--every", "0.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=environment) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline().endswith(": 0 jobs\n")
            watched.stdin.close()
            _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "sa-atp watch: all of it has ended\n")
    assert list((tmp_path / "doors").iterdir()) == []


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(door.VARIABLE, str(tmp_path))
    tmp_path.chmod(0o700)
    return tmp_path


def test_doors_of_killed_processes_are_removed(empty: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left, door.name_of(empty / f"1-0{door.SUFFIX}") as name:
        left.bind(name)
    assert looking.read_doors() == []
    assert list(empty.iterdir()) == []


def test_a_folder_that_others_can_enter_has_no_doors(
    empty: Path, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = door._Door()
    empty.chmod(0o755)
    fresh.add(server.state)
    assert list(empty.iterdir()) == []
    assert looking.read_doors() == []


def test_a_state_that_cannot_be_told_hides_no_other(empty: Path, server: ServerProcess) -> None:
    def broken() -> Told:
        raise UserError("no")

    fresh = door._Door()
    numbers = [fresh.add(broken), fresh.add(server.state)]
    assert [told.address for told in looking.read_doors() if isinstance(told, ServerState)] == [
        "{}:{}".format(*server.address)
    ]
    for number in numbers:
        fresh.remove(number)
        fresh.remove(number)
    assert list(empty.iterdir()) == []


def test_a_fork_leaves_the_door_to_its_parent(empty: Path, server: ServerProcess) -> None:
    fresh = door._Door()
    number = fresh.add(server.state)
    child = os.fork()
    if child == 0:
        os._exit(int(fresh._socket is not None or bool(fresh._told)))
    assert os.waitpid(child, 0)[1] == 0
    assert len(looking.read_doors()) == 1
    fresh.remove(number)
