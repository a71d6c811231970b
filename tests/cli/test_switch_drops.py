"""Warnings of a switch about dropped packets: at once with a remedy, and with the number at its end."""

import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from sa_atp.lab.runs.processes import Group, Process
from sa_atp.net.drops import of_switch

from .conftest import RUN_TIMEOUT_S

TOO_LONG = bytes(9300)  # the payload of a datagram


def lines_with(switch: Process, text: str) -> list[str]:
    """Waits until a line of its log has this text. Returns: all that have."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while not (found := [line for line in switch.log.read_text().split("\n")[:-1] if text in line]):
        switch.check()
        assert time.monotonic() < deadline, switch.log.read_text()
        time.sleep(0.05)
    return found


def end(switch: Process) -> None:
    switch._process.send_signal(signal.SIGTERM)
    assert switch._process.wait(RUN_TIMEOUT_S) == 0


@pytest.mark.parametrize("how", [[], ["--plain"], ["--impair", "1:loss=0"]], ids=["compiled", "plain", "impaired"])
def test_datagrams_that_are_too_long(how: list[str], tmp_path: Path) -> None:
    udp = ("sa_atp", "switch", "--lanes", "64", "--udp", "1=127.0.0.1:0", "--grpc", "127.0.0.1:0")
    with Group() as group, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        switch = group.start("switch", [*udp, *how], tmp_path / "log")
        to = tuple(switch.answer(RUN_TIMEOUT_S)["udp"]["1"])
        for _ in range(3):
            sender.sendto(TOO_LONG, to)
        (said,) = lines_with(switch, "dropping")
        assert re.match(
            r"sa-atp switch: port 1 \(udp 127.0.0.1:\d+.*\): dropping datagrams that make frames longer", said
        )
        sender.sendto(TOO_LONG, to)
        sender.sendto(b"\0" * 100, to)  # behind the others
        end(switch)
        assert lines_with(switch, "dropping") == [said]  # that was said once
        (total,) = lines_with(switch, "dropped:")
    assert re.search(r"dropped: [34] datagrams that make frames longer than 9280 bytes at port 1", total)


# Run in a namespace of its own: a switch at one end of a veth pair, and a host at the other whose interface is to cut TCP.
OVER_VETH = """
import runpy, subprocess, sys, threading, time
from sa_atp.net.sockets import namespace
namespace.enter()
from sa_atp.lab.bench.switch.links import make_pairs
make_pairs([1])
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
import socket
from sa_atp.net.sockets.ports import PACKET_VNET_HDR, SOL_PACKET
host = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
host.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
host.bind(("host1", 0))
tcp = bytes.fromhex("1388 5341 00000001 00000002 5010 ffff 0000 0000") + bytes(4000)
ip = bytes.fromhex("4500") + (20 + len(tcp)).to_bytes(2, "big") + bytes.fromhex("0000 4000 4006 0000 0a000001 0a000002")
frame = bytes.fromhex("0200000000020200000000010800") + ip + tcp
vnet = bytes([1, 1]) + b"".join(n.to_bytes(2, sys.byteorder) for n in (54, 1000, 34, 16))

def send():
    while True:
        host.send(vnet + frame)
        time.sleep(0.05)

threading.Thread(target=send, daemon=True).start()
sys.argv = ["sa_atp", "switch", "--lanes", "64", "-i", "1@sw1", "--grpc", "127.0.0.1:0", *sys.argv[1:]]
runpy.run_module("sa_atp", run_name="__main__")
"""


@pytest.mark.needs("namespaces", "ip")
@pytest.mark.parametrize("how", [[], ["--plain"]], ids=["compiled", "plain"])
def test_tcp_segments_that_a_host_left_to_its_interface(how: list[str], tmp_path: Path) -> None:
    with Group() as group:
        switch = group.start("switch", ["-c", OVER_VETH, *how], tmp_path / "log", program=[sys.executable])
        (said,) = lines_with(switch, "dropping")
        assert said.startswith("sa-atp switch: port 1 (sw1): dropping packets longer than 9280 bytes, or TCP segments")
        assert "`ethtool --offload INTERFACE tso off gso off`" in said
        assert "`ethtool --offload sw1 gro off`" in said
        end(switch)
        assert lines_with(switch, "dropping") == [said]
        (total,) = lines_with(switch, "dropped:")
    assert re.search(r"dropped: [1-9]\d* packets longer than 9280 bytes, or TCP", total)


def test_drops_of_the_switch_itself() -> None:
    found = list(of_switch(without_program=1, punts=2, packet_ins=3))
    assert [each.count for each in found] == [1, 2, 3]
    assert [each.total() for each in found if each.count > 1] == ["2 packets for the CPU port", "3 packet-ins"]
    assert found[0].warning().startswith("dropping packets that came before a program was pushed: push one")
