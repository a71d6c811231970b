"""Jobs on a switch: in this process, on the embedded target over P4Runtime, and on BMv2."""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden.scenario import packet_of
from helpers.needs import BMV2

from sa_atp.basics.errors import UserError
from sa_atp.protocol.packets import spec
from sa_atp.switches import artefacts
from sa_atp.switches.control import events, job_entries, jobs, jobspec, routes
from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.control.errors import UpdateRefusedError
from sa_atp.switches.control.jobspec import JobSpec, Member
from sa_atp.switches.control.writer import LocalWriter, Writer
from sa_atp.switches.embedded.loading import load
from sa_atp.switches.embedded.pipeline import PORTS, Pipeline
from sa_atp.switches.p4runtime.entities import (
    CounterData,
    CounterEntry,
    Exact,
    MulticastGroup,
    Replica,
    TableEntry,
    Ternary,
    Update,
    UpdateKind,
)

from .conftest import START_S

ROOT = Path(__file__).resolve().parents[3]
P4 = ROOT / "p4src" / "core"
PROGRAM = load(artefacts.program().json_path)
TICKS = 20


def worker(rank: int, **changes: Any) -> Member:
    member = Member(
        rank=rank,
        ip=f"10.0.0.{rank + 1}",
        udp_port=5000 + rank,
        mac=f"02:00:00:00:00:{rank + 1:02x}",
        switch_port=rank + 1,
    )
    return dataclasses.replace(member, **changes)


SERVER = Member(ip="10.0.0.100", udp_port=spec.UDP_PORT, mac="02:00:00:00:00:64", switch_port=9)
FLAT = JobSpec(
    job=3,
    epoch=2,
    fan_in=0b11,
    slot_base=256,
    slot_count=256,
    group=30,
    ttl_ticks=TICKS,
    level="root",
    members=(worker(0), worker(1)),
    parameter_server=SERVER,
    uplink=SERVER,
)
# a leaf with two of four workers, and the spine above: the other two are behind port 22
LEAF = dataclasses.replace(
    FLAT,
    job=5,
    slot_base=1024,
    group=50,
    level="leaf",
    parameter_server=dataclasses.replace(SERVER, switch_port=40),
    uplink=dataclasses.replace(SERVER, switch_port=40),
)
# ... which has the parameter server at a port of its own
BESIDE = dataclasses.replace(LEAF, parameter_server=dataclasses.replace(SERVER, switch_port=41))
SPINE = dataclasses.replace(
    FLAT,
    fan_in=0x8000_0000_0000_000F,
    members=tuple(worker(r, switch_port=21 + r // 2) for r in range(4)),
    leaf_ports=(21, 22),
)


@pytest.fixture(params=["local", "embedded", pytest.param("bmv2", marks=BMV2)])
def writer(request: pytest.FixtureRequest) -> Iterator[Writer]:
    """A switch that runs the P4 program and has no job."""
    if request.param == "local":
        yield LocalWriter(Pipeline(PROGRAM, compiled=False))
        return
    switch = request.getfixturevalue(request.param)
    program = artefacts.program()
    with P4RuntimeClient(switch.address, switch.device_id, timeout_s=START_S) as client:
        client.push_pipeline(program.p4info(), program.device_config())
        yield client


@pytest.fixture
def local() -> tuple[LocalWriter, Pipeline]:
    pipeline = Pipeline(PROGRAM, compiled=False)
    return LocalWriter(pipeline), pipeline


def everything(writer: Writer) -> list[str]:
    tables = [TableEntry(table=t) for t in job_entries.JOB_TABLES]
    return sorted(map(repr, writer.read(*tables, MulticastGroup())))


def installed(writer: Writer) -> list[tuple[JobSpec | None, tuple[str, ...]]]:
    return [(each.spec, each.problems) for each in jobs.read_jobs(writer)]


# --- writing and reading back -----------------------------------------------------------------------------------------


LOOPED = dataclasses.replace(FLAT, loop_port=68)
# two hosts with leaves of their own, and beside one of these a worker that sends to the root
HOSTS = dataclasses.replace(
    SPINE,
    members=tuple(
        worker(rank, ip=f"10.0.0.{host}", mac=f"02:00:00:00:00:0{host}", switch_port=host, leaf=leaf)
        for rank, (host, leaf) in enumerate([(1, 40001), (1, 40001), (2, 40002), (2, 40002), (2, 0)])
    ),
    leaf_ports=(),
)


# results that are scattered, with leaves below and without
SCATTERED = [
    dataclasses.replace(FLAT, scattered_to=2),
    dataclasses.replace(LEAF, scattered_to=4),
    dataclasses.replace(HOSTS, scattered_to=5),
]


KINDS = [
    pytest.param(wanted, id=name)
    for name, wanted in (
        ("flat", FLAT),
        ("leaf", LEAF),
        ("leaf beside the server", BESIDE),
        ("spine", SPINE),
        ("with its own copies", LOOPED),
        ("leaves on hosts", HOSTS),
        ("scattered", SCATTERED[0]),
        ("... at a leaf", SCATTERED[1]),
        ("... by leaves", SCATTERED[2]),
    )
]


@pytest.mark.parametrize("wanted", KINDS)
def test_a_job_comes_back_as_it_was_installed(writer: Writer, wanted: JobSpec) -> None:
    assert jobs.install(writer, wanted) > 5
    assert installed(writer) == [(wanted, ())]
    assert jobs.install(writer, wanted) == 0  # nothing differs, nothing is written


def test_the_part_of_a_slot_chooses_who_gets_the_values(local: tuple[LocalWriter, Pipeline]) -> None:
    writer, pipeline = local
    jobs.install(writer, SCATTERED[0])
    rank_1s = dict(pipeline.groups[FLAT.group + 2 * jobspec.GROUPS_APART])  # port: copy
    assert rank_1s == {1: 1 + job_entries.BARE_COPY, 2: 2, 9: job_entries.PARAMETER_SERVER_COPY}
    assert dict(pipeline.groups[FLAT.group]) == {1: 1, 2: 2, 9: job_entries.PARAMETER_SERVER_COPY}
    jobs.install(writer, FLAT)  # and back
    assert set(pipeline.groups) == {FLAT.group}
    assert installed(writer) == [(FLAT, ())]


def test_a_leaf_on_a_host_gets_one_copy_of_a_result() -> None:
    assert [member.rank for member in HOSTS.copied_to] == [0, 2, 4]
    replicas = {replica.instance for replica in job_entries.groups(HOSTS)[0].replicas}
    assert replicas == {1, 3, 5, job_entries.PARAMETER_SERVER_COPY}
    with pytest.raises(UserError, match="only a root has leaves below it"):
        dataclasses.replace(HOSTS, level="leaf")


def test_a_job_with_contributions_in_every_word_of_a_wide_bitmap() -> None:
    writer = LocalWriter(Pipeline(load(artefacts.program(256, 512).json_path), compiled=False))
    wanted = dataclasses.replace(LEAF, fan_in=sum(0b101 << 64 * word for word in range(8)))
    assert jobs.install(writer, wanted) > 5
    assert installed(writer) == [(wanted, ())]
    assert jobs.install(writer, wanted) == 0
    within, beyond = sorted(
        (e for e in writer.read(TableEntry(table="job")) if isinstance(e, TableEntry)), key=lambda e: -e.priority
    )
    assert [within.params[f"fan_in_{word}"] for word in range(8)] == 8 * [0b101]
    assert [within.match[f"bits_{word}"] for word in range(8)] == 8 * [Ternary(0, (1 << 64) - 1 & ~0b101)]
    assert not any(name.startswith("bits_") for name in beyond.match)


def test_a_fan_in_that_the_program_has_no_bits_for(writer: Writer) -> None:
    with pytest.raises(UserError, match=r"job 3: fan_in 0x1.*: the switch's program has 64 contribution bits"):
        jobs.install(writer, dataclasses.replace(FLAT, fan_in=1 << 64))
    assert installed(writer) == []


def test_changes_write_only_what_differs(writer: Writer) -> None:
    jobs.install(writer, FLAT)
    jobs.install(writer, LEAF)
    three = dataclasses.replace(FLAT, members=(*FLAT.members, worker(2)), fan_in=0b111)
    assert jobs.install(writer, three) == 6  # group, member, address; job: one entry anew, one gone, one changed
    assert installed(writer) == [(three, ()), (LEAF, ())]

    moved = dataclasses.replace(three, epoch=3, group=31, members=(worker(0), worker(1, udp_port=7777)))
    jobs.install(writer, moved)
    assert installed(writer) == [(moved, ()), (LEAF, ())]
    assert {g.group for g in writer.read(MulticastGroup()) if isinstance(g, MulticastGroup)} == {31, 50}


def test_removing_leaves_the_other_jobs(writer: Writer) -> None:
    jobs.install(writer, LEAF)
    before = everything(writer)
    written = jobs.install(writer, FLAT)
    assert jobs.remove(writer, FLAT.job) == written
    assert everything(writer) == before
    assert jobs.remove(writer, FLAT.job) == 0
    jobs.remove(writer, LEAF.job)
    assert everything(writer) == []


def test_jobs_do_not_share_slots_or_groups(writer: Writer) -> None:
    jobs.install(writer, FLAT)
    before = everything(writer)
    with pytest.raises(UserError, match="job 4: slots 256 to 383 overlap with job 3, which has 256 to 511"):
        jobs.install(writer, dataclasses.replace(FLAT, job=4, group=4, slot_count=128))
    with pytest.raises(UserError, match="job 4: group 30 belongs to job 3"):
        jobs.install(writer, dataclasses.replace(FLAT, job=4, slot_base=512))
    assert everything(writer) == before
    assert jobs.free_slots(writer, 256) == 0
    assert jobs.free_slots(writer, 512) == 512
    with pytest.raises(UserError, match="no range of 4096 slots is free: the switch has 4096"):
        jobs.free_slots(writer, 4096)


def test_counters_are_read_by_name(writer: Writer) -> None:
    writer.write(
        [Update(UpdateKind.MODIFY, CounterEntry(counter="job_events", index=3 * 32 + 8, counts=CounterData(5, 700)))]
    )
    found = jobs.counters(writer, 3)
    assert found.keys() == set(events.Event)
    assert found[events.Event.COLLISION] == CounterData(5, 700)
    assert found[events.Event.ADDED] == jobs.counters(writer, 4)[events.Event.COLLISION] == CounterData(0, 0)


def test_routes(writer: Writer) -> None:
    assert routes.read(writer) == {}
    assert routes.add(writer, "10.0.0.1", 1)
    assert routes.add(writer, "0.0.0.0/0", 2)
    assert not routes.add(writer, "0.0.0.0/0", 2)
    assert routes.add(writer, "0.0.0.0/0", 3)
    assert routes.read(writer) == {"10.0.0.1/32": 1, "0.0.0.0/0": 3}
    assert routes.remove(writer, "10.0.0.1/32")
    assert not routes.remove(writer, "10.0.0.1/32")
    assert routes.read(writer) == {"0.0.0.0/0": 3}
    with pytest.raises(UserError, match=r"route '10\.0\.0\.1/24': expected an IPv4 address or network"):
        routes.add(writer, "10.0.0.1/24", 1)


def test_a_refusal_is_the_same_exception_on_every_target(writer: Writer) -> None:
    with pytest.raises(UpdateRefusedError) as caught:
        routes.add(writer, "10.0.0.1", 512)
    assert caught.value.refused[0].code in ("OUT_OF_RANGE", "INVALID_ARGUMENT")
    with pytest.raises(UpdateRefusedError, match="there is no table nowhere"):
        writer.read(TableEntry(table="nowhere"))


# --- what is half there -----------------------------------------------------------------------------------------------


def test_a_job_that_is_not_whole_says_what_is_missing(local: tuple[LocalWriter, Pipeline]) -> None:
    writer, _ = local
    wanted = {str(e): e for e in job_entries.entries(FLAT)}
    one_of_each = "expected one within and one beyond its fan-in"
    for name, problem in (
        ("job[job=0x3, epoch=0x2, slot=0x100&0xff00]", f"the table job has 1 entry for it, {one_of_each}"),
        ("uplink[job=0x3, evicted=0x1]", "the table uplink has no entry for its evicted sums"),
        ("addresses[job=0x3, copy=0x3e8]", "the table addresses has no entry for the parameter server"),
        ("member[job=0x3, port=0x2, ip=0xa000002, udp_port=0x1389]", "the table member has no entry for rank 1"),
    ):
        jobs.install(writer, FLAT)
        writer.write([Update(UpdateKind.DELETE, dataclasses.replace(wanted[name], action="", params={}))])
        assert installed(writer) == [(None, (problem,))]
        assert jobs.install(writer, FLAT) == 1
    writer.write([Update(UpdateKind.DELETE, MulticastGroup(group=FLAT.group))])
    assert installed(writer) == [(None, ("its multicast group 30 does not exist",))]
    assert jobs.install(writer, FLAT) == 1


@pytest.mark.parametrize("action", ["nowhere", "to_port"])
def test_a_job_that_somebody_else_wrote_is_no_error_of_ours(local: tuple[LocalWriter, Pipeline], action: str) -> None:
    writer, _ = local
    jobs.install(writer, FLAT)
    (entry,) = [e for e in job_entries.entries(FLAT) if e.table == "uplink" and e.match["evicted"] == Exact(1)]
    params = {"port": 9} if action == "to_port" else {}
    writer.write([Update(UpdateKind.MODIFY, dataclasses.replace(entry, action=action, params=params))])
    assert installed(writer) == [(None, ("the table uplink has no entry for its evicted sums",))]
    jobs.remove(writer, FLAT.job)
    assert installed(writer) == []


def test_slots_that_the_switch_does_not_have(local: tuple[LocalWriter, Pipeline]) -> None:
    writer, _ = local
    with pytest.raises(UserError, match="job 3: slots 4096 to 4351: the switch has 4096"):
        jobs.install(writer, dataclasses.replace(FLAT, slot_base=4096))
    assert installed(writer) == []
    with pytest.raises(UserError, match="no range of 8192 slots is free: the switch has 4096"):
        jobs.free_slots(writer, 8192)


def test_foreign_changes_of_a_jobs_entries_are_problems(local: tuple[LocalWriter, Pipeline]) -> None:
    writer, _ = local
    jobs.install(writer, FLAT)
    stranger = TableEntry(
        table="member",
        match={"job": Exact(3), "port": Exact(7), "ip": Exact(7), "udp_port": Exact(7)},
        action="admit",
        params={"fans_out": 0},
    )
    writer.write(
        [
            Update(UpdateKind.INSERT, stranger),
            Update(UpdateKind.MODIFY, MulticastGroup(group=30, replicas=frozenset({Replica(4, 1), Replica(9, 1000)}))),
        ]
    )
    ((found, problems),) = installed(writer)
    assert found == FLAT
    assert problems == (
        "member[job=0x3, port=0x7, ip=0x7, udp_port=0x7] is not part of the job",
        "multicast group 30 has other receivers than the job has members",
    )
    assert jobs.install(writer, FLAT) == 2
    assert installed(writer) == [(FLAT, ())]


# --- with packets -----------------------------------------------------------------------------------------------------


def from_rank_0(kind: int, lanes: tuple[int, ...] | None = None) -> bytearray:
    """A frame of the job."""
    return bytearray.fromhex("".join(packet_of(worker(0), FLAT, kind, lanes=lanes).groups()))


def udp_checksum(frame: bytes) -> int:
    """0 for a datagram whose checksum is right (RFC 768)."""
    covered = frame[26:34] + bytes([0, 17]) + frame[38:40] + frame[34:]
    total = sum(int.from_bytes(covered[i : i + 2].ljust(2, b"\0"), "big") for i in range(0, len(covered), 2))
    return ~(total % 0xFFFF or 0xFFFF) & 0xFFFF


def test_a_mark_leaves_no_wrong_checksum(local: tuple[LocalWriter, Pipeline]) -> None:
    """A bridged packet keeps its host's checksum, and the receiver's kernel silently drops packets with a wrong one."""
    writer, pipeline = local
    routes.add(writer, SERVER.ip, 9)
    packet = from_rank_0(spec.Kind.CONTROL)
    packet[40:42] = udp_checksum(bytes(packet)).to_bytes(2, "big")
    assert udp_checksum(bytes(packet)) == 0
    long_queue = np.full(PORTS, 100, np.int64)
    ((port, marked),) = pipeline.process_one(bytes(packet), 1, 0, long_queue)
    assert port == 9
    assert marked[43] == packet[43] | spec.Flag.CONGESTION
    assert marked[40:42] == b"\0\0"
    ((_, same),) = pipeline.process_one(bytes(packet), 1, 0)
    assert same == bytes(packet)


def test_an_ip_header_with_options_is_not_marked(local: tuple[LocalWriter, Pipeline]) -> None:
    writer, pipeline = local
    routes.add(writer, SERVER.ip, 9)
    packet = from_rank_0(spec.Kind.DATA, (1,) * 64)
    packet[14] = 0x46
    packet[34:34] = bytes(4)
    assert pipeline.process_one(bytes(packet), 1, 0, np.full(PORTS, 100, np.int64)) == [(9, bytes(packet))]


def test_in_process_control_needs_neither_grpc_nor_protobuf() -> None:
    code = (
        "import sys, sa_atp.switches.control.jobs, sa_atp.switches.control.routes, sa_atp.switches.control.writer;"
        "sys.exit(' '.join({'grpc', 'google.protobuf', 'p4'} & sys.modules.keys()) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --- specifications ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", KINDS)
def test_a_spec_goes_through_json(wanted: JobSpec) -> None:
    assert jobspec.from_json(wanted.to_json()) == wanted


@pytest.mark.parametrize(
    ("made", "changes", "message"),
    [
        (FLAT, {"job": 0}, "job 0: expected 1 to 255"),
        (FLAT, {"job": 256}, "job 256: expected 1 to 255"),
        (FLAT, {"epoch": -1}, "epoch -1: expected 0 to 255"),
        (FLAT, {"fan_in": 0}, r"fan_in 0: expected 1 to"),
        (FLAT, {"fan_in": 1 << 512}, r"fan_in \d+: expected 1 to \d+"),
        (FLAT, {"slot_count": 3}, "slot_count 3: expected a power of two"),
        (FLAT, {"slot_count": 1 << 17}, "slot_count 131072: expected 1 to 65536"),
        (FLAT, {"slot_base": 128}, "slot_base 128: expected a multiple of 256"),
        (FLAT, {"slot_base": 65536}, "slot_base 65536: expected 0 to 65280"),
        (FLAT, {"group": 0}, "group 0: expected 1 to 65535"),
        (FLAT, {"ttl_ticks": 0}, "ttl_ticks 0: expected 1 to"),
        (FLAT, {"level": "spine"}, "level 'spine': expected root or leaf"),
        (FLAT, {"members": ()}, "members: expected at least one"),
        (FLAT, {"members": (worker(1), worker(1, ip="1.2.3.4"))}, "rank 1 is given twice"),
        (FLAT, {"members": (worker(0), dataclasses.replace(worker(0), rank=1))}, "10.0.0.1:5000 is given twice"),
        (FLAT, {"members": (dataclasses.replace(worker(0), rank=-1),)}, "a rank is missing"),
        (FLAT, {"members": (worker(0), dataclasses.replace(SERVER, rank=1))}, "also that of a member"),
        (FLAT, {"leaf_ports": (511,)}, "leaf_ports 511: expected 0 to 510"),
        (FLAT, {"level": "leaf", "leaf_ports": (1,)}, r"leaf_ports \[1\]: only a root has leaves below it"),
        (worker(0), {"ip": "10.0.0"}, "ip '10.0.0': expected an IPv4 address"),
        (worker(0), {"mac": "02:00"}, "mac '02:00': expected six bytes"),
        (worker(0), {"udp_port": 0}, "udp_port 0: expected 1 to 65535"),
        (worker(0), {"switch_port": 511}, "switch_port 511: expected 0 to 510"),
        (worker(0), {"rank": 999}, "rank 999: expected -1 to 998"),
    ],
)
def test_specs_and_members_are_checked_when_made(made: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(made, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fan_in": "many"}, "fan_in 'many': expected a number"),
        ({"members": {}}, "members: expected a list"),
        ({"members": [1]}, r"members\[0\]: expected an object with"),
        ({"colour": 1}, "job: unknown key colour; expected job, epoch"),
        ({"uplink": {"ip": "10.0.0.1"}}, "uplink: the key udp_port is missing"),
    ],
)
def test_json_is_checked_key_by_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        jobspec.from_json(FLAT.to_json() | changes)


def test_the_events_are_those_of_the_p4_program() -> None:
    source = (P4 / "admission.p4").read_text()
    found = {name: int(value) for name, value in re.findall(r"const event_t EVENT_(\w+)\s*=\s*(\d+);", source)}
    assert found == {event.name: event.value for event in events.Event}
    assert re.search(rf"typedef bit<{(events.EVENTS_A_JOB - 1).bit_length()}> event_t;", source)
    counter = {c.name.rsplit(".", 1)[1]: c.size for c in PROGRAM.counters}
    assert counter == {events.COUNTER: spec.JOBS * events.EVENTS_A_JOB}
