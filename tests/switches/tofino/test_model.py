"""The compiled programs on the vendor's model of their chip: golden vectors at several clocks, and a job that trains."""

import json
from pathlib import Path
from typing import Any

import pytest
from golden.ptf import stf_files

from sa_atp.cli import main
from sa_atp.lab.packet_tests import tofino_model, tofino_stf
from sa_atp.switches import artefacts
from sa_atp.switches.control import tofino
from sa_atp.switches.embedded.stf import grammar, runner
from sa_atp.switches.embedded.stf.names import ProgramNames

PROGRAMS = {"tofino-model": 32, "tofino2-model": 64}
VECTORS = {name: stf_files(lanes, tofino.LOOP_PORTS[tofino.MODELS[name]]) for name, lanes in PROGRAMS.items()}
# The clock counts ns in 48 bits; the program takes bits 46 to 28 for ticks. With the last three, what is there for long has
# been there since before the change, and time passes it with the first `wait`.
CLOCKS_NS = {
    "at zero": 0,
    "in the first tick": 1 << 27,
    "at 2^46 ns": (1 << 46) - 100_000_000,
    "where ticks wrap around": (1 << 47) - 100_000_000,
    "where the clock does": (1 << 48) - 100_000_000,
}


def on_model(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.needs(tofino_model.HARNESSES[tofino.MODELS[name]]))


EACH_MODEL = pytest.mark.parametrize("model", [on_model(name) for name in PROGRAMS])


def passes(model: str, vector: str, clock_ns: int) -> None:
    program = tofino.from_folder(artefacts.tofino_folder(tofino.MODELS[model], PROGRAMS[model]))
    with tofino_stf.running(program, clock_ns) as target:
        result = runner.run(grammar.parse(VECTORS[model][vector]), ProgramNames(target.schema), target)
    assert not result.notes
    assert result.expected >= 3
    assert result.passed, "\n".join(f"{f.line}: {f.message}\n{f.picture}" for f in result.failures)


@EACH_MODEL
@pytest.mark.parametrize("clock", CLOCKS_NS)
@pytest.mark.parametrize("vector", sorted(VECTORS["tofino-model"]))
def test_golden_vectors(model: str, vector: str, clock: str) -> None:
    passes(model, vector, CLOCKS_NS[clock])


@EACH_MODEL
def test_a_wrong_vector_does_not_pass(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = artefacts.tofino_folder(tofino.MODELS[model], PROGRAMS[model])
    lines = VECTORS[model]["saturation.stf"].splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("expect"))
    lines[at] = lines[at].removesuffix(" $")[:-1] + ("0" if lines[at].removesuffix(" $")[-1] != "0" else "1") + " $"
    test = tmp_path / "wrong.stf"
    test.write_text("\n".join(lines) + "\n")
    assert main(["stf", "--target", model, "--json", str(program), str(test)]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["target"], said["passed"], [f["line"] for f in said["failures"]]) == (model, False, [at + 1])


@EACH_MODEL
@pytest.mark.needs("torch", "sklearn")
def test_a_job_has_the_sums_of_the_embedded_target(model: str, tmp_path: Path) -> None:
    """Two workers, one four times slower and helped, packets lost: the same sums, losses and times, bit for bit."""
    records = []
    for switch in (model, "embedded"):
        out = tmp_path / switch
        plan = ["topologies/tofino-model.toml", "--switch", switch, "--set", f"switch.lanes={PROGRAMS[model]}"]
        short = ["--set", "run.steps=1", "--set", "run.policies=['sa-atp']"]
        assert main(["run", *plan, *short, "--out", str(out)]) == 0
        run = json.loads((out / "run.json").read_text())
        records.append(run["runs"])
        assert run["switch"] == switch
    assert records[0] == records[1]


def test_plans_that_the_model_cannot_run_are_refused(tmp_path: Path) -> None:
    """Whether the model is installed or not."""
    test = tmp_path / "empty.stf"
    test.write_text("")
    other = artefacts.tofino_folder("tofino2")
    assert main(["stf", "--target", "tofino-model", str(other), str(test)]) == 2
    assert main(["stf", "--target", "bmv2", "--clock", "5", "x.json", str(test)]) == 2
    assert main(["stf", "--clock", "-1", "x.json", str(test)]) == 2
    for backend in ("local", "mininet"):
        out = str(tmp_path / backend)
        assert main(["run", "demo", "--backend", backend, "--switch", "tofino-model", "--out", out]) == 2
    lanes = ["--set", "switch.lanes=256"]  # there is no such build
    assert main(["run", "tofino-model", *lanes, "--out", str(tmp_path / "sim")]) == 2


@pytest.mark.parametrize("model", PROGRAMS)
def test_without_the_model_one_line_says_how_to_get_it(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SA_ATP_TOFINO_MODEL", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    test = tmp_path / "empty.stf"
    test.write_text("")
    program = artefacts.tofino_folder(tofino.MODELS[model], PROGRAMS[model])
    assert main(["stf", "--target", model, str(program), str(test)]) == 3
    assert "SA_ATP_TOFINO_MODEL" in capsys.readouterr().err
