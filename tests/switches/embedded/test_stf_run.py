"""`sa-atp stf` as a user runs it, and each statement on a target."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.needs import BMV2_STF

from sa_atp.lab.packet_tests.bmv2 import Packet
from sa_atp.switches.embedded.pipeline import Pipeline
from sa_atp.switches.embedded.stf import grammar, runner
from sa_atp.switches.embedded.stf.embedded import EmbeddedTarget
from sa_atp.switches.embedded.stf.grammar import StfError
from sa_atp.switches.embedded.stf.names import ProgramNames

P4 = Path(__file__).resolve().parents[2] / "p4"
ROUTER = P4 / "router.json"
NAMES = ProgramNames.from_file(ROUTER)
FRAME = "020000000001 0200000000f1 0800 4500 0018 0000 0000 40 11 add2 c0000202 0a000101 deadbeef"
ROUTED = "020000000009 020000000001 0800 4500 0018 0000 0000 3f 11 aed2 c0000202 0a000101 deadbeef"
ROUTE = "add route dst:0x0a000100/24 forward(next_hop:0x020000000009, port:3)"


@pytest.fixture(scope="module")
def router() -> Pipeline:
    return Pipeline.from_file(ROUTER, compiled=False)


def run(router: Pipeline, *lines: str) -> runner.StfResult:
    return runner.run(grammar.parse("\n".join(lines)), NAMES, EmbeddedTarget(router))


def command(*arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "sa_atp", "stf", *(str(a) for a in arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["embedded", pytest.param("bmv2", marks=BMV2_STF)])
def target(request: pytest.FixtureRequest) -> list[str]:
    """Arguments that choose a target."""
    return ["--plain"] if request.param == "embedded" else ["--target", "bmv2"]


def test_a_router_routes(target: list[str]) -> None:
    done = command(ROUTER, P4 / "router.stf", *target)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("pass: ")


def test_a_failure_shows_both_packets(tmp_path: Path, target: list[str]) -> None:
    test = tmp_path / "wrong.stf"
    test.write_text(f"{ROUTE}\npacket 1 {FRAME}\nexpect 3 {ROUTED.replace('3f', '40')} $\n")
    done = command(ROUTER, test, *target)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == f"{test}:3: port 3: packet 1 differs at byte 22, caused by line 2"
    marked = next(i for i, line in enumerate(lines) if "^^" in line)
    at = lines[marked].index("^^"), lines[marked].rindex("^^")
    assert [lines[marked - 1][i : i + 2] for i in at] == ["40", "3f"]
    assert lines[-1].startswith("FAIL: ")

    done = command(ROUTER, test, "--json", *target)
    assert done.returncode == 1
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["passed"], found["packets"], found["expected"], found["received"]) == (False, 1, 1, 1)
    (failure,) = found["failures"]
    assert (failure["line"], failure["port"], failure["byte"]) == (3, 3, 22)
    assert failure["received"] == ROUTED.replace(" ", "")
    assert "^^" in done.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("add route dst:1 forward(port:3)", "takes next_hop, port, not port"),
        ("mc_node_associate 1 0", ""),  # neither the group nor the node exists
        ("check_counter arrived($A) packets == 1", "no entry has this label"),
    ],
)
def test_impossible_statements_are_errors_with_file_and_line(
    tmp_path: Path, target: list[str], line: str, message: str
) -> None:
    test = tmp_path / "bad.stf"
    test.write_text(f"# first\n{line}\n")
    done = command(ROUTER, test, *target)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"sa-atp: {test}:2: ")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_wrong_input_and_missing_parts(tmp_path: Path) -> None:
    done = command(ROUTER, tmp_path / "none.stf")
    assert (done.returncode, done.stderr) == (2, f"sa-atp: {tmp_path}/none.stf: No such file or directory\n")
    done = command(tmp_path / "none.json", P4 / "router.stf")
    assert (done.returncode, done.stderr) == (2, f"sa-atp: {tmp_path}/none.json: No such file or directory\n")
    done = command(ROUTER, P4 / "router.stf", "--target", "bmv2", PATH=str(tmp_path), SA_ATP_BMV2="")
    assert done.returncode == 3
    assert "SA_ATP_BMV2" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- statements on the embedded target --------------------------------------------------------------------------------


def test_order_counts_for_each_port(router: Pipeline) -> None:
    other = FRAME.replace("deadbeef", "0000beef")
    asked = [f"expect 3 {ROUTED}", f"expect 3 {ROUTED.replace('deadbeef', '0000beef')}"]
    sent = [ROUTE, f"packet 1 {FRAME}", f"packet 1 {other}"]
    assert run(router, *sent, *asked).passed
    assert run(router, *asked, *sent).passed  # an expectation may stand anywhere
    assert not run(router, *sent, *reversed(asked)).passed


def test_unexpected_packets_and_ports_that_are_not_named(router: Pipeline) -> None:
    result = run(router, ROUTE, f"packet 1 {FRAME}")
    assert result.passed  # as in p4c's runner, where port 3 would not exist
    assert result.notes == ("port 3, which the test does not name, sent 1 packet",)
    result = run(router, ROUTE, f"packet 1 {FRAME}", f"packet 3 {FRAME}")
    assert [f.message for f in result.failures] == ["port 3: a packet came out that the test does not expect"] * 2
    assert [f.line for f in result.failures] == [2, 3]


def test_no_packet_is_about_the_packet_before(router: Pipeline) -> None:
    assert run(router, f"packet 1 {FRAME}", "no_packet", ROUTE, f"packet 1 {FRAME}", f"expect 3 {ROUTED}").passed
    (failure,) = run(router, ROUTE, f"packet 1 {FRAME}", "no_packet", f"expect 3 {ROUTED}").failures
    assert failure.message == "the packet of line 2 came out of port 3, expected none"
    with pytest.raises(StfError, match="test:1: no_packet: there is no packet before it"):
        run(router, "no_packet")


def test_remove_all_leaves_what_belongs_to_the_program(router: Pipeline) -> None:
    result = run(
        router, ROUTE, "remove all", f"packet 7 {FRAME}", "no_packet", "check_counter by_class(71) packets == 1"
    )
    assert result.passed, result.failures


@pytest.mark.parametrize(("comparison", "holds"), [("==", 1), ("!=", 0), ("<", 0), ("<=", 1), (">", 0), (">=", 1)])
def test_counters_are_compared(router: Pipeline, comparison: str, holds: int) -> None:
    result = run(router, f"packet 5 {FRAME}", f"check_counter arrived(5) bytes {comparison} 38")
    assert result.passed == bool(holds)
    if not holds:
        assert (
            result.failures[0].message == f"counter RouterIngress.arrived(5): 38 bytes, expected bytes {comparison} 38"
        )


def test_registers_and_counters_can_be_read_and_written(router: Pipeline) -> None:
    result = run(
        router,
        "register_write balance 0 5", f"packet 1 {FRAME}", "register_read balance 0", "register_reset balance",
        "register_read balance 0", "counter_write by_class 3 7 70", "counter_read by_class 3",
    )  # fmt: skip
    assert result.notes == (
        "line 3: RouterIngress.balance[0]: 4",
        "line 5: RouterIngress.balance[0]: 0",
        "line 7: RouterIngress.by_class[3]: 7 packets, 70 bytes",
    )


def test_nodes_can_be_changed(router: Pipeline) -> None:
    flood = FRAME.replace("0a000101", "0a000201").replace("add2", "acd2")
    result = run(
        router,
        "add route dst:0x0a000200/24 flood(group:2)", "mc_mgrp_create 2", "mc_node_create 1 4", "mc_node_associate 2 0",
        f"packet 1 {flood}", "mc_node_update 0 5 6", f"packet 1 {flood}", "expect 4", "expect 5", "expect 6",
    )  # fmt: skip
    assert result.passed, result.failures
    assert result.received == 3


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["mirroring_add 1 2"], "mirroring is not supported by the embedded target"),
        (["meter_get_rates m 0"], "a meter is not supported"),
        (["mc_mgrp_create 1", "mc_mgrp_create 1"], "test:2: multicast group 1 exists already"),
        (["mc_node_create 1 2", "mc_node_associate 1 0"], "test:2: multicast group 1 does not exist"),
        (["mc_node_update 0 1"], "there is no node 0"),
        (["mc_node_create 1 511", "mc_mgrp_create 1", "mc_node_associate 1 0"], "test:3: multicast group 1: port 511"),
        ([ROUTE, ROUTE], "test:2: RouterIngress.route.* exists already"),
        (["add known_ports port:1 NoAction()"], "its entries are part of the program"),
        (["setdefault known_ports set_class(class:1)"], "its default action is part of the program"),
        (["check_counter arrived(512) packets == 0"], r"arrived\[512\]: index 512: expected 0 to 511"),
        (["check_counter routed(0) packets == 0"], "counts entries of RouterIngress.route: expected \\$LABEL"),
        (["register_write balance 0 0x10000"], "65536 does not fit in 16 bits"),
        (["register_read balance 16"], r"balance\[16\]: index 16: expected 0 to 15"),
        (["counter_read nothing 0"], "there is no counter nothing"),
    ],
)
def test_refusals_name_the_line(router: Pipeline, lines: list[str], message: str) -> None:
    with pytest.raises(StfError, match=message):
        run(router, *lines)


# --- BMv2's packet messages -------------------------------------------------------------------------------------------


def test_packet_messages_have_the_fields_of_bmv2() -> None:
    """Fields 3 and 4 of p4.bm.PacketStreamResponse; the others, as 1 and 2 here, are passed over."""
    octets = bytes.fromhex("08ac02 1009 18fe03 2203 010203")

    assert Packet(port=510, packet=b"\1\2\3").SerializeToString() == octets[5:]
    answer = Packet.FromString(octets)
    assert (answer.port, answer.packet) == (510, b"\1\2\3")
