"""Every command of the documents of the command line and of the embedded target runs as it stands, beside what it needs."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.needs import lack

from docs.blocks import ROOT, Block, Key, blocks, make_place, the
from sa_atp.net.sockets import namespace

CLI, EMBEDDED, WATCHING = "docs/cli.md", "docs/embedded-target.md", "docs/watching.md"


class Scene(NamedTuple):
    blocks: tuple[Key, ...]
    """The commands, one after another."""
    beside: tuple[str, ...] = ()
    """Commands that run in the background meanwhile."""
    before: tuple[str, ...] = ()
    """Commands to run before."""


def writes(file: str, text: str) -> str:
    return f"mkdir -p $(dirname {file}); cat > {file} <<'END'\n{text}END"


def program(text: str) -> str:
    return f"python -c '{text}'"


SWITCH = "sa-atp switch"
# a program that has joined, and stays
MEMBER = (
    'import signal, sa_atp\nwith sa_atp.connect("udp://127.0.0.1:21313", job="demo", rank=0, world_size=1):\n'
    "    print(flush=True)\n    try: signal.pause()\n    except KeyboardInterrupt: pass"
)
# a script for `sa-atp up`
TRAIN = """import os, numpy as np, sa_atp
world = int(os.environ["SA_ATP_WORLD_SIZE"])
with sa_atp.connect(
    os.environ["SA_ATP_SERVER"], job=os.environ["SA_ATP_JOB"], rank=int(os.environ.get("RANK", 0)), world_size=world
) as job:
    gradient = np.ones(8, np.float32)
    job.all_reduce(gradient)
    assert gradient.tolist() == [world] * 8
"""
# a file for `sa-atp trace`
OPERATIONS = """import pyarrow as pa, pyarrow.parquet as pq
kinds = {"optype": ["forward-compute"], "start_ts": [0.0], "duration": [1.0]}
pq.write_table(pa.table({"dp_rank": [0], "rank": [0], "step": [0]} | kinds), "operations.parquet")"""
TRAIN_PY = writes("train.py", TRAIN)
SCENES = (
    Scene(((CLI, "sa-atp run demo\n"), (CLI, "sa-atp plot"))),
    Scene(((CLI, "sa-atp run demo --backend sim --out"),)),
    Scene(((CLI, "sa-atp plans"),), before=("mkdir build",)),
    Scene(((CLI, "sa-atp bench"),)),
    Scene(((CLI, "sa-atp reproduce"),)),
    Scene(((CLI, "sa-atp map"),)),
    Scene(((CLI, "sa-atp trace"),), before=(program(OPERATIONS),)),
    Scene(((CLI, "sa-atp up"),), before=(TRAIN_PY,)),
    Scene(((WATCHING, "sa-atp watch"),), beside=("sa-atp up --workers 1", program(MEMBER))),
    Scene(((WATCHING, "sa-atp up"),)),
    Scene(((CLI, "sa-atp leaf"),), beside=("sa-atp up --listen 10.0.0.1:21313",)),
    Scene(((CLI, "sa-atp switch"),)),
    Scene(
        ((CLI, "sa-atp ps"),),
        beside=(
            f"{SWITCH} --grpc 10.0.0.254:9559",
            f"{SWITCH} --grpc 127.0.0.1:9559",
            f"{SWITCH} --grpc 127.0.0.1:9560",
        ),
        before=(writes("switches.json", the((CLI, '{"switches": [')).text),),
    ),
    Scene(((CLI, "sa-atp params"),)),
    Scene(((CLI, "sa-atp deploy"),), beside=(f"{SWITCH} none",)),
    Scene(((CLI, "sa-atp job"),), beside=(SWITCH, f"{SWITCH} --grpc 10.0.0.253:9559")),
    Scene(((CLI, "sa-atp stf"),)),
    Scene(((CLI, "sa-atp soak"),)),
    Scene(((CLI, "sa-atp dissect"),), before=(TRAIN_PY, "sa-atp up --workers 1 --pcap pcap -- python train.py")),
    Scene(((CLI, "sa-atp run demo --backend sim --set run.steps=8 --log"),)),
    Scene(((CLI, "sa-atp log"),), before=(TRAIN_PY, "sa-atp up --workers 1 --log decisions -- python train.py")),
    Scene(((CLI, "sa-atp doctor"),), beside=("sa-atp up --workers 2", program(MEMBER))),
    Scene(((CLI, "sa-atp clean"),), before=("mkdir build",)),
    Scene(((EMBEDDED, "sa-atp switch   "),)),
    Scene(((EMBEDDED, "sa-atp switch --plain"),)),
)
OWN_PROGRAM = ("README.md", "import numpy as np, sa_atp")
PLAYED = (*(key for scene in SCENES for key in scene.blocks), OWN_PROGRAM)
NOT_HERE = {"bmv2": "BMv2", "--target tofino": "a Tofino and its driver stack"}


def commands(block: Block) -> list[str]:
    """The commands of a block, without those of NOT_HERE; a backslash continues a line."""
    text = block.text.replace("\\\n", " ")
    return [line for line in text.splitlines() if not any(word in line for word in NOT_HERE)]


def stays(command: str) -> bool:
    return re.match(r"sa-atp (switch|ps|params|up|watch|leaf)\b(?!.* (--|--once)( |$))", command) is not None


LONG = ("sa-atp run", "sa-atp bench", "sa-atp reproduce", "sa-atp map")


def is_long(scene: Scene) -> bool:
    return any(first.startswith(LONG) for _, first in scene.blocks)


@pytest.mark.parametrize(
    "scene",
    [pytest.param(scene, marks=[pytest.mark.minutes] if is_long(scene) else []) for scene in SCENES],
    ids=lambda scene: scene.blocks[0][1].strip(),
)
def test_commands(scene: Scene, tmp_path: Path) -> None:
    play(scene, tmp_path)


def play(scene: Scene, tmp_path: Path) -> None:
    # not as marks: these take minutes, and what has a mark runs once more with Mininet, where they would be the same
    parts = ("pyarrow",) if program(OPERATIONS) in scene.before else ()
    for need in ("namespaces", "ip", "torch", "sklearn", "matplotlib", *parts):
        if reason := lack(need):
            pytest.skip(reason)
    environment = make_place(tmp_path)
    played = [*scene.before, *(command for key in scene.blocks for command in commands(the(key)))]
    what = {"commands": played, "stays": [stays(command) for command in played], "beside": scene.beside}
    done = subprocess.run(
        namespace.inside(sys.executable, str(Path(__file__).with_name("terminals.py"))),
        input=json.dumps(what), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def looks_like_a_command(text: str) -> bool:
    return re.match(r"\$ |(\./)?scripts/\w|sa-atp \w", text) is not None


def test_no_command_hides_in_a_block_that_nobody_runs() -> None:
    assert [b.first for b in blocks() if not b.language and looks_like_a_command(b.text)] == []


@pytest.mark.parametrize("said", [b.text for b in blocks() if b.language == "console"], ids=lambda text: text[:40])
def test_answers_of_commands(said: str, tmp_path: Path) -> None:
    """A block with a command and its output, which is compared exactly but for line breaks."""
    environment = make_place(tmp_path)
    command, _, answer = said.partition("\n")
    done = subprocess.run(
        ["bash", "-c", command.removeprefix("$ ")], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert (done.stdout + done.stderr).split() == answer.split()


def test_your_own_program(tmp_path: Path) -> None:
    """README's command beside README's snippet, for both ranks."""
    command = re.search(r"`(sa-atp up --workers 2)`", (ROOT / "README.md").read_text())
    assert command is not None
    text = the(OWN_PROGRAM).text
    assert "rank=0" in text
    check = "\nassert gradient.tolist() == [2.0] * len(gradient)\n"
    ranks = [writes(f"rank{rank}.py", text.replace("rank=0", f"rank={rank}") + check) for rank in range(2)]
    both = "python rank0.py & first=$!; python rank1.py; wait $first"
    play(Scene((), beside=(command[1],), before=(*ranks, both)), tmp_path)
