"""The small programs of tests/p4, each with its packet test, on each target; a comment at their top says their purpose."""

from pathlib import Path

import pytest
from helpers.needs import BMV2_STF

from sa_atp.basics.folders import cache_folder
from sa_atp.lab.packet_tests import bmv2 as bmv2_stf
from sa_atp.switches.embedded.pipeline import Pipeline
from sa_atp.switches.embedded.stf import grammar, runner
from sa_atp.switches.embedded.stf.embedded import EmbeddedTarget
from sa_atp.switches.embedded.stf.names import ProgramNames

P4 = Path(__file__).resolve().parents[2] / "p4"
PROGRAMS = ("entries", "validity", "layers", "sums", "wide")


def passes(name: str, target: runner.Target) -> None:
    result = runner.run(grammar.read(P4 / f"{name}.stf"), ProgramNames.from_file(P4 / f"{name}.json"), target)
    assert result.expected
    assert result.passed, "\n".join(f"{f.line}: {f.message}\n{f.picture}" for f in result.failures)


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_embedded_target(name: str, compiled: bool) -> None:
    pipeline = Pipeline.from_file(P4 / f"{name}.json", compiled=compiled, cache=cache_folder() if compiled else None)
    passes(name, EmbeddedTarget(pipeline))


@BMV2_STF
@pytest.mark.parametrize("name", PROGRAMS)
def test_bmv2(name: str) -> None:
    program = P4 / f"{name}.json"
    with bmv2_stf.running(program, ProgramNames.from_file(program)) as switch:
        passes(name, switch)
