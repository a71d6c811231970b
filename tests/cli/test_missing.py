"""Commands in an installation without extras: one line says how to get them, before anything starts."""

import os
from pathlib import Path

import pytest

from sa_atp.basics import needs

from .conftest import sa_atp

# Python finds none of these modules, here and in processes that are started from here.
HIDE = """
from importlib.machinery import PathFinder
real = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {hidden!r} else real(name, path, target)
PathFinder.find_spec = find_spec
"""


def without(folder: Path, *modules: str) -> dict[str, str]:
    """An environment in which these modules are not installed."""
    (folder / "sitecustomize.py").write_text(HIDE.format(hidden=set(modules)))
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


@pytest.mark.parametrize("backend", ["local", "sim"])
def test_a_run_without_pytorch(backend: str, tmp_path: Path) -> None:
    hidden = without(tmp_path, "torch", "sklearn")
    done = sa_atp("run", "demo", "--backend", backend, "--out", str(tmp_path / "out"), environment=hidden)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "sa-atp: job.model = 'digits-cnn' needs torch and scikit-learn, which are not installed: "
        f"{needs.how_to_install('torch', 'scikit-learn')}\n"
    )
    assert not (tmp_path / "out" / "logs").exists()


def test_a_model_that_needs_no_pytorch_runs_without(tmp_path: Path) -> None:
    small = ["job.model=resnet-50", "job.model_scale=0.0005", "run.steps=2", "run.warm_up=0", "topology.workers=2"]
    keys = [word for key in (*small, "straggler.pattern=none") for word in ("--set", key)]
    hidden = without(tmp_path, "torch", "sklearn")
    done = sa_atp("run", "demo", "--backend", "sim", "--out", str(tmp_path / "out"), *keys, environment=hidden)
    assert done.returncode == 0, done.stderr


def test_gloo_without_pytorch(tmp_path: Path) -> None:
    done = sa_atp("bench", "allreduce", "--against", "gloo", environment=without(tmp_path, "torch"))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"sa-atp: --against gloo needs torch, which is not installed: {needs.how_to_install('torch')}\n"
    )


@pytest.mark.needs("root", "namespaces")
def test_mininet_without_its_module(tmp_path: Path) -> None:
    """Debian's package has Mininet's programs, but its module only for Debian's Python."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("mnexec", "ip", "tc", "ifconfig"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    environment = {**without(tmp_path, "mininet"), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    said = "Mininet runs need the Python module mininet, which is not installed: " + needs.how_to_install("mininet")
    for command in (("run", "mininet-demo"), ("bench", "allreduce")):
        options = ["--backend", "mininet", *(["--out", str(tmp_path / "out")] if command[0] == "run" else [])]
        done = sa_atp(*command, *options, environment=environment)
        assert (done.returncode, done.stdout) == (3, ""), done.stderr
        assert done.stderr == f"sa-atp: {said}\n"
