"""Finds the UDP datagrams in captured frames, for a batch of frames at once.

It parses only what is common: Ethernet with up to two VLAN tags, Linux's cooked captures, bare IP; IPv4 without options. A
frame that might hold a datagram in another encapsulation is UNCLEAR.
"""

from dataclasses import dataclass

import numpy as np

from sa_atp.basics.arrays import Indices, Lengths, Numbers, Octets
from sa_atp.net.captures.capture_file import Batch

OTHER, DATAGRAM, UNCLEAR = range(3)
IP_BYTES, UDP_BYTES = 20, 8

_ETHERNET, _COOKED, _COOKED_2 = 1, 113, 276
_BARE = (12, 101, 228)
_IPV4, _IPV6, _VLAN = 0x0800, 0x86DD, (0x8100, 0x88A8)
# Ethernet types that may hold an IP packet in a form that is not parsed here
_NESTED = (0x8870, 0x88E7, *_VLAN)
_SMALLEST_TYPE = 1501  # smaller numbers are lengths, and LLC follows
_ICMP, _IGMP, _TCP, _UDP, _ICMPV6 = 1, 2, 6, 17, 58  # IP protocols; all others may hold IP again


@dataclass(slots=True)
class CapturedDatagrams:
    """The datagrams in a batch of frames.

    outcomes: for each frame OTHER, DATAGRAM or UNCLEAR. For each datagram, in order: rows: its frame; payloads: where its
    payload begins in the batch's data; sizes: captured bytes of the payload; claimed: its size by the UDP header;
    addresses, ports: two rows each, sources and destinations.
    """

    outcomes: Octets
    rows: Indices
    payloads: Indices
    sizes: Lengths
    claimed: Lengths
    addresses: Numbers
    ports: Numbers


def find_datagrams(batch: Batch) -> CapturedDatagrams:
    data, count = batch.data, len(batch.starts)
    network, kinds = _network_layer(batch)
    left = batch.lengths - (network - batch.starts)  # captured bytes from the IP header on
    outcomes = np.full(count, OTHER, np.uint8)
    outcomes[kinds == -1] = UNCLEAR

    six = np.flatnonzero(kinds == _IPV6)
    next_header = data[network[six] + 6]
    outcomes[six[~np.isin(next_header, (_TCP, _UDP, _ICMPV6)) | (left[six] < 40)]] = UNCLEAR

    rows = np.flatnonzero(kinds == _IPV4)
    at = network[rows]
    protocol = data[at + 9]
    is_plain = (data[at] == 0x45) & (left[rows] >= IP_BYTES)
    is_first = be16(data, at + 6) & 0x1FFF == 0  # other fragments have no UDP header
    outcomes[rows[~is_plain | is_first & ~np.isin(protocol, (_ICMP, _IGMP, _TCP))]] = UNCLEAR
    chosen = np.flatnonzero(is_plain & is_first & (protocol == _UDP) & (left[rows] >= IP_BYTES + UDP_BYTES))
    rows, at = rows[chosen], at[chosen]
    total, claimed = be16(data, at + 2), be16(data, at + IP_BYTES + 4)
    is_sound = (total >= IP_BYTES + UDP_BYTES) & (claimed >= UDP_BYTES)
    rows, at, total, claimed = rows[is_sound], at[is_sound], total[is_sound], claimed[is_sound]
    outcomes[rows] = DATAGRAM
    return CapturedDatagrams(
        outcomes=outcomes,
        rows=rows,
        payloads=at + IP_BYTES + UDP_BYTES,
        sizes=np.minimum(np.minimum(left[rows], total) - IP_BYTES, claimed) - UDP_BYTES,
        claimed=claimed - UDP_BYTES,
        addresses=np.stack([be32(data, at + 12), be32(data, at + 16)]),
        ports=np.stack([be16(data, at + IP_BYTES), be16(data, at + IP_BYTES + 2)]),
    )


def _network_layer(batch: Batch) -> tuple[Indices, Numbers]:
    """Where the network layer begins, and its Ethernet type; -1: unclear."""
    data, starts, link = batch.data, batch.starts, batch.link_type
    if link in _BARE:
        version = data[starts] >> 4
        kinds = np.select([version == 4, version == 6], [_IPV4, _IPV6], -1)
        return starts, np.where(batch.lengths > 0, kinds, -1)
    if link not in (_ETHERNET, _COOKED, _COOKED_2):
        return starts, np.full(len(starts), -1)
    head, kind_at = {_ETHERNET: (14, 12), _COOKED: (16, 14), _COOKED_2: (20, 0)}[link]
    at, kinds = starts + head, be16(data, starts + kind_at)
    for _ in range(2 if link == _ETHERNET else 0):
        is_tagged = np.isin(kinds, _VLAN)
        kinds = np.where(is_tagged, be16(data, at + 2), kinds)
        at = np.where(is_tagged, at + 4, at)
    is_unclear = (kinds < _SMALLEST_TYPE) | np.isin(kinds, _NESTED) | (batch.lengths < head)
    return at, np.where(is_unclear, -1, kinds)


def be16(data: Octets, at: Indices) -> Numbers:
    """The big-endian 16-bit numbers at these positions."""
    numbers: Numbers = data[at].astype(np.int64) << 8 | data[at + 1]
    return numbers


def be32(data: Octets, at: Indices) -> Numbers:
    """The big-endian 32-bit numbers at these positions."""
    numbers: Numbers = be16(data, at) << 16 | be16(data, at + 2)
    return numbers
