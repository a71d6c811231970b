"""Captures: all formats, files that are broken or lie, and all that SA-ATP may be wrapped in."""

import gzip
import os
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from helpers.messages import packet_of
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, GRE, LLC, SNAP, CookedLinux, CookedLinuxV2, Dot1AD, Dot1Q, Dot3, Ether, Loopback
from scapy.packet import Packet, Raw

from sa_atp.basics.errors import UserError
from sa_atp.net.captures.capture_file import CaptureFile
from sa_atp.net.captures.dissect import dissect
from sa_atp.protocol.packets.header import pack
from sa_atp.protocol.packets.spec import UDP_PORT, Kind

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
    found = [(frame.link_type, frame.time_s, frame.data) for frame in file.frames()]
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


@pytest.mark.parametrize(
    "data",
    [
        pcap([b"a"]) + struct.pack("<IIII", 1, 1, 0xFFFFFFFF, 60) + b"b",
        section("<") + interface("<") + enhanced("<", b"a", 1) + struct.pack("<II", 6, 0xFFFFFFF0) + b"b",
        section("<")
        + interface("<")
        + enhanced("<", b"a", 1)
        + struct.pack("<IIIHHq", 0x0A0D0D0A, 0xFFFFFFF0, 0x1A2B3C4D, 1, 0, -1),
    ],
    ids=["record", "block", "section"],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_memory_is_not_what_a_file_claims(data: bytes, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_bytes(gzip.compress(data) if zipped else data)
    tracemalloc.start()
    try:
        found, cut = contents(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found[0][2], cut) == (b"a", True)
    assert peak < 32 << 20


def test_a_file_that_is_compressed_twice(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_bytes(gzip.compress(gzip.compress(pcap(FRAMES))))
    with pytest.raises(UserError, match=r"its header is unknown or broken"):
        contents(path)


def test_a_pipe_is_read_as_it_comes(tmp_path: Path) -> None:
    """Packets in a pipe are shown before more come: `tcpdump -w - | sa-atp dissect /dev/stdin`."""
    incoming, outgoing = os.pipe()
    with open(outgoing, "wb", buffering=0) as writer:
        writer.write(pcap([b"a"]))
        found = CaptureFile(Path(f"/dev/fd/{incoming}")).frames()
        assert next(found).data == b"a"
        writer.write(pcap([b"b"])[24:])
        assert next(found).data == b"b"
    assert list(found) == []
    os.close(incoming)


# --- text -----------------------------------------------------------------------------------------------------------------

ENDS: dict[str, Any] = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}
OUTER = IP(src="10.0.0.1", dst="10.0.0.9")
TO_US = UDP(sport=5000, dport=UDP_PORT)
PACKET = OUTER / TO_US / Raw(pack(Kind.PROBE, job=7, seq=3))
LATER_FRAGMENT = IP(src="10.0.0.1", dst="10.0.0.9", frag=5, proto=17) / Raw(bytes(PACKET)[20:])
INSIDE: dict[str, tuple[int, Packet]] = {
    "ethernet": (1, Ether(**ENDS) / PACKET),
    "vlan": (1, Ether(**ENDS) / Dot1Q(vlan=5) / PACKET),
    "two vlans": (1, Ether(**ENDS) / Dot1AD() / Dot1Q() / PACKET),
    "three vlans": (1, Ether(**ENDS) / Dot1Q() / Dot1Q() / Dot1Q() / PACKET),
    "snap": (1, Dot3(**ENDS) / LLC() / SNAP() / PACKET),
    "options": (1, Ether(**ENDS) / IP(src="10.0.0.1", dst="10.0.0.9", options=b"\1\1\1\0") / PACKET[UDP]),
    "gre": (1, Ether(**ENDS) / OUTER / GRE() / PACKET),
    "ip in ip": (101, OUTER / PACKET),
    "ip in ipv6": (1, Ether(**ENDS) / IPv6(nh=4) / PACKET),
    "cooked": (113, CookedLinux(proto=0x800) / PACKET),
    "cooked 2": (276, CookedLinuxV2() / PACKET),
    "bare ip": (228, PACKET),
    "loopback": (0, Loopback() / PACKET),
}
OTHERS: dict[str, tuple[int, Packet]] = {
    "unknown link": (999, PACKET),
    "tcp": (101, OUTER / TCP(dport=UDP_PORT) / Raw(bytes(PACKET[Raw]))),
    "icmp": (101, OUTER / ICMP(type=3, code=3) / PACKET),
    "fragment": (101, LATER_FRAGMENT),
    "ipv6": (1, Ether(**ENDS) / IPv6() / PACKET[UDP]),
    "arp": (1, Ether(**ENDS) / ARP()),
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_a_packet_may_be_wrapped_in(name: str) -> None:
    link_type, packet = INSIDE[name]
    found = dissect(bytes(packet), link_type)
    assert found is not None
    assert found.text.startswith("10.0.0.1:5000 > 10.0.0.9:21313  PROBE       job=7 epoch=0 seq=3 ")
    assert (found.job, found.sa_atp.seq) == (7, 3)


@pytest.mark.parametrize("name", OTHERS)
def test_other_packets(name: str) -> None:
    link_type, packet = OTHERS[name]
    assert dissect(bytes(packet), link_type) is None


def test_padding_is_no_part_of_a_packet() -> None:
    found = dissect(bytes(Ether(**ENDS) / OUTER / TO_US / Raw(b"short")) + bytes(13))
    assert found is not None
    assert found.text.endswith("not SA-ATP: 5 bytes are too few for a header")


@pytest.mark.parametrize("name", INSIDE)
def test_packets_that_are_cut_or_damaged(name: str) -> None:
    """Whatever is in a packet, there is a line that can be printed, or none."""
    link_type, packet = INSIDE[name]
    draw, whole = random.Random(name), bytes(packet)
    found = [dissect(whole[:size], link_type) for size in range(len(whole))]
    for _ in range(300):
        data = bytearray(whole + draw.randbytes(draw.choice([0, 1, 80])))
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        found.append(dissect(bytes(data), link_type))
    texts = [each.text for each in found if each]
    assert any("not SA-ATP" in text for text in texts)
    assert all(text.isprintable() for text in texts)


@pytest.mark.parametrize("text", ["é€" * 60, "\x1b[2J\n", "x" * 200, '{"type":"alive"}'])
def test_bodies_of_control_messages_are_one_line(text: str) -> None:
    body = packet_of({"type": "alive", "x": text}, request=5, job=9)
    found = dissect(bytes(Ether(**ENDS) / OUTER / TO_US / Raw(body)))
    assert found is not None
    assert found.text.isprintable()
    assert len(found.text) < 400
