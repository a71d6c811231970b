"""scripts/demo, scripts/test and .ci/run: the commands they run, their output and their exit statuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT, Checkout

SHOW = {"'-m sa_atp run '*": 'shift 2; printf "%s\\n" "$@"; exit 5'}
CHECKS = {
    f"'{check}'*": "exit 0"
    for check in ("-m ruff ", "-m mypy", "scripts/generate --check", "scripts/compile --check", "scripts/tofino check")
}


def test_the_demo_runs_the_plan_and_passes_arguments_on(checkout: Checkout) -> None:
    checkout.environment(SHOW)
    done = checkout.run("scripts/demo", "--set", "run.steps=3", "--json")
    plan, out = checkout.root / "topologies" / "demo.toml", checkout.root / "runs" / "demo"
    assert done.returncode == 5  # that of the run
    # a run with other settings replaces the one before it: the folder is the demo's own
    given = ["--set", "run.steps=3", "--json"]
    assert done.stdout.splitlines() == ["run", str(plan), "--out", str(out), *given, "--replace"]
    assert out.is_dir()


def test_the_demo_ends_with_the_line_that_puts_the_command_on_path(checkout: Checkout) -> None:
    checkout.environment({"'-m sa_atp run '*": "exit 0"})
    (checkout.venv / "bin" / "activate").write_text(f"PATH='{checkout.venv}/bin':$PATH\n")
    (checkout.venv / "bin" / "sa-atp").write_text("#!/bin/sh\necho here\n")
    (checkout.venv / "bin" / "sa-atp").chmod(0o755)
    path = {"PATH": "/usr/bin:/bin"}
    last = checkout.run("scripts/demo", variables=path).stderr.splitlines()[-1]
    says, _, command = last.partition(":  ")
    assert says == "To have the command sa-atp in this shell"
    done = subprocess.run(["sh", "-c", f"{command} && sa-atp"], env=path, capture_output=True, text=True, check=True)
    assert done.stdout == "here\n"


def test_the_demo_takes_another_folder(checkout: Checkout) -> None:
    checkout.environment(SHOW)
    for option in (("--out", "a b"), ("--out=a b",)):
        done = checkout.run("scripts/demo", *option)
        assert done.stdout.splitlines()[-len(option) :] == list(option)  # the last one counts
    assert not (checkout.root / "runs").exists()


def test_the_demo_says_what_is_wrong_with_its_arguments(tmp_path: Path) -> None:
    """The real script, up to the reading of the plan, in the environment in which tests run."""
    versions = os.environ.get("SA_ATP_VERSIONS", "tested")
    done = subprocess.run(
        [ROOT / "scripts" / "demo", "--set", "run.steps=0", "--out", tmp_path / "out"],
        capture_output=True, text=True, timeout=600, check=False,
        env={"SA_ATP_VENV": sys.prefix, "SA_ATP_VERSIONS": versions, "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith("run.steps = 0: expected 1 to 100000")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("script", ["scripts/demo", "scripts/test"])
def test_help(script: str, checkout: Checkout) -> None:
    done = checkout.run(script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Sets up what is missing and ")
    assert f"  {script} --mininet" in done.stdout
    assert "set -uo" not in done.stdout


def test_the_site_is_built_where_it_is_asked_for_and_replaces_nothing_else(checkout: Checkout) -> None:
    checkout.environment({"*docs_site.py*": 'printf "%s\\n" "${@:2}"; exit 1'})
    done = checkout.run("scripts/docs", "--out", str(checkout.root / "a b"))
    assert (done.returncode, done.stdout.splitlines()) == (1, [str(checkout.root), str(checkout.root / "a b")])
    (checkout.root / "a b" / "file").write_text("")
    done = checkout.run("scripts/docs", "--out", str(checkout.root / "a b"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"[setup] --out {checkout.root}/a b: it holds other things than a site\n"
    assert checkout.run("scripts/docs", "--output").stderr == "[setup] --output: expected --out DIR, or --help\n"
    assert "scripts/docs --out DIR" in checkout.run("scripts/docs", "--help").stdout


def write_tests(checkout: Checkout, result: str) -> None:
    (checkout.root / "tests").mkdir()
    (checkout.root / "tests" / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(3))\n"
        "def test_skipped(n): pytest.skip('no moon: wait for the night')\n"
        "@pytest.mark.skip(reason='no sun: wait for the day')\n"
        "def test_also(): pass\n"
        f"def test_it(): assert {result}\n"
    )


def test_all_checks_pass(checkout: Checkout) -> None:
    checkout.environment(CHECKS)
    write_tests(checkout, "True")
    done = checkout.run("scripts/test", variables={"P4C_BM2_SS": "", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    steps = [line for line in lines if line.startswith("--- ") and not line.endswith(" s")]
    assert steps == [
        "--- ruff check", "--- ruff format", "--- generated files", "--- compiled P4 programs",
        "--- P4 programs for Tofino", "--- pytest", "--- mypy",
    ]  # fmt: skip
    at = lines.index("Skipped: 4 of 5 tests")
    assert lines[at + 1 : at + 3] == ["     3  no moon: wait for the night", "     1  no sun: wait for the day"]
    assert lines[-2].startswith("Not done: the P4 programs were compared with their sources, but not compiled again")
    assert lines[-1].startswith("All passed in 0 min ")


@pytest.mark.parametrize("types", ["'-m mypy'", "'-m mypy scripts/'*"], ids=["the first run", "that of scripts"])
def test_one_failure_fails_and_hides_no_other(checkout: Checkout, types: str) -> None:
    checkout.environment({types: "echo a wrong type; exit 1", **CHECKS})
    write_tests(checkout, "False")
    done = checkout.run("scripts/test")
    assert done.returncode == 1
    assert "a wrong type\n" in done.stdout
    assert done.stdout.splitlines()[-1].split(": ", 1)[1] == "pytest; mypy"


def test_arguments_go_to_pytest(checkout: Checkout) -> None:
    checkout.environment(CHECKS)
    write_tests(checkout, "False")
    done = checkout.run("scripts/test", "-k", "also or skipped", "-q")
    assert done.returncode == 0, done.stdout
    assert "Skipped: 4 of 4 tests" in done.stdout


def test_pytest_that_leaves_no_results(checkout: Checkout) -> None:
    checkout.environment({**CHECKS, "'-m pytest '*": "exit 4"})
    done = checkout.run("scripts/test")
    assert done.returncode == 1
    assert "pytest left no results: " in done.stdout
    assert done.stdout.splitlines()[-1].endswith(": pytest")
