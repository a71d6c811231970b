"""P4 sources that were edited without compiling: commands warn that the program they run is older.

In a copy of the checkout, whose sources have one comment more than the compiled programs were made from.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from sa_atp.basics.folders import cache_folder

from .conftest import sa_atp

ROOT = Path(__file__).resolve().parent.parent.parent
PLAN = ("--backend", "sim", "--set", "run.steps=1", "--set", "run.policies=['atp']")
OLD = "this compiled P4 program is older than its sources"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("sa_atp", "p4src", "topologies"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "p4src/core/verdict.p4").open("a") as source:
        source.write("// edited\n")
    return copy


def run(checkout: Path, *arguments: str, strict: bool = False) -> tuple[int, str, str]:
    environment = {
        "PYTHONPATH": str(checkout),
        "SA_ATP_CACHE": str(cache_folder()),
        "SA_ATP_STRICT": "1" if strict else "",
    }
    done = sa_atp(*arguments, environment=environment, cwd=checkout)
    return done.returncode, done.stdout, done.stderr


def packet_test(checkout: Path) -> tuple[str, ...]:
    """A short command that loads a program."""
    test = checkout / "nothing.stf"
    test.write_text("packet 1 00\nno_packet\n")
    return ("stf", "--plain", "p4src/compiled/v1model-64/sa_atp.json", str(test))


def test_a_run_says_so_in_one_line_in_its_manifest_and_in_its_report(checkout: Path) -> None:
    status, _, errors = run(checkout, "run", "demo", *PLAN, "--out", "result")
    assert status == 0, errors
    assert errors.count(OLD) == 1
    assert "for what was changed in p4src, run scripts/compile (it needs p4c)" in errors
    manifest = json.loads((checkout / "result/manifest.json").read_text())
    assert manifest["program"]["made_from_these_sources"] is False
    assert "older than its sources: changes in p4src were not run" in (checkout / "result/report.html").read_text()


@pytest.mark.parametrize("command", ["stf", "run", "switch", "deploy", "bench", "bench-allreduce", "up"])
def test_strict_refuses_wherever_a_program_is_loaded(checkout: Path, command: str) -> None:
    commands = {
        "stf": packet_test(checkout),
        "run": ("run", "demo", *PLAN, "--out", "refused"),
        "switch": ("switch", "--grpc", "127.0.0.1:0", "--plain"),
        "deploy": ("deploy", "--target", "embedded", "--program", "p4src/compiled/v1model-64"),
        "bench": ("bench", "switch", "--lanes", "64"),
        "bench-allreduce": ("bench", "allreduce", "--lanes", "64"),
        "up": ("up", "--", "true"),
    }
    status, _, errors = run(checkout, *commands[command], strict=True)
    assert status == 2, errors
    assert OLD in errors
    assert "SA_ATP_STRICT is set" in errors
    assert "Traceback" not in errors


def test_only_those_that_are_old_are_named(checkout: Path) -> None:
    status, _, errors = run(checkout, *packet_test(checkout))
    assert (status, errors.count(OLD)) == (0, 1)
    here = sa_atp("stf", "--plain", str(ROOT / "p4src/compiled/v1model-64/sa_atp.json"), packet_test(checkout)[-1])
    assert (here.returncode, OLD in here.stderr) == (0, False)
    away = checkout / "away"
    shutil.copytree(checkout / "p4src/compiled/v1model-64", away / "v1model-64", dirs_exist_ok=True)
    status, _, errors = run(checkout, "stf", "--plain", str(away / "v1model-64/sa_atp.json"), packet_test(checkout)[-1])
    assert (status, OLD in errors) == (0, False)  # without its sources nobody knows


def test_old_programs_for_tofino(checkout: Path) -> None:
    from sa_atp.switches import artefacts

    assert artefacts.is_current(checkout / "p4src/compiled/tofino-32") is False
    assert artefacts.is_current(ROOT / "p4src/compiled/tofino-32") is True
    assert artefacts.is_current(checkout / "p4src/core") is None
    assert os.environ.get("SA_ATP_STRICT", "") == ""
