"""Every block of the documents that can be run is run as it stands; each other one says by its place here why it is not.

A block is named by its file and its first line. One that is in no table fails the test: whoever adds a block says here how
it is run, or which of REASONS keeps it from being run.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.needs import MININET

from sa_atp.control.fabric import load_places

ROOT = Path(__file__).resolve().parents[2]
FILES = ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))

REASONS = {
    "set-up": "sets up an environment; `.ci/run` and tests/scripts do it",
    "minutes": "takes minutes; a shorter run of the same kind is among those that are run",
    "bmv2": "needs BMv2",
    "p4c": "needs a P4 compiler, and writes into the checkout; scripts/compile --check runs where there is one",
    "tofino": "needs a Tofino or its driver stack; the commands run against an in-process server in tests/tofino",
    "machines": "needs several machines",
    "fragment": "a part of a program, which examples show whole; its imports are run",
    "generated": "shows what is generated",
    "changes": "changes to a file, which a test beside that file applies",
}

NOT_RUN = {
    ("README.md", "./scripts/demo     # sets up"): "set-up",
    ("README.md", "+from sa_atp.ddp"): "changes",  # tests/torch/test_torch_examples.py
    ("README.md", "+from sa_atp.train"): "changes",
    ("docs/embedded-target.md", "elif chosen"): "generated",
    ("docs/first-hour.md", "./scripts/demo --mininet"): "set-up",
    ("docs/first-hour.md", "sa-atp run topologies/sweep-slowdown.toml --out"): "minutes",
    ("docs/first-hour.md", "sa-atp run topologies/sweep-slowdown.toml --set"): "minutes",
    ("docs/first-hour.md", "         job.apply();"): "changes",  # below
    ("docs/first-hour.md", "scripts/compile"): "p4c",
    ("docs/pytorch.md", "pip install -e"): "set-up",
    ("docs/pytorch.md", "from sa_atp.ddp import"): "fragment",
    ("docs/pytorch.md", "from sa_atp.train import"): "fragment",
    ("docs/pytorch.md", "from sa_atp.train.fsdp"): "fragment",
    ("docs/pytorch.md", "import sa_atp.ddp"): "fragment",
    ("docs/pytorch.md", "export TORCH_DISABLE"): "minutes",  # tests/torch/test_torch_launch.py
    ("docs/pytorch.md", "sa-atp up --listen 10.0.0.1"): "machines",
    ("docs/pytorch.md", "export SA_ATP_SERVER"): "machines",
    ("docs/tofino.md", "scripts/tofino compile"): "p4c",
    ("docs/tofino.md", "sa-atp deploy --target tofino"): "tofino",
    ("docs/tofino.md", "cat > switches.json"): "tofino",
    ("docs/tofino.md", "scripts/tofino build"): "tofino",
}
SHELL = {  # run with two steps in place of a run's forty, and otherwise as they stand
    ("README.md", "sa-atp run topologies/demo.toml"),
    ("docs/first-hour.md", "sa-atp stf p4src/compiled"),
}
SHELL_MININET = {
    ("README.md", "./scripts/demo --mininet"): 0,  # how many lines of it are run in another way
    ("docs/first-hour.md", "sa-atp run topologies/mininet-demo.toml --set straggler"): 0,
    ("docs/first-hour.md", "sa-atp run topologies/mininet-demo.toml --set run.steps=2"): 0,
    ("docs/first-hour.md", "sa-atp run topologies/straggler-cpu.toml"): 0,
    ("docs/first-hour.md", "sa-atp run topologies/two-level.toml"): 0,
}
PYTHON = {("docs/embedded-target.md", "from pathlib import Path")}
JSON = {("docs/cli.md", '{"switches": [')}
OWN_PROGRAM = ("README.md", "import numpy as np, sa_atp")


class Block(NamedTuple):
    file: str
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first line that says something."""
        lines = self.text.splitlines()
        if self.language == "diff":  # begins with context
            return next((line for line in lines if line.startswith("+from")), lines[0])
        return lines[0]


def blocks() -> list[Block]:
    found = []
    for file in FILES:
        for match in re.finditer(r"^```(\w+)\n(.*?)^```", (ROOT / file).read_text(), re.MULTILINE | re.DOTALL):
            found.append(Block(file, match[1], match[2]))
    return found


def the(file: str, first: str) -> Block:
    return next(block for block in blocks() if block.file == file and block.first.startswith(first))


def test_every_block_is_run_or_says_why_not() -> None:
    assert set(NOT_RUN.values()) <= set(REASONS)
    known = [*NOT_RUN, *SHELL, *SHELL_MININET, *PYTHON, *JSON, OWN_PROGRAM]
    unused = set(known)
    for block in blocks():
        keys = [key for key in known if key[0] == block.file and block.first.startswith(key[1])]
        assert keys, f"{block.file}: nothing is said here of the block that begins with {block.first!r}"
        unused -= set(keys)
    assert not unused, "these blocks are not there any more"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with what a checkout has, to run blocks in; what they write stays there."""
    for entry in ROOT.iterdir():
        if entry.name not in ("runs", "build", ".git", ".venv"):
            (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


SHORT = f"""#!/bin/sh
if [ "$1" = run ]; then shift; set -- run "$@" --set run.steps=2; fi
exec {sys.executable} -m sa_atp "$@"
"""


def run_shell(text: str, place: Path) -> None:
    programs = place / "programs"
    programs.mkdir()
    (programs / "sa-atp").write_text(SHORT)
    (programs / "sa-atp").chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], cwd=place, env=environment, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("key", sorted(SHELL), ids=str)
@pytest.mark.needs("torch", "sklearn")
def test_shell(key: tuple[str, str], place: Path) -> None:
    run_shell(the(*key).text, place)


@MININET
@pytest.mark.needs("iperf3")
@pytest.mark.parametrize("key", sorted(SHELL_MININET), ids=str)
def test_shell_in_mininet(key: tuple[str, str], place: Path) -> None:
    # without what sets up an environment, without BMv2, and with no one to page through a capture
    lines = [line for line in the(*key).text.splitlines() if "./scripts/demo" not in line and "bmv2" not in line]
    if lines:
        run_shell("\n".join(lines).replace("| less", "> /dev/null"), place)


@pytest.mark.parametrize("key", sorted(PYTHON), ids=str)
def test_python(key: tuple[str, str], place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", the(*key).text], cwd=place, env={**os.environ, "PYTHONBREAKPOINT": "0"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@pytest.mark.parametrize("key", sorted(key for key, why in NOT_RUN.items() if why == "fragment"), ids=str)
@pytest.mark.needs("torch")
def test_what_fragments_import_is_there(key: tuple[str, str]) -> None:
    imports = [line for line in the(*key).text.splitlines() if re.match(r"(from|import) ", line)]
    assert imports
    subprocess.run([sys.executable, "-c", "\n".join(imports)], check=True, timeout=120)


@pytest.mark.parametrize("key", sorted(JSON), ids=str)
def test_a_file_of_switches(key: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "switches.json"
    file.write_text(the(*key).text)
    assert len(load_places(file)) == len(json.loads(the(*key).text)["switches"])


def test_the_change_of_the_first_hour_fits_the_program() -> None:
    """Its context is in the P4 source, and what it changes is a field that is there."""
    text = the("docs/first-hour.md", "         job.apply();").text
    context = [line[1:] for line in text.splitlines() if line.startswith(" ")]
    added = "\n".join(line[1:] for line in text.splitlines() if line.startswith("+"))
    source = (ROOT / "p4src/core/admission.p4").read_text()
    for line in context:
        assert line.rstrip() in source
    for field in re.findall(r"meta\.(\w+)", added):
        assert f"meta.{field}" in source


def _port_is_free() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("127.0.0.1", 21313))
        except OSError:
            return False
    return True


@pytest.mark.skipif(not _port_is_free(), reason="UDP port 21313 of this machine is in use: end what has it")
def test_your_own_program(place: Path) -> None:
    """The README's command beside the README's snippet, for both ranks."""
    command = re.search(r"`(sa-atp up --workers 2)`", (ROOT / "README.md").read_text())
    assert command is not None
    program = the(*OWN_PROGRAM).text
    assert "rank=0" in program
    check = "\nassert gradient.tolist() == [2.0] * len(gradient)\n"
    with subprocess.Popen(
        [sys.executable, "-m", *command[1].replace("sa-atp", "sa_atp").split()],
        cwd=place,
        stdout=subprocess.PIPE,
        text=True,
    ) as up:
        try:
            assert up.stdout is not None
            assert up.stdout.readline().startswith("export SA_ATP_")  # it is ready
            ranks = [
                subprocess.Popen([sys.executable, "-c", program.replace("rank=0", f"rank={rank}") + check], cwd=place)
                for rank in range(2)
            ]
            assert [rank.wait(120) for rank in ranks] == [0, 0]
        finally:
            up.send_signal(signal.SIGINT)
            up.wait(30)
    assert up.returncode == 0
