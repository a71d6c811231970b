"""A small checkout with the real scripts, and an environment whose Python is the one that runs the tests."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    ROOT / "scripts" / "demo",
    ROOT / "scripts" / "test",
    ROOT / "scripts" / "docs",
    ROOT / "scripts" / "constraints",
    ROOT / "scripts" / "lib" / "setup.sh",
    ROOT / "scripts" / "lib" / "fresh.sh",
    ROOT / "scripts" / "lib" / "debian.sh",
    ROOT / ".ci" / "run",
]
TIMEOUT_S = 120.0

# Stands for the Python of an environment: what a test does not replace goes to the real one.
PYTHON = """#!/bin/bash
export PYTHONPATH={root}
case "$*" in
{cases}
esac
exec {python} "$@"
"""


class Checkout:
    """The files of the repository that the scripts need."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.venv = root / ".venv"
        one_core = root / "one core"
        self.path = f"{one_core}{os.pathsep}{os.environ['PATH']}"
        one_core.mkdir()  # on one core, tests run one by one: the processes for several take longer to start than they run
        (one_core / "nproc").write_text("#!/bin/sh\necho 1\n")
        (one_core / "nproc").chmod(0o755)
        for part in ("scripts", ".ci"):
            shutil.copytree(ROOT / part, root / part)
        (root / "sa_atp").mkdir()
        (root / "sa_atp" / "__init__.py").write_text("")
        shutil.copytree(ROOT / "topologies", root / "topologies")
        (root / "sa_atp-1.dist-info").mkdir()
        (root / "sa_atp-1.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: sa_atp\nVersion: 1\nRequires-Dist: pytest>=8\nRequires-Dist: hypothesis>=6\n"
        )
        (root / "constraints.txt").write_text("# tested\n")
        (root / "pyproject.toml").write_text(
            '[project]\nname = "sa_atp"\ndependencies = ["pytest>=8"]\n'
            '[project.optional-dependencies]\ntorch = []\nreport = []\ndev = ["hypothesis>=6"]\n'
            "mininet = []\ncluster = []\nshell = []\nnotebook = []\ntraces = []\ndocs = []\n"
        )

    def environment(self, cases: Mapping[str, str] | None = None) -> None:
        """Makes the environment. cases: shell patterns of arguments, and commands to run instead."""
        (self.venv / "bin").mkdir(parents=True, exist_ok=True)
        lines = "\n".join(f"    {pattern}) {action} ;;" for pattern, action in (cases or {}).items())
        python = self.venv / "bin" / "python"
        python.write_text(
            PYTHON.format(root=shlex.quote(str(self.root)), python=shlex.quote(sys.executable), cases=lines)
        )
        python.chmod(0o755)

    def run(
        self, *command: str, variables: Mapping[str, str] | None = None, cwd: Path = Path("/")
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a script of this checkout."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SA_ATP_", "PYTEST_"))}
        environment = {**inherited, "PATH": self.path, **(variables or {})}
        return subprocess.run(
            [str(self.root / command[0]), *command[1:]],
            cwd=cwd, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip

    def setup(self, *extras: str, **options: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
        """Runs the set-up alone."""
        script = self.root / "only-setup"
        script.write_text(
            f'#!/bin/bash\nset -u\nsource {shlex.quote(str(self.root))}/scripts/lib/setup.sh\nsetup "$@"\necho "$PYTHON"\n'
        )
        script.chmod(0o755)
        return self.run("only-setup", *extras, **options)  # type: ignore[arg-type]


@pytest.fixture
def checkout() -> Iterator[Checkout]:
    """A checkout in a folder with a space in its name, which every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="sa-atp scripts "))
    folder.chmod(0o755)
    try:
        yield Checkout(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
