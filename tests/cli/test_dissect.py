"""`sa-atp dissect`, and the scapy layer beneath it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import ARP, CookedLinux, Ether
from scapy.packet import Packet, Raw
from scapy.utils import PcapNgWriter, PcapWriter

from sa_atp.basics.errors import UserError
from sa_atp.cli import main
from sa_atp.net.captures.dissect import CaptureCounts, read
from sa_atp.net.captures.layer import SaAtp
from sa_atp.net.sockets.ports import CaptureWriter
from sa_atp.protocol.numbers.scaling import POISON
from sa_atp.protocol.packets.control import Alive, encode
from sa_atp.protocol.packets.frames import Endpoint, mac_for, wrap
from sa_atp.protocol.packets.header import pack
from sa_atp.protocol.packets.spec import HEADER_BYTES, UDP_PORT, WITH_LANES, Flag, Kind

WORKER = Endpoint(mac_for("10.0.0.1"), ("10.0.0.1", 5000))
SERVER = Endpoint(mac_for("10.0.0.9"), ("10.0.0.9", UDP_PORT))
BYTE, WORD = st.integers(0, 255), st.integers(0, 2**32 - 1)


def frame(payload: bytes, source: Endpoint = WORKER, target: Endpoint = SERVER) -> bytes:
    found: bytes = wrap(np.frombuffer(payload, np.uint8).reshape(1, -1), source, target)[0].tobytes()
    return found


def write(path: Path, frames: list[bytes], first_us: int = 1_700_000_000_000_000) -> Path:
    """A capture as the switch writes it, a packet a millisecond."""
    capture = CaptureWriter(path)
    for i, data in enumerate(frames):
        capture.write(np.frombuffer(data, np.uint8).reshape(1, -1), np.array([len(data)]), first_us + 1000 * i)
    capture.close()
    return path


def data_packet(**changes: Any) -> bytes:
    lanes = np.arange(-3, 61)
    fields = {"job": 7, "epoch": 9, "slot": 4095, "exponent": -12, "tag": 3, "seq": 2**32 - 1, "bits": 1 << 63 | 5}
    return pack(Kind.DATA, lanes=lanes, **{**fields, **changes})


@given(
    kind=st.sampled_from(Kind), flags=BYTE, slot=st.integers(0, 65535), job=BYTE, epoch=BYTE,
    exponent=st.integers(-128, 127), tag=BYTE, seq=WORD, bits=st.integers(0, 2**64 - 1),
    lanes=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=4),
)  # fmt: skip
def test_the_layer_and_the_codec_agree(
    kind: Kind,
    flags: int,
    slot: int,
    job: int,
    epoch: int,
    exponent: int,
    tag: int,
    seq: int,
    bits: int,
    lanes: list[int],
) -> None:
    fields: dict[str, Any] = {"slot": slot, "job": job, "epoch": epoch, "exponent": exponent, "tag": tag, "seq": seq}
    carried = lanes if kind in WITH_LANES else None
    ours = pack(kind, lanes=None if carried is None else np.array(carried), flags=flags, bits=bits, **fields)
    layer = SaAtp(kind=kind.value, flags=flags, bits_hi=bits >> 32, bits_lo=bits & 0xFFFFFFFF, **fields)
    if carried is not None:
        layer.lanes = carried
    assert bytes(layer) == ours

    read = SaAtp(ours)
    assert {name: getattr(read, name) for name in (*fields, "bits")} == {**fields, "bits": bits}
    assert (read.kind, Flag(int(read.flags)), read.is_sound) == (kind, flags, True)
    assert (read.lanes or None) == (carried)
    assert bytes(read) == ours


@given(bits=st.integers(0, 2**512 - 1), kind=st.sampled_from([Kind.DATA, Kind.RESULT, Kind.PROBE, Kind.PROBE_REPLY]))
def test_the_layer_reads_wide_bitmaps(bits: int, kind: Kind) -> None:
    lanes = np.arange(256) if kind in WITH_LANES else None
    ours = pack(kind, lanes=lanes, bits=bits, seq=3, contributions=512)
    words = [bits >> 64 * word & (1 << 64) - 1 for word in range(8)]
    read = SaAtp(ours)
    assert (read.bits, read.more_bits, read.lanes or None) == (
        bits,
        words[1:],
        None if lanes is None else lanes.tolist(),
    )
    made = SaAtp(kind=kind.value, seq=3, bits_hi=words[0] >> 32, bits_lo=words[0] & 0xFFFFFFFF, more_bits=words[1:])
    made.lanes = [] if lanes is None else lanes.tolist()
    assert bytes(made) == bytes(read) == ours


def test_the_layer_by_names() -> None:
    packet = (
        IP(dst="10.0.0.9") / UDP(sport=5000, dport=UDP_PORT) / SaAtp(kind="DATA", flags="RESEND+PARTIAL", lanes=[1, -1])
    )
    again = IP(bytes(packet))[SaAtp]
    assert (again.kind, str(again.flags), again.lanes) == (Kind.DATA, "PARTIAL+RESEND", [1, -1])
    assert len(again) == HEADER_BYTES + 8
    assert "SA-ATP DATA job 0" in packet.summary()
    assert again == SaAtp(bytes(again))


def test_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    poisoned = pack(Kind.RESULT, lanes=np.array([POISON] + [0] * 63), job=8, flags=Flag.FAN_OUT | Flag.OVERFLOW, bits=3)
    other_port = Endpoint(1, ("10.0.0.9", 4242))
    wide: dict[str, Any] = {"job": 7, "epoch": 9, "seq": 5, "contributions": 512}
    frames = [
        frame(data_packet(flags=Flag.RESEND | Flag.ON_BEHALF)),
        frame(encode(Alive(oldest=5), request=77, job=7, epoch=9)),
        frame(poisoned, other_port, WORKER),  # known by its form
        frame(pack(Kind.PROBE, job=7, seq=1, bits=2)),
        frame(b"too short"),
        frame(b"\x2f" + bytes(30)),
        frame(data_packet(), other_port, WORKER)[:200],  # as a capture with a short snap length has it
        bytes(Ether() / ARP()),
        bytes(Ether() / IP() / TCP(dport=UDP_PORT)),
        frame(b"not ours, and not on our port", other_port, WORKER),
        frame(pack(Kind.DATA, lanes=np.arange(-3, 253), bits=1 << 511 | 5, **wide)),
        frame(pack(Kind.PROBE_REPLY, bits=1 << 64, **wide), other_port, WORKER),  # known by its form
    ]
    path = write(tmp_path / "port1.pcap", frames)
    assert main(["dissect", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "    0.000000  10.0.0.1:5000 > 10.0.0.9:21313  DATA        job=7 epoch=9 seq=4294967295 slot=4095 "
        "bits=0x8000000000000005 flags=RESEND,ON_BEHALF exponent=-12 tag=3 lanes=64 min=-3 max=60 zero=1",
        "    0.001000  10.0.0.1:5000 > 10.0.0.9:21313  CONTROL     job=7 epoch=9 request=77 flags=- "
        '{"type":"alive","oldest":5}',
        "    0.002000  10.0.0.9:4242 > 10.0.0.1:5000  RESULT      job=8 epoch=0 seq=0 slot=0 bits=0x3 "
        "flags=OVERFLOW,FAN_OUT exponent=0 tag=0 lanes=64 min=-2147483648 max=0 zero=63 poisoned=1",
        "    0.003000  10.0.0.1:5000 > 10.0.0.9:21313  PROBE       job=7 epoch=0 seq=1 slot=0 bits=0x2 question=0 flags=- "
        "exponent=0 tag=0",
        "    0.004000  10.0.0.1:5000 > 10.0.0.9:21313  not SA-ATP: 9 bytes are too few for a header",
        "    0.005000  10.0.0.1:5000 > 10.0.0.9:21313  not SA-ATP: version 2, kind 15",
        "    0.010000  10.0.0.1:5000 > 10.0.0.9:21313  DATA        job=7 epoch=9 seq=5 slot=0 "
        f"bits={1 << 511 | 5:#x} flags=- exponent=0 tag=0 lanes=256 min=-3 max=252 zero=1",
        "    0.011000  10.0.0.9:4242 > 10.0.0.1:5000  PROBE_REPLY job=7 epoch=9 seq=5 slot=0 "
        f"bits={1 << 64:#x} question=0 flags=- exponent=0 tag=0",
    ]
    assert err == "sa-atp dissect: 6 SA-ATP packets, 2 malformed, 4 others\n"

    assert main(["dissect", str(path), "--job", "8", "--absolute"]) == 0
    out, _ = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["1700000000.002000"]


def test_a_packet_that_was_not_captured_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dissect", str(write(tmp_path / "c.pcap", [frame(data_packet())[:200]]))]) == 0
    # 200 bytes of frame less 42 of headers less 20: 34 lanes and half a one
    assert " lanes=34 min=-3 max=30 zero=1 (118 more bytes were not captured)\n" in capsys.readouterr().out


@pytest.mark.parametrize("link", [Ether(), CookedLinux(proto=0x800)], ids=["ethernet", "cooked"])
@pytest.mark.parametrize("writer", [PcapWriter, PcapNgWriter])
def test_formats(link: Packet, writer: type, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "capture"
    packet = link / IP(src="1.2.3.4", dst="5.6.7.8") / UDP(sport=UDP_PORT, dport=1) / Raw(data_packet())
    packet.time = 1.5
    with writer(str(path)) as out:
        out.write([packet, packet])
    assert main(["dissect", str(path)]) == 0
    out_lines = capsys.readouterr().out.splitlines()
    assert [line.split("  DATA")[0] for line in out_lines] == ["    0.000000  1.2.3.4:21313 > 5.6.7.8:1"] * 2


def test_files_that_end_too_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = write(tmp_path / "whole.pcap", [frame(data_packet()), frame(data_packet())]).read_bytes()
    record = 16 + len(frame(data_packet()))
    cut = tmp_path / "cut.pcap"
    for size in range(len(whole) + 1):
        if size > 41 and (size - 24) % record not in (0, 1, 15, 16, 17, 60):
            continue
        cut.write_bytes(whole[:size])
        counts = CaptureCounts()
        if size < 24:  # the file's own header
            with pytest.raises(UserError, match=r"cut\.pcap: not a capture that can be read"):
                list(read(cut, counts))
            continue
        found = list(read(cut, counts))
        assert counts.cut == ((size - 24) % record != 0), size
        # what there is of a packet is shown if its addresses are there
        assert (size - 24) // record <= len(found) <= (size - 24) // record + 1
    assert main(["dissect", str(cut)]) == 0
    cut.write_bytes(whole[:-1])
    assert main(["dissect", str(cut)]) == 1
    assert f"sa-atp dissect: {cut} ends in the middle of a packet\n" in capsys.readouterr().err


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.pcap"
    text.write_text("This is no capture, but longer than the header of one.")
    for path, message in (
        (tmp_path / "nowhere.pcap", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (text, "not a capture that can be read"),
    ):
        assert main(["dissect", str(path)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith(f"sa-atp: {path}: {message}")


def test_scapy_is_silent_about_broken_files(tmp_path: Path) -> None:
    path = write(tmp_path / "cut.pcap", [frame(data_packet()), bytes(1000)])
    path.write_bytes(path.read_bytes()[:-990] + b"\xff" * 100)
    done = subprocess.run(
        [sys.executable, "-m", "sa_atp", "dissect", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "sa-atp dissect: 1 SA-ATP packet, 0 malformed, 1 other",
        f"sa-atp dissect: {path} ends in the middle of a packet",
    ]
