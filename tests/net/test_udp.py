"""UDP sockets on loopback: bursts arrive whole and in order, with each kind of system call."""

import json
import random
import select
import socket
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from helpers.needs import VETH

from sa_atp.basics.errors import UserError
from sa_atp.net.loop.compiled import socket_kernels
from sa_atp.net.sockets.compiled_bursts import PackedReceive
from sa_atp.net.sockets.udp import FULL_US, MAX_SEGMENTS, UdpSocket
from sa_atp.protocol.packets.datagrams import Address, Burst

from .guarded import Guarded

HERE = ("127.0.0.1", 0)
Open = Callable[[], UdpSocket]


def collect(socket: UdpSocket, count: int) -> list[tuple[Address, bytes]]:
    """Receives `count` datagrams, in order."""
    found: list[tuple[Address, bytes]] = []
    while len(found) < count:
        assert select.select([socket], [], [], 10)[0], f"only {len(found)} of {count} came"
        for burst in socket.receive():
            assert burst.data.flags.c_contiguous
            found += [(burst.address, row.tobytes()) for row in burst.data]
    return found


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("size", [1, 20, 276, 1044, 1472])
def test_a_burst_arrives_as_it_was_sent(open_socket: Open, compiled: bool, segments: bool, size: int) -> None:
    """Larger than one system call takes, with segmentation by the kernel and without."""
    sender, receiver = open_socket(), open_socket()
    if compiled:
        sender.use_kernels(socket_kernels())
        receiver.use_kernels(socket_kernels())
    sender._segments = segments
    count = 3 * MAX_SEGMENTS + 7
    data = np.random.default_rng(size).integers(0, 256, (count, size), dtype=np.uint8)
    sender.send([Burst(receiver.address, data)])
    found = collect(receiver, count)
    assert [payload for _, payload in found] == [row.tobytes() for row in data]
    assert {address for address, _ in found} == {sender.address}
    assert sender.stats.sent == receiver.stats.received == count
    assert sender.stats.send_errors == 0
    assert receiver.receive() == []


def test_datagrams_of_several_sizes_and_senders_are_kept_apart(open_socket: Open) -> None:
    senders = [open_socket(), open_socket()]
    receiver = open_socket()
    sizes = (276, 276, 20, 276, 100, 20, 20)
    for number, sender in enumerate(senders):
        for place, size in enumerate(sizes):
            sender.send([Burst(receiver.address, np.full((3, size), 16 * number + place, np.uint8))])
    found = collect(receiver, 3 * len(sizes) * len(senders))
    for number, sender in enumerate(senders):
        mine = [payload for address, payload in found if address == sender.address]
        assert mine == [bytes([16 * number + place]) * size for place, size in enumerate(sizes) for _ in range(3)]


def test_datagrams_of_any_size_beside_one_another(open_socket: Open) -> None:
    """A socket receives the datagrams that were sent, however the kernel coalesced them, and writes nowhere else."""
    rng = random.Random(3)
    sender, other, taker = open_socket(), open_socket(), open_socket()
    packed = PackedReceive(socket_kernels())
    sender.use_kernels(socket_kernels())
    room = Guarded(packed._room.size, np.uint8)
    packed._room = room.array
    for _ in range(150):
        sent = []
        for _ in range(rng.randrange(1, 12)):
            size, count = rng.choice((1, 3, 20, 276, 1044, 1400, 9000)), rng.randrange(1, 90)
            data = np.frombuffer(rng.randbytes(size * min(count, 120_000 // size + 1)), np.uint8).reshape(-1, size)
            who = rng.choice((sender, sender, other))
            who.send([Burst(taker.address, data)])
            sent += [(who.address[1], row.tobytes()) for row in data]
        found = []
        drained = False
        while not drained:
            bursts, drained = packed.receive(taker.fileno())
            found += [(burst.address[1], row.tobytes()) for burst in bursts for row in burst.data]
            room.check()
        for port in (sender.address[1], other.address[1]):
            assert [each for each in found if each[0] == port] == [each for each in sent if each[0] == port]


def test_strided_rows_are_sent_as_they_look(open_socket: Open) -> None:
    sender, receiver = open_socket(), open_socket()
    wide = np.arange(20 * 64, dtype=np.uint8).reshape(20, 64)
    sender.send([Burst(receiver.address, wide[::2, 8:40])])
    assert [payload for _, payload in collect(receiver, 10)] == [row.tobytes() for row in wide[::2, 8:40]]


def test_a_closed_port_does_not_stop_a_sender(open_socket: Open) -> None:
    """The kernel reports it with a later call, whose own datagrams must not be lost."""
    sender, receiver, gone = open_socket(), open_socket(), open_socket()
    address = gone.address
    gone.close()
    for number in range(5):
        sender.send([Burst.of(address, b"nobody")])
        sender.send([Burst.of(receiver.address, bytes([number]))])
        assert sender.receive() == []
    assert [payload for _, payload in collect(receiver, 5)] == [bytes([n]) for n in range(5)]


def refused(socket: UdpSocket, at_least: int) -> set[Address]:
    """Waits for refused addresses."""
    found: set[Address] = set()
    while len(found) < at_least:
        assert select.select([], [], [socket], 10)[2] or select.select([socket], [], [], 10)[0]
        found |= socket.refused()
    return found


def test_closed_ports_are_reported(open_socket: Open) -> None:
    """Only while reports are on; and no datagram is lost by the kernel's errors."""
    sender, receiver, first, second = open_socket(), open_socket(), open_socket(), open_socket()
    gone = {first.address, second.address}
    first.close()
    second.close()
    everybody = [Burst.of(address, b"anybody?") for address in (*gone, receiver.address)]
    sender.send(everybody)
    assert sender.refused() == set()
    sender.report_refusals(True)
    assert sender.refused() == set(), "what was refused before nobody wanted to know"
    sender.send(everybody)
    assert refused(sender, 2) == gone
    assert sender.refused() == set()
    sender.send(everybody)
    sender.report_refusals(False)
    assert sender.refused() == set()
    assert sender.receive() == []
    assert [payload for _, payload in collect(receiver, 3)] == [b"anybody?"] * 3
    assert sender.stats.send_errors == 0


def test_a_child_that_was_forked_does_not_keep_a_socket_open(open_socket: Open) -> None:
    """Otherwise a worker of a DataLoader would hide that the process of its rank has ended."""
    sender = open_socket()
    sender.report_refusals(True)
    program = (
        "import os, sys; from sa_atp.net.sockets.udp import UdpSocket\n"
        "socket = UdpSocket(('127.0.0.1', 0))\n"
        "print(socket.address[1], flush=True)\n"
        "if os.fork():\n"
        "    os.read(0, 1)\n"
        "    os._exit(0)\n"
        "print('child', flush=True)\n"
        "os.read(3, 1)\n"
    )
    ours, childs = socket.socketpair()
    code = f"import os; os.dup2({childs.fileno()}, 3)\n{program}"
    command = [sys.executable, "-c", code]
    with (
        ours,
        childs,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[childs.fileno()], text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        address = "127.0.0.1", int(process.stdout.readline())
        assert process.stdout.readline() == "child\n"
        sender.send([Burst.of(address, b"?")])
        assert sender.refused() == set()
        process.stdin.write("x")
        process.stdin.close()
        process.wait(10)
        sender.send([Burst.of(address, b"?")])
        assert refused(sender, 1) == {address}
        ours.sendall(b"x")  # and the child ends


def test_an_address_that_is_taken_is_named(open_socket: Open) -> None:
    first = open_socket()
    with pytest.raises(UserError, match=f"cannot use UDP address 127.0.0.1:{first.address[1]}"):
        UdpSocket(first.address)


def test_control_messages_are_marked_as_signalling_and_data_is_not(open_socket: Open) -> None:
    """DSCP CS5 (RFC 4594), which networks may prioritise. All packets are ECN-capable."""
    seen = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(HERE)
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        receiver.settimeout(10)
        data = np.zeros((1, 20), np.uint8)
        open_socket().send([Burst(receiver.getsockname(), data), Burst.of(receiver.getsockname(), b"{}")])
        for _ in range(2):
            payload, control, _, _ = receiver.recvmsg(100, 100)
            seen.append((len(payload), control[0][2][0]))
    assert seen == [(20, 0b000000_10), (2, 0b101000_10)]


# In a namespace of its own: an interface on which nothing leaves, because nobody says where the receiver is.
NOTHING_LEAVES = """
import json, socket, subprocess, sys
from sa_atp.basics.errors import MissingPartError
from sa_atp.net.sockets.namespace import enter
try:
    enter()
    from sa_atp.lab.bench.switch.links import make_pairs
    make_pairs([1])
except MissingPartError as error:
    print(json.dumps({"missing": str(error)})); sys.exit()
import numpy as np
from sa_atp.net.clock import now_us
from sa_atp.net.sockets.compiled_bursts import PackedReceive
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.protocol.packets.datagrams import Burst
subprocess.run(["ip", "addr", "add", "10.0.0.1/24", "dev", "host1"], check=True, timeout=20)
try:
    with open("/proc/sys/net/ipv4/neigh/host1/mcast_solicit", "w") as limit:
        limit.write("100000")  # the kernel goes on asking
except OSError as error:
    print(json.dumps({"missing": f"settings of this kernel cannot be written: {error}"})); sys.exit()
sender = UdpSocket(("10.0.0.1", 5000))
sender.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
sender._segments = sys.argv[1] == "segments"
began = now_us()
for _ in range(2):
    sender.send([Burst(("10.0.0.2", 5001), np.zeros((60, 1000), np.uint8)), Burst.of(("10.0.0.2", 5001), bytes(1000))])
took_us = now_us() - began
print(json.dumps({"took_us": took_us, "sent": sender.stats.sent, "lost": sender.stats.send_errors}))
"""


@VETH
@pytest.mark.parametrize("calls", ["segments", "vector"])
def test_a_full_buffer_holds_a_sender_up_for_a_moment_only(calls: str) -> None:
    """A connection's thread must not wait for ever, because its timers detect a lost server."""
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_LEAVES, calls], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if "missing" in found:
        pytest.skip(found["missing"])
    assert found["took_us"] >= 2 * FULL_US
    assert found["sent"] + found["lost"] == 2 * 61
    assert found["lost"] > 60
