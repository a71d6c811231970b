"""Warnings of a switch about dropped packets: at once with a remedy, and with the number at its end."""

import json
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from sa_atp.net.drops import of_switch

from .conftest import RUN_TIMEOUT_S

TOO_LONG = bytes(9300)  # the payload of a datagram


class Running:
    """`sa-atp switch` as a process."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        ready = self.process.stdout.readline()
        assert ready, self.rest()
        self.ready = json.loads(ready)

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                self.lines.put(line)
        self.lines.put("")

    def line_with(self, text: str) -> str:
        """Waits for a line with this text."""
        while text not in (line := self.lines.get(timeout=RUN_TIMEOUT_S)):
            assert line, f"the switch has ended and did not say: {text}"
        return line

    def rest(self) -> list[str]:
        return list(iter(lambda: self.lines.get(timeout=RUN_TIMEOUT_S), ""))

    def end(self) -> list[str]:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(RUN_TIMEOUT_S) == 0
        return self.rest()


@contextmanager
def running(*command: str) -> Iterator[Running]:
    switch = Running(command)
    try:
        yield switch
    finally:
        switch.process.kill()
        switch.process.wait()
        switch.reader.join()
        assert switch.process.stdout is not None
        switch.process.stdout.close()


@pytest.mark.parametrize("how", [[], ["--plain"], ["--impair", "1:loss=0"]], ids=["compiled", "plain", "impaired"])
def test_datagrams_that_are_too_long(how: list[str]) -> None:
    udp = ("-m", "sa_atp", "switch", "--lanes", "64", "--udp", "1=127.0.0.1:0", "--grpc", "127.0.0.1:0")
    with running(*udp, *how) as switch, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        to = tuple(switch.ready["udp"]["1"])
        for _ in range(3):
            sender.sendto(TOO_LONG, to)
        said = switch.line_with("dropping")
        assert re.match(
            r"sa-atp switch: port 1 \(udp 127.0.0.1:\d+.*\): dropping datagrams that make frames longer", said
        )
        sender.sendto(TOO_LONG, to)
        sender.sendto(b"\0" * 100, to)  # behind the others
        lines = switch.end()
    assert not any("dropping" in line for line in lines)  # that was said once
    (total,) = (line for line in lines if "dropped:" in line)
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
def test_tcp_segments_that_a_host_left_to_its_interface(how: list[str]) -> None:
    with running("-c", OVER_VETH, *how) as switch:
        said = switch.line_with("dropping")
        assert said.startswith("sa-atp switch: port 1 (sw1): dropping packets longer than 9280 bytes, or TCP segments")
        assert "`ethtool --offload INTERFACE tso off gso off`" in said
        assert "`ethtool --offload sw1 gro off`" in said
        lines = switch.end()
    assert not any("dropping" in line for line in lines)
    assert any(re.search(r"dropped: [1-9]\d* packets longer than 9280 bytes, or TCP", line) for line in lines)


def test_drops_of_the_switch_itself() -> None:
    found = list(of_switch(without_program=1, punts=2, packet_ins=3))
    assert [each.count for each in found] == [1, 2, 3]
    assert [each.total() for each in found if each.count > 1] == ["2 packets for the CPU port", "3 packet-ins"]
    assert found[0].warning().startswith("dropping packets that came before a program was pushed: push one")
