"""The ways in which scripts/test runs: as on a fresh machine, only tests with a mark, all ways; and their lists."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT, Checkout

SKIPPED = ROOT / "scripts" / "lib" / "skipped.py"
NOBODY = 65534


# --- as on a fresh machine --------------------------------------------------------------------------------------------


@pytest.fixture
def repository(checkout: Checkout) -> Checkout:
    subprocess.run(["git", "init", "--quiet", checkout.root], check=True)
    (checkout.root / ".gitignore").write_text("/left-over\n")
    (checkout.root / "left-over").touch()
    (checkout.root / "not committed").write_text("yes")
    return checkout


FRESH = """#!/bin/bash
set -u
source "$(dirname "$0")/scripts/lib/setup.sh"
source "$(dirname "$0")/scripts/lib/fresh.sh"
fresh "$@"
"""


def fresh(checkout: Checkout, place: Path, code: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    script = checkout.root / "only-fresh"
    script.write_text(FRESH)
    script.chmod(0o755)
    return checkout.run("only-fresh", str(place), "sh", "-c", code, variables=variables)


@pytest.fixture
def place(checkout: Checkout) -> Path:
    """A folder that every user may read."""
    return checkout.root / "place"


needs_git_and_dpkg = pytest.mark.needs("git", "dpkg-query")


@needs_git_and_dpkg
def test_a_fresh_machine_has_what_every_debian_has_and_nothing_else(repository: Checkout, place: Path) -> None:
    rare = ["ip", "tc", "ethtool", "mnexec", "ping", "curl", "gcc", "docker", "node"]
    common = ["sh", "bash", "env", "ls", "sed", "grep", "awk", "tar", "flock", "setpriv", "git", "python3"]
    done = fresh(repository, place, f"for p in {' '.join(rare + common)}; do command -v $p; done; echo $PATH")
    assert done.returncode == 0, done.stderr
    *found, path = done.stdout.splitlines()
    assert path == f"{place}/bin"
    assert found == [f"{place}/bin/{program}" for program in common]
    assert all(not os.path.realpath(program).startswith(("/usr/local", "/root", "/home")) for program in found)


@needs_git_and_dpkg
def test_somebody_who_has_just_arrived_there(repository: Checkout, place: Path) -> None:
    code = 'id -u; echo "$HOME $(ls -A "$HOME" | wc -l) $TMPDIR $SA_ATP_CACHE"; touch a && echo ${SECRET-none} $PIP_TIMEOUT'
    done = fresh(
        repository, place, code, SECRET="x", PIP_TIMEOUT="17", PIP_CACHE_DIR="/x", HOME="/root", SA_ATP_CACHE="/x"
    )
    assert done.returncode == 0, done.stderr
    user, folders, variables = done.stdout.splitlines()
    assert int(user) == (NOBODY if os.geteuid() == 0 else os.geteuid())
    assert folders == f"{place}/home 0 {place}/tmp {place}/cache"
    assert variables == "none 17"


@needs_git_and_dpkg
def test_the_checkout_as_a_clone_would_have_it(repository: Checkout, place: Path) -> None:
    done = fresh(repository, place, 'pwd; ls -A; cat "not committed"')
    assert done.returncode == 0, done.stderr
    where, *names, content = done.stdout.splitlines()
    assert where == f"{place}/checkout"
    assert {"scripts", "pyproject.toml", "not committed"} <= set(names)
    assert "left-over" not in names
    assert content == "yes"


@needs_git_and_dpkg
def test_a_place_that_is_taken_or_closed(repository: Checkout, place: Path) -> None:
    place.mkdir()
    done = fresh(repository, place, "true")
    assert (done.returncode, done.stderr) == (2, f"[setup] {place} exists already: choose another folder\n")
    if os.geteuid() == 0:
        place.chmod(stat.S_IRWXU)
        done = fresh(repository, place / "in", "true")
        assert done.returncode == 3
        assert done.stderr == (
            f"[setup] nobody may not enter {place}/in: choose a place that is open to all, by TMPDIR or --in FOLDER\n"
        )


def test_without_dpkg_one_line_says_so(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    done = fresh(checkout, tmp_path / "place", "true", PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (3, "[setup] --fresh needs dpkg, which knows what every Debian has\n")


# --- marks, and all ways ----------------------------------------------------------------------------------------------

TESTS = """
import os, pytest
@pytest.mark.machine
@pytest.mark.skipif("FRESH" in os.environ, reason="no moon there: wait for the night")
def test_one(): assert "FAIL" not in os.environ
@pytest.mark.machine
@pytest.mark.mininet
def test_two(): pytest.skip("no sun: wait for the day")
def test_three(): pass
@pytest.mark.machine
@pytest.mark.fresh
def test_four(): pass
@pytest.mark.minutes
@pytest.mark.fresh
def test_five(): pass
"""
CONFTEST = """
def pytest_collection_modifyitems(config, items):
    items[:] = [i for i in items if not i.get_closest_marker("minutes") or "minutes" in config.option.markexpr]
"""
# The other machine is this one, with a variable.
FRESH_HERE = """
fresh() {
    mkdir "$1" && shift && cd "$ROOT" && FRESH=1 "$@"
}
"""
DEBIAN_HERE = """
OTHER_DEBIAN=sid
install_debootstrap() { return 1; }
debian() {
    shift 2 && mkdir -p "$place/srv/home" && cd "$ROOT" && "${@/#\\/srv/$place/srv}"
}
fresh_debian() { FRESH=1 debian "$@"; }
"""
MININET = ("mnexec", "ip", "tc", "ifconfig", "iperf3")


@pytest.fixture
def ways(checkout: Checkout) -> Checkout:
    """A checkout with tests, and other checks that pass at once."""
    checks = ("-m ruff ", "-m mypy", "scripts/generate --check", "scripts/compile --check", "scripts/tofino check")
    checkout.environment({f"'{check}'*": "exit 0" for check in checks})
    (checkout.root / "tests").mkdir()
    (checkout.root / "tests" / "test_it.py").write_text(TESTS)
    (checkout.root / "tests" / "conftest.py").write_text(CONFTEST)
    (checkout.root / "scripts" / "lib" / "fresh.sh").write_text(FRESH_HERE)
    (checkout.root / "scripts" / "lib" / "debian.sh").write_text(DEBIAN_HERE)
    (checkout.root / "pytest.ini").write_text("[pytest]\nmarkers =\n    machine\n    fresh\n    mininet\n    minutes\n")
    return checkout


def path_with(checkout: Checkout, *names: str) -> dict[str, str]:
    """A PATH with these programs, too."""
    folder = checkout.root / "bin"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{checkout.path}"}


def test_only_what_has_a_mark(ways: Checkout) -> None:
    done = ways.run("scripts/test", "--only", "machine", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [line for line in done.stdout.splitlines() if line.startswith("--- ") and not line.endswith(" s")]
    assert steps == ["--- pytest"]
    assert "Skipped: 1 of 3 tests" in done.stdout
    nothing = ways.run("scripts/test", "--only", "machine", "-k", "three")
    assert nothing.returncode == 0, nothing.stdout
    wrong = ways.run("scripts/test", "--only")
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "[setup] --only: expected a mark, a path, an extra, or a release of Debian\n",
    )


def test_an_extra_that_is_left_out(ways: Checkout) -> None:
    stamp = ways.venv / ".sa-atp-installed"
    assert ways.run("scripts/test", "--without", "shell", "--only", "machine").returncode == 0
    assert [line.split()[1:] for line in stamp.read_text().splitlines()] == [
        ["torch", "report", "notebook", "traces", "cluster", "docs", "dev"]
    ]
    assert ways.run("scripts/test", "--only", "machine").returncode == 0
    assert ["torch", "report", "notebook", "traces", "cluster", "shell", "docs", "dev"] in [
        line.split()[1:] for line in stamp.read_text().splitlines()
    ]
    wrong = ways.run("scripts/test", "--without", "shells")
    said = "[setup] --without shells: expected one of torch report notebook traces cluster shell docs dev\n"
    assert (wrong.returncode, wrong.stderr) == (2, said)


def test_as_on_a_fresh_machine_there_is_no_shell(ways: Checkout) -> None:
    """p4runtime-shell needs an old protobuf, which users do not have: one way has it, the other the newest."""
    assert ways.run("scripts/test", "--fresh").returncode == 0
    assert "shell" not in (ways.venv / ".sa-atp-installed").read_text()


def test_results_are_left_where_they_are_wanted(ways: Checkout, tmp_path: Path) -> None:
    assert ways.run("scripts/test", "--results", "there.xml", cwd=tmp_path).returncode == 0
    assert (tmp_path / "there.xml").read_text().count("<testcase") == 3
    assert ways.run("scripts/test", "--fresh", "--results", "fresh.xml", cwd=tmp_path).returncode == 0
    assert (tmp_path / "fresh.xml").read_text().count("<testcase") == 3


@pytest.mark.needs("root")
def test_continuous_integration_runs_all_ways(ways: Checkout) -> None:
    done = ways.run(".ci/run", variables=path_with(ways, *MININET, "debootstrap"))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("=== ") and "scripts/test" in line] == [
        "=== here: scripts/test --mininet --minutes --but fresh",
        "=== fresh: scripts/test --fresh --debian sid --without torch",
    ]
    at = lines.index("Skipped here: 1 of 4 tests")
    assert lines[at:-2] == [
        "Skipped here: 1 of 4 tests",
        "     1  no sun: wait for the day",
        "Skipped fresh: 2 of 3 tests",
        "     1  no moon there: wait for the night",
        "     1  no sun: wait for the day",
        "Skipped in every way: 1 of 5 tests",
        "     1  no sun: wait for the day",
    ]
    assert lines[-2].startswith("All passed in ")
    assert lines[-1] == "4 passed, 0 failed, 1 skipped"


@pytest.mark.needs("root")
def test_a_failure_in_one_way_fails_all(ways: Checkout) -> None:
    (ways.root / "scripts" / "lib" / "debian.sh").write_text(DEBIAN_HERE.replace("FRESH=1", "FAIL=1"))
    done = ways.run(".ci/run", "-q", variables=path_with(ways, *MININET, "debootstrap"))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-2].endswith(": fresh")
    assert done.stdout.splitlines()[-1] == "3 passed, 1 failed, 1 skipped"


@pytest.mark.needs("an ordinary user")
def test_where_mininet_cannot_be_had_the_list_says_so(ways: Checkout) -> None:
    done = ways.run(".ci/run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Mininet makes network namespaces: run this as root" in done.stderr
    *_, mininet, debian, _, last = done.stdout.splitlines()
    assert mininet == "Not done: the tests with Mininet, see above"
    assert debian == "Not done: the tests in another Debian, which need root and debootstrap"
    assert last == "4 passed, 0 failed, 1 skipped"


# --- lists ------------------------------------------------------------------------------------------------------------


def results(path: Path, **cases: str) -> str:
    """Writes a JUnit file. Args: cases: contents of each element by name; FILE is a file that was skipped as a whole."""
    text = ""
    for name, inner in cases.items():
        place, name = ("", "tests.test_x") if name == "FILE" else ("tests.test_x", name)
        text += f'<testcase classname="{place}" name="{name}">{inner}</testcase>'
    path.write_text(f"<testsuites><testsuite>{text}</testsuite></testsuites>")
    return str(path)


SKIP, FAIL = '<skipped type="pytest.skip" message="because"/>', '<failure message="no"/>'


def listed(*arguments: str) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, SKIPPED, *arguments], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_each_test_counts_once(tmp_path: Path) -> None:
    one = results(
        tmp_path / "1", t_a="", t_b=SKIP, t_c=SKIP, t_d=FAIL, t_e='<skipped type="pytest.xfail" message="known"/>'
    )
    two = results(tmp_path / "2", t_b="", t_c=SKIP, t_d="", t_a=FAIL)
    status, lines = listed(f"one={one}", f"two={two}")
    assert status == 0
    assert lines[-3:] == ["Skipped in every way: 1 of 5 tests", "     1  because", "2 passed, 2 failed, 1 skipped"]


def test_a_file_that_is_skipped_as_a_whole_in_one_way_only(tmp_path: Path) -> None:
    whole, ran = results(tmp_path / "1", FILE=SKIP, t_a=""), results(tmp_path / "2", t_b="")
    assert listed(f"one={whole}", f"two={ran}")[1][-2:] == [
        "Skipped in every way: 0 of 2 tests",
        "2 passed, 0 failed, 0 skipped",
    ]
    (tmp_path / "3").write_text(
        '<x><testcase classname="" name="tests.test_y"><skipped message="torch"/></testcase></x>'
    )
    assert listed(f"one={tmp_path / '3'}", f"two={ran}")[1][-1] == "1 passed, 0 failed, 1 skipped"


def test_a_way_without_results(tmp_path: Path) -> None:
    ran = results(tmp_path / "1", t_a="")
    status, lines = listed(f"one={tmp_path / 'nothing'}", f"two={ran}")
    assert status == 1
    assert lines[0].startswith("pytest left no results one: ")
    assert lines[-1] == "1 passed, 0 failed, 0 skipped"
