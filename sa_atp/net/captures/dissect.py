"""Captures as text: one line for each SA-ATP packet of a pcap or pcapng file.

Headers are read and lanes are counted for a batch of packets at once, which takes some 10 us a packet. Scapy takes 500, so
it parses only packets with unusual encapsulation (`dissect_layers.py`), and packets whose layers a program asks for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Indices, Numbers
from sa_atp.basics.words import plural
from sa_atp.net.captures.capture_file import Batch, CaptureFile
from sa_atp.net.captures.packet_text import (
    CONTROL,
    FLAG_TEXTS,
    HAS_LANES,
    IS_KNOWN,
    KIND_TEXTS,
    contributions_of,
    control_text,
    flags_text,
    looks_like_sa_atp,
)
from sa_atp.net.captures.unwrap import UNCLEAR, CapturedDatagrams, find_datagrams
from sa_atp.protocol.numbers.scaling import SUM_LIMIT
from sa_atp.protocol.packets.header import HEADER, LANE, bitmaps, header_bytes, number_of
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, HEADER_BYTES, UDP_PORT


@dataclass(slots=True)
class CaptureCounts:
    """Numbers of packets in a capture; complete when it has been read to its end."""

    packets: int = 0
    """SA-ATP packets."""
    malformed: int = 0
    """Packets on the SA-ATP port that are not SA-ATP."""
    others: int = 0
    cut: bool = False
    """Whether the file is truncated or corrupt."""


@dataclass(slots=True)
class DissectedPacket:
    """A packet of a capture: SA-ATP, or something else on its port.

    time_s: since 1970. text: the line, from the addresses on. job: None if it is not SA-ATP.
    """

    time_s: float
    text: str
    job: int | None
    batch: Batch
    index: int

    def line(self, origin_s: float) -> str:
        """The packet as one line; its time is relative to the origin."""
        return f"{self.time_s - origin_s:12.6f}  {self.text}"

    @property
    def packet(self) -> Any:
        """The packet as scapy's layers, from the link layer on. Imports scapy."""
        from sa_atp.net.captures.dissect_layers import layers

        return layers(self.batch.frame(self.index), self.batch.link_type)

    @property
    def sa_atp(self) -> Any:
        """The packet's SaAtp layer, or None. Imports scapy."""
        from sa_atp.net.captures.dissect_layers import sa_atp_layer

        return None if self.job is None else sa_atp_layer(self.packet)


def read(path: Path, counts: CaptureCounts) -> Iterator[DissectedPacket]:
    """Yields the SA-ATP packets and what else was on its port, in order; adds to `counts`.

    Raises: UserError: the file cannot be read, or is not a capture.
    """
    file = CaptureFile(path)
    for batch in file.batches():
        yield from dissect(batch, counts)
    counts.cut = file.cut


def dissect(batch: Batch, counts: CaptureCounts) -> Iterator[DissectedPacket]:
    """Yields the packets of one batch, like `read`."""
    found = find_datagrams(batch)
    lines = _describe(batch, found)
    counts.others += len(batch.starts) - len(lines)
    unclear = np.flatnonzero(found.outcomes == UNCLEAR).tolist()
    for index in sorted([*lines, *unclear]) if unclear else lines:
        line = lines.get(index)
        if line is None:
            from sa_atp.net.captures.dissect_layers import dissect_one

            line = dissect_one(batch.frame(index), batch.link_type)
            if line is None:
                continue
            counts.others -= 1
        text, job = line
        counts.packets += job is not None
        counts.malformed += job is None
        yield DissectedPacket(batch.ticks[index] / batch.ticks_a_second, text, job, batch, index)


def _describe(batch: Batch, found: CapturedDatagrams) -> dict[int, tuple[str, int | None]]:
    """(text, job) of each datagram that is SA-ATP or was sent to its port, by the number of its frame."""
    data, sizes = batch.data, found.sizes
    is_long = sizes >= HEADER_BYTES
    first = data[found.payloads]
    is_ours = (found.ports == UDP_PORT).any(axis=0)
    is_sound = is_long & np.where(
        is_ours, IS_KNOWN[first], looks_like_sa_atp(first, sizes, data[found.payloads + HEADER_BYTES])
    )
    chosen = np.flatnonzero(is_sound | is_ours)
    ends = _endpoints(found.addresses[:, chosen], found.ports[:, chosen])
    headers = data[found.payloads[chosen][:, None] + np.arange(HEADER_BYTES)].view(HEADER)[:, 0]
    contributions = contributions_of(first, found.claimed)
    long_enough = sizes >= contributions // 8 + HEADER_BYTES - CONTRIBUTION_BITS // 8
    wide = {
        number: number_of(bitmaps(data[None, at : at + header_bytes(bits)], bits)[0])
        for number in np.flatnonzero((contributions > CONTRIBUTION_BITS) & long_enough & is_sound).tolist()
        for at, bits in [(int(found.payloads[number]), int(contributions[number]))]
    }
    lanes = _count_lanes(batch, found, np.flatnonzero(is_sound & HAS_LANES[first]), contributions)
    more = (found.claimed - sizes)[chosen].tolist()
    lines: dict[int, tuple[str, int | None]] = {}
    for (byte, flags, slot, job, epoch, exponent, tag, seq, bits), number, row, sound, source, target, size, missing in zip(
        headers.tolist(), chosen.tolist(), found.rows[chosen].tolist(), is_sound[chosen].tolist(), *ends,
        sizes[chosen].tolist(), more, strict=True,
    ):  # fmt: skip
        if not sound:
            lines[row] = f"{source} > {target}  not SA-ATP: {_problem(byte, size)}", None
        elif byte == CONTROL:
            at = int(found.payloads[number])
            body = control_text(data[at + HEADER_BYTES : at + size].tobytes())
            text = f"{KIND_TEXTS[byte]} job={job} epoch={epoch} request={seq} flags={FLAG_TEXTS[flags]} {body}"
            lines[row] = f"{source} > {target}  {text}", job
        else:
            rest = f" ({plural(missing, 'more byte was', 'more bytes were')} not captured)" if missing > 0 else ""
            lines[row] = (
                f"{source} > {target}  {KIND_TEXTS[byte]} job={job} epoch={epoch} seq={seq} slot={slot} "
                f"bits={wide.get(number, bits):#x} "
                f"{flags_text(byte & 15, flags)} exponent={exponent} tag={tag}{lanes.get(number, '')}{rest}",
                job,
            )
    return lines


def _problem(first: int, size: int) -> str:
    if size < HEADER_BYTES:
        return f"{plural(size, 'byte is', 'bytes are')} too few for a header"
    return f"version {first >> 4}, kind {first & 15}"


def _endpoints(addresses: Numbers, ports: Numbers) -> list[list[str]]:
    """Sources and destinations as text, a row each: "10.0.0.1:5000"."""
    keys, where = np.unique(addresses << 16 | ports, return_inverse=True)
    names = [f"{k >> 40}.{k >> 32 & 255}.{k >> 24 & 255}.{k >> 16 & 255}:{k & 0xFFFF}" for k in keys.tolist()]
    sources, targets = where.reshape(2, -1)
    return [[names[i] for i in which.tolist()] for which in (sources, targets)]


def _count_lanes(batch: Batch, found: CapturedDatagrams, numbers: Indices, contributions: Numbers) -> dict[int, str]:
    """A summary of the lanes of each of these datagrams. Args: contributions: of all datagrams, see contributions_of."""
    texts: dict[int, str] = {}
    headers = header_bytes() + (contributions - CONTRIBUTION_BITS) // 8
    counts = (found.sizes[numbers] - headers[numbers]) // LANE.itemsize
    kinds = np.stack([counts, headers[numbers]])[:, counts > 0]
    for count, header in np.unique(kinds, axis=1).T.tolist():
        chosen = numbers[(counts == count) & (headers[numbers] == header)]
        windows = np.lib.stride_tricks.sliding_window_view(batch.data, count * LANE.itemsize)
        lanes = windows[found.payloads[chosen] + header].view(LANE).astype(np.int32)
        lowest, highest = lanes.min(axis=1), lanes.max(axis=1)
        zero = np.count_nonzero(lanes == 0, axis=1)
        poisoned = np.zeros(len(chosen), np.int64)
        out = np.flatnonzero((lowest <= -SUM_LIMIT) | (highest >= SUM_LIMIT))
        poisoned[out] = np.count_nonzero((lanes[out] <= -SUM_LIMIT) | (lanes[out] >= SUM_LIMIT), axis=1)
        for number, low, high, none, bad in zip(
            *(each.tolist() for each in (chosen, lowest, highest, zero, poisoned)), strict=True
        ):
            texts[number] = f" lanes={count} min={low} max={high} zero={none}" + (f" poisoned={bad}" if bad else "")
    return texts
