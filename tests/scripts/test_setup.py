"""scripts/lib/setup.sh, which sets up the environment for scripts/demo and scripts/test."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .conftest import ROOT, SCRIPTS, Checkout

EXTRAS = ("torch", "report", "dev")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_syntax(script: str) -> None:
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


@pytest.mark.needs("shellcheck")
def test_shellcheck() -> None:
    files: list[str | Path] = [*SCRIPTS, ROOT / "docker" / "take-rank"]
    command = ["shellcheck", "--external-sources", "--severity", "style", *files]
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


def test_missing_packages_are_installed_and_reported(checkout: Checkout) -> None:
    """A new requirement cannot be met without an index: pip's output is shown, and one line explains it."""
    checkout.environment()
    file = checkout.root / "pyproject.toml"
    file.write_text(file.read_text().replace('"pytest>=8"', '"pytest>=8", "no-such-package-of-sa-atp==1"'))
    done = checkout.setup("dev", variables={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""})
    assert done.returncode == 3
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == "[setup] installing sa_atp[dev], in the tested versions"
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
    assert "[setup] pip reported success, but the environment lacks: pytest>=1000 (it has " in done.stderr


def builds(checkout: Checkout, *versions: str) -> dict[str, str]:
    """Makes pip find these builds of PyTorch in a folder, and no others."""
    folder = checkout.root / "builds"
    folder.mkdir()
    for version in versions:
        (folder / f"torch-{version}-py3-none-any.whl").touch()
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": folder.as_uri()}


def without_torch(checkout: Checkout, *statuses: int, says: str = "") -> None:
    """An environment without PyTorch, whose `pip install` records its arguments, and has this output and these statuses."""
    file = checkout.root / "pyproject.toml"
    file.write_text(file.read_text().replace("torch = []", 'torch = ["torch>=2.8,<3", "no-such-part==1"]'))
    log, script = checkout.root / "log", checkout.root / "pip"
    script.write_text(
        f'#!/bin/bash\necho "${{*##*sa-atp-versions }}" >>"{log}"\necho "{says}"\n'
        f"statuses=({' '.join(map(str, statuses))})\n"
        f'exit "${{statuses[$(grep -c . "{log}") - 1]-0}}"\n'
    )
    script.chmod(0o755)
    checkout.environment({"*--only\\ torch*": "exit 1", "*pip\\ install*": f'exec "{script}" "$*"'})


@pytest.mark.parametrize(
    ("versions", "taken"),
    [
        (["2.14.0+cpu", "2.13.0+cpu", "2.15.0"], "torch==2.13.0+cpu"),  # the tested one
        (["2.5.1+cpu", "2.12.1+cpu", "2.14.0", "3.0.0+cpu"], "torch==2.12.1+cpu"),  # the newest that may be
    ],
)
def test_pytorch_is_taken_for_the_cpu(versions: list[str], taken: str, checkout: Checkout) -> None:
    without_torch(checkout)
    if "2.13.0" in taken:
        (checkout.root / "constraints.txt").write_text("torch==2.13.0\n")
    done = checkout.setup(*EXTRAS, variables=builds(checkout, *versions))
    assert f"[setup] installing {taken}, a build of PyTorch for the CPU\n" in done.stderr
    assert "CUDA" not in done.stderr
    assert (checkout.root / "log").read_text().splitlines() == [
        taken, f"--upgrade --upgrade-strategy eager --editable {checkout.root}[{','.join(EXTRAS)}]",
    ]  # fmt: skip


def test_a_build_for_the_cpu_that_does_not_install_is_not_the_last(checkout: Checkout) -> None:
    without_torch(checkout, 1, 0)
    checkout.setup(*EXTRAS, variables=builds(checkout, "2.12.1+cpu", "2.11.0+cpu"))
    assert (checkout.root / "log").read_text().splitlines()[:2] == ["torch==2.12.1+cpu", "torch==2.11.0+cpu"]


def test_without_a_build_for_the_cpu_it_says_what_comes_and_how_large_it_is(checkout: Checkout) -> None:
    """A line before pip begins, and one before each large file is fetched."""
    fetched = (
        "  Downloading https://index/torch-2.14.1-cp311-x.whl (554.6 MB)\nDownloading six-1.py3-none-any.whl (11 kB)"
    )
    without_torch(checkout, says=f"{fetched}\n  Downloading large-1.whl (1.2 GB)\nUsing cached old-1.whl (99 MB)")
    done = checkout.setup(*EXTRAS, variables=builds(checkout, "2.14.0", "2.5.0+cpu"))
    lines = done.stderr.splitlines()
    assert lines[0].startswith("[setup] no build of PyTorch for the CPU is to be had")
    assert "CUDA, about 3 GB to fetch and 6 GB on the disk" in lines[0]
    assert lines[1:4] == [
        "[setup] installing sa_atp[torch,report,dev], in the tested versions",
        "[setup] fetching torch-2.14.1-cp311-x.whl (554.6 MB)",
        "[setup] fetching large-1.whl (1.2 GB)",
    ]
    assert (checkout.root / "log").read_text().count("torch==") == 0


def test_what_takes_long_is_said_though_pip_prints_lines() -> None:
    """What pip says of the large part is said, not its bars and what it says of old releases."""
    printed = r"Installing collected packages: torch\n ━━━━ 3.0/3.0 kB\n  Attempting uninstall: six\n"
    script = f"source {ROOT}/scripts/lib/setup.sh; PATIENCE_S=0; watched printf '{printed}'"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    said = re.sub(r"after \d+ s", "after 0 s", done.stderr)
    assert said == "[setup] still at it, after 0 s: Installing collected packages: torch\n" * 3


class Index(SimpleHTTPRequestHandler):
    """An index of packages in a folder: /torch/ lists builds."""

    def log_message(self, *_: object) -> None: ...


def test_pytorchs_own_index_is_asked_where_pip_finds_no_build(tmp_path: Path) -> None:
    """The real pip, with the test's own index in place of PyTorch's."""
    page = tmp_path / "index" / "torch" / "index.html"
    page.parent.mkdir(parents=True)
    files = [f"torch-{version}-py3-none-any.whl" for version in ("2.13.0+cpu", "2.14.0+cpu", "2.14.0+cu130")]
    page.write_text("".join(f"<a href='{file.replace('+', '%2B')}'>{file}</a>" for file in files))
    (tmp_path / "empty").mkdir()
    handler = partial(Index, directory=str(tmp_path / "index"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        code = f"import cpu_build; cpu_build.INDEX = {url!r}; cpu_build.main({str(ROOT)!r}, '')"
        environment = {**os.environ, "PIP_INDEX_URL": (tmp_path / "empty").as_uri(), "PIP_FIND_LINKS": "", "NO_PROXY": "*",
                       "PIP_EXTRA_INDEX_URL": "", "PIP_CONFIG_FILE": os.devnull,
                       "PYTHONPATH": str(ROOT / "scripts" / "lib")}  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        server.shutdown()
    assert done.stdout.splitlines()[:2] == [
        f"torch==2.14.0+cpu --extra-index-url {url}", f"torch==2.13.0+cpu --extra-index-url {url}",
    ], done.stderr  # fmt: skip


def test_an_environment_gets_the_versions_that_were_tested(checkout: Checkout) -> None:
    """Others are replaced, protobuf fits p4runtime-shell or its absence, and the newest are looked for each time."""
    pins, log = checkout.root / "constraints.txt", checkout.root / "log"
    checkout.environment({"*pip\\ install*": f"cat '{checkout.venv}/.sa-atp-versions' >'{log}'; exit 0"})
    pins.write_text(
        "# without shell: protobuf==7\npytest==1000 ; python_version > '3'\npytest==1 ; python_version < '3'\nprotobuf==3\n"
    )
    done = checkout.setup("dev")
    assert "[setup] installing sa_atp[dev], in the tested versions\n" in done.stderr
    assert "the environment lacks: pytest==1000,>=8 (it has " in done.stderr
    assert log.read_text().splitlines()[0] == "protobuf==7"
    assert "protobuf==3" not in log.read_text()
    checkout.setup("dev", "shell")
    assert log.read_text() == pins.read_text()
    pins.write_text("")
    assert checkout.setup("dev").stderr.endswith("has everything\n")
    for _ in range(2):
        done = checkout.run(
            "scripts/test", "--newest", "--only", "machine", variables={"SA_ATP_VENV": str(checkout.venv)}
        )
        assert "in the newest versions\n" in done.stderr


def test_the_lowest_versions_are_those_of_the_ranges(checkout: Checkout) -> None:
    checkout.environment({"*pip\\ install*": f"cat '{checkout.venv}/.sa-atp-versions' >&2; exit 7"})
    done = checkout.run("scripts/test", "--lowest", variables={"SA_ATP_VENV": str(checkout.venv)})
    assert done.returncode == 3
    assert "hypothesis==6\npytest==8\n" in done.stderr


def test_every_requirement_has_a_tested_version() -> None:
    """constraints.txt has one for each Python, and within the range of pyproject.toml: if not, run scripts/constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    for python in ("3.11.2", "3.12.3", "3.13.5", "3.14.8"):
        here = {"python_version": python.rsplit(".", 1)[0], "python_full_version": python}
        tested = {pin.name: pin.specifier for pin in pins if pin.marker is None or pin.marker.evaluate(here)}
        for wanted in map(Requirement, lines):
            if wanted.marker is None or wanted.marker.evaluate(here):
                (version,) = (part.version for part in tested[canonicalize_name(wanted.name)])
                assert wanted.specifier.contains(version, prereleases=True), f"{wanted} on Python {python}"


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
    """A PATH with the programs that the scripts use, without some of them."""
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
    assert done.stderr.startswith("[setup] another setup is running here: waiting for it\n")
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
    """The prefix of a command that runs it as a user who may read the checkout, and not write it."""
    if os.geteuid() == 0:
        yield ["/usr/bin/setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]
    else:
        checkout.root.chmod(0o555)
        yield []
        checkout.root.chmod(0o755)


def owners(folder: Path) -> dict[int, set[str]]:
    """The files below a folder, by owner."""
    found: dict[int, set[str]] = {}
    for path in folder.rglob("*"):
        found.setdefault(path.lstat().st_uid, set()).add(str(path.relative_to(folder)))
    return found


@pytest.mark.needs("root")
def test_root_leaves_nothing_of_its_own_in_somebody_elses_checkout(checkout: Checkout) -> None:
    """Otherwise the owner could neither use nor remove it."""
    checkout.environment({"'-m sa_atp run '*": 'mkdir -p "$6/logs"; touch "$6/run.json"; exit 5'})
    subprocess.run(["chown", "-R", "65534:65534", checkout.root], check=True)
    assert checkout.setup(*EXTRAS).returncode == 0
    assert (checkout.venv / ".sa-atp-installed").is_file()
    assert checkout.run("scripts/demo").returncode == 5
    assert (checkout.root / "runs" / "demo" / "run.json").exists()
    assert owners(checkout.root).pop(0, set()) == {"only-setup"}  # which the test has made


@pytest.mark.needs("root")
def test_an_environment_that_cannot_be_finished_is_the_owners_too(checkout: Checkout) -> None:
    without_torch(checkout)
    checkout.environment({"*pip\\ install*": f'touch "{checkout.venv}/half"; exit 1'})
    subprocess.run(["chown", "-R", "65534:65534", checkout.root], check=True)
    assert checkout.setup("torch", variables={"PIP_NO_INDEX": "1"}).returncode == 3
    assert (checkout.venv / "half").stat().st_uid == 65534


@pytest.mark.parametrize("script", ["scripts/test", "scripts/demo"])
def test_a_checkout_that_cannot_be_written(script: str, checkout: Checkout) -> None:
    with as_somebody_else(checkout) as prefix:
        done = checkout.run(*prefix, str(checkout.root / script))
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
            done = checkout.run(*prefix, f"{checkout.root}/scripts/{script}", "--mininet")
            assert (done.returncode, done.stdout) == (3, "")
            assert done.stderr == (
                "[setup] Mininet makes network namespaces: run this as root (sudo), or leave out --mininet\n"
            )
