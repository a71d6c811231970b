"""`sa-atp plans` and `sa-atp policies`: all there are, also a user's own."""

import json
from pathlib import Path

import pytest

from sa_atp import experiment
from sa_atp.cli import main
from sa_atp.lab import policies
from sa_atp.lab.experiments import reference
from sa_atp.lab.plans import plan_files
from sa_atp.switches import artefacts


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_plans(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(["plans"], capsys).splitlines()
    assert max(map(len, lines)) <= 80
    assert {line.split()[0] for line in lines if line[:1].strip()} >= set(artefacts.plan_files())
    (demo,) = (line for line in lines if line.startswith("demo "))
    assert demo.split()[1:3] == ["local", "The"]
    found = json.loads(printed(["plans", "--json"], capsys))["plans"]
    assert {each["name"]: each["shows"] for each in found} == experiment.plans()
    for each in found:
        plan = plan_files.load(Path(each["path"]))
        assert (each["backend"], each["policies"]) == (plan.run.backend, list(plan.run.policies))
        assert each["sweep"] == (plan.sweep.key or None)


def test_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(["plans", "--reference"], capsys) == reference.document()


def test_policies(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = printed(["policies"], capsys)
    assert max(map(len, out.splitlines())) <= 80
    first = [line.split()[:2] for line in out.splitlines()[1:] if line[:1].strip()]
    assert first == [[name, policies.find(name).backends[0]] for name in policies.names()]
    found = {each["name"]: each for each in json.loads(printed(["policies", "--json"], capsys))["policies"]}
    assert {name: each["summary"] for name, each in found.items()} == experiment.policies()
    assert [key["key"] for key in found["sa-atp+boa"]["keys"]] == [key["key"] for key in found["boa"]["keys"]]
    (backups,) = found["sync-opt"]["keys"]
    assert (backups["key"], backups["default"], backups["limits"]) == ("sync-opt.backups", 1, "0 to 63")
    assert found["gloo"]["backends"] == ["mininet"]
