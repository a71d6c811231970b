"""Network namespaces: a command runs in one, or one line says why not."""

import os
import subprocess

import pytest

from sa_atp.net.sockets import namespace

# Root, without the right to make one.
BOUND = ["setpriv", "--bounding-set", "-sys_admin", "--"]


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.needs("namespaces")
def test_a_command_runs_in_one() -> None:
    here = os.readlink("/proc/self/ns/net")
    done = run(*namespace.inside("ls", "-l", "/proc/self/ns/net"))
    assert (done.returncode, done.stderr) == (0, "")
    assert here not in done.stdout
    assert "net:[" in done.stdout
    assert run(*namespace.inside("sh", "-c", "exit 7")).returncode == 7


@pytest.mark.needs("root")
def test_a_kernel_that_refuses() -> None:
    done = run(*BOUND, *namespace.inside("true"))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "the kernel refuses a network namespace (Operation not permitted): "
        "this machine, or its container, must allow them\n"
    )


@pytest.mark.needs("namespaces")
def test_a_command_that_is_not_there() -> None:
    nothing = "no-such-program"
    done = run(*namespace.inside(nothing))
    assert (done.returncode, done.stderr) == (3, "no-such-program: No such file or directory\n")
