"""scripts/lib/setup.sh: what sets up the environment for scripts/demo and scripts/test."""

import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .conftest import ROOT, SCRIPTS, Checkout

EXTRAS = ("torch", "report", "dev")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_syntax(script: str) -> None:
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


@pytest.mark.needs("shellcheck")
def test_shellcheck() -> None:
    command = ["shellcheck", "--external-sources", "--severity", "style", *SCRIPTS, ROOT / "docker" / "take-rank"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.returncode == 0


def test_an_environment_that_has_everything_is_kept_and_remembered(checkout: Checkout) -> None:
    checkout.environment({"*pip\\ install*": "exit 99"})
    first = checkout.setup(*EXTRAS)
    assert (first.returncode, first.stdout) == (0, f"{checkout.venv}/bin/python\n"), first.stderr
    assert first.stderr == f"[setup] the environment in {checkout.venv} has everything\n"
    second = checkout.setup(*EXTRAS)
    assert (second.returncode, second.stderr) == (0, "")

    # others are remembered beside it, and all are forgotten when pyproject.toml changes
    assert checkout.setup("torch", "report").stderr.endswith("has everything\n")
    stamp = checkout.venv / ".sa-atp-installed"
    assert [line.split()[1:] for line in stamp.read_text().splitlines()] == [list(EXTRAS), ["torch", "report"]]
    with (checkout.root / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert checkout.setup(*EXTRAS).stderr.endswith("has everything\n")
    assert [line.split()[1:] for line in stamp.read_text().splitlines()] == [list(EXTRAS)]


def test_what_is_missing_is_installed_and_said(checkout: Checkout) -> None:
    """The new requirement cannot be met without an index: pip's own words are shown, and one line says what they mean."""
    checkout.environment()
    file = checkout.root / "pyproject.toml"
    file.write_text(file.read_text().replace('"pytest>=8"', '"pytest>=8", "no-such-package-of-sa-atp==1"'))
    done = checkout.setup("dev", variables={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""})
    assert done.returncode == 3
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == "[setup] installing sa_atp[dev], as pyproject.toml says"
    assert any("ERROR: " in line for line in lines)
    assert lines[-1].startswith(
        "[setup] installing the packages failed, see above; the first time, this needs the network"
    )
    assert not (checkout.venv / ".sa-atp-installed").exists()


def test_a_pip_that_lies_is_noticed(checkout: Checkout) -> None:
    checkout.environment({"*pip\\ install*": "echo all is well; exit 0"})
    file = checkout.root / "pyproject.toml"
    file.write_text(file.read_text().replace("pytest>=8", "pytest>=1000"))
    done = checkout.setup("dev")
    assert done.returncode == 3
    assert "all is well" not in done.stderr
    assert "[setup] pip has ended well, but the environment lacks: pytest>=1000 (it has " in done.stderr


def test_pytorch_is_taken_for_the_cpu(checkout: Checkout) -> None:
    log = checkout.root / "log"
    checkout.environment({"*pip\\ install*": f'echo "$*" >> "{log}"; exit $(grep -c extra-index "{log}" | tr 01 10)'})
    file = checkout.root / "pyproject.toml"
    file.write_text(file.read_text().replace("torch = []", 'torch = ["torch>=1000"]'))
    done = checkout.setup(*EXTRAS)
    assert "[setup] installing PyTorch, built for the CPU (about 200 MB)\n" in done.stderr
    torch = [line.split("install ")[1] for line in log.read_text().splitlines() if "torch==" in line]
    common = "--disable-pip-version-check --no-input torch==2.13.0+cpu"
    assert torch == [common, f"{common} --extra-index-url https://download.pytorch.org/whl/cpu"]


def test_a_broken_environment_is_made_anew(checkout: Checkout) -> None:
    checkout.environment()
    python = checkout.venv / "bin" / "python"
    python.unlink()
    python.symlink_to("/no/python/any/more")
    (checkout.venv / "left-over").touch()
    done = checkout.setup("dev", variables={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "SA_ATP_PYTHON": sys.executable})
    assert done.returncode == 3  # pip has no index; but it is there
    assert f"[setup] making an environment in {checkout.venv} with Python 3." in done.stderr
    assert subprocess.run([python, "-m", "pip", "--version"], check=False, capture_output=True).returncode == 0
    assert not (checkout.venv / "left-over").exists()


@pytest.mark.parametrize("python", ["/bin/false", "no-such-python"])
def test_a_python_that_is_none(python: str, checkout: Checkout) -> None:
    done = checkout.setup("dev", variables={"SA_ATP_PYTHON": python})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"[setup] SA_ATP_PYTHON={python}: expected a Python 3.11 or newer\n"


def path_without(checkout: Checkout, *names: str) -> dict[str, str]:
    """A PATH with what the scripts use, less some."""
    folder = checkout.root / "bin"
    folder.mkdir()
    for name in (
        "bash",
        "cat",
        "cut",
        "dirname",
        "env",
        "flock",
        "grep",
        "id",
        "mkdir",
        "mktemp",
        "mv",
        "rm",
        "sed",
        "sha256sum",
    ):
        found = shutil.which(name)
        assert found is not None
        if name not in names:
            (folder / name).symlink_to(found)
    return {"PATH": str(folder)}


def test_no_python_at_all(checkout: Checkout) -> None:
    done = checkout.setup("dev", variables=path_without(checkout))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "[setup] no Python 3.11 or newer on PATH: as root, apt-get install python3 python3-venv on Debian 12 or newer\n"
    )


def test_a_python_without_venv(checkout: Checkout) -> None:
    variables = path_without(checkout)
    python = checkout.root / "bin" / "python3"
    python.write_text(f'#!/bin/bash\n[[ "$*" != *ensurepip* ]] && echo {python}\n')
    python.chmod(0o755)
    done = checkout.setup("dev", variables=variables)
    assert (done.returncode, done.stderr) == (
        3,
        f"[setup] {python} cannot make environments: as root, apt-get install python3-venv, "
        "or set SA_ATP_PYTHON to another\n",
    )


@pytest.mark.needs("root")
def test_root_on_debian_installs_python(checkout: Checkout) -> None:
    variables = path_without(checkout)
    apt = checkout.root / "bin" / "apt-get"
    apt.write_text(
        f'#!/bin/bash\ncd "{checkout.root}"\necho "$*" >> apt\n'
        '[[ "$*" != *update* ]] || { echo > lists; exit; }\n[[ -e lists ]]\n'
    )
    apt.chmod(0o755)
    done = checkout.setup("dev", variables=variables)
    assert "[setup] installing python3 and python3-venv with apt-get\n" in done.stderr
    install = "-q -y install --no-install-recommends python3 python3-venv"
    # a fresh machine has no lists of packages: only then they are fetched
    assert (checkout.root / "apt").read_text().splitlines() == [install, "-q -y update", install]
    assert done.returncode == 3


def test_without_flock_it_goes_on(checkout: Checkout) -> None:
    checkout.environment()
    assert checkout.setup(*EXTRAS, variables=path_without(checkout, "flock")).returncode == 0


def test_two_at_once_wait_for_each_other(checkout: Checkout) -> None:
    checkout.environment()
    folder = os.open(checkout.root, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    before = time.monotonic()
    timer = threading.Timer(1.0, os.close, (folder,))
    timer.start()
    done = checkout.setup(*EXTRAS)
    timer.join()
    assert done.returncode == 0
    assert done.stderr.startswith("[setup] another setup is at work here: waiting for it\n")
    assert time.monotonic() - before > 1.0
    # once everything is there, nobody waits for anybody
    with locked(checkout):
        assert checkout.setup(*EXTRAS).stderr == ""


@contextmanager
def locked(checkout: Checkout) -> Iterator[None]:
    folder = os.open(checkout.root, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def as_somebody_else(checkout: Checkout) -> Iterator[list[str]]:
    """What to put before a command so that it may read the checkout, and not write it."""
    if os.geteuid() == 0:
        yield ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]
    else:
        checkout.root.chmod(0o555)
        yield []
        checkout.root.chmod(0o755)


@pytest.mark.parametrize("script", ["scripts/test", "scripts/demo"])
def test_a_checkout_that_cannot_be_written(script: str, checkout: Checkout) -> None:
    with as_somebody_else(checkout) as prefix:
        done = subprocess.run(
            [*prefix, checkout.root / script], capture_output=True, text=True, timeout=60, check=False
        )
    who = subprocess.run([*prefix, "id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    assert done.stdout == ""
    if script == "scripts/demo":
        assert done.returncode == 2
        assert done.stderr == f"[setup] {who} cannot write {checkout.root}/runs/demo: choose a folder with --out DIR\n"
    else:
        assert done.returncode == 3
        assert done.stderr == (
            f"[setup] {who} cannot write {checkout.root}: run this as its owner, "
            "or set SA_ATP_VENV to a folder for the environment\n"
        )


def test_mininet_wants_root(checkout: Checkout) -> None:
    with as_somebody_else(checkout) as prefix:
        for script in ("demo", "test"):
            done = subprocess.run(
                [*prefix, checkout.root / "scripts" / script, "--mininet"], capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stdout) == (3, "")
            assert done.stderr == (
                "[setup] Mininet makes network namespaces: run this as root (sudo), or leave out --mininet\n"
            )
