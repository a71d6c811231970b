"""Super-packets of a packet socket: many datagrams of one flow that cross a link as one packet (PACKET_VNET_HDR).

The kernel's cost is per packet, whatever its size. A host that sends with UDP_SEGMENT leaves segmentation to the last
interface, and a veth never is the last one, so a switch receives one packet with one header and up to 64 KB of payload.
This module cuts it into frames before the program sees them, and joins frames that the program sends to one receiver. The
rate of an emulated link does not change: the kernel counts a super-packet with the headers that its segments would have.

Segments carry no UDP checksum (RFC 768 leaves it to the sender), and all have the identification of their super-packet: it
has no meaning where fragmentation is forbidden (RFC 6864, section 4.1).
"""

import socket
import struct
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sa_atp.basics.arrays import AnyIntegers, ByteRows, Counts, Headers, Indices, Lengths, Mask, Octets, Words
from sa_atp.protocol.packets.frames import HEADERS_BYTES, checksum

# struct virtio_net_hdr, which stands before every packet of such a socket
VNET = np.dtype(
    [
        ("flags", "u1"), ("kind", "u1"), ("header_bytes", "u2"), ("segment_bytes", "u2"), ("sum_start", "u2"),
        ("sum_offset", "u2"),
    ]
)  # fmt: skip
VNET_BYTES = VNET.itemsize
NEEDS_CHECKSUM = 1
WHOLE, UDP_SEGMENTS = 0, 5  # VIRTIO_NET_HDR_GSO_NONE, VIRTIO_NET_HDR_GSO_UDP_L4 (Linux 6.2)

IP_BYTES, UDP_BYTES = 20, 8
IP_START, UDP_START = 14, 34
CHECKSUM_IN_UDP = 6
MOST_SEGMENTS = 64  # of a super-packet; UDP_MAX_SEGMENTS of older kernels
MOST_BYTES = 65_000  # below the limit of an IPv4 packet
LEAST_SEGMENTS = 2

# Header bytes that are equal in all frames of one super-packet: all but identification and checksum.
SAME = np.array([i for i in range(HEADERS_BYTES) if i not in (18, 19, 24, 25)])


# --- in -----------------------------------------------------------------------------------------------------------------


def frames_in(packets: ByteRows, lengths: Lengths, most_bytes: int) -> Counts:
    """How many frames each packet holds; 0 for a packet that cannot be cut, or whose frames are too long.

    Args: packets: rows of a VNET header and a packet; lengths: -1 for a lost packet.
    """
    vnet = packets[:, :VNET_BYTES].view(VNET)[:, 0]
    counts = (lengths <= VNET_BYTES + most_bytes).astype(np.int64)
    for i in np.flatnonzero(vnet["kind"]).tolist():
        payload, size = int(lengths[i]) - VNET_BYTES - HEADERS_BYTES, int(vnet["segment_bytes"][i])
        head = packets[i, VNET_BYTES:]
        plain = head[12] == 8 and head[13] == 0 and head[14] == 0x45 and head[23] == socket.IPPROTO_UDP
        cuttable = vnet["kind"][i] == UDP_SEGMENTS and plain and 0 < size <= most_bytes - HEADERS_BYTES and payload > 0
        counts[i] = -(-payload // size) if cuttable else 0
    counts[lengths < VNET_BYTES] = 0
    return counts


def cut(packets: ByteRows, lengths: Lengths, counts: Counts, out: ByteRows) -> Lengths:
    """Cuts packets into frames.

    Args:
        packets, lengths: as for `frames_in`, whose result is `counts`.
        out: counts.sum() rows, with room for each frame.

    Returns: the length of each frame.
    """
    vnet = packets[:, :VNET_BYTES].view(VNET)[:, 0]
    total = int(counts.sum())
    starts = np.cumsum(counts) - counts
    out_lengths = np.empty(total, np.int64)
    whole = np.flatnonzero((vnet["kind"] == WHOLE) & (counts == 1))
    if len(whole):
        sizes = lengths[whole] - VNET_BYTES
        width = int(sizes.max())
        out[starts[whole], :width] = packets[whole, VNET_BYTES : VNET_BYTES + width]
        out_lengths[starts[whole]] = sizes
        unsummed = vnet["flags"][whole] & NEEDS_CHECKSUM != 0
        if unsummed.any():
            complete_checksums(out, starts[whole[unsummed]], sizes[unsummed], vnet[whole[unsummed]])
    for i in np.flatnonzero((vnet["kind"] != WHOLE) & (counts > 0)).tolist():
        first, end = int(starts[i]), int(starts[i] + counts[i])
        size = int(vnet["segment_bytes"][i])
        header = packets[i, VNET_BYTES : VNET_BYTES + HEADERS_BYTES].tobytes()
        payload = packets[i, VNET_BYTES + HEADERS_BYTES : lengths[i]]
        last = first + len(payload) // size
        if last > first:
            out[first:last, :HEADERS_BYTES] = _segment_header(header, size)
            out[first:last, HEADERS_BYTES : HEADERS_BYTES + size] = payload[: (last - first) * size].reshape(-1, size)
            out_lengths[first:last] = HEADERS_BYTES + size
        if last < end:
            rest = len(payload) % size
            out[last, :HEADERS_BYTES] = _segment_header(header, rest)
            out[last, HEADERS_BYTES : HEADERS_BYTES + rest] = payload[-rest:]
            out_lengths[last] = HEADERS_BYTES + rest
    return out_lengths


@lru_cache(maxsize=4096)
def _segment_header(header: bytes, payload_bytes: int) -> Octets:
    """The 42-byte header of a segment, from that of its super-packet; read-only."""
    udp_bytes = UDP_BYTES + payload_bytes
    total = struct.pack("!H", IP_BYTES + udp_bytes)
    ip = header[IP_START:16] + total + header[18:24] + b"\0\0" + header[26:UDP_START]
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    udp = header[UDP_START:38] + struct.pack("!HH", udp_bytes, 0)
    found = np.frombuffer(header[:IP_START] + ip + udp, np.uint8)
    found.flags.writeable = False
    return found


def complete_checksums(frames: ByteRows, rows: Indices, lengths: Lengths, vnet: Headers) -> None:
    """Computes checksums that a host has left to its interface (RFC 1071); their fields hold the pseudo-header's sum.

    Args: lengths, vnet: of these rows.
    """
    starts, offsets = vnet["sum_start"].astype(np.int64), vnet["sum_offset"].astype(np.int64)
    fits = (starts + offsets + 2 <= lengths) & (lengths <= frames.shape[1])
    shapes = np.stack([lengths, starts, offsets], axis=1)
    for length, start, offset in np.unique(shapes[fits], axis=0).tolist():
        of_shape = rows[fits & (shapes == (length, start, offset)).all(axis=1)]
        covered = np.zeros((len(of_shape), (length - start + 1) // 2 * 2), np.uint8)
        covered[:, : length - start] = frames[of_shape, start:length]
        found = covered.view(">u2").sum(axis=1, dtype=np.uint64)
        for _ in range(2):  # adding carries may cause another carry
            found = (found & np.uint64(0xFFFF)) + (found >> np.uint64(16))
        found ^= np.uint64(0xFFFF)
        found[found == 0] = 0xFFFF  # zero would mean that there is none (RFC 768); to TCP both are the same
        at = start + offset
        frames[of_shape, at : at + 2] = found.astype(">u2").view(np.uint8).reshape(-1, 2)


# --- out ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gathered:
    """Packets to send, each gathered from parts: its headers, and the payloads of its frames."""

    bases: Words
    """Address of each part, in order."""
    sizes: Words
    """Bytes of each part."""
    counts: Counts
    """Parts of each packet."""
    firsts: Indices
    """The first frame of each packet."""
    frames: Counts
    """Frames in each packet."""
    heads: ByteRows
    """The memory of the first parts; must live as long as they are used."""


def gather(frames: ByteRows, lengths: Lengths, *, join: bool) -> Gathered:
    """Packets that carry frames, in order. Args: join: whether consecutive frames of one flow become one packet."""
    n = len(frames)
    joinable = _continues(frames, lengths) if join else np.zeros(max(n - 1, 0), bool)
    firsts = np.concatenate([[0], np.flatnonzero(~joinable) + 1]) if n else np.zeros(0, np.int64)
    if join:
        firsts = _bounded(firsts, n, lengths)
    counts = np.diff(firsts, append=n)
    many = counts >= LEAST_SEGMENTS
    heads = np.zeros((len(firsts), VNET_BYTES + HEADERS_BYTES), np.uint8)
    if many.any():
        heads[many] = super_headers(frames[firsts[many]], lengths[firsts[many]], counts[many])
    # every frame is a part, and each packet's header comes before its first frame
    packet_of = np.repeat(np.arange(len(firsts)), counts)
    places = np.arange(n) + packet_of + 1
    skipped = np.where(many, HEADERS_BYTES, 0)[packet_of]
    bases = np.empty(n + len(firsts), np.uint64)
    sizes = np.empty(n + len(firsts), np.uint64)
    bases[places] = frames.ctypes.data + np.arange(n) * frames.strides[0] + skipped
    sizes[places] = lengths - skipped
    head_places = firsts + np.arange(len(firsts))
    bases[head_places] = heads.ctypes.data + np.arange(len(firsts)) * heads.shape[1]
    sizes[head_places] = np.where(many, heads.shape[1], VNET_BYTES)
    return Gathered(bases, sizes, counts + 1, firsts, counts, heads)


def _continues(frames: ByteRows, lengths: Lengths) -> Mask:
    """bool[n - 1]: whether each frame but the first belongs to the flow of the one before it, and may join it."""
    head = frames[:, :HEADERS_BYTES]
    may_join = (
        (head[:, 12] == 0x08) & (head[:, 13] == 0x00) & (head[:, 14] == 0x45) & (head[:, 23] == socket.IPPROTO_UDP)
        & (head[:, 20] == 0x40) & (head[:, 21] == 0)  # not fragmented, and never to be
        & (head[:, 40] == 0) & (head[:, 41] == 0)  # no checksum that would be lost
        & (lengths > HEADERS_BYTES)
        & ((head[:, 38].astype(np.int64) << 8 | head[:, 39]) == lengths - UDP_START)
    )  # fmt: skip
    same = (head[1:, SAME] == head[:-1, SAME]).all(axis=1)
    found: Mask = same & (lengths[1:] == lengths[:-1]) & may_join[1:] & may_join[:-1]
    return found


def _bounded(firsts: Indices, n: int, lengths: Lengths) -> Indices:
    """Splits runs of frames that are too long for one packet."""
    ends = np.append(firsts[1:], n)
    most = np.clip(MOST_BYTES // np.maximum(lengths[firsts] - HEADERS_BYTES, 1), 1, MOST_SEGMENTS)
    if (ends - firsts <= most).all():
        return firsts
    return np.concatenate([np.arange(a, b, m) for a, b, m in zip(firsts, ends, most, strict=True)])


def super_headers(frames: ByteRows, lengths: Lengths, counts: Counts) -> ByteRows:
    """The 52 bytes before the payload of each super-packet. Args: the first frame of each, and how many it has."""
    heads = np.zeros((len(frames), VNET_BYTES + HEADERS_BYTES), np.uint8)
    payload = lengths - HEADERS_BYTES
    vnet = heads[:, :VNET_BYTES].view(VNET)[:, 0]
    vnet["flags"], vnet["kind"] = NEEDS_CHECKSUM, UDP_SEGMENTS
    vnet["header_bytes"], vnet["segment_bytes"] = HEADERS_BYTES, payload
    vnet["sum_start"], vnet["sum_offset"] = UDP_START, CHECKSUM_IN_UDP
    packet = heads[:, VNET_BYTES:]
    packet[:] = frames[:, :HEADERS_BYTES]
    words = packet.copy().view(">u2")
    udp_bytes = UDP_BYTES + payload * counts
    words[:, 8] = IP_BYTES + udp_bytes
    words[:, 12] = 0
    words[:, 12] = ~_folded(words[:, 7:17].sum(axis=1, dtype=np.uint32))
    words[:, 19] = udp_bytes
    # the kernel completes the checksum if it has to cut the packet, and expects the pseudo-header's sum
    words[:, 20] = _folded(words[:, 13:17].sum(axis=1, dtype=np.uint32) + socket.IPPROTO_UDP + udp_bytes)
    packet[:] = words.view(np.uint8)
    return heads


def _folded(sums: AnyIntegers) -> AnyIntegers:
    """uint16[n]: sums of 16-bit words with their carries added, as RFC 1071 has it."""
    sums = sums.astype(np.uint32)
    for _ in range(2):
        sums = (sums & 0xFFFF) + (sums >> 16)
    return sums.astype(np.uint16)
