"""The traffic of a job at a switch: frames of four workers, and the results that must come back.

Every worker contributes to every fragment; worker r sends (r + 1) * (k + 1) in lane k, so a complete sum is
n * (n + 1) / 2 * (k + 1) with n workers.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from sa_atp.basics.arrays import ByteRows, Indices
from sa_atp.basics.errors import SaAtpError
from sa_atp.protocol.packets.frames import HEADERS_BYTES, Endpoint, headers_for
from sa_atp.protocol.packets.header import HEADER, LANE, first_byte, lanes_of, size_of
from sa_atp.protocol.packets.spec import UDP_PORT, Kind
from sa_atp.switches.control.jobspec import JobSpec, Member

WORKERS = 4
SLOTS = 1024
PASSES = 4  # of a measurement from memory to memory
SEQ_AT, SLOT_AT = slice(8, 12), slice(2, 4)  # in the header
JOB, EPOCH, GROUP = 1, 0, 1
TTL_TICKS = 1 << 20  # longer than any measurement: nothing is evicted
LARGE_WINDOW = 256  # fragments: such windows are sent in halves, smaller ones in quarters
STALL_S = 0.05  # without a result for so long, packets were lost
GIVE_UP_S = 20.0


Build = tuple[int, int]
"""Lanes and contributions of a program."""


def job(members: Sequence[Member], server: Member) -> JobSpec:
    """A job that may use `SLOTS` slots."""
    return JobSpec(
        job=JOB,
        epoch=EPOCH,
        fan_in=(1 << len(members)) - 1,
        slot_base=0,
        slot_count=SLOTS,
        group=GROUP,
        ttl_ticks=TTL_TICKS,
        level="root",
        members=tuple(members),
        parameter_server=server,
        uplink=server,
    )


def hosts(workers: int = WORKERS) -> tuple[list[Member], Member]:
    """Workers at switch ports 1, 2, ..., and the parameter server at the port after them."""
    members = [
        Member(
            ip=f"10.0.0.{rank + 1}",
            udp_port=5000 + rank,
            mac=f"02:00:00:00:00:{rank + 1:02x}",
            switch_port=rank + 1,
            rank=rank,
        )
        for rank in range(workers)
    ]
    server = Member(ip="10.0.0.100", udp_port=UDP_PORT, mac="02:00:00:00:00:64", switch_port=workers + 1)
    return members, server


class Contributions:
    """A worker's packets, prepared once; only a fragment's number and slot change."""

    def __init__(self, member: Member, server: Member, build: Build, count: int) -> None:
        """Args: build: lanes and contributions; count: the largest number of packets at a time."""
        lanes, contributions = build
        payload_bytes = size_of(Kind.DATA, lanes, contributions)
        self.head = headers_for(_endpoint(member), _endpoint(server), payload_bytes)
        self.payloads = np.zeros((count, payload_bytes), np.uint8)
        self._frames = np.zeros((0, HEADERS_BYTES + payload_bytes), np.uint8)
        header = np.zeros(1, HEADER)
        header["first"] = first_byte(Kind.DATA)
        header["job"], header["epoch"], header["bits"] = JOB, EPOCH, 1 << member.rank
        self.payloads[:, : HEADER.itemsize] = header.view(np.uint8)
        values = (np.arange(lanes) + 1) * (member.rank + 1)
        lanes_of(self.payloads, contributions)[:] = values
        self._seq = self.payloads[:, SEQ_AT]
        self._slot = self.payloads[:, SLOT_AT]

    def of(self, fragments: Indices) -> ByteRows:
        """Payloads for at most `count` fragments, without gaps: a view, valid until the next call."""
        n = len(fragments)
        self._seq[:n] = fragments.astype(">u4").view(np.uint8).reshape(n, 4)
        self._slot[:n] = (fragments % SLOTS).astype(">u2").view(np.uint8).reshape(n, 2)
        return self.payloads[:n]

    def frames(self, fragments: Indices) -> ByteRows:
        """Returns the contributions as Ethernet frames."""
        if not len(self._frames):
            self._frames = np.zeros((len(self.payloads), self._frames.shape[1]), np.uint8)
            self._frames[:, :HEADERS_BYTES] = self.head
        found = self._frames[: len(fragments)]
        found[:, HEADERS_BYTES:] = self.of(fragments)
        return found


def _endpoint(member: Member) -> Endpoint:
    return Endpoint(member.mac_number, (member.ip, member.udp_port))


class Results:
    """The results of a range of fragments: which are complete, and how many are wrong."""

    def __init__(self, first: int, fragments: int, build: Build, workers: int = WORKERS) -> None:
        """Args: first: number of the first fragment of the range. build: lanes and contributions."""
        lanes, self._size = build[0], size_of(Kind.RESULT, *build)
        self.first = first
        self.done = np.zeros(fragments, bool)
        self.wrong = 0
        self.missing_from = 0  # all fragments before this one are complete, counted from the first
        self.expected = ((np.arange(lanes) + 1) * (workers * (workers + 1) // 2)).astype(LANE).view(np.uint8)

    def take(self, payloads: ByteRows) -> None:
        """Takes results. Args: payloads: received by one worker."""
        if payloads.shape[1] != self._size:
            return
        seq = payloads[:, SEQ_AT].copy().view(">u4")[:, 0].astype(np.int64) - self.first
        ours = (payloads[:, 0] == first_byte(Kind.RESULT)) & (seq >= 0) & (seq < len(self.done))
        if not ours.all():
            payloads, seq = payloads[ours], seq[ours]
        differ = payloads[:, self._size - self.expected.nbytes :] != self.expected
        if differ.any():
            self.wrong += int(differ.any(axis=1).sum())
        self.done[seq] = True
        ahead = self.done[self.missing_from : self.missing_from + SLOTS]  # no more are in flight
        self.missing_from += len(ahead) if ahead.all() else int(np.argmin(ahead))

    @property
    def complete(self) -> bool:
        return self.missing_from == len(self.done)


class TrafficLink(Protocol):
    """The workers' side of the switch's ports."""

    def send(self, rank: int, contributions: Contributions, fragments: Indices) -> None: ...

    def receive(self, longest_s: float) -> list[ByteRows]:
        """Payloads that worker 0 received; empty after `longest_s` without any."""

    def run(self, senders: "Sequence[Contributions]", results: Results, window: int, burst: int) -> int:
        """May sum part of the fragments in compiled code. Returns: number of fragments sent."""


class WorkersStall(SaAtpError):
    """The switch did not complete the sums."""


class Traffic:
    """A job's traffic over a link. Each run continues after the last one's fragments, so slots are free."""

    def __init__(self, link: TrafficLink, spec: JobSpec, build: Build, check: Callable[[], None]) -> None:
        """Args: check: called while the switch is silent; may raise."""
        self._link = link
        self._build = build
        self._check = check
        self._senders = [Contributions(m, spec.parameter_server, build, SLOTS) for m in spec.members]
        self._next = 0

    def run(self, fragments: int, window: int) -> float:
        """Has every worker contribute to every fragment, with at most `window` <= SLOTS / 2 fragments in flight.

        Worker 0 receives the results. Lost packets are sent again.

        Returns: contributions per second, from the first packet to the last result.

        Raises: WorkersStall: no results, or wrong ones.
        """
        results = Results(self._next, fragments, self._build, len(self._senders))
        self._next += fragments
        started = last = time.perf_counter()
        burst = window // 2 if window >= LARGE_WINDOW else window // 4
        sent = self._link.run(self._senders, results, window, burst)
        while not results.complete:
            end = min(fragments, results.missing_from + window)
            if end - sent >= burst or (end == fragments and sent < end):  # a burst, not single packets
                self._send(np.arange(sent, end) + results.first)
                sent = end
            arrived = self._link.receive(STALL_S)
            for payloads in arrived:
                results.take(payloads)
            now = time.perf_counter()
            if arrived:
                last = now
                continue
            self._check()
            if now - last > GIVE_UP_S:
                raise WorkersStall(f"{results.missing_from} of {fragments} sums in {now - started:.0f} s, then silence")
            lost = np.flatnonzero(~results.done[results.missing_from : sent]) + results.missing_from
            self._send(lost + results.first)
        if results.wrong:
            raise WorkersStall(f"{results.wrong} of {fragments} sums are wrong")
        return fragments * len(self._senders) / (time.perf_counter() - started)

    def _send(self, fragments: Indices) -> None:
        for rank, sender in enumerate(self._senders):
            self._link.send(rank, sender, fragments)
