"""Machines on which Mininet would wait for ever: what it needs is tried first, and a node's shell that dies is named."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.needs import MININET

from sa_atp.basics.errors import SaAtpError
from sa_atp.lab.backends.mininet import topologies, trial
from sa_atp.lab.backends.mininet.layout import LinkQuality
from sa_atp.lab.backends.mininet.network import MininetNetwork

PLAN = '[run]\nsteps = 1\n[topology]\nkind = "star"\nworkers = 2\nlink_mbps = 50\n[straggler]\npattern = "none"\n'
# mnexec of this test: what it does with the shell of a node, and with everything else
SHELL_ONLY = 'case "$*" in *bash*) {};; esac\nexec {} "$@"\n'

pytestmark = MININET


def fake_mnexec(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts an `mnexec` first on PATH."""
    file = folder / "bin" / "mnexec"
    file.parent.mkdir()
    file.write_text(f"#!/bin/sh\n{script}")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{file.parent}:{os.environ['PATH']}")


def refused(folder: Path, prefix: Sequence[str] = ()) -> str:
    """Runs a plan in Mininet, which has to be refused. Returns: the line that says why."""
    (folder / "plan.toml").write_text(PLAN)
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "sa_atp", "run", "plan.toml", "--backend", "mininet", "--out", "out"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done.stderr
    assert "Mininet cannot build this network here: " in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo remount: Invalid argument >&2; exit 1", "`mnexec -cdn cat`: remount: Invalid argument ("),
        ("kill -9 $$", "`mnexec -cdn cat`: it ended, and did not say why ("),
        ("sleep 100", "`mnexec -cdn cat`: no answer in 4 s ("),
    ],
)
def test_mininet_is_refused_where_mnexec_does_not_do_its_work(
    script: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_mnexec(tmp_path, script, monkeypatch)
    assert says in refused(tmp_path)


def test_mininet_is_refused_without_capabilities_which_are_named(tmp_path: Path) -> None:
    for lacking in ("sys_admin", "net_admin"):
        prefix = ["setpriv", f"--bounding-set=-{lacking}", f"--inh-caps=-{lacking}"]
        said = refused(tmp_path, prefix)
        assert "Operation not permitted" in said
        assert f"this process lacks CAP_{lacking.upper()}: a container needs `docker run --privileged`" in said


def test_mininet_is_refused_where_a_queue_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trial.QUEUES, "tbf", ("no-such-kind",))
    said = trial.problem(LinkQuality(rate_mbps=10, queue_packets=10).queues(joins=True))
    assert "tc qdisc replace dev sa0 root no-such-kind`: " in said
    assert trial.problem(LinkQuality(rate_mbps=1000).queues(joins=True)) == ""
    assert LinkQuality().queues(joins=False) == ()


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("echo unshare: no more; exit 1", "the shell of w0 has ended: unshare: no more"),
        ("exec sleep 1000", "w0 was not built in 1 s"),
    ],
)
def test_a_mininet_node_whose_shell_dies_or_hangs_is_named(
    does: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sa_atp.lab.backends.mininet import nodes

    monkeypatch.setattr(nodes, "NODE_TIMEOUT_S", 1.0)
    fake_mnexec(tmp_path, SHELL_ONLY.format(f"exec sh -c '{does}'", "/usr/bin/mnexec"), monkeypatch)
    network = MininetNetwork(
        topologies.star(2, 50.0), switch="embedded", lanes=64, slots=64, slots_per_job=64, logs=tmp_path
    )
    with pytest.raises(SaAtpError) as caught, network:
        pass
    assert str(caught.value) == says
