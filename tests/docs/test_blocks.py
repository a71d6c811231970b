"""Every block of the documents that can be run is run as it stands; each other one says by its place here why it is not.

A block is named by its file and its first line. One that is in no table fails the test: whoever adds a block says here how
it is run, or which of REASONS keeps it from being run.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.needs import MININET

from docs.blocks import ROOT, Key, blocks, make_place, the
from docs.test_commands import PLAYED, TRAIN
from sa_atp.switches.control.fabric import load_places

OWN = ("docs/own-program.md", "export SA_ATP_POLICIES")
REASONS = {
    "set-up": "sets up an environment; `.ci/run` and tests/scripts do it",
    "minutes": "takes minutes; a shorter run of the same kind is among those that are run",
    "bmv2": "needs BMv2",
    "p4c": "needs a P4 compiler, and perhaps its sources; scripts/compile --check runs where there is one",
    "tofino": "needs a Tofino or its driver stack; the commands run against an in-process server in tests/switches/tofino",
    "model": "needs the model of a Tofino; tests/switches/tofino/test_model.py does the same where it is there",
    "machines": "needs several machines",
    "fragment": "a part of a program, which examples show whole; its imports are run",
    "changes": "changes to a file, which a test beside that file applies",
}

NOT_RUN = {
    ("README.md", "./scripts/demo     # sets up"): "set-up",
    ("README.md", "+from sa_atp.ddp"): "changes",  # tests/train/test_torch_examples.py
    ("README.md", "+from sa_atp.train"): "changes",
    ("docs/embedded-target.md", "git clone"): "p4c",
    ("docs/first-hour.md", "./scripts/demo --mininet"): "set-up",
    ("docs/first-hour.md", "sa-atp run topologies/demo.toml --backend sim"): "minutes",
    ("docs/first-hour.md", "sa-atp run topologies/sweep-slowdown.toml --out"): "minutes",
    ("docs/first-hour.md", "sa-atp run topologies/sweep-slowdown.toml --set"): "minutes",
    ("docs/first-hour.md", "         job.apply();"): "changes",  # below
    ("docs/first-hour.md", "scripts/compile"): "p4c",
    ("docs/map.md", "sa-atp map map --out"): "minutes",
    ("docs/map.md", "sa-atp map map --x severity=1"): "minutes",
    ("docs/map.md", "sa-atp map map --x workers"): "minutes",
    ("docs/map.md", "sa-atp map map --x severity=0.25"): "minutes",
    ("docs/map.md", "sa-atp map switchml --x loss"): "minutes",
    ("docs/map.md", "sa-atp map switchml --x slots"): "minutes",
    ("docs/own-program.md", "cd examples"): "p4c",
    ("docs/pytorch.md", "pip install -e"): "set-up",
    ("docs/pytorch.md", "from sa_atp.ddp import"): "fragment",
    ("docs/pytorch.md", "from sa_atp.train import"): "fragment",
    ("docs/pytorch.md", "from torch.utils.data"): "fragment",
    ("docs/pytorch.md", "from sa_atp.train.fsdp"): "fragment",
    ("docs/pytorch.md", "import sa_atp.ddp"): "fragment",
    ("docs/pytorch.md", "sa-atp up -- torchrun --nproc-per-node 2 --max-restarts"): "minutes",  # test_torch_launch.py
    ("docs/pytorch.md", "python -m venv /tmp/torchft"): "set-up",
    ("docs/pytorch.md", "# on the machine with the switch"): "machines",
    ("docs/tofino.md", "scripts/tofino compile"): "p4c",
    ("docs/tofino.md", "sa-atp deploy --target tofino"): "tofino",
    ("docs/tofino.md", "cat > switches.json"): "tofino",
    ("docs/tofino.md", "scripts/tofino stf"): "model",
    ("docs/tofino.md", "scripts/tofino build"): "tofino",
}
EXCERPTS = {  # blocks of a language, all of one file
    ("docs/own-program.md", "p4"): "examples/own_aggregation/own_aggregation.p4",
    ("docs/own-program.md", "python"): "examples/own_aggregation/own_aggregation.py",
}
SHELL = {  # run with two steps in place of a run's forty, and otherwise as they stand
    ("README.md", "sa-atp run topologies/demo.toml"),
    ("docs/flow-model.md", "sa-atp run demo --backend sim"),
    OWN,
    ("docs/first-hour.md", "sa-atp stf p4src/compiled"),
}
SHELL_MININET = {
    ("README.md", "./scripts/demo --mininet"): 0,  # how many lines of it are run in another way
    ("docs/first-hour.md", "sa-atp run topologies/mininet-demo.toml --set straggler"): 0,
    ("docs/first-hour.md", "sa-atp run topologies/mininet-demo.toml --set run.steps=2"): 0,
    ("docs/first-hour.md", "sa-atp run topologies/straggler-cpu.toml"): 0,
    ("docs/first-hour.md", "sa-atp run topologies/two-level.toml"): 0,
    ("docs/own-program.md", "# as root"): 0,
}
IN_MININET = ("docs/python.md", "import os, sys")
EXPERIMENTS = (("README.md", "from sa_atp import experiment"), ("docs/python.md", "from sa_atp import experiment"))
PYTHON = {("docs/embedded-target.md", "from pathlib import Path")}
JSON = {("docs/cli.md", '{"switches": [')}


def test_every_block_is_run_or_says_why_not() -> None:
    assert set(NOT_RUN.values()) <= set(REASONS)
    known = [*NOT_RUN, *SHELL, *SHELL_MININET, *PYTHON, *EXPERIMENTS, *JSON, *PLAYED, IN_MININET]
    unused = set(known)
    for block in blocks():
        if block.language in ("", "console"):  # test_commands.py looks at those
            continue
        if (block.file, block.language) in EXCERPTS:
            continue
        keys = [key for key in known if block.is_at(key)]
        assert keys, f"{block.file}: nothing is said here of the block that begins with {block.first!r}"
        unused -= set(keys)
    assert not unused, "these blocks are not there any more"


def run_shell(text: str, environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(
    "key",
    [pytest.param(key, marks=[pytest.mark.minutes] if key[0] == "README.md" else []) for key in sorted(SHELL)],
    ids=str,
)
@pytest.mark.needs("torch", "sklearn")
def test_shell(key: Key, tmp_path: Path) -> None:
    environment = make_place(tmp_path, policies="") if key == OWN else make_place(tmp_path)
    run_shell(the(key).text, environment, tmp_path)


@MININET
@pytest.mark.needs("iperf3")
@pytest.mark.parametrize("key", sorted(SHELL_MININET), ids=str)
def test_shell_in_mininet(key: Key, tmp_path: Path) -> None:
    # without what sets up an environment, without BMv2, and with no one to page through a capture
    lines = [line for line in the(key).text.splitlines() if "./scripts/demo" not in line and "bmv2" not in line]
    if lines:
        run_shell("\n".join(lines).replace("| less", "> /dev/null"), make_place(tmp_path, policies=""), tmp_path)


@pytest.mark.parametrize("key", sorted(PYTHON), ids=str)
def test_python(key: Key, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", the(key).text], cwd=tmp_path, env={**make_place(tmp_path), "PYTHONBREAKPOINT": "0"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@MININET
def test_a_mininet_network_of_your_own(tmp_path: Path) -> None:
    rank = TRAIN.replace('int(os.environ["SA_ATP_WORLD_SIZE"])', "2").replace('os.environ["SA_ATP_JOB"]', '"star"')
    (tmp_path / "train.py").write_text(rank)
    done = subprocess.run(
        [sys.executable, "-c", the(IN_MININET).text], cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "[0, 0]"), done.stderr


@pytest.mark.needs("matplotlib", "pandas", "torch", "sklearn")
def test_experiments(tmp_path: Path) -> None:
    """One after another, in one process, and from an empty folder; README's run has two steps."""
    text = "\n".join(block.text for block in blocks() if any(block.is_at(key) for key in EXPERIMENTS))
    text = text.replace('"run.steps": 8', '"run.steps": 2')
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr
    assert "with one worker 4× slower" in done.stdout
    assert (tmp_path / "timeline.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "sweep.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.needs("torch")
def test_imports_of_fragments_exist() -> None:
    """All fragments in one process, because importing PyTorch takes most of the time."""
    imports: list[str] = []
    for key in (key for key, why in NOT_RUN.items() if why == "fragment"):
        found = [line for line in the(key).text.splitlines() if re.match(r"(from|import) ", line)]
        assert found, key
        imports += found
    subprocess.run([sys.executable, "-c", "\n".join(imports)], check=True, timeout=120)


@pytest.mark.parametrize("key", sorted(JSON), ids=str)
def test_a_file_of_switches(key: Key, tmp_path: Path) -> None:
    file = tmp_path / "switches.json"
    file.write_text(the(key).text)
    assert len(load_places(file)) == len(json.loads(the(key).text)["switches"])


def test_the_change_of_the_first_hour_fits_the_program() -> None:
    """The diff applies to the P4 source, and its field exists."""
    text = the(("docs/first-hour.md", "         job.apply();")).text
    context = [line[1:] for line in text.splitlines() if line.startswith(" ")]
    added = "\n".join(line[1:] for line in text.splitlines() if line.startswith("+"))
    source = (ROOT / "p4src/core/admission.p4").read_text()
    for line in context:
        assert line.rstrip() in source
    for field in re.findall(r"meta\.(\w+)", added):
        assert f"meta.{field}" in source


@pytest.mark.parametrize("key", sorted(EXCERPTS), ids=str)
def test_excerpts_are_in_their_file(key: Key) -> None:
    text = (ROOT / EXCERPTS[key]).read_text()
    for block in blocks():
        if (block.file, block.language) == key:
            assert block.text in text, block.first
