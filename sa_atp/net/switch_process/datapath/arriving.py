"""Receives messages of the kernel, and finds the frames in them, without a copy.

A row of a UDP port holds consecutive datagrams of one size and sender (UDP_GRO). Each becomes a frame in its turn, by a
head that is written before it, over the end of the datagram before, which has been handled. A row of an interface holds a
struct virtio_net_hdr and a packet; a super-packet (see `offload`) is cut in the same way.
"""

from typing import TYPE_CHECKING

from sa_atp.basics.arrays import Octets
from sa_atp.net.switch_process.datapath.state import (
    CONTROL,
    CONTROL_LENGTH,
    CONTROL_ROW,
    FLAGS,
    IN_CONTROLS,
    IN_MESSAGES,
    IN_NAMES,
    IN_ROWS,
    INTERFACE,
    MESSAGE_WORDS,
    NAME,
    NAME_BYTES,
    NAME_ROW,
    OVERSIZED,
    ROW_AT,
    ROW_BYTES,
    SENT,
)
from sa_atp.switches.embedded.translate.deparsing import HEAD_BYTES, HEAD_ROW

if TYPE_CHECKING:
    from sa_atp.net.switch_process.datapath.arrays import (
        in_at,
        in_controls,
        in_head_of,
        in_heads,
        in_lengths,
        in_messages,
        in_names,
        in_parts,
        in_ports,
        in_rows,
        in_sizes,
        in_slots,
        in_starts,
        port_counters,
        port_fds,
        port_kinds,
        port_mine,
        port_numbers,
    )
    from sa_atp.net.switch_process.datapath.operations import (
        address_in,
        copy_bytes,
        errno,
        i64,
        inner,
        load1,
        load2,
        load4,
        recvmmsg,
        store1,
        store2,
        store4,
        u64,
    )

VNET_BYTES = 10
NEEDS_CHECKSUM, UDP_SEGMENTS = 1, 5  # in the first two bytes of the VNET header
TRUNCATED = 0x20  # MSG_TRUNC
SOL_UDP, UDP_GRO = 17, 104
UDP_PORT = 21313
ROOM = ROW_BYTES - ROW_AT - 64  # for a message
CONNECTION_ERRORS = (32, 103, 104, 111)  # EPIPE and so on: ICMP errors of earlier datagrams


@inner
def be16(buffer: Octets, at: int) -> int:
    return i64(load2(buffer, at))


@inner
def le16(buffer: Octets, at: int) -> int:
    return i64(load1(buffer, at)) | i64(load1(buffer, at + 1)) << 8


@inner
def le32(buffer: Octets, at: int) -> int:
    return le16(buffer, at) | le16(buffer, at + 2) << 16


@inner
def put16(buffer: Octets, at: int, value: int) -> None:
    store2(buffer, at, u64(value))


@inner
def put_le16(buffer: Octets, at: int, value: int) -> None:
    store1(buffer, at, u64(value))
    store1(buffer, at + 1, u64(value >> 8))


@inner
def folded(total: int) -> int:
    """A sum of 16-bit words with its carries added (RFC 1071)."""
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@inner
def sum_of(buffer: Octets, start: int, end: int) -> int:
    """The sum of the 16-bit words of at most 64 KB; an odd last byte is padded with a zero."""
    total = i64(0)
    at = start
    while at + 4 <= end:
        word = i64(load4(buffer, at))
        total += (word >> 16) + (word & 0xFFFF)
        at += 4
    while at + 2 <= end:
        total += be16(buffer, at)
        at += 2
    if at < end:
        total += i64(load1(buffer, at)) << 8
    return total


@inner
def take_rows(s: int, slot: int, first: int, most: int) -> int:
    """Receives messages of a port into at most `most` rows, from the `first` on. Returns: how many."""
    is_udp = port_kinds[slot] != INTERFACE
    for i in range(first, first + most):
        words = i * MESSAGE_WORDS
        in_messages[words + NAME] = address_in(s, IN_NAMES) + i * NAME_ROW if is_udp else 0
        in_messages[words + NAME_BYTES] = NAME_ROW if is_udp else 0
        in_messages[words + CONTROL] = address_in(s, IN_CONTROLS) + i * CONTROL_ROW if is_udp else 0
        in_messages[words + CONTROL_LENGTH] = CONTROL_ROW if is_udp else 0
        in_messages[words + FLAGS] = 0
        in_messages[words + SENT] = 0
        in_at[i] = i * ROW_BYTES + ROW_AT
        in_sizes[i] = 0
        in_parts[2 * i] = address_in(s, IN_ROWS) + in_at[i]
        in_parts[2 * i + 1] = ROOM
    tries = 0
    while True:
        taken = recvmmsg(port_fds[slot], address_in(s, IN_MESSAGES) + 8 * first * MESSAGE_WORDS, most)
        if taken >= 0:
            break
        tries += 1
        if errno() not in CONNECTION_ERRORS or tries > 16:
            return 0
    for i in range(first, first + min(taken, most)):
        in_slots[i] = slot
    return min(taken, most)


@inner
def coalesced_bytes(s: int, row: int) -> int:
    """The size of the datagrams in a row, as the kernel reports it; 0: it has not."""
    length = min(in_messages[row * MESSAGE_WORDS + CONTROL_LENGTH], CONTROL_ROW)
    at = row * CONTROL_ROW
    if length < 20:
        return 0
    if le32(in_controls, at + 8) != SOL_UDP or le32(in_controls, at + 12) != UDP_GRO:
        return 0
    return le16(in_controls, at + 16)


@inner
def write_head(heads: Octets, at: int, payload_bytes: int) -> None:
    """Writes lengths and checksums into the head of a frame, for a payload of this size."""
    put16(heads, at + 16, 28 + payload_bytes)
    put16(heads, at + 24, 0)
    put16(heads, at + 24, 0xFFFF ^ folded(sum_of(heads, at + 14, at + 34)))
    put16(heads, at + 38, 8 + payload_bytes)
    put16(heads, at + 40, 0)


@inner
def udp_head(heads: Octets, at: int, names: Octets, name: int, mine: Octets, me: int) -> None:
    """Writes the rest of the head of a frame that was a datagram from `name` to a UDP port of the switch."""
    store2(heads, at, load2(mine, me))
    store4(heads, at + 2, load4(mine, me + 2))
    store2(heads, at + 6, u64(0x0200))
    store4(heads, at + 8, load4(names, name + 4))
    store4(heads, at + 12, u64(0x08004502))  # IPv4 without options, ECT(0)
    store4(heads, at + 18, u64(0x00004000))  # don't fragment
    store2(heads, at + 22, u64(0x4011))  # TTL 64, UDP
    store4(heads, at + 26, load4(names, name + 4))
    store4(heads, at + 30, load4(mine, me + 6))
    store2(heads, at + 34, load2(names, name + 2))
    store2(heads, at + 36, load2(mine, me + 10))


@inner
def is_plain_udp(buffer: Octets, at: int) -> bool:
    """Whether a frame of HEAD_BYTES or more begins as UDP in IPv4 without options."""
    return be16(buffer, at + 12) == 0x0800 and load1(buffer, at + 14) == u64(0x45) and load1(buffer, at + 23) == u64(17)


@inner
def complete_checksum(rows: Octets, at: int, length: int, start: int, offset: int) -> None:
    """Computes a checksum that a host has left to its interface; its field holds the pseudo-header's sum."""
    if start + offset + 2 > length:
        return
    found = 0xFFFF ^ folded(sum_of(rows, at + start, at + length))
    # zero would mean that there is none (RFC 768); to TCP both are the same
    put16(rows, at + start + offset, found if found != 0 else 0xFFFF)


@inner
def find_frames(s: int, row: int, taken: int, done: int, count: int, most_bytes: int) -> tuple[int, int, int]:
    """Lists the frames of rows, as far as there is room.

    Args:
        row: the first row; taken: number of rows.
        done: frames of the first row that have been listed before.
        count: frames in the list; most_bytes: longer frames are dropped.

    Returns: the row to go on with, its frames that have been listed, and the number of frames in the list.
    """
    room = len(in_starts)
    while row < taken and count < room:
        slot = in_slots[row]
        at = in_at[row]
        length = in_messages[row * MESSAGE_WORDS + SENT] & 0xFFFFFFFF
        is_shared = in_sizes[row] != 0
        is_lost = not is_shared and (length > ROOM or in_messages[row * MESSAGE_WORDS + FLAGS] & TRUNCATED != 0)
        payload, size, is_whole = length, length, False
        head = 2 * row * HEAD_ROW
        if port_kinds[slot] != INTERFACE:
            if not is_lost and done == 0:
                udp_head(in_heads, head, in_names, row * NAME_ROW, port_mine, 16 * slot)
            told = in_sizes[row] if is_shared else coalesced_bytes(s, row)
            if 0 < told < length:
                size = told
        elif length < VNET_BYTES:
            is_lost = True
        elif load1(in_rows, at + 1) == u64(0):
            is_whole = True
            at += VNET_BYTES
            payload, size = length - VNET_BYTES, length - VNET_BYTES - HEAD_BYTES
        else:
            size = le16(in_rows, at + 4)
            payload = length - VNET_BYTES - HEAD_BYTES
            at += VNET_BYTES
            if (
                load1(in_rows, at - VNET_BYTES + 1) != u64(UDP_SEGMENTS)
                or size == 0
                or payload <= 0
                or not is_plain_udp(in_rows, at)
            ):
                is_lost = True
            elif done == 0:
                copy_bytes(in_heads, head, in_rows, at, HEAD_BYTES)
            at += HEAD_BYTES
            size = min(size, payload)
        if is_lost or size + HEAD_BYTES > most_bytes:
            port_counters[slot, OVERSIZED] += 1 if is_lost or is_whole else -(-payload // size)
            row, done = row + 1, 0
            continue
        if is_whole:
            if load1(in_rows, at - VNET_BYTES) & u64(NEEDS_CHECKSUM) != u64(0):
                start, offset = le16(in_rows, at - 4), le16(in_rows, at - 2)
                complete_checksum(in_rows, at, payload, start, offset)
            in_starts[count] = at
            in_lengths[count] = payload
            in_ports[count] = port_numbers[slot]
            in_head_of[count] = -1
            count += 1
            row, done = row + 1, 0
            continue
        if payload == 0:  # an empty datagram
            row, done = row + 1, 0
            continue
        whole, rest = payload // size, payload % size
        if done == 0:
            copy_bytes(in_heads, head + HEAD_ROW, in_heads, head, HEAD_BYTES)
            write_head(in_heads, head, size)
            write_head(in_heads, head + HEAD_ROW, rest)
        here = min(whole + (1 if rest > 0 else 0) - done, room - count)
        for i in range(done, done + here):
            in_starts[count] = at + i * size - HEAD_BYTES
            in_lengths[count] = HEAD_BYTES + (size if i < whole else rest)
            in_ports[count] = port_numbers[slot]
            in_head_of[count] = head if i < whole else head + HEAD_ROW
            count += 1
        done += here
        if done * size >= payload:
            row, done = row + 1, 0
    return row, done, count
