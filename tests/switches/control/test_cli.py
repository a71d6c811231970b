"""`sa-atp deploy` and `sa-atp job`, as a user runs them."""

import argparse
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.cli import deploy, job, main
from sa_atp.switches.control import routes
from sa_atp.switches.control.client import P4RuntimeClient

from .conftest import P4, START_S, Switch, free_port

Run = Callable[..., str]
MEMBERS = (
    "--member", "0=10.0.0.1:5000,02:00:00:00:00:01,1",
    "--member", "1=10.0.0.2:5001,02:00:00:00:00:02,2",
    "--ps", "10.0.0.100:21313,02:00:00:00:00:64,9",
)  # fmt: skip


def command(*words: str) -> int:
    """Runs these two commands alone, so that errors stay exceptions."""
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers(required=True)
    deploy.add(subparsers)
    job.add(subparsers)
    options = parser.parse_args(words)
    return int(options.run(options))


@pytest.fixture
def run(switch: Switch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command against the switch. Returns: its output."""
    where = ("--grpc", switch.address, "--device-id", str(switch.device_id), "--timeout", str(START_S))

    def typed(*words: str) -> str:
        assert command(*words, *where) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out

    typed("deploy", "--target", switch.kind)
    return typed


def test_deploy_pushes_and_verifies(run: Run, switch: Switch) -> None:
    said = run("deploy", "--target", switch.kind, "--lanes", "256", "--route", "10.0.0.0/24=3", "--route", "10.1.0.1=4")
    assert said.startswith(f"sa_atp.json, 256 lanes: runs on the {switch.kind} switch 3 at 127.0.0.1:")
    assert said.count("\n") == 1
    assert ("cannot be read" in said) == (switch.kind == "bmv2")
    with P4RuntimeClient(switch.address, switch.device_id, read_only=True) as client:
        assert routes.read(client) == {"10.0.0.0/24": 3, "10.1.0.1/32": 4}


def test_deploy_as_json_and_of_another_program(run: Run, switch: Switch, tmp_path: Path) -> None:
    for name in ("punt.json", "punt.p4info.txtpb"):
        (tmp_path / name).write_bytes((P4 / name).read_bytes())
    found = json.loads(run("deploy", "--target", switch.kind, "--program", str(tmp_path), "--json"))
    assert found == {
        "target": switch.kind,
        "grpc": switch.address,
        "device_id": 3,
        "program": str(tmp_path / "punt.json"),
        "lanes": None,
        "contributions": None,
        "p4runtime": "1.3.0",
        "tables": 1,
        "counters": 0,
        "registers": 0,
        "registers_readable": False,
        "routes": {},
    }


def test_a_job_from_admission_to_removal(run: Run, tmp_path: Path) -> None:
    assert run("job", "add", "3", *MEMBERS, "--epoch", "2", "--ttl-ms", "20") == (
        "job 3: epoch 2, root, 2 members, fan-in 0x3, slots 0 to 1023, group 3: 11 updates written\n"
    )
    assert run("job", "add", "3", *MEMBERS, "--epoch", "2", "--ttl-ms", "20").endswith(": 0 updates written\n")
    said = run("job", "add", "4", *MEMBERS, "--slots", "512", "--fan-in", "0xff", "--level", "leaf", "--group", "77")
    assert said.startswith("job 4: epoch 0, leaf, 2 members, fan-in 0xff, slots 1024 to 1535, group 77: ")

    assert run("job", "list").splitlines() == [
        "job 3: epoch 2, root, 2 members, fan-in 0x3, slots 0 to 1023, group 3",
        "job 4: epoch 0, leaf, 2 members, fan-in 0xff, slots 1024 to 1535, group 77",
    ]
    shown = run("job", "show", "3").splitlines()
    assert shown[1] == "  rank 0 10.0.0.1:5000 02:00:00:00:00:01 port 1"
    assert shown[3] == "  parameter server host 10.0.0.100:21313 02:00:00:00:00:64 port 9"

    as_json = run("job", "show", "3", "--json")
    found = json.loads(as_json)
    assert found["spec"]["ttl_ticks"] == 20
    assert found["counters"]["claimed"] == {"packets": 0, "bytes": 0}
    assert run("job", "remove", "3") == "job 3: removed, 11 updates written\n"
    (tmp_path / "job.json").write_text(as_json)
    again = json.loads(run("job", "add", "--file", str(tmp_path / "job.json"), "--json"))
    assert again == {"job": 3, "written": 11, "spec": found["spec"]}
    assert [each["job"] for each in json.loads(run("job", "list", "--json"))["jobs"]] == [3, 4]
    assert json.loads(run("job", "remove", "4", "--json"))["job"] == 4


def test_a_job_from_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = json.loads(run("job", "add", "3", *MEMBERS, "--json"))["spec"]
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(spec | {"epoch": 9})))
    assert run("job", "add", "--file", "-").startswith("job 3: epoch 9, ")


def test_jobs_that_are_not_there(run: Run, switch: Switch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("job", "list", "--grpc", switch.address, "--device-id", "3") == 0
    assert capsys.readouterr() == ("", "no jobs\n")
    run("job", "add", "3", *MEMBERS)
    for words in (("job", "show", "5"), ("job", "remove", "5")):
        with pytest.raises(UserError, match="job 5 is not on the switch; it has 3"):
            run(*words)


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (("deploy", "--target", "tofino"), UserError, "--device-id 0: stratum_bfrt numbers its nodes from 1"),
        (("deploy", "--target", "bmv2", "--lanes", "65"), UserError, "lanes 65: there is no such build"),
        (("deploy", "--target", "bmv2", "--route", "10.0.0.1"), UserError, "expected PREFIX=PORT"),
        (("deploy", "--target", "bmv2", "--route", "10.0.0.1/24=3"), UserError, "expected an IPv4 address or network"),
        (("deploy", "--target", "bmv2", "--route", "10.0.0.1=512"), UserError, "port 512: expected 0 to 511"),
        (("deploy", "--target", "tofino", "--route", "10.0.0.1=512"), UserError, "port 512: expected 0 to 511"),
        (("job", "add", "3"), UserError, "expected --file SPEC.json, or a job number with --member and --ps"),
        (("job", "add", "3", "--member", "1", "--ps", "x"), UserError, "--member 1: expected RANK=IP:UDP_PORT,MAC"),
        (
            ("job", "add", "3", "--member", "x=1", "--ps", "x"),
            UserError,
            "--member: 'x' is not a number: expected RANK=",
        ),
        (("job", "add", "3", "--member", "1=1", "--ps", "x"), UserError, "like 10.0.0.1:21313,02:00:00:00:00:01,1"),
        (
            ("job", "add", "3", *MEMBERS, "--slots", "x"),
            UserError,
            r"--slots: 'x' is not a number: expected \[BASE:\]COUNT",
        ),
        (("job", "add", "3", *MEMBERS, "--slots", "3"), UserError, "slot_count 3: expected a power of two"),
        (("job", "add", "3", *MEMBERS, "--fan-in", "x"), UserError, "--fan-in: 'x' is not a number"),
        (("job", "add", "--file", "/nowhere.json"), UserError, r"/nowhere\.json: No such file or directory"),
        (("job", "list", "--election-id", "0"), UserError, "election id 0"),
        (("job", "list", "--timeout", "0.1"), SaAtpError, "no P4Runtime server answers at 127.0.0.1:"),
    ],
)
def test_errors_before_a_switch_is_contacted(words: tuple[str, ...], error: type[Any], message: str) -> None:
    with pytest.raises(error, match=message):
        command(*words, *(() if words[0] == "deploy" else ("--grpc", f"127.0.0.1:{free_port()}")))


def test_a_file_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("job: 3")
    with pytest.raises(UserError, match=r"job\.json: not JSON"):
        command("job", "add", "--file", str(tmp_path / "job.json"))


def test_exit_statuses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nobody = ("--grpc", f"127.0.0.1:{free_port()}", "--timeout", "0.1")
    assert main(["deploy", "--target", "tofino"]) == 2
    assert main(["deploy", "--target", "bmv2", "--program", str(tmp_path)]) == 2
    assert main(["deploy", "--target", "embedded", *nobody]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(":")[0] for line in err.splitlines()] == ["sa-atp"] * 3
