"""Heads of super-packets, for interfaces: one head for consecutive frames that differ only in their bodies, after the
kernel's struct virtio_net_hdr; and back to the head of the first frame.
"""

from typing import TYPE_CHECKING

from sa_atp.basics.arrays import Octets
from sa_atp.switches.embedded.translate.deparsing import HEAD_AT, HEAD_BYTES, HEAD_ROW

if TYPE_CHECKING:
    from sa_atp.net.switch_process.datapath.arrays import out_heads, out_lengths
    from sa_atp.net.switch_process.datapath.arriving import be16, folded, is_plain_udp, put16, put_le16, sum_of
    from sa_atp.net.switch_process.datapath.operations import (
        inner,
        load2,
        load4,
        load8,
        store2,
        u64,
    )

SAVED_AT = HEAD_AT + HEAD_BYTES  # where a head's fields are saved that a super-packet's head overwrites


@inner
def may_join(s: int, k: int) -> bool:
    """Whether a frame may be part of a super-packet: not fragmented, never to be, and without a UDP checksum."""
    at = k * HEAD_ROW + HEAD_AT
    length = out_lengths[k]
    return (
        length > HEAD_BYTES
        and is_plain_udp(out_heads, at)
        and be16(out_heads, at + 20) == 0x4000
        and be16(out_heads, at + 40) == 0
        and be16(out_heads, at + 38) == length - 34
    )


@inner
def same_head(heads: Octets, first: int, second: int) -> bool:
    """Whether the heads of two frames are equal but for identification and checksum of the IP header."""
    return (
        load8(heads, first) == load8(heads, second)
        and load8(heads, first + 8) == load8(heads, second + 8)
        and load2(heads, first + 16) == load2(heads, second + 16)
        and load4(heads, first + 20) == load4(heads, second + 20)
        and load8(heads, first + 26) == load8(heads, second + 26)
        and load8(heads, first + 34) == load8(heads, second + 34)
    )


@inner
def super_head(heads: Octets, at: int, payload: int, count: int) -> None:
    """Makes the head of the first frame that of the super-packet, and writes the VNET header before it."""
    store2(heads, SAVED_AT + at - HEAD_AT, load2(heads, at + 16))
    store2(heads, SAVED_AT + at - HEAD_AT + 2, load2(heads, at + 24))
    store2(heads, SAVED_AT + at - HEAD_AT + 4, load2(heads, at + 38))
    vnet = at - 10
    put_le16(heads, vnet, 1 | 5 << 8)  # needs a checksum; datagrams
    put_le16(heads, vnet + 2, HEAD_BYTES)
    put_le16(heads, vnet + 4, payload)
    put_le16(heads, vnet + 6, 34)  # where the sum begins, and where in it its place is
    put_le16(heads, vnet + 8, 6)
    udp_bytes = 8 + payload * count
    put16(heads, at + 16, 20 + udp_bytes)
    put16(heads, at + 24, 0)
    put16(heads, at + 24, 0xFFFF ^ folded(sum_of(heads, at + 14, at + 34)))
    put16(heads, at + 38, udp_bytes)
    # the kernel completes the checksum if it has to cut the packet, and expects the pseudo-header's sum
    put16(heads, at + 40, folded(sum_of(heads, at + 26, at + 34) + 17 + udp_bytes))


@inner
def single_head(heads: Octets, at: int, is_super: bool) -> None:
    """Restores the head of a single frame, with an empty VNET header. Args: is_super: it was a super-packet's."""
    if is_super:
        store2(heads, at + 16, load2(heads, SAVED_AT + at - HEAD_AT))
        store2(heads, at + 24, load2(heads, SAVED_AT + at - HEAD_AT + 2))
        store2(heads, at + 38, load2(heads, SAVED_AT + at - HEAD_AT + 4))
        put16(heads, at + 40, 0)
    for i in range(5):
        store2(heads, at - 10 + 2 * i, u64(0))
