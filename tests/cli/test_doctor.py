"""`sa-atp doctor`: its findings are true, and missing parts come with a remedy."""

import json
import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from helpers.limits import limited

from sa_atp import doctor
from sa_atp.basics import needs
from sa_atp.basics.folders import cache_folder
from sa_atp.cli import main
from sa_atp.doctor import machine, project, software
from sa_atp.doctor.commands import commands, offered
from sa_atp.doctor.finding import TRY_AGAIN, Finding, attempt, remedy
from sa_atp.switches import artefacts
from sa_atp.switches.embedded import program_cache
from sa_atp.switches.embedded.loading import load

from .conftest import sa_atp


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The command's findings about this machine."""
    done = sa_atp("doctor", "--json")
    result: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if result["demo_runs"] else 3)
    lines = done.stderr.splitlines()
    assert all(line.startswith("sa-atp: trying what this machine has, ") for line in lines)  # on a slow machine
    return result


@pytest.fixture(scope="module")
def findings(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for group in found["findings"].values() for finding in group}


def test_a_finding_is_told_as_soon_as_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    was_told, told = threading.Event(), []

    def finding(name: str, *, ok: bool = True) -> Finding:
        return Finding(name=name, ok=ok, detail="")

    def tell(title: str, known: Finding) -> None:
        told.append((title, known.name))
        was_told.set()

    probes = {
        "Python": [lambda: finding("first"), lambda: finding("second", ok=was_told.wait(60))],
        "Machine": [lambda: None, lambda: [finding("third"), finding("fourth")]],
    }
    monkeypatch.setattr(doctor, "probes", lambda: probes)
    monkeypatch.setattr(doctor, "commands", lambda _findings: [])
    groups = doctor.examine(tell).groups
    assert told == [("Python", "first"), ("Python", "second"), ("Machine", "third"), ("Machine", "fourth")]
    assert [(title, each.name) for title, group in groups.items() for each in group] == told
    assert groups["Python"][1].ok  # it had waited for the first one to be told


@pytest.mark.needs("torch", "sklearn")
def test_the_demo_runs_where_the_tests_do(found: dict[str, Any]) -> None:
    assert found["demo_runs"]


@pytest.mark.parametrize(
    "name",
    [
        "numpy",
        "numba",
        "scapy",
        "rich",
        "matplotlib",
        pytest.param("torch", marks=pytest.mark.needs("torch")),
        pytest.param("scikit-learn", marks=pytest.mark.needs("sklearn")),
    ],
)
def test_packages_and_their_versions(name: str, findings: dict[str, dict[str, Any]]) -> None:
    assert findings[name]["ok"]
    assert findings[name]["detail"].partition("+")[0] == metadata.version(name).partition("+")[0]  # +cpu, +cu130


def test_programs_that_are_on_path(findings: dict[str, dict[str, Any]]) -> None:
    for program in software.PROGRAMS:
        path = needs.find(program.name)
        assert findings[program.name]["ok"] == (path is not None)
        assert findings[program.name]["detail"].startswith(str(path or "not on PATH"))


def test_the_machine(findings: dict[str, dict[str, Any]]) -> None:
    assert findings["root"]["ok"] == (os.geteuid() == 0)
    assert findings["cpus"]["detail"] == str(len(os.sched_getaffinity(0)))
    assert findings["udp loopback"]["ok"]
    if os.geteuid() != 0:
        assert not findings["packet sockets"]["ok"]
    # the probes of packet sockets and of namespaces leave nothing behind
    links = {path.name for path in Path("/sys/class/net").iterdir()}
    assert not links & {"sa0", "sa1"}


def test_namespaces_and_veth_pairs_are_possible_where_bench_switch_makes_them(
    findings: dict[str, dict[str, Any]],
) -> None:
    """Also for an ordinary user, if the kernel allows user namespaces."""
    pairs = "from sa_atp.lab.bench.switch.links import make_pairs; make_pairs([1])"
    for name, code in (("namespaces", ""), ("veth", pairs)):
        code = f"from sa_atp.net.sockets import namespace; namespace.enter(); {code}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
        assert findings[name]["ok"] == (done.returncode == 0), (findings[name], done.stderr)


def test_missing_findings_say_how_to_get_them(found: dict[str, Any], findings: dict[str, dict[str, Any]]) -> None:
    assert all(finding["ok"] or finding["how"] for finding in findings.values())
    for command in found["commands"]:
        assert command["runs"] == (not command["missing"])
        assert all(not findings[name]["ok"] for name in command["missing"])


def test_every_need_is_probed(findings: dict[str, dict[str, Any]]) -> None:
    assert {need for needs in offered().values() for need in needs} <= set(findings)


def test_a_wheel_offers_nothing_that_only_a_checkout_has(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [Finding(name=name, ok=True, detail="") for name in findings_named()]
    here = [command.name for command in commands(everything)]
    assert {"scripts/demo", "scripts/compile", "docker compose up", "sa-atp run demo (--backend local)"} <= set(here)
    monkeypatch.setattr(needs, "checkout", lambda: None)
    there = [command.name for command in commands(everything)]
    assert there
    assert set(there) < set(here)
    assert all(name.startswith(("sa-atp ", "p4runtime-shell")) for name in there)
    assert "scripts/" not in project.programs().how
    assert not {"p4c-bm2-ss", "docker", "shellcheck"} & {program.name for program in software.programs()}
    assert {"mnexec", "simple_switch_grpc"} <= {program.name for program in software.programs()}


def findings_named() -> set[str]:
    return {name for parts in offered().values() for name in parts}


# --- what is missing ------------------------------------------------------------------------------------------------------


def test_a_package_that_is_missing_or_broken() -> None:
    missing = software.package(software.Package(name="x", code="import no_such_module"))
    assert (missing.ok, missing.detail) == (False, "ModuleNotFoundError: No module named 'no_such_module'")
    broken = software.package(software.Package(name="x", code="import os; os.abort()"))
    assert (broken.ok, broken.detail) == (False, "ended by signal 6")


def test_a_package_whose_requirements_are_not_met_is_not_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line of protobuf's own error is the address of a web page."""
    shell = tmp_path / "p4runtime_shell-0.0.6.dist-info"
    shell.mkdir()
    (shell / "METADATA").write_text("Name: p4runtime-shell\nVersion: 0.0.6\nRequires-Dist: protobuf<3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    package = software.Package(name="p4runtime-shell", code="raise SystemExit('More information: https://...')")
    found = software.package(package)
    version = metadata.version("protobuf")
    assert found == Finding(
        name="p4runtime-shell", ok=False, detail=f"p4runtime-shell 0.0.6 asks for protobuf<3, and protobuf is {version}",
        how=needs.how_to_install("p4runtime-shell"),
    )  # fmt: skip
    assert "-m venv p4runtime-shell && " in found.how


def test_a_program_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "iperf3").write_text("#!/bin/sh\necho cannot find libiperf >&2\nexit 127\n")
    (tmp_path / "iperf3").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    iperf3 = needs.PROGRAMS["iperf3"]
    assert software.program(iperf3) == Finding(
        name="iperf3", ok=False, detail=f"{tmp_path}/iperf3 (cannot find libiperf)", how="apt-get install iperf3"
    )
    (tmp_path / "iperf3").unlink()
    assert software.program(iperf3).detail == "not on PATH, for background traffic in Mininet"
    assert not machine.veth().ok
    assert (machine.veth().detail, machine.veth().how) == ("ip is not on PATH", "apt-get install iproute2")


def test_a_program_that_a_variable_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = tmp_path / "bin" / "simple_switch_grpc"
    built.parent.mkdir()
    built.write_text("#!/bin/sh\necho 1.15.5\n")
    built.chmod(0o755)
    monkeypatch.setenv("SA_ATP_BMV2", str(tmp_path))
    found = software.program(needs.PROGRAMS["simple_switch_grpc"])
    assert (found.ok, found.detail) == (True, f"{built} (1.15.5)")


@pytest.mark.parametrize(
    ("limit", "least", "cause"),
    [
        pytest.param("RLIMIT_NOFILE", 8,
            "too many open files: a process may have 8 (ulimit -n); 1024 are usual", id="files",
        ),
        pytest.param(
            "RLIMIT_AS", 60_000_000,
            "there is not enough memory: a process may have 0.06 GB of address space (ulimit -v)", id="memory",
        ),
    ],
)  # fmt: skip
def test_where_nothing_can_be_tried_nothing_is_called_missing(limit: str, least: int, cause: str) -> None:
    command = limited(limit, least, sys.executable, "-m", "sa_atp", "doctor")
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=120)
    assert done.returncode == 1
    assert "MISSING" not in done.stdout
    assert "Traceback" not in done.stderr
    (said,) = [line for line in done.stderr.splitlines() if not line.endswith(" s so far")]
    assert said.startswith("sa-atp: ")
    assert said.endswith(cause)


def test_limits_below_the_demos_needs() -> None:
    assert machine.limits().ok
    # limits come behind the imports, some of which start threads; root has none for processes
    code = """if True:
        import os, resource
        from sa_atp.doctor import machine
        os.geteuid = lambda: 1000
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
        resource.setrlimit(resource.RLIMIT_NPROC, (90, 90))
        for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
            resource.setrlimit(which, (2_000_000_000, 2_000_000_000))
        found = machine.limits()
        print(found.ok, found.detail, found.how, sep="; ")
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == (
        "False; 32 open files, 90 processes and threads of this user, 2 GB of address space and 2 GB of data; "
        "ulimit -n 1024; ulimit -u 1000; ulimit -v unlimited; ulimit -d unlimited\n"
    )


def test_attempts_end(tmp_path: Path) -> None:
    assert attempt(["sleep", "600"], timeout_s=0.1) == (False, "no answer in 0 s")
    assert (remedy("no answer in 0 s", "install it"), remedy("not found", "install it")) == (TRY_AGAIN, "install it")
    assert attempt([str(tmp_path / "nothing")]) == (False, "not found")
    assert attempt([str(tmp_path)]) == (False, "Permission denied")


def test_without_a_package_the_demo_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").write_text("raise ImportError('no scikit-learn today')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    package = next(package for package in software.PACKAGES if package.name == "scikit-learn")
    monkeypatch.setattr(doctor, "probes", lambda: {"Python": [partial(software.package, package)]})
    assert main(["doctor"]) == 3
    lines = capsys.readouterr().out.splitlines()
    how = needs.how_to_install("scikit-learn")
    assert f"  MISSING  scikit-learn: ImportError: no scikit-learn today [{how}]" in lines
    assert lines[-1].startswith("The demo would not run: see what is missing above.")


def test_commands_follow_from_findings() -> None:
    everything = [Finding(name=name, ok=True, detail="") for needs in offered().values() for name in needs]
    assert not any(command.missing for command in commands(everything))
    without = [finding for finding in everything if finding.name != "simple_switch_grpc"]
    lacking = [command for command in commands(without) if command.missing]
    assert [c.missing for c in lacking] == [("simple_switch_grpc",)] * 3
    assert all("bmv2" in c.name for c in lacking)


# --- the project ----------------------------------------------------------------------------------------------------------


def test_artefacts_that_differ_from_their_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(each is not None and each.ok for each in (project.artefacts_current(), project.generated()))
    checkout = tmp_path / "checkout"
    for part in ("p4src", "scripts"):
        shutil.copytree(project.CHECKOUT / part, checkout / part)
    monkeypatch.setattr(project, "CHECKOUT", checkout)
    for source in checkout.rglob("*.p4"):
        source.write_text(source.read_text() + "// changed\n")
    wire = checkout / "p4src" / "wire.toml"
    wire.write_text(wire.read_text().replace("udp_port = 21313", "udp_port = 21314"))
    stale, drifted = project.artefacts_current(), project.generated()
    assert stale is not None
    assert (stale.ok, stale.how) == (False, "scripts/compile")
    assert "differs from its sources" in stale.detail
    assert drifted is not None
    assert (drifted.ok, drifted.how) == (False, "scripts/generate")
    assert "differs from p4src/wire.toml" in drifted.detail
    assert project.programs().ok  # they would run all the same


def test_no_artefacts_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefacts, "_PLACES", (tmp_path,))
    finding = project.programs()
    assert not finding.ok
    assert "the compiled P4 programs are not in" in finding.detail


def test_the_cache_tells_what_is_compiled(tmp_path: Path) -> None:
    json_path = artefacts.program(64).json_path
    # a switch that has started here has filled the cache; this one starts and ends at once
    assert sa_atp("up", "--lanes", "64", "--", "true").returncode == 0
    assert program_cache.is_compiled(load(json_path), cache_folder())
    assert project.compiled(64).ok
    assert not program_cache.is_compiled(load(json_path), tmp_path)

    copy = tmp_path / "copy"
    shutil.copytree(cache_folder(), copy)
    assert program_cache.is_compiled(load(json_path), copy)
    for code in copy.rglob("*.nbc"):
        code.unlink()
    assert not program_cache.is_compiled(load(json_path), copy)
