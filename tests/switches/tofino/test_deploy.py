"""`sa-atp deploy --target tofino`, against servers that check every message."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from sa_atp.cli import main
from sa_atp.switches.control import events, job_entries, jobs
from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.control.jobspec import JobSpec, Member

from .conftest import Folder, Serve, binary
from .server import Kind, Refused, TofinoServer

KINDS: tuple[Kind, ...] = ("stratum", "pi")
Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Runs `sa-atp` as a user does; (exit status, standard output, standard error)."""

    def run(*words: str) -> tuple[int, str, str]:
        status = main([str(word) for word in words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def deploy(server: TofinoServer, program: Path, *more: str) -> tuple[str, ...]:
    return (
        "deploy", "--target", "tofino", "--packing", server.kind, "--program", str(program), "--grpc", server.address,
        "--device-id", str(server.device_id), *more,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chip", ["tofino", "tofino2"])
def test_both_packings_arrive_whole(typed: Typed, folder: Folder, serve: Serve, kind: Kind, chip: str) -> None:
    made, server = folder(chip), serve(kind=kind, chip=chip)
    status, out, err = typed(*deploy(server, made, "--chip", chip, "--route", "10.0.0.0/24=132"))
    assert (status, err) == (0, "")
    assert out.startswith(f"sa_atp: runs on the {chip} switch 1 at {server.address} (")
    assert ("registers can be read" in out) == (kind == "stratum")
    loaded = server.loaded
    assert loaded is not None
    assert (loaded.name, loaded.binary) == ("sa_atp", binary(chip))
    assert loaded.context == (made / "pipe" / "context.json").read_bytes()
    assert loaded.bfrt == ((made / "bfrt.json").read_bytes() if kind == "stratum" else None)
    assert len(server.entries) == 1


def test_result_as_json(typed: Typed, folder: Folder, serve: Serve) -> None:
    server = serve()
    made = folder()
    status, out, err = typed(*deploy(server, made, "--json"))
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert found["tables"] == len(server.config.p4info.tables)
    assert found["registers_readable"] is True
    assert {key: found[key] for key in ("target", "chip", "packing", "device_id", "program", "lanes", "routes")} == {
        "target": "tofino", "chip": "tofino", "packing": "stratum", "device_id": 1, "program": str(made), "lanes": None,
        "routes": {},
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_members_and_groups(typed: Typed, folder: Folder, serve: Serve, kind: Kind) -> None:
    """The server accepts a job's entries, returns them, and removes them again."""
    server = serve(kind=kind)
    assert typed(*deploy(server, folder()))[0] == 0
    hosts = [Member(ip=f"10.0.0.{i}", udp_port=5000 + i, mac=f"02:00:00:00:00:{i:02x}", switch_port=128 + 4 * i, rank=i)
             for i in range(3)]  # fmt: skip
    server_host = Member(ip="10.0.0.9", udp_port=21313, mac="02:00:00:00:00:09", switch_port=60, rank=-1)
    spec = JobSpec(
        job=7, epoch=200, fan_in=(1 << 40) | 5, slot_base=512, slot_count=256, group=7, ttl_ticks=100, level="root",
        members=tuple(hosts), parameter_server=server_host, uplink=server_host,
    )  # fmt: skip
    with P4RuntimeClient(server.address, server.device_id, election_id=2) as client:
        assert jobs.install(client, spec) == 1 + len(job_entries.entries(spec))
        assert [job.problems for job in jobs.read_jobs(client)] == [()]
        replicas = {(r.egress_port, r.instance) for r in server.groups[7].replicas}
        assert replicas == {(128, 1), (132, 2), (136, 3), (60, job_entries.PARAMETER_SERVER_COPY)}
        assert jobs.install(client, spec) == 0
        assert client.has_registers() == (kind == "stratum")
        jobs.remove(client, 7)
    assert (server.entries, server.groups) == ({}, {})
    assert events.COUNTER in {c.preamble.alias for c in server.config.p4info.counters}


@pytest.mark.parametrize(("kind", "told"), [("stratum", "--chassis_config_file"), ("pi", "bfshell -f")])
def test_ports_are_written_for_who_sets_them_up(
    typed: Typed, folder: Folder, serve: Serve, tmp_path: Path, kind: Kind, told: str
) -> None:
    path = tmp_path / "ports"
    more = ("--port", "132=1/0:100G", "--port", "140=2/0:100G", "--ports-out", str(path))
    status, out, err = typed(*deploy(serve(kind=kind), folder(), *more))
    assert (status, err) == (0, "")
    assert out.splitlines()[1].startswith(f"{path}: set-up of 2 ports; ")
    assert told in out
    assert ("singleton_ports { id: 140" in path.read_text()) == (kind == "stratum")
    assert ("port-enb 2/0" in path.read_text()) == (kind == "pi")


# --- what can go wrong: one line, and the exit status of whose fault it is --------------------------------------------


def complaint(said: tuple[int, str, str]) -> tuple[int, str]:
    status, out, err = said
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return status, err


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_device_id(typed: Typed, folder: Folder, serve: Serve, kind: Kind) -> None:
    server = serve(kind=kind, device_id=4)
    words = ("deploy", "--target", "tofino", "--packing", kind, "--program", str(folder()), "--grpc", server.address)
    status, err = complaint(typed(*words, "--device-id", "5"))
    assert status == 1
    if kind == "stratum":
        assert "switch 5 at" in err
        assert "Node 5 is not configured or not known" in err
        assert complaint(typed(*words)) == (
            2,
            "sa-atp: --device-id 0: stratum_bfrt numbers its nodes from 1; give the id of its chassis configuration\n",
        )
    else:
        assert "is that the device id that it was started with?" in err
    assert server.loaded is None


def test_program_for_another_chip(typed: Typed, folder: Folder, serve: Serve) -> None:
    """Noticed before anything is sent, if --chip is given; otherwise the server refuses to load it."""
    server = serve(chip="tofino")
    made = folder("tofino2")
    status, err = complaint(typed(*deploy(server, made)))
    assert (status, server.election_id) == (2, None)
    assert err.endswith("the program is for tofino2, not for --chip tofino\n")
    status, err = complaint(typed(*deploy(server, made, "--chip", "tofino2")))
    assert status == 1
    assert "pushing the pipeline: INTERNAL: bf_pal_device_add: BF_INVALID_ARG" in err


@pytest.mark.parametrize(("sent", "served"), [("pi", "stratum"), ("stratum", "pi")])
def test_the_other_server_s_packing(typed: Typed, folder: Folder, serve: Serve, sent: str, served: Kind) -> None:
    server = serve(kind=served)
    words = list(deploy(server, folder()))
    words[words.index("--packing") + 1] = sent
    status, err = complaint(typed(*words))
    assert status == 1
    assert "pushing the pipeline" in err
    assert f"--packing {served}" in err


def test_a_folder_of_bmv2(typed: Typed, serve: Serve) -> None:
    from sa_atp.switches import artefacts

    bmv2 = artefacts.builds()[64]
    status, err = complaint(typed(*deploy(serve(), bmv2)))
    assert status == 2
    assert "expected bfrt.json of p4c's Tofino back end" in err


SET, GET, WRITE = "SetForwardingPipelineConfig", "GetForwardingPipelineConfig", "Write"
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED
GONE = grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("rpc", "code", "reason", "told"),
    [
        (SET, FULL, "no space left", "pushing the pipeline: RESOURCE_EXHAUSTED: no space left"),
        (WRITE, FULL, "the table bridge is full", "the table bridge is full"),
        *[(rpc, GONE, "Socket closed", "the server is gone") for rpc in (SET, GET, WRITE)],
    ],
)
def test_a_server_that_refuses_or_is_gone(
    typed: Typed, folder: Folder, serve: Serve, rpc: str, code: grpc.StatusCode, reason: str, told: str
) -> None:
    def refuse(called: str, request: Any) -> None:
        if called == rpc:
            raise Refused(code, reason)

    server = serve(before=refuse)
    status, err = complaint(typed(*deploy(server, folder(), "--route", "10.0.0.0/24=1")))
    assert status == 1
    assert told in err
    assert server.entries == {}


def test_another_controller_is_primary(typed: Typed, folder: Folder, serve: Serve) -> None:
    def take_over(rpc: str, request: Any) -> None:
        server.election_id = 99

    server = serve(before=take_over)
    status, err = complaint(typed(*deploy(server, folder())))
    assert status == 1
    assert "pushing the pipeline: Write from non-master is not permitted." in err


def test_no_server_answers(typed: Typed, folder: Folder, serve: Serve) -> None:
    server = serve()
    server.stop()
    status, err = complaint(typed(*deploy(server, folder(), "--timeout", "0.5")))
    assert (status, err) == (1, f"sa-atp: no P4Runtime server answers at {server.address} (waited 0.5 s)\n")


def test_a_server_that_forgets(typed: Typed, folder: Folder, serve: Serve) -> None:
    def forget(rpc: str, request: Any) -> None:
        if rpc == "GetForwardingPipelineConfig":
            server.config.cookie.cookie = 1

    server = serve(before=forget)
    status, err = complaint(typed(*deploy(server, folder())))
    assert status == 1
    assert "the switch does not report the program that was pushed to it" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--target", "bmv2", "--chip", "tofino"), "--chip is about Tofino: drop it, or choose --target tofino"),
        (("--target", "embedded", "--port", "1=1/0:10G"), "--port is about Tofino"),
        (("--target", "bmv2", "--ports-out", "x"), "--ports-out is about Tofino"),
        (("--target", "tofino", "--device-id", "1", "--port", "1=1/0:10G"), "--port and --ports-out belong together"),
        (("--target", "tofino", "--device-id", "1", "--ports-out", "x"), "--port and --ports-out belong together"),
        (("--target", "tofino", "--device-id", "1", "--program", "/nowhere"), "/nowhere: there is no such folder"),
    ],
)
def test_options_that_do_not_fit(typed: Typed, words: tuple[str, ...], told: str) -> None:
    status, err = complaint(typed("deploy", *words))
    assert status == 2
    assert told in err
