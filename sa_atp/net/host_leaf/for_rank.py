"""Finds the leaf switch of a rank's host, and starts it where several ranks share each of several hosts."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.basics.terminal import say
from sa_atp.net.host_leaf import meeting
from sa_atp.net.host_leaf.meeting import Leaf, Ports
from sa_atp.net.shared_memory.open_channel import is_wanted
from sa_atp.net.sockets.addresses import is_here
from sa_atp.protocol.packets.datagrams import Address

VARIABLE = "SA_ATP_LOCAL"
UNUSED_S = 10  # without a rank, after which a leaf that ranks have started ends
START_S = 120.0  # numba compiles the switch's loop the first time
LOOK_S = 0.1

_started: list["subprocess.Popen[bytes]"] = []  # they end by themselves, when no rank uses them


def leaf_for(server: Address) -> Leaf | None:
    """The leaf by which this rank shall send; None: it sends to the switch above.

    The environment decides: SA_ATP_LOCAL=none: no leaf; leaf: the host's leaf, which is started if there is none; not set:
    likewise, if torchrun says that there are several ranks on each of several hosts, else only a leaf that runs already.

    Args: server: the parameter server.
    Raises: UserError: SA_ATP_LOCAL has another value, or asks for a leaf that cannot be.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "leaf", "none"):
        raise UserError(f"{VARIABLE}={wanted}: expected leaf or none")
    if wanted == "none":
        return None
    if not is_wanted():
        if wanted:
            raise UserError(f"{VARIABLE}=leaf with SA_ATP_SHM=0: ranks share memory with their leaf")
        return None
    found = meeting.find(server)
    if found is not None or not (wanted or (_ranks_share_hosts() and not is_here(server[0]))):
        return found
    try:
        return _start(server)
    except SaAtpError as problem:
        if wanted:
            raise UserError(f"{VARIABLE}=leaf: {problem}") from None
        say(f"sa-atp: no leaf on this host, this rank sends to the switch above: {problem}")
        return None


def say_unused(job: str) -> None:
    """Says that a job has no use for the host's leaf, if the environment asks for one."""
    if os.environ.get(VARIABLE) == "leaf":
        say(
            f"sa-atp: {VARIABLE}=leaf: job {job!r} does not use the leaf of this host: this rank sends to the switch "
            "above. A leaf takes two or more of the job's ranks on the host, one switch above, no seats, and a parameter "
            "server that reaches it"
        )


def start_again(server: Address, ports: Ports) -> None:
    """Starts the host's leaf anew, at the same ports, where it has ended; does not wait for it. Called now and then."""
    with meeting.only_one_starts(server) as may_start:
        is_starting = any(process.poll() is None for process in _started)
        if may_start and not is_starting:
            say("sa-atp: the leaf on this host has ended, and is started again: sums go on")
            _started.append(_process(server, ports, subprocess.DEVNULL, subprocess.DEVNULL))


def _ranks_share_hosts() -> bool:
    """Whether torchrun says that this host has several of the ranks, and other hosts have some as well."""
    try:
        here, all_ = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return False
    return 1 < here < all_


def _start(server: Address) -> Leaf:
    """Starts the host's leaf, or waits for another rank that does. Raises: SaAtpError: it does not start."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        with meeting.only_one_starts(server) as may_start:
            found = meeting.find(server)
            if found is None and may_start:
                _wait_until_ready(server)
                found = meeting.find(server)
        if found is not None:
            return found
        if may_start:
            break
        time.sleep(LOOK_S)
    raise SaAtpError(f"`sa-atp leaf` has not started within {START_S:.0f} s")


def _process(server: Address, ports: Ports | None, out: int, errors: int) -> "subprocess.Popen[bytes]":
    at = [] if ports is None else ["--port", str(ports.down[1]), "--grpc-port", str(ports.grpc)]
    # in a session of its own, because it belongs to all ranks of the host, whichever ends first
    return subprocess.Popen(
        [sys.executable, "-m", "sa_atp", "leaf", "--up", "{}:{}".format(*server), "--unused-for", str(UNUSED_S), *at],
        stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True,
    )  # fmt: skip


def _wait_until_ready(server: Address) -> None:
    """Raises: SaAtpError: the leaf ended, with the last line that it wrote."""
    with tempfile.TemporaryDirectory(prefix="sa-atp-leaf-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as errors:
            process = _process(server, None, subprocess.PIPE, errors.fileno())
        _started.append(process)
        assert process.stdout is not None
        with process.stdout:
            readable, _, _ = select.select([process.stdout], [], [], START_S)
            line = process.stdout.readline() if readable else b""
        with contextlib.suppress(ValueError):
            if json.loads(line).get("ready"):
                return
        process.terminate()
        process.wait()
        said = log.read_text(errors="replace").strip().splitlines()
    raise SaAtpError(said[-1] if said else "`sa-atp leaf` does not start")
