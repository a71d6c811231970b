"""Super-packets: cutting and joining, with arrays, and over a veth pair with the kernel."""

import ctypes
import json
import subprocess
import sys

import numpy as np
import pytest

from sa_atp.net.sockets import offload
from sa_atp.net.sockets.offload import NEEDS_CHECKSUM, UDP_SEGMENTS, VNET, VNET_BYTES, WHOLE
from sa_atp.protocol.packets.frames import HEADERS_BYTES, Endpoint, checksum, datagram, mac_for, wrap
from sa_atp.switches.embedded.pipeline import ROW_BYTES

SOURCE = Endpoint(mac_for("10.0.0.1"), ("10.0.0.1", 5000))
TARGET = Endpoint(mac_for("10.0.0.2"), ("10.0.0.2", 21313))


def frames_of(count: int, payload_bytes: int, source: Endpoint = SOURCE, target: Endpoint = TARGET) -> np.ndarray:
    """uint8[count, ROW_BYTES]: datagrams with different payloads."""
    payloads = np.random.default_rng(count * 2000 + payload_bytes).integers(0, 256, (count, payload_bytes), np.uint8)
    return wrap(payloads, source, target, np.zeros((count, ROW_BYTES), np.uint8))


def packets_of(frames: np.ndarray, lengths: np.ndarray, *, join: bool = True) -> list[bytes]:
    """The packets for the kernel."""
    made = offload.gather(frames, lengths, join=join)
    parts = [ctypes.string_at(int(b), int(s)) for b, s in zip(made.bases, made.sizes, strict=True)]
    assert sum(made.counts) == len(parts)
    ends = np.cumsum(made.counts).tolist()
    return [b"".join(parts[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def cut(packets: list[bytes]) -> list[bytes]:
    """The frames in packets from the kernel."""
    rows = np.zeros((len(packets), max(map(len, packets))), np.uint8)
    for row, packet in zip(rows, packets, strict=True):
        row[: len(packet)] = np.frombuffer(packet, np.uint8)
    lengths = np.array([len(p) for p in packets])
    counts = offload.frames_in(rows, lengths, ROW_BYTES)
    out = np.full((counts.sum(), ROW_BYTES), 0xEE, np.uint8)
    found = offload.cut(rows, lengths, counts, out)
    return [row[:length].tobytes() for row, length in zip(out, found.tolist(), strict=True)]


def vnet_header(packet: bytes) -> np.void:
    header: np.void = np.frombuffer(packet[:VNET_BYTES], VNET)[0]
    return header


@pytest.mark.parametrize(("count", "payload_bytes"), [(2, 1), (16, 1044), (59, 1044), (64, 276), (5, 1472)])
def test_frames_of_one_flow_cross_as_one_packet_and_come_out_the_same(count: int, payload_bytes: int) -> None:
    frames = frames_of(count, payload_bytes)
    lengths = np.full(count, HEADERS_BYTES + payload_bytes)
    packets = packets_of(frames, lengths)
    assert len(packets) == 1
    head = vnet_header(packets[0])
    assert (head["kind"], head["flags"], head["segment_bytes"]) == (UDP_SEGMENTS, NEEDS_CHECKSUM, payload_bytes)
    assert len(packets[0]) == VNET_BYTES + HEADERS_BYTES + count * payload_bytes
    assert cut(packets) == [frame[:n].tobytes() for frame, n in zip(frames, lengths, strict=True)]


def test_a_super_packet_is_a_sound_ip_packet() -> None:
    packet = packets_of(frames_of(7, 100), np.full(7, 142))[0][VNET_BYTES:]
    assert checksum(packet[14:34]) == 0
    found = datagram(packet)
    assert found is not None
    assert (found[0], found[1], len(found[2])) == (SOURCE.address, TARGET.address, 700)
    # the pseudo-header's sum, as the kernel wants it where it may have to complete the checksum
    pseudo = packet[26:34] + b"\0\x11" + packet[38:40]
    assert int.from_bytes(packet[40:42]) == 0xFFFF - checksum(pseudo)


def test_long_runs_are_bounded_by_segments_and_by_bytes() -> None:
    for payload_bytes, most in ((20, 64), (1044, 62)):
        packets = packets_of(frames_of(150, payload_bytes), np.full(150, HEADERS_BYTES + payload_bytes))
        sizes = [(len(p) - VNET_BYTES - HEADERS_BYTES) // payload_bytes for p in packets]
        assert sizes == [most, most, 150 - 2 * most]


def test_only_neighbours_of_one_flow_and_size_are_joined() -> None:
    other = Endpoint(mac_for("10.0.0.3"), ("10.0.0.3", 21313))
    frames = np.concatenate([frames_of(3, 50), frames_of(1, 50, target=other), frames_of(2, 50), frames_of(2, 60)])
    lengths = np.array([92] * 6 + [102] * 2)
    packets = packets_of(frames, lengths)
    assert [len(p) for p in packets] == [52 + 150, 10 + 92, 52 + 100, 52 + 120]
    assert cut(packets) == [frame[:n].tobytes() for frame, n in zip(frames, lengths, strict=True)]


ALONE = {
    "may be fragmented": (20, 0), "fragment": (20, 0x20), "later fragment": (21, 1), "TCP": (23, 6), "checksum": (40, 1),
    "checksum's second byte": (41, 1), "IPv6": (12, 0x86), "another type": (13, 1), "options": (14, 0x46),
    "padded": (39, 40),
}  # fmt: skip


@pytest.mark.parametrize("rows", [slice(1, 2), slice(3)], ids=["one of three", "all"])
@pytest.mark.parametrize(("place", "value"), ALONE.values(), ids=ALONE)
def test_frames_that_would_lose_something_stay_alone(place: int, value: int, rows: slice) -> None:
    frames = frames_of(3, 50)
    frames[rows, place] = value
    assert_alone(frames)


def test_frames_that_differ_stay_alone() -> None:
    frames = frames_of(3, 50)
    frames[1, 15] = 3  # congestion
    assert_alone(frames)


def assert_alone(frames: np.ndarray) -> None:
    packets = packets_of(frames, np.full(3, 92))
    assert [len(p) for p in packets] == [102, 102, 102]
    assert [p[VNET_BYTES:] for p in packets] == [frame[:92].tobytes() for frame in frames]


def test_nothing_is_joined_where_the_other_end_could_not_cut_it() -> None:
    frames = frames_of(4, 50)
    packets = packets_of(frames, np.full(4, 92), join=False)
    assert [vnet_header(p)["kind"] for p in packets] == [WHOLE] * 4


def test_the_last_segment_may_be_shorter() -> None:
    packet = bytearray(packets_of(frames_of(4, 100), np.full(4, 142))[0])[:-30]
    frames = cut([bytes(packet)])
    assert [len(f) for f in frames] == [142, 142, 142, 112]
    for frame in frames:
        found = datagram(frame)
        assert found is not None
        assert len(found[2]) == len(frame) - HEADERS_BYTES
        assert checksum(frame[14:34]) == 0


@pytest.mark.parametrize("change", [(1, 1), (VNET_BYTES + 23, 6), (VNET_BYTES + 14, 0x60)])
def test_invalid_super_packets_hold_no_frames(change: tuple[int, int]) -> None:
    packet = bytearray(packets_of(frames_of(4, 100), np.full(4, 142))[0])
    packet[change[0]] = change[1]
    assert cut([bytes(packet), packets_of(frames_of(1, 9), np.array([51]))[0]]) == [frames_of(1, 9)[0, :51].tobytes()]


@pytest.mark.parametrize("payload", [b"", b"x", b"an odd number", b"an even number"])
def test_checksums_that_hosts_left_out_are_completed(payload: bytes) -> None:
    """TCP, too, whose checksum is mandatory."""
    segment = bytes.fromhex("1388 5341 00000001 00000002 5010 ffff 0000 0000") + payload
    pseudo = bytes([10, 0, 0, 1, 10, 0, 0, 2, 0, 6]) + len(segment).to_bytes(2)
    ip = bytes.fromhex("4500") + (20 + len(segment)).to_bytes(2) + bytes.fromhex("0000 4000 4006 0000") + pseudo[:8]
    partial = segment[:16] + (0xFFFF - checksum(pseudo)).to_bytes(2) + segment[18:]
    header = np.zeros(1, VNET)
    header["flags"], header["sum_start"], header["sum_offset"] = NEEDS_CHECKSUM, 34, 16
    (frame,) = cut([header.tobytes() + bytes(12) + b"\x08\x00" + ip + partial])
    padded = pseudo + frame[34:] + bytes(len(frame) % 2)
    assert checksum(padded) == 0
    assert frame[:50] == (bytes(12) + b"\x08\x00" + ip + partial)[:50]
    assert frame[52:] == segment[18:]


# Run in a process of its own, in a namespace of its own: a switch's port at one end of a veth pair, a host at the other.
OVER_VETH = """
import json, subprocess, sys, time
from sa_atp.net.sockets import ethtool, namespace
namespace.enter()
from sa_atp.lab.bench.switch.links import make_pairs
make_pairs([1])
import numpy as np
from sa_atp.net.sockets.ports import InterfacePort
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.protocol.packets.frames import Endpoint, wrap
from sa_atp.protocol.packets.datagrams import Burst

def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=20)

run("ip", "link", "set", "host1", "address", "02:00:0a:00:00:01")
run("ip", "addr", "add", "10.0.0.1/24", "dev", "host1")
run("ip", "neigh", "add", "10.0.0.2", "lladdr", "02:00:0a:00:00:02", "dev", "host1")
if sys.argv[1] == "without":
    ethtool.set_features("host1", {"tx": False})
    ethtool.set_features("sw1", {"tx": False})
port, host = InterfacePort("sw1"), UdpSocket(("10.0.0.1", 5000))
taken = []
receive_packets = port.receive_packets
def count(packets):
    lengths = receive_packets(packets)
    taken.append(len(lengths))
    return lengths
port.receive_packets = count
sent = np.random.default_rng(1).integers(0, 256, (100, 1044), np.uint8)

def until(found, wanted):
    deadline = time.monotonic() + 20
    while len(found) < wanted and time.monotonic() < deadline:
        yield
        time.sleep(0.002)

host.send([Burst(("10.0.0.2", 21313), sent)])
seen = []
for _ in until(seen, len(sent)):
    frames = port.receive()
    if frames is not None:
        seen += [f[:n].copy() for f, n in zip(*frames) if f[23] == 17 and n == 1086]
upwards = bool((np.array(seen)[:, 42:] == sent).all())
there, here = Endpoint(0x02000A000002, ("10.0.0.2", 21313)), Endpoint(0x02000A000001, ("10.0.0.1", 5000))
port.send(wrap(sent, there, here), np.full(len(sent), 1086))
back, bursts = [], 0
for _ in until(back, len(sent)):
    for burst in host.receive():
        bursts += 1
        back += [row.copy() for row in burst.data]
print(json.dumps({"upwards": upwards, "packets": sum(taken), "downwards": bool((np.array(back) == sent).all()),
                  "bursts": bursts, "refused": port.refused, "oversized": port.oversized}))
"""


@pytest.mark.needs("namespaces", "ip")
@pytest.mark.parametrize("offloads", ["with", "without"])
def test_over_a_veth_pair_datagrams_arrive_as_they_were_sent(offloads: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OVER_VETH, offloads], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["upwards"], found["downwards"], found["refused"], found["oversized"]) == (True, True, 0, 0)
    if offloads == "with" and found["packets"] > 20:
        pytest.skip("this kernel gives packet sockets no super-packets of datagrams: Linux 6.2 or newer does")
    assert found["packets"] <= 20 if offloads == "with" else found["packets"] >= 100
