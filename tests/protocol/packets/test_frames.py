"""UDP datagrams as Ethernet frames and back."""

import numpy as np
import pytest

from sa_atp.protocol.packets import frames
from sa_atp.protocol.packets.frames import HEADERS_BYTES, Endpoint, checksum

HERE = Endpoint(frames.mac_for("10.0.0.1"), ("10.0.0.1", 5001))
THERE = Endpoint(frames.mac_for("192.168.255.2"), ("192.168.255.2", 65535))
PAYLOADS = np.arange(60, dtype=np.uint8).reshape(3, 20)


def test_datagrams_survive() -> None:
    wrapped = frames.wrap(PAYLOADS, HERE, THERE)
    assert frames.is_datagram(wrapped, np.full(3, HEADERS_BYTES + 20)).all()
    for frame, payload in zip(wrapped, PAYLOADS, strict=True):
        assert frames.datagram(frame.tobytes()) == (HERE.address, THERE.address, payload.tobytes())
        assert frames.source_of(frame) == HERE.address
    assert [frames.address_of(int(flow)) for flow in frames.flows(wrapped)] == [THERE.address] * 3


def test_the_headers_of_a_frame() -> None:
    header = frames.wrap(PAYLOADS[:1], HERE, THERE)[0, :HEADERS_BYTES].tobytes()
    ethernet, ip, udp = header[:14], header[14:34], header[34:]
    assert ethernet.hex(" ", 2) == "0200 c0a8 ff02 0200 0a00 0001 0800"
    # ECT(0), 48 bytes, don't fragment, 64 hops, UDP
    assert (ip[:10] + ip[12:]).hex(" ", 2) == "4502 0030 0000 4000 4011 0a00 0001 c0a8 ff02"
    assert checksum(ip[:10] + bytes(2) + ip[12:]) == int.from_bytes(ip[10:12], "big")
    assert checksum(ip) == 0
    assert udp.hex(" ", 2) == "1389 ffff 001c 0000"


@pytest.mark.parametrize(("at", "value"), [(12, 0x86), (14, 0x46), (23, 6), (38, 1), (39, 7)])
def test_other_frames_hold_no_datagram(at: int, value: int) -> None:
    frame = frames.wrap(PAYLOADS[:1], HERE, THERE)
    frame[0, at] = value
    assert not frames.is_datagram(frame, np.array([frame.shape[1]]))[0]
    assert frames.datagram(frame[0].tobytes()) is None


def test_a_frame_that_was_cut_holds_no_datagram() -> None:
    frame = frames.wrap(PAYLOADS[:1], HERE, THERE)
    assert not frames.is_datagram(frame, np.array([frame.shape[1] - 1]))[0]
    assert frames.datagram(frame[0, :-1].tobytes()) is None
