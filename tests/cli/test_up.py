"""`sa-atp up`: programs find a switch and a parameter server, and nothing is left behind."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from helpers.descendants import descendants
from helpers.needs import VETH

from sa_atp.cli import main
from sa_atp.cli.up import _announce
from sa_atp.lab.backends.cluster import LocalCluster
from sa_atp.lab.runs import foreground
from sa_atp.lab.runs.foreground import run_command
from sa_atp.lab.runs.processes import Group, ProcessError
from sa_atp.net.sockets import namespace
from sa_atp.protocol.packets.spec import UDP_PORT

from .conftest import sa_atp

ANY_PORT = ("--listen", "127.0.0.1:0")  # tests may run beside each other

# Two ranks in threads; the arrays differ, and the sum of what they say is known.
PROGRAM = """
import os, sys, numpy as np, sa_atp
from concurrent.futures import ThreadPoolExecutor

def rank(number):
    server, job, world_size = (os.environ["SA_ATP_" + name] for name in ("SERVER", "JOB", "WORLD_SIZE"))
    with sa_atp.connect(server, job=job, rank=number, world_size=int(world_size)) as comm:
        array = np.full(5000, number + 1, np.float32)
        comm.all_reduce(array)
        return set(array.tolist())

with ThreadPoolExecutor(2) as pool:
    sums = list(pool.map(rank, (0, 1)))
print(sums)
sys.exit(0 if sums == [{3.0}, {3.0}] else 1)
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@contextmanager
def started(*arguments: str, logs: Path) -> Iterator["subprocess.Popen[str]"]:
    """`sa-atp up` in the background; killed at the end if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-m", "sa_atp", "up", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(logs)},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def test_a_command_runs_in_the_environment(tmp_path: Path) -> None:
    captures = tmp_path / "captures"
    done = sa_atp(
        "up", "--workers", "2", "--job", "mine", "--lanes", "64", "--pcap", str(captures), "--",
        sys.executable, "-c", PROGRAM, environment={"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[{3.0}, {3.0}]\n"), done.stderr
    said = done.stderr.splitlines()
    assert said[0].startswith("sa-atp up: starting switch and parameter server")
    assert said[-1] == "1 short job of 2 ranks, 1 sum: nobody was slow for long enough to tell"
    assert all("waiting for " in line or "so far" in line for line in said[1:-1]), said  # on a busy machine
    assert [path.name for path in tmp_path.iterdir()] == ["captures"]  # its logs are gone

    # what the switch has seen can be dissected
    shown = sa_atp("dissect", str(captures / "port1.pcap"))
    assert shown.returncode == 0, shown.stderr
    kinds = [line.split()[4] for line in shown.stdout.splitlines()]
    # 5000 values are 79 fragments, and one that agrees on the exponent
    assert kinds.count("DATA") >= 2 * 80
    assert kinds.count("RESULT") >= 3 * 80  # to two ranks and the parameter server
    assert " 0 malformed, 0 others" in shown.stderr
    assert f" > 127.0.0.1:{UDP_PORT}  DATA " in shown.stdout


def test_up_runs_until_a_signal(tmp_path: Path) -> None:
    with started("--workers", "3", "--json", "--lanes", "64", *ANY_PORT, logs=tmp_path) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["environment"] == {
            "SA_ATP_SERVER": said["environment"]["SA_ATP_SERVER"], "SA_ATP_JOB": "up", "SA_ATP_WORLD_SIZE": "3",
        }  # fmt: skip
        assert (said["switch"]["lanes"], said["switch"]["contributions"]) == (64, 64)
        assert main(["doctor", "--server", said["environment"]["SA_ATP_SERVER"]]) == 0
        started_by_it = descendants(process.pid)
        assert len(started_by_it) == 3  # the one that forks the others
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == ""
        assert process.wait() == 0
    assert all(map(gone, started_by_it))
    assert list(tmp_path.iterdir()) == []


def test_up_reports_a_dead_parameter_server(tmp_path: Path) -> None:
    with started("--lanes", "64", *ANY_PORT, logs=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # what it prints can be pasted
        assert process.stdout.readline().startswith("export SA_ATP_SERVER=udp://127.0.0.1:")
        assert process.stdout.readline() == "export SA_ATP_JOB=up\n"
        _, switch, server = descendants(process.pid)  # the first one forks the others
        os.kill(server, signal.SIGKILL)
        said = process.stderr.read()
        assert process.wait() == 1
    assert "sa-atp: parameter server ended with status -9 (SIGKILL); command: " in said
    assert "Traceback" not in said
    assert gone(switch)
    [logs] = tmp_path.iterdir()  # for whoever wants to know more
    assert {path.name for path in logs.iterdir()} == {"switch.log", "ps.log"}


# Two ranks sum, and say so, until the third file is there.
def test_a_port_in_use_is_told_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        for command in ((), ("--", "true")):
            done = sa_atp("up", "--listen", where, *command, environment={"TMPDIR": str(tmp_path)})
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr == (
                f"sa-atp: UDP port {where} is in use, perhaps by another `sa-atp up`: let programs join that one, "
                "or take any free port with --listen 127.0.0.1:0\n"
            )
    assert list(tmp_path.iterdir()) == []


@VETH
def test_programs_started_by_hand_find_it_where_they_look(tmp_path: Path) -> None:
    """Without a command, `up` uses the default port; commands learn theirs, so several may run at once."""
    sa_atp_ = f"{shlex.quote(sys.executable)} -m sa_atp up --lanes 64"
    script = f"""
        {sa_atp_} > first & first=$!
        while ! grep -q JOB first; do sleep 0.1; done
        {sa_atp_}; echo "status $?"
        {sa_atp_} --job "two words" -- sh -c 'echo "$SA_ATP_SERVER $SA_ATP_JOB"'
        kill -TERM $first; wait $first; echo "status $?"
        cat first
    """
    done = subprocess.run(
        namespace.inside("sh", "-c", f"ip link set lo up{script}"),
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    refused, told, *end = done.stdout.splitlines()
    assert (refused, end[0]) == ("status 2", "status 0"), done.stderr
    assert end[1:] == [f"export SA_ATP_SERVER=udp://127.0.0.1:{UDP_PORT}", "export SA_ATP_JOB=up"]
    assert f"sa-atp: UDP port 127.0.0.1:{UDP_PORT} is in use" in done.stderr
    assert re.fullmatch(r"udp://127\.0\.0\.1:\d+ two words", told)
    assert f":{UDP_PORT} " not in told


def test_the_printed_environment_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    """Names with spaces, too."""
    _announce({"SA_ATP_JOB": "two words; true"}, cast(LocalCluster, None), Path(), None)
    said = capsys.readouterr().out
    assert (
        subprocess.run(
            ["sh", "-c", f'{said} printf %s "$SA_ATP_JOB"'], capture_output=True, text=True, check=True
        ).stdout
        == "two words; true"
    )


def test_where_text_is_ascii_sources_are_read_all_the_same() -> None:
    """They have characters of other languages in them."""
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = sa_atp("up", "--lanes", "64", "--listen", "127.0.0.1:0", "--", "true", environment=ascii_only)
    assert done.returncode == 0, done.stderr


# --- the command, without a cluster around it -----------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -9 $$", 137), ('test "$GIVEN" = "a b"', 0)])
def test_the_status_is_that_of_the_command(script: str, status: int) -> None:
    assert run_command(["sh", "-c", script], {"GIVEN": "a b"}, []) == status


def test_a_command_that_does_not_notice_ends_when_the_switch_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreground, "HEARD_S", 0.1)
    with Group() as group:
        needed = group.start("needed", ["-c", "sleep 0.2; exit 4"], tmp_path / "log", program=("sh",))
        with pytest.raises(ProcessError, match="needed ended with status 4"):
            run_command(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600"], {}, [needed])
    assert gone(int((tmp_path / "pid").read_text()))


def test_ctrl_c_ends_a_command_that_does_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreground, "PATIENCE_S", 0.1)
    pid = tmp_path / "pid"

    def interrupt() -> None:
        while not pid.exists() or not pid.read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_command(["sh", "-c", f"trap '' INT TERM; echo $$ > {pid}; while :; do sleep 0.05; done"], {}, [])
    assert gone(int(pid.read_text()))
