"""The wheel is complete, and works outside of a checkout."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from .conftest import ROOT

wheels = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed: scripts/test sets it up")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    [built] = wheels.WheelBuilder(str(ROOT)).build(
        directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"]
    )
    return Path(built)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine with the unpacked wheel, and nothing else of the project."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return {**os.environ, "PYTHONPATH": str(folder)}


def python(code: str, environment: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_what_the_checkout_does(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
    for folder, prefix in (
        ("p4src", "sa_atp/_data/p4src"),
        ("topologies", "sa_atp/_data/topologies"),
        ("sa_atp", "sa_atp"),
    ):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                name = f"{prefix}/{path.relative_to(ROOT / folder)}"
                assert packed.get(name) == path.read_bytes(), f"{name} is not in the wheel as it is in the checkout"
    [entry_points] = [data for name, data in packed.items() if name.endswith("entry_points.txt")]
    assert b"sa-atp = sa_atp.cli:main" in entry_points


def test_programs_and_plans_are_found(installed: dict[str, str], tmp_path: Path) -> None:
    folder = Path(installed["PYTHONPATH"]) / "sa_atp" / "_data"
    said = python(
        "from pathlib import Path\n"
        "from sa_atp.switches import artefacts\n"
        "from sa_atp.doctor import project\n"
        "print(artefacts.program(64).json_path)\n"
        "print(artefacts.plan_file(Path('topologies/demo.toml')))\n"
        "print(artefacts.plan_file(Path('demo')))\n"
        "print(project.programs().ok, project.artefacts_current(), project.generated())\n",
        installed,
        tmp_path,
    )
    plan = folder / "topologies" / "demo.toml"
    assert said.splitlines() == [
        str(folder / "p4src" / "compiled" / "v1model-64" / "sa_atp.json"), str(plan), str(plan), "True None None",
    ]  # fmt: skip


def test_messages_about_missing_extras_work_for_a_wheel(installed: dict[str, str], tmp_path: Path) -> None:
    """No index has this project, and there is no checkout, so messages name the dependencies, from the metadata."""
    said = python(
        "from sa_atp.basics import needs; print(needs.checkout(), needs.how_to_install('torch'))", installed, tmp_path
    )
    assert re.fullmatch(
        rf"None {re.escape(sys.executable)} -m pip install 'torch<3,>=2\.\d+' --extra-index-url \S+\n", said
    )


def test_commands_run(installed: dict[str, str], tmp_path: Path) -> None:
    """A switch and a parameter server from the wheel; the program that joins them sees the same package."""
    code = "import os, sa_atp; print(sa_atp.__file__, os.environ['SA_ATP_SERVER'])"
    done = subprocess.run(
        [sys.executable, "-m", "sa_atp", "up", "--lanes", "64", "--", sys.executable, "-c", code],
        cwd=tmp_path, env=installed, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{installed['PYTHONPATH']}/sa_atp/__init__.py udp://127.0.0.1:")
