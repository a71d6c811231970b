"""Damage by accident that the protocol can see, of frames on their way. (protocol section 13)

Nearly all damage is found by the frame check sequence of a link, which is a loss like any other. This is what gets
through: bits of the fields that are checked, and frames that are cut short. Bits that make another valid packet of it
(lanes, sequence number, exponent, tag, bits of the fan-in) are left alone: nothing in such a packet tells that it was
another one.
"""

import random

from sa_atp.protocol.packets.frames import HEADERS_BYTES, is_urgent
from sa_atp.protocol.packets.spec import FIELDS, Kind

LEAST_BYTES = 34  # of a frame that is cut short: Ethernet's header and that of IPv4


def _places() -> dict[str, range]:
    """Where each field of the header is in a frame, as numbers of bits."""
    found, at = {}, 8 * HEADERS_BYTES
    for name, bits, _ in FIELDS:
        found[name] = range(at, at + bits)
        at += bits
    return found


PLACES = _places()
CHECKED = (*PLACES["version"], *PLACES["job"], *PLACES["epoch"])
ADDRESSES = (*range(8 * 26, 8 * 34), *range(8 * 34, 8 * 36))  # of the sender and the receiver, and the sender's port
TOLERATED = (*PLACES["flags"], *PLACES["slot"])  # of data: they cost time, and nothing else
LENGTH = range(8 * 38, 8 * 39)  # the upper half of the UDP length: it says many bytes more, or less


def damaged(frame: bytes, rng: random.Random) -> bytes | None:
    """The frame as it arrives; None: a receiver's UDP checksum finds it, because no switch changes such a packet."""
    if is_urgent(frame) or len(frame) <= HEADERS_BYTES:
        return None
    choice = rng.randrange(5)
    if choice == 0:
        return frame[: rng.randrange(LEAST_BYTES, len(frame))]
    if choice == 1:
        return flipped(frame, rng.choice(CHECKED))
    if choice == 2:  # two flips would make another kind of it
        return flipped(frame, rng.choice(PLACES["kind"]))
    if choice == 3 and frame[HEADERS_BYTES] & 15 == Kind.DATA:
        return flipped(frame, rng.choice(TOLERATED))
    return flipped(frame, rng.choice((*ADDRESSES, *LENGTH)))


def flipped(frame: bytes, place: int) -> bytes:
    """The frame with one bit the other way round."""
    changed = bytearray(frame)
    changed[place // 8] ^= 0x80 >> place % 8
    return bytes(changed)
