"""Compiled programs that differ from their sources: commands warn that what they run is not what p4src says.

In a copy of the checkout, whose sources have one comment more than the compiled programs were made from.
"""

import json
import lzma
import os
import shutil
from pathlib import Path

import pytest

from sa_atp.basics.folders import cache_folder

from .conftest import sa_atp

ROOT = Path(__file__).resolve().parent.parent.parent
PLAN = (
    "--backend", "sim", "--set", "run.steps=1", "--set", "run.policies=['atp']", "--set", "job.model=resnet-50",
    "--set", "job.model_scale=0.0005",
)  # fmt: skip
OLD = "this compiled P4 program differs from its sources"


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
    assert "p4src has changed since it was compiled; run scripts/compile (it needs p4c)" in errors
    manifest = json.loads((checkout / "result/manifest.json").read_text())
    assert manifest["program"]["made_from_these_sources"] is False
    report = (checkout / "result/report.html").read_text()
    assert "differs from its sources: p4src, or its own files, were changed" in report


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


@pytest.mark.parametrize(
    ("name", "old", "new", "what"),
    [
        ("wire.toml", "slots = 4096", "slots = 8192", "p4src has changed since"),
        ("compiled/v1model-64/sa_atp.json", '"program":', '"program" :', "sa_atp.json has changed since"),
        ("compiled/v1model-64/sa_atp.p4info.txtpb.xz", "", "", "sa_atp.p4info.txtpb has changed since"),
    ],
)
def test_whatever_makes_a_difference_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str, what: str
) -> None:
    from sa_atp.basics.errors import UserError
    from sa_atp.switches import artefacts

    shutil.copytree(ROOT / "p4src", tmp_path / "p4src")
    program, changed = tmp_path / "p4src/compiled/v1model-64", tmp_path / "p4src" / name
    assert artefacts.is_current(program) is True
    if changed.suffix == ".xz":
        changed.write_bytes(lzma.compress(lzma.decompress(changed.read_bytes()) + b"#"))
    else:
        text = changed.read_text()
        assert old in text
        changed.write_text(text.replace(old, new, 1))
    assert artefacts.is_current(program) is False
    monkeypatch.setenv("SA_ATP_STRICT", "1")
    with pytest.raises(UserError) as refused:
        artefacts.from_folder(program)
    assert what in str(refused.value)
    assert "\n" not in str(refused.value)
