"""Captures: all formats, batches of bounded size, and the same text from batches and from scapy."""

import gzip
import io
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.messages import packet_of
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, GRE, LLC, SNAP, CookedLinux, CookedLinuxV2, Dot1AD, Dot1Q, Dot3, Ether, Loopback
from scapy.packet import Packet, Raw

from sa_atp.basics.errors import UserError
from sa_atp.net.captures.capture_file import CHUNK, SLACK, Batch, CaptureFile
from sa_atp.net.captures.dissect import CaptureCounts, dissect, read
from sa_atp.net.captures.dissect_layers import dissect_one
from sa_atp.protocol.numbers.scaling import POISON
from sa_atp.protocol.packets.header import pack
from sa_atp.protocol.packets.spec import UDP_PORT, WITH_LANES, Kind

FRAMES = [bytes([number]) * length for number, length in enumerate((0, 1, 60, 61, 62, 63, 1500))]
SECONDS = 1_700_000_000


# --- files ----------------------------------------------------------------------------------------------------------------


def pcap(frames: list[bytes], *, order: str = "<", nano: bool = False, link: int = 1) -> bytes:
    """A pcap file: a frame each second, each a tick later within its second."""
    magic = 0xA1B23C4D if nano else 0xA1B2C3D4
    out = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, link)
    for i, frame in enumerate(frames):
        out += struct.pack(order + "IIII", SECONDS + i, i, len(frame), len(frame)) + frame
    return out


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    return struct.pack(order + "II", kind, len(body) + 12) + body + struct.pack(order + "I", len(body) + 12)


def section(order: str) -> bytes:
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(order: str, link: int = 1, resolution: int | None = None) -> bytes:
    options = b"" if resolution is None else struct.pack(order + "HHBxxxHH", 9, 1, resolution, 0, 0)
    return block(order, 1, struct.pack(order + "HHI", link, 0, 65535) + options)


def enhanced(order: str, frame: bytes, ticks: int, number: int = 0) -> bytes:
    head = struct.pack(order + "5I", number, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame))
    return block(order, 6, head + frame)


def contents(path: Path) -> tuple[list[tuple[int, float, bytes]], bool]:
    """(link type, seconds, frame) of all frames, and whether the file is cut."""
    file = CaptureFile(path)
    found = [
        (batch.link_type, batch.ticks[i] / batch.ticks_a_second, batch.frame(i))
        for batch in file.batches()
        for i in range(len(batch.starts))
    ]
    return found, file.cut


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nano", [False, True])
def test_pcap(order: str, nano: bool, tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_bytes(pcap(FRAMES, order=order, nano=nano, link=113))
    unit = 1e-9 if nano else 1e-6
    assert contents(path) == ([(113, SECONDS + i + i * unit, frame) for i, frame in enumerate(FRAMES)], False)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("resolution", "ticks"), [(None, 10**6), (9, 10**9), (0x80 | 20, 2**20)])
def test_pcapng(order: str, resolution: int | None, ticks: int, tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_bytes(
        section(order) + interface(order, 113, resolution) + block(order, 5, bytes(12))  # statistics are passed over
        + b"".join(enhanced(order, frame, SECONDS * ticks + i) for i, frame in enumerate(FRAMES))
    )  # fmt: skip
    wanted = [(113, (SECONDS * ticks + i) / ticks, frame) for i, frame in enumerate(FRAMES)]
    assert contents(path) == (wanted, False)


def test_sections_have_their_own_interfaces_and_byte_order(tmp_path: Path) -> None:
    old = struct.pack("<HH4I", 1, 0, 0, 7, 3, 3) + b"old"
    simple = struct.pack(">I", 6) + b"simple"
    path = tmp_path / "capture"
    path.write_bytes(
        section("<") + interface("<") + interface("<", 101) + enhanced("<", b"first", 5, 1) + enhanced("<", b"x", 6, 0)
        + block("<", 2, old) + section(">") + interface(">", 276) + block(">", 3, simple) + enhanced(">", b"last", 8)
    )  # fmt: skip
    wanted = [(101, 5, b"first"), (1, 6, b"x"), (101, 7, b"old"), (276, 0, b"simple"), (276, 8, b"last")]
    assert contents(path) == ([(link, ticks / 10**6, frame) for link, ticks, frame in wanted], False)


def test_a_file_that_ends_anywhere(tmp_path: Path) -> None:
    """All whole blocks are read; of a pcap also the part of a frame that is there."""
    path = tmp_path / "capture"
    frames = [b"a" * 30, b"b" * 31]
    head, whole = pcap([]), pcap(frames)
    for size in range(len(head), len(whole) + 1):
        path.write_bytes(whole[:size])
        found, cut = contents(path)
        ends = [len(head), len(head) + 46, len(whole)]
        assert cut == (size not in ends)
        assert b"".join(frame for _, _, frame in found) == (
            whole[len(head) + 16 : min(size, ends[1])] + whole[ends[1] + 16 : max(size, ends[1] + 16)]
        )
    blocks = [section("<"), interface("<"), enhanced("<", frames[0], 1), enhanced("<", frames[1], 2)]
    ends = [sum(map(len, blocks[:n])) for n in range(1, 5)]
    for size in range(ends[0], ends[-1] + 1):
        path.write_bytes(b"".join(blocks)[:size])
        found, cut = contents(path)
        assert cut == (size not in ends)
        assert [frame for _, _, frame in found] == frames[: sum(size >= end for end in ends[2:])]


@pytest.mark.parametrize(
    ("broken", "whole"),
    [
        (section("<") + enhanced("<", b"a", 1), 0),  # an interface that nobody has described
        (
            section("<") + interface("<") + enhanced("<", b"a", 1) + struct.pack("<III", 6, 4, 4),
            1,
        ),  # shorter than it can be
        (section("<") + interface("<") + struct.pack("<II", 6, 16) + bytes(4) + struct.pack("<I", 20), 0),
        (pcap([b"a"]) + struct.pack("<IIII", 1, 1, 1 << 31, 60) + b"b", 2),  # 2 GB, it says
    ],
)
def test_corrupt_files(broken: bytes, whole: int, tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_bytes(broken)
    found, cut = contents(path)
    assert (len(found), cut) == (whole, True)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 23])
def test_files_without_a_whole_header(size: int, tmp_path: Path) -> None:
    path = tmp_path / "capture"
    for data in (pcap([]), section("<"), gzip.compress(pcap([]))):
        path.write_bytes(data[:size])
        with pytest.raises(UserError, match=r"capture: not a capture that can be read \("):
            contents(path)


def test_compressed_files(tmp_path: Path) -> None:
    path, zipped = tmp_path / "capture", tmp_path / "capture.gz"
    path.write_bytes(pcap([random.Random(i).randbytes(900) for i in range(200)]))
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    frames, _ = contents(path)
    assert contents(zipped) == (frames, False)
    zipped.write_bytes(zipped.read_bytes()[:90_000])
    found, cut = contents(zipped)
    assert cut
    assert 0 < len(found) < 200
    assert found == frames[: len(found)]


def test_a_long_frame_and_the_ones_after_it(tmp_path: Path) -> None:
    """Frames are kept up to 64 kB, as by tcpdump; the next ones are found."""
    path = tmp_path / "capture"
    path.write_bytes(pcap([b"a", b"b" * 100_000, b"c"]))
    found, cut = contents(path)
    assert ([len(frame) for _, _, frame in found], cut) == ([1, 65_535, 1], False)


@pytest.mark.parametrize("ng", [False, True])
def test_memory_does_not_grow_with_the_file(ng: bool, tmp_path: Path) -> None:
    path, frame = tmp_path / "capture", bytes(1400)
    frames = 5 * CHUNK // len(frame)
    with path.open("wb") as file:
        file.write(section("<") + interface("<") if ng else pcap([]))
        file.writelines([enhanced("<", frame, 1) if ng else pcap([frame])[24:]] * frames)
    sizes = [(len(batch.data), len(batch.starts)) for batch in CaptureFile(path).batches()]
    assert sum(count for _, count in sizes) == frames
    assert len(sizes) >= 5
    assert max(size for size, _ in sizes) <= CHUNK + len(frame) + 64 + SLACK


def test_a_pipe_is_read_as_it_comes(tmp_path: Path) -> None:
    """Packets in a pipe are shown before more come: `tcpdump -w - | sa-atp dissect /dev/stdin`."""
    data = pcap([b"a", b"b"])

    class Pipe(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return super().read1(min(size or 1, 41))  # the header, and the first frame

    file = CaptureFile(tmp_path)
    found = file._read(Pipe(data))
    assert len(next(found).starts) == 1
    assert len(next(found).starts) == 1
    assert list(found) == []


# --- text -----------------------------------------------------------------------------------------------------------------


def payload(draw: random.Random) -> bytes:
    match draw.randrange(8):
        case 0:
            body = {"type": "alive", "x": draw.choice(["é€" * draw.randrange(60), "\x1b[2J\n", "x" * 200])}
            return packet_of(body, request=draw.randrange(1 << 32), job=draw.randrange(256))
        case 1:
            return draw.randbytes(draw.randrange(60))
        case 2:
            return bytes([0x10 | draw.randrange(16)]) + draw.randbytes(draw.choice([18, 19, 20, 21, 84]))
    kind = draw.choice(list(Kind))
    values = [0, POISON, -POISON - 1, 1 << 30, *(draw.randrange(-(2**31), 2**31) for _ in range(3))]
    lanes = np.array(draw.choices(values, k=draw.choice([0, 1, 7, 32, 64, 256]))) if kind in WITH_LANES else None
    fields: dict[str, Any] = {
        name: draw.randrange(256) - low
        for name, low in (("flags", 0), ("job", 0), ("epoch", 0), ("exponent", 128), ("tag", 0), ("slot", 0))
    }
    packet = pack(kind, lanes=lanes, seq=draw.randrange(1 << 32), bits=draw.randrange(1 << 64), **fields)
    return packet + draw.randbytes(draw.choice([0, 0, 0, 1, 4]))


def ip_packet(draw: random.Random) -> Packet:
    low, high = draw.choice([(5000, UDP_PORT), (UDP_PORT, 5000), (UDP_PORT, UDP_PORT), (4242, 4243)])
    ip, back = IP(src=f"10.{draw.randrange(256)}.0.1", dst="1.2.3.4"), IP(src="1.2.3.4", dst="10.0.0.1")
    udp = UDP(sport=low, dport=high) / Raw(payload(draw))
    return draw.choice([
        ip / udp, ip / udp, ip / udp, ip / TCP(dport=UDP_PORT) / Raw(payload(draw)),
        ip / ICMP(type=3, code=3) / back / udp, ip / GRE() / back / udp, ip / back / udp,
        IP(src="10.0.0.1", dst="1.2.3.4", frag=draw.choice([0, 5]), flags="MF") / udp,
        IP(src="10.0.0.1", dst="1.2.3.4", options=b"\1\1\1\0") / udp, IPv6() / udp, IPv6(nh=4) / back / udp,
        IP(src="10.0.0.1", dst="1.2.3.4", len=draw.choice([0, 19, 20])) / udp,
    ])  # fmt: skip


def ethernet(draw: random.Random) -> Packet:
    ends: dict[str, Any] = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}
    return draw.choice([
        Ether(**ends) / ip_packet(draw), Ether(**ends) / ARP(), Ether(**ends) / Dot1Q(vlan=5) / ip_packet(draw),
        Ether(**ends) / Dot1AD() / Dot1Q() / ip_packet(draw), Ether(**ends) / Dot1Q() / Dot1Q() / Dot1Q() / ip_packet(draw),
        Dot3(**ends) / LLC() / SNAP() / ip_packet(draw), Ether(**ends, type=draw.randrange(1 << 16)) / Raw(bytes(60)),
    ])  # fmt: skip


LINKS: dict[int, Callable[[random.Random], Packet]] = {
    1: ethernet,
    113: lambda draw: CookedLinux(proto=draw.choice([0x800] * 5 + [0x86DD, 0x8100, 4])) / ip_packet(draw),
    276: lambda draw: CookedLinuxV2() / ip_packet(draw),
    101: ip_packet,
    228: ip_packet,
    0: lambda draw: Loopback() / ip_packet(draw),
    999: ip_packet,  # nobody knows this link
}


@pytest.mark.parametrize("link", LINKS)
def test_batches_and_layers_say_the_same(link: int) -> None:
    draw, frames = random.Random(link), list[bytes]()
    for _ in range(150):
        frame = bytes(LINKS[link](draw))
        frames.append(frame[: draw.randrange(len(frame) + 1)] if draw.random() < 0.2 else frame)
    lengths = np.array([len(frame) for frame in frames])
    data = np.frombuffer(b"".join(frames) + bytes(SLACK), np.uint8)
    starts = np.cumsum(lengths) - lengths
    counts = CaptureCounts()
    found = list(dissect(Batch(link, 1, data, starts, lengths, list(range(len(frames)))), counts))
    expected = {i: line for i, frame in enumerate(frames) if (line := dissect_one(frame, link))}
    assert {each.index: (each.text, each.job) for each in found} == expected
    assert [each.time_s for each in found] == sorted(expected)
    assert counts.packets == sum(job is not None for _, job in expected.values())
    assert (counts.packets + counts.malformed, counts.others) == (len(expected), len(frames) - len(expected))
    assert (counts.packets > 15) == (link != 999)
    for each in found[:20]:
        assert each.sa_atp is None if each.job is None else each.sa_atp.job == each.job
        assert all(c.isprintable() for c in each.text)


def test_no_layer_is_made_for_a_line(tmp_path: Path) -> None:
    """A packet costs a few calls of Python, and none of scapy."""
    frames = [
        bytes(Ether() / IP(src="10.0.0.1", dst="10.0.0.9") / UDP(sport=5000, dport=UDP_PORT))
        + pack(Kind.DATA, lanes=np.arange(64), seq=i)
        for i in range(2000)
    ]
    for frame in range(len(frames)):  # lengths that fit
        ip = bytearray(frames[frame])
        struct.pack_into(">H", ip, 16, len(ip) - 14)
        struct.pack_into(">H", ip, 38, len(ip) - 34)
        frames[frame] = bytes(ip)
    path = tmp_path / "capture"
    path.write_bytes(pcap(frames))
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(lambda frame, event, argument: count() if event == "call" else None)
    try:
        found = sum(each.job == 0 for each in read(path, CaptureCounts()))
    finally:
        sys.setprofile(None)
    assert found == len(frames)
    assert calls < 6 * len(frames)
    code = "import sys; from sa_atp.cli import main; main(sys.argv[1:]); sys.exit('scapy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, "dissect", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("\n")) == (0, len(frames)), done.stderr
