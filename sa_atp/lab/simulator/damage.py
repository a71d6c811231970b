"""Accidental damage to frames that passes a link's checksum and that the protocol can detect. (protocol section 13)

A link's frame check sequence finds nearly all damage, and drops the frame. This module simulates the rest: flipped bits in
fields that receivers check, and truncated frames. It never flips bits that would make another valid packet (lanes,
sequence number, exponent, tag, bits of the fan-in), which no receiver could detect.
"""

import random

from sa_atp.protocol.packets.frames import HEADERS_BYTES, is_urgent
from sa_atp.protocol.packets.spec import FIELDS, HEADER_BYTES, Kind

LEAST_BYTES = 34  # length of a truncated frame, at least: the Ethernet and IPv4 headers


def _places() -> dict[str, range]:
    """The bits of each header field, as bit numbers in a frame."""
    found, at = {}, 8 * HEADERS_BYTES
    for name, bits, _ in FIELDS:
        found[name] = range(at, at + bits)
        at += bits
    return found


PLACES = _places()
CHECKED = (*PLACES["version"], *PLACES["job"], *PLACES["epoch"])
ADDRESSES = (*range(8 * 26, 8 * 34), *range(8 * 34, 8 * 36))  # IP addresses, and the sender's UDP port
TOLERATED = (*PLACES["flags"], *PLACES["slot"])  # damage here in data packets costs only time
LENGTH = range(8 * 38, 8 * 39)  # the upper byte of the UDP length


def damage_frame(frame: bytes, rng: random.Random) -> bytes | None:
    """The damaged frame; None: the receiver's UDP checksum drops it, which holds for packets that no switch rewrites, and
    for what an earlier link has truncated.
    """
    if is_urgent(frame) or len(frame) < HEADERS_BYTES + HEADER_BYTES:
        return None
    choice = rng.randrange(5)
    if choice == 0:
        return frame[: rng.randrange(LEAST_BYTES, len(frame))]
    if choice == 1:
        return flip_bit(frame, rng.choice(CHECKED))
    if choice == 2:  # two flips could make another valid kind
        return flip_bit(frame, rng.choice(PLACES["kind"]))
    if choice == 3 and frame[HEADERS_BYTES] & 15 == Kind.DATA:
        return flip_bit(frame, rng.choice(TOLERATED))
    return flip_bit(frame, rng.choice((*ADDRESSES, *LENGTH)))


def flip_bit(frame: bytes, place: int) -> bytes:
    """The frame with one bit flipped."""
    changed = bytearray(frame)
    changed[place // 8] ^= 0x80 >> place % 8
    return bytes(changed)
