"""Files that are made from others and committed: they are what their sources say."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_constants_follow_from_wire_toml() -> None:
    done = run(ROOT / "scripts/generate", "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_compiled_programs_were_made_from_the_present_sources() -> None:
    """Where there is a compiler, another test compares its output as well."""
    done = run(ROOT / "scripts/compile", "--check", "--no-rebuild")
    assert (done.returncode, done.stderr) == (0, "")


def test_programs_for_tofino_were_made_from_the_present_sources_and_are_whole() -> None:
    done = run(ROOT / "scripts/tofino", "check", "--no-rebuild")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the parts of the repository that the scripts read, to be changed."""
    packages = ("__init__", "basics/__init__", "protocol/__init__", "protocol/packets/__init__", "switches/__init__")
    modules = ("basics/errors", "basics/inputs", "basics/words", "protocol/packets/spec", "switches/artefacts")
    parts = (f"sa_atp/{name}.py" for name in (*packages, *modules))
    for name in ("scripts/generate", "scripts/compile", "scripts/tofino", *parts):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    shutil.copytree(ROOT / "p4src", tmp_path / "p4src")
    return tmp_path


@pytest.mark.parametrize(
    "name", ["sa_atp/protocol/packets/spec.py", "p4src/core/generated/spec.p4", "p4src/core/generated/lanes_64.p4"]
)
def test_a_generated_file_that_was_changed_is_named(copy: Path, name: str) -> None:
    (copy / name).write_text((copy / name).read_text() + "\n")
    done = run(copy / "scripts/generate", "--check")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{name} differs")
    assert run(copy / "scripts/generate").returncode == 0
    assert run(copy / "scripts/generate", "--check").returncode == 0


def test_a_field_that_breaks_the_alignment_of_lanes_is_refused(copy: Path) -> None:
    wire = copy / "p4src/wire.toml"
    wire.write_text(wire.read_text().replace("bits = 16", "bits = 15", 1))
    done = run(copy / "scripts/generate", "--check")
    assert done.returncode == 1
    assert "32-bit words" in done.stderr


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("core/verdict.p4", "\n", "\n// changed\n"),
        ("wire.toml", "tick_us = 1024", "tick_us = 2048"),
    ],
)
def test_compiled_programs_that_differ_from_their_sources_are_named(copy: Path, name: str, old: str, new: str) -> None:
    source = copy / "p4src" / name
    source.write_text(source.read_text().replace(old, new, 1))
    done = run(copy / "scripts/compile", "--check", "--no-rebuild")
    assert done.returncode == 1
    assert "p4src/compiled/v1model-64 differs from its sources" in done.stderr
    done = run(copy / "scripts/tofino", "check", "--no-rebuild")
    assert done.returncode == 1
    assert "p4src/compiled/tofino-32 differs from its sources" in done.stderr


@pytest.mark.parametrize("name", ["sa_atp.json", "sa_atp.p4info.txtpb.xz"])
def test_compiled_files_that_were_changed_are_named(copy: Path, name: str) -> None:
    for build in ("v1model-64", "tofino-32"):
        if (path := copy / "p4src/compiled" / build / name).exists():
            path.write_bytes(path.read_bytes()[:-1])
    done = run(copy / "scripts/compile", "--check", "--no-rebuild")
    assert done.returncode == 1
    assert done.stderr == "p4src/compiled/v1model-64 differs from its sources: run scripts/compile\n"
    done = run(copy / "scripts/tofino", "check", "--no-rebuild")
    assert (done.returncode, "tofino-32 differs" in done.stderr) == ((1, True) if name.endswith("xz") else (0, False))


def test_comments_of_wire_toml_change_no_program(copy: Path) -> None:
    wire = copy / "p4src/wire.toml"
    wire.write_text(f"# more\n{wire.read_text()}")
    assert run(copy / "scripts/compile", "--check", "--no-rebuild").returncode == 0


@pytest.mark.parametrize("script", [("scripts/compile",), ("scripts/tofino", "compile")])
def test_nothing_is_compiled_from_sources_that_another_wire_toml_generated(copy: Path, script: tuple[str, ...]) -> None:
    wire = copy / "p4src/wire.toml"
    wire.write_text(wire.read_text().replace("jobs = 256", "jobs = 128"))
    done = run(copy / script[0], *script[1:])
    assert done.returncode == 1
    assert "p4src/core/generated/spec.p4 differs from p4src/wire.toml: run scripts/generate" in done.stderr
