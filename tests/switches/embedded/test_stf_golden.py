"""The golden vectors on each target, and what they cover.

Both targets must give the same packets out for the same packets in: those that the model in tests/golden derives from the
rules.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import load_pipeline
from golden.generate import FOLDER, out_of_date
from golden.model import EVENTS
from golden.scenarios import ALL
from helpers.needs import BMV2_STF

from sa_atp.lab.packet_tests import bmv2 as bmv2_stf
from sa_atp.switches import artefacts
from sa_atp.switches.embedded.loading import load
from sa_atp.switches.embedded.pipeline import Pipeline
from sa_atp.switches.embedded.stf import grammar, runner
from sa_atp.switches.embedded.stf.embedded import EmbeddedTarget
from sa_atp.switches.embedded.stf.names import ProgramNames

FILES = sorted(FOLDER.glob("*.stf"))


Build = tuple[int, int]


def build_of(file: Path) -> Build:
    """Lanes and contributions of the build that a vector is for."""
    found = re.search(r"_(\d+)(?:_c(\d+))?$", file.stem)
    return (int(found[1]), int(found[2] or 64)) if found else (64, 64)


@pytest.fixture(scope="session")
def pipeline_of(pipeline: Pipeline) -> Callable[[Build], Pipeline]:
    known = {(64, 64): pipeline}

    def find(build: Build) -> Pipeline:
        if build not in known:
            known[build] = load_pipeline(*build)
        return known[build]

    return find


def passes(file: Path, target: runner.Target, names: ProgramNames) -> None:
    result = runner.run(grammar.read(file), names, target)
    assert not result.notes
    assert result.expected >= 3
    assert result.passed, "\n".join(f"{f.line}: {f.message}\n{f.picture}" for f in result.failures)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_embedded_target(file: Path, pipeline_of: Callable[[Build], Pipeline]) -> None:
    build = build_of(file)
    passes(file, EmbeddedTarget(pipeline_of(build)), ProgramNames.from_file(artefacts.program(*build).json_path))


TICK_US = 1024
# The clock counts from the switch's start; the program sees 32 bits of it, in ticks.
CLOCKS_US = {
    "at zero": 0,
    "in the first time to live": 19 * TICK_US,
    "at 2^30 ticks": (1 << 30) * TICK_US - 5,
    "at 2^31 ticks": (1 << 31) * TICK_US - 5,
    "at 3 * 2^30 ticks": (3 << 30) * TICK_US - 5,
    "where ticks wrap around": (1 << 32) * TICK_US - 5,
}


@pytest.mark.parametrize("clock", CLOCKS_US)
@pytest.mark.parametrize("vector", ["aggregate", "collisions", "evictions", "lapses", "resends"])
def test_embedded_target_at_several_clocks(vector: str, clock: str, pipeline: Pipeline) -> None:
    """With most of these start times, the clock wraps within the vector."""
    target = EmbeddedTarget(pipeline, CLOCKS_US[clock])
    passes(FOLDER / f"{vector}.stf", target, ProgramNames.from_file(artefacts.program().json_path))


@BMV2_STF
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_bmv2(file: Path) -> None:
    program = artefacts.program(*build_of(file)).json_path
    names = ProgramNames.from_file(program)
    with bmv2_stf.running(program, names) as switch:
        passes(file, switch, names)


def test_the_plain_form_of_the_program_agrees() -> None:
    """Plain Python, as for a debugger, passes the same vectors."""
    program = artefacts.program().json_path
    passes(
        FOLDER / "saturation.stf",
        EmbeddedTarget(Pipeline.from_file(program, compiled=False)),
        ProgramNames.from_file(program),
    )


def test_a_wrong_vector_does_not_pass(pipeline: Pipeline) -> None:
    """Every lane, address and flag is compared: a change of any expected digit fails."""
    text = (FOLDER / "saturation.stf").read_text()
    names = ProgramNames.from_file(artefacts.program().json_path)
    line = next(i for i, line in enumerate(text.splitlines()) if line.startswith("expect"))
    digits = [i for i, c in enumerate(text.splitlines()[line]) if c in "0123456789abcdef" and i > len("expect 1 ")]
    for at in digits[::7]:
        lines = text.splitlines()
        lines[line] = lines[line][:at] + ("0" if lines[line][at] != "0" else "1") + lines[line][at + 1 :]
        result = runner.run(grammar.parse("\n".join(lines)), names, EmbeddedTarget(pipeline))
        assert [f.line for f in result.failures] == [line + 1]


def test_the_files_are_what_the_scenarios_say() -> None:
    assert out_of_date() == []


def test_every_row_of_the_verdict_table_is_hit() -> None:
    program = load(artefacts.program().json_path)
    (table,) = [t for t in program.tables() if t.name.endswith(".verdict")]
    assert [key.name for key in table.key] == ["intent", "found", "is_leaf", "overlap", "full"]
    rows = sorted(table.const_entries or (), key=lambda row: -row.priority)
    hit = set()
    for make in ALL.values():
        for verdict in make().switch.verdicts:
            key = (verdict.intent, verdict.found, verdict.is_leaf, verdict.overlap, verdict.full)
            for i, row in enumerate(rows):
                if all(value & mask == wanted for value, (wanted, mask) in zip(key, row.match, strict=True)):
                    hit.add(i)
                    break
    missing = [rows[i].match for i in range(len(rows)) if i not in hit]
    assert missing == []


def test_every_event_is_counted_somewhere() -> None:
    counted = {event for make in ALL.values() for _, event in make().switch.events}
    assert counted == set(EVENTS) - {"finished"}  # a software target finishes its sums at once
