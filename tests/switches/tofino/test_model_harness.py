"""Commands to the model's harness, and the interpretation of its answers.

In its place is a program that speaks as it does, and lets each packet out where it came in. What the model itself makes of
what it is told is tested in test_model.py, on machines that have it.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sa_atp.basics.errors import UserError
from sa_atp.lab.packet_tests import tofino_model
from sa_atp.lab.packet_tests.tofino_model import ModelSwitch
from sa_atp.lab.packet_tests.tofino_sim import ModelForwarder
from sa_atp.lab.runs.processes import ProcessError
from sa_atp.switches import artefacts
from sa_atp.switches.control import jobs, routes, tofino
from sa_atp.switches.control.errors import UpdateRefusedError
from sa_atp.switches.control.jobspec import JobSpec, Member
from sa_atp.switches.p4runtime.entities import MulticastGroup, TableEntry, Update, UpdateKind

HARNESS = """#!{python}
import sys
log = open(sys.argv[sys.argv.index("--observation-log") + 1], "a", buffering=1)
known = {known!r}
for number, line in enumerate(sys.stdin, 1):
    with open({heard!r}, "a") as heard:
        heard.write(line)
    words = line.replace("$TOFINO", "{chip}").split()
    if words[0] == "help":
        print(*known, sep=" <what it takes>\\n", flush=True)
    elif words[0] == "packet":
        print(words[1], words[2].upper(), file=log)
        print("68 00", file=log)  # what goes round is seen, too
    elif words == ["set_time", "666"]:
        sys.exit("the end of time")
    elif words[0] not in known:
        print(f"<stdin>:{{number}}: Unknown command {{words[0]}}", flush=True)
"""
KNOWN = ("add", "check_counter", "help", "load", "packet", "settle", "set_time", "multicast", "recirculate", "wait")
MEMBERS = (
    Member(ip="10.0.0.1", udp_port=5000, mac="02:00:0a:00:00:01", switch_port=1, rank=0),
    Member(ip="10.0.0.2", udp_port=5000, mac="02:00:0a:00:00:02", switch_port=2, rank=1),
)
SERVER = Member(ip="10.0.0.9", udp_port=21313, mac="02:00:0a:00:00:09", switch_port=9, rank=-1)
JOB = JobSpec(
    job=7, epoch=200, fan_in=0b11, slot_base=512, slot_count=256, group=30, ttl_ticks=100, level="root",
    members=MEMBERS, parameter_server=SERVER, uplink=SERVER, loop_port=68,
)  # fmt: skip

Heard = Callable[[], list[str]]


@pytest.fixture
def program() -> tofino.TofinoProgram:
    return tofino.from_folder(artefacts.tofino_folder("tofino", 32))


@pytest.fixture
def heard(tmp_path: Path) -> Heard:
    """The commands since the last call, without marks."""
    taken = 0

    def new() -> list[str]:
        nonlocal taken
        lines = (tmp_path / "heard").read_text().splitlines()
        taken, before = len(lines), taken
        return [line for line in lines[before:] if not line.startswith("mark-")]

    return new


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def write(known: tuple[str, ...] = KNOWN, chip: int = 1) -> None:
        script = tmp_path / "tofino_test_harness"
        script.write_text(HARNESS.format(python=sys.executable, known=known, chip=chip, heard=str(tmp_path / "heard")))
        script.chmod(0o755)
        monkeypatch.setenv("SA_ATP_TOFINO_MODEL", str(tmp_path))

    write()
    return write


@pytest.fixture
def switch(harness: Callable[..., None], program: tofino.TofinoProgram) -> Iterator[ModelSwitch]:
    with tofino_model.running(program) as found:
        yield found


@pytest.fixture
def forwarder(harness: Callable[..., None], program: tofino.TofinoProgram) -> Iterator[ModelForwarder]:
    with ModelForwarder(program) as found:
        yield found


def test_packets_and_time(switch: ModelSwitch, heard: Heard) -> None:
    heard()
    assert switch.send(3, b"\x01\xff") == [(3, b"\x01\xff")]
    assert switch.send(4, b"\x02") == [(4, b"\x02")]
    switch.set_time(1_000_000)
    switch.set_time(999_999)  # has passed
    switch.send(3, b"\x03")
    switch.set_time(1_000_050)  # may have passed with the packet
    assert heard() == ["packet 3 01ff", "settle", "packet 4 02", "settle", "set_time 1000000", "packet 3 03", "settle"]


def test_tables_are_filled_in_its_words(forwarder: ModelForwarder, heard: Heard) -> None:
    """A ternary entry's position follows from its priority, a larger one later; open bits of a key are *."""
    routes.add(forwarder, "10.0.0.0/24", 5)
    routes.add(forwarder, "10.0.0.7", 6)
    jobs.install(forwarder, JOB)
    told = heard()
    assert "multicast 30 1:1 2:2 1000:9 1001:68" in told
    bridge = [line.split() for line in told if line.startswith("add SwitchIngress.dispatch.bridge ")]
    assert [words[3] for words in bridge] == [f"ip:0b{10:08b}{0:016b}********", f"ip:0b{10:08b}{7:024b}"]
    assert int(bridge[0][2]) < int(bridge[1][2])
    within, beyond = (line.split() for line in told if line.startswith("add SwitchIngress.admission.job "))
    assert int(within[2]) > int(beyond[2])
    assert within[3:9] == [
        f"job:0b{7:08b}", f"epoch:0b{200:08b}", "slot:0b00000010********", f"bits_hi:0b{0:032b}",
        f"bits_lo:0b{0:030b}**", "on_behalf:0b*",
    ]  # fmt: skip
    member = "add SwitchIngress.admission.member job:0x7 port:0x1 ip:0xa000001 udp_port:0x1388"
    assert f"{member} SwitchIngress.admission.admit(fans_out:0x0)" in told
    assert [each.spec for each in jobs.read_jobs(forwarder)] == [JOB]


def test_removing_entries_restarts_the_model_with_the_others(forwarder: ModelForwarder, heard: Heard) -> None:
    """The harness cannot remove an entry."""
    routes.add(forwarder, "10.0.0.1", 5)
    jobs.install(forwarder, JOB)
    jobs.remove(forwarder, 7)
    heard()
    assert forwarder.schema.tables  # it is there again
    assert [line.split()[:2] for line in heard() if line.startswith(("add", "multicast"))] == [
        ["add", "SwitchIngress.dispatch.bridge"]
    ]
    for entity in (TableEntry(table="bridge"), MulticastGroup(group=5)):
        with pytest.raises(UpdateRefusedError, match=r"there is no such entry|does not exist"):
            forwarder.write([Update(UpdateKind.DELETE, entity)])


def test_a_harness_that_lacks_something_is_refused(harness: Callable[..., None], program: tofino.TofinoProgram) -> None:
    for known, chip, message in (
        ([name for name in KNOWN if name not in ("multicast", "settle")], 1, "lacks multicast, settle: docs/tofino.md"),
        (KNOWN, 2, "expected the harness for tofino, not for Tofino 2"),
    ):
        harness(tuple(known), chip)
        with pytest.raises(UserError, match=message), tofino_model.running(program):
            pass


def test_its_errors_are_ours(switch: ModelSwitch) -> None:
    with pytest.raises(UserError, match="4 priorities"):
        switch.insert(TableEntry(table="job", priority=5, action="stale"))
    with pytest.raises(UserError, match="harness: recirculated: Unknown command recirculated"):
        switch._silently("recirculated 5")
    with pytest.raises(ProcessError, match="the model of tofino ended with status 1"):
        switch.set_time(666)
