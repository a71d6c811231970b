"""What the project calls is declared in basics/needs.py, and a test that calls what not every machine has says so."""

import ast
import keyword
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from conftest import ANYWHERE
from helpers import calls
from helpers.needs import ABILITIES, lack

from sa_atp.basics import needs
from sa_atp.basics.errors import MissingPartError
from sa_atp.lab.backends.mininet import parts

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = [path for path in (ROOT / "scripts").iterdir() if path.is_file()]


def starts_with(path: Path, interpreter: str) -> bool:
    return interpreter in path.read_bytes()[:40].decode(errors="replace")


PYTHON = sorted(
    {
        *(path for folder in ("sa_atp", "tests", "examples", "docker") for path in (ROOT / folder).rglob("*.py")),
        *(ROOT / "scripts" / "lib").glob("*.py"),
        *(path for path in SCRIPTS if starts_with(path, "python")),
    }
    - {Path(__file__).resolve()}  # which has examples
)
SHELL = [
    *(path for path in SCRIPTS if starts_with(path, "bash")), *(ROOT / "scripts" / "lib").glob("*.sh"),
    ROOT / ".ci" / "run", ROOT / "docker" / "take-rank",
]  # fmt: skip


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# --- declared ---------------------------------------------------------------------------------------------------------


def test_programs_that_python_calls_are_declared() -> None:
    """Say in sa_atp/basics/needs.py what a new one is for, and which package has it."""
    found = {name_of(path): calls.in_python(path.read_text()) - set(needs.PROGRAMS) for path in PYTHON}
    assert not {name: undeclared for name, undeclared in found.items() if undeclared}


def test_programs_that_shell_scripts_call_are_declared() -> None:
    """Words of messages stand among what is found; those that this machine has as programs are looked at."""
    found = calls.in_shell("\n".join(path.read_text() for path in SHELL))
    found = {word for word in found if shutil.which(word) and not keyword.iskeyword(word)}
    assert {"flock", "mktemp", "sed"} <= found
    assert {word for word in found if not word.startswith("python3")} <= set(needs.PROGRAMS)


def test_calls_are_found_where_they_are_written_in_many_ways() -> None:
    source = '''
import subprocess, os
tie = ("setpriv", "--")
def run(*command): subprocess.run(command, check=True)
def build(out): subprocess.run([*tie, "true", out])
run("ip", "link")
os.execvp("p4c-x", [])
network.start("h1", "name", [], program=["iperf3"])
node.cmd("echo 1 > /proc/x; ip link set lo up")
subprocess.run(["sh", "-c", "a=1 tc qdisc add && ethtool lo"])
rows = ("time", "value")
OTHER = """
import subprocess
subprocess.Popen(["tcpdump"])
"""
'''
    assert calls.in_python(source) == {
        "setpriv", "true", "ip", "p4c-x", "iperf3", "sh", "tc", "ethtool", "tcpdump",
    }  # fmt: skip


def test_what_set_up_installs_for_mininet_is_what_it_needs() -> None:
    text = (ROOT / "scripts" / "lib" / "setup.sh").read_text()
    listed = re.search(r'^MININET_PROGRAMS="(.*)"$', text, re.MULTILINE)
    assert listed is not None
    wanted = {f"{name}:{needs.PROGRAMS[name].package}" for name in (*parts.PROGRAMS, *parts.TRAFFIC)}
    assert set(listed[1].split()) == wanted


def test_packages_are_declared_as_in_the_project_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for distribution, extra in needs.OPTIONAL.values():
        assert any(re.match(rf"{distribution}\b", line) for line in extras[extra])


# --- tests say what they need -----------------------------------------------------------------------------------------


@cache
def marked(path: Path) -> frozenset[str]:
    """Needs that a file of tests names, by `needs(...)` or by a mark of helpers/needs.py."""
    from helpers import needs as marks

    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "needs":
            found |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
        elif isinstance(node, ast.Name) and isinstance(mark := getattr(marks, node.id, None), pytest.MarkDecorator):
            found |= set(mark.args)
    return frozenset(found)


def test_tests_that_call_what_not_every_machine_has_say_so() -> None:
    """Mark them with needs(...), so that they skip without."""
    common = {name for name, program in needs.PROGRAMS.items() if program.essential}
    for path in PYTHON:
        if path.is_relative_to(ROOT / "tests") and path != ROOT / "tests" / "p4" / "compile.py":  # a script
            rare = (calls.in_python(path.read_text()) & set(needs.PROGRAMS)) - common
            assert rare <= marked(path), name_of(path)


def test_every_need_can_be_looked_up() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name in marked(path):
            assert name in needs.PROGRAMS or name in needs.OPTIONAL or name in ABILITIES, f"{name_of(path)}: {name}"


def test_what_is_missing_is_skipped_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SA_ATP_BMV2", raising=False)
    assert lack("iperf3") == "iperf3 is not on this machine: apt-get install iperf3"
    assert str(lack("simple_switch_grpc")).startswith("simple_switch_grpc is not on this machine: install the package")
    with pytest.raises(KeyError):
        lack("ethtool")


SEES_NOTHING = {"multiprocessing", "os", "pathlib", "shutil", "socket", "subprocess", "tempfile", "threading", "time"}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("place", ANYWHERE)
def test_tests_that_run_in_one_way_only_see_nothing_of_the_machine(place: str) -> None:
    """Nor do their helpers. What they would find in another way, or as another user, is what they have found."""
    there = ROOT / "tests" / place
    paths = [there] if there.suffix else sorted(there.rglob("*.py"))
    assert paths
    for path in paths:
        for name in imported(path):
            assert name.partition(".")[0] not in SEES_NOTHING or name == "socket.inet_aton", f"{name_of(path)}: {name}"
        assert "tmp_path" not in path.read_text(), name_of(path)
        assert not marked(path), name_of(path)


# --- what errors say --------------------------------------------------------------------------------------------------


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_programs_are_found_where_a_variable_says_or_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = program(tmp_path / "path" / "simple_switch_grpc")
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.delenv("SA_ATP_BMV2", raising=False)
    assert needs.find("simple_switch_grpc") == on_path
    built = program(tmp_path / "bmv2" / "bin" / "simple_switch_grpc")
    monkeypatch.setenv("SA_ATP_BMV2", str(tmp_path / "bmv2"))
    assert needs.find("simple_switch_grpc") == built
    monkeypatch.setenv("P4C_BM2_SS", str(program(tmp_path / "p4c" / "my-p4c")))
    assert needs.find("p4c-bm2-ss") == tmp_path / "p4c" / "my-p4c"
    monkeypatch.setenv("P4C_BM2_SS", str(tmp_path / "p4c" / "another"))
    assert needs.find("p4c-bm2-ss") is None


def test_one_line_for_all_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPartError, match=r"^This needs ip, tc, mnexec: apt-get install iproute2 mininet$"):
        needs.require("This needs", "ip", "tc", "mnexec")
    with pytest.raises(MissingPartError, match=r"^This needs ip, p4c-bm2-ss: apt-get install iproute2; the p4lang"):
        needs.require("This needs", "ip", "p4c-bm2-ss")
    program(tmp_path / "ip")
    needs.require("This needs", "ip")


def test_how_to_install_in_a_checkout() -> None:
    assert needs.checkout() == ROOT
    said = needs.how_to_install("matplotlib")
    pip, script = f"{sys.executable} -m pip install --editable", f"or {ROOT}/scripts/demo"
    assert said == f"{pip} '{ROOT}[report]'; {script}, which sets up an environment that has it"
    assert f"{pip} '{ROOT}[torch]' --extra-index-url {needs.TORCH_INDEX}; {script}" in needs.how_to_install(
        "torch", "scikit-learn"
    )
    assert f"; {script} --mininet, which" in needs.how_to_install("mininet")
    assert needs.how_to_install("numpy").startswith(f"{pip} {ROOT}; {script}")
    assert needs.how_to_install("pandas").endswith("/scripts/demo, which sets up an environment that has it")
    assert needs.how_to_install("pyarrow") == f"{pip} '{ROOT}[traces]'"  # the tests would take half an hour


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("pipx_metadata.json", "pipx inject tool 'torch>=2.12,<3' '--pip-args=--extra-index-url "),
        ("uv-receipt.toml", f"uv pip install --python {sys.executable} 'torch>=2.12,<3' --extra-index-url "),
        ("pyvenv.cfg", f"{sys.executable} -m pip install 'torch>=2.12,<3' --extra-index-url "),
    ],
)
def test_how_to_install_into_what_each_tool_has_made(
    file: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = needs._own_requirements()
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / file).write_text("")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "tool"))
    monkeypatch.setattr(needs, "checkout", lambda: None)
    monkeypatch.setattr(needs, "_own_requirements", lambda: wanted)
    assert needs.how_to_install("torch").startswith(command)
    monkeypatch.setenv(needs.IMAGE, "an-image")
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for an image's ordinary user
    said = needs.how_to_install("pandas")
    assert r"FROM an-image\nUSER root\nRUN " in said
    assert said.endswith(" | docker build -t an-image -")


def distribution(folder: Path, name: str, version: str, *requires: str) -> None:
    """As if pip had installed it into a folder."""
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir()
    lines = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {each}" for each in requires),
    ]
    (place / "METADATA").write_text("\n".join(lines) + "\n")


def test_versions_that_do_not_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    pip = f"{sys.executable} -m pip install"
    distribution(tmp_path, "protobuf", "7.36.2")
    distribution(
        tmp_path, "p4runtime-shell", "0.0.6", "absent-here>=1", "protobuf<3.21.0,>=3.15.0", "a-b<1; extra == 'c'"
    )
    assert needs.at_odds("p4runtime-shell") == (
        "p4runtime-shell 0.0.6 asks for protobuf<3.21.0,>=3.15.0, and protobuf is 7.36.2",
        f"in an environment of its own: {sys.executable} -m venv p4runtime-shell && "
        "p4runtime-shell/bin/pip install p4runtime-shell==0.0.6",
    )
    distribution(tmp_path, "numba", "0.61.0", "numpy<2.2,>=1.24")
    distribution(tmp_path, "numpy", "2.4.6")
    said, how = needs.at_odds("numba") or ("", "")
    assert said == "numba 0.61.0 asks for numpy<2.2,>=1.24, and numpy is 2.4.6"
    assert how.startswith(f"{pip} 'numba<0.70,>=0.61' ") or how.startswith(f"{pip} 'numba>=0.61,<0.70' ")
    assert how.endswith(" 'numpy<2.2,>=1.24'")
    distribution(tmp_path, "scapy", "1.0")
    said, how = needs.at_odds("scapy") or ("", "")
    assert said.startswith("1.0, where sa_atp takes scapy<3,>=2.")
    assert how == needs.how_to_install("scapy")
    distribution(tmp_path, "rich", "14.0", "protobuf>=7", "nonsense ~~ 1")
    assert needs.at_odds("rich") is None
    assert needs.at_odds("no-such-package") is None


def test_how_to_install_from_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """No index has this project, so what it depends on is named."""
    monkeypatch.setattr(needs, "checkout", lambda: None)
    python = f"{sys.executable} -m pip install"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    torch = project["optional-dependencies"]["torch"][0]
    words = needs.how_to_install("torch").removeprefix(python).split()
    assert set(words[0].strip("'").removeprefix("torch").split(",")) == set(torch.removeprefix("torch").split(","))
    assert words[1:] == ["--extra-index-url", needs.TORCH_INDEX]
    assert re.fullmatch(re.escape(python) + r" 'matplotlib(<4|>=3.10),(<4|>=3.10)'", needs.how_to_install("matplotlib"))
    assert re.search(r"install mininet==2", needs.how_to_install("mininet"))
