"""The interface of an aggregation protocol: a P4 program, the entries of its tables for a job, and a worker's transport.

A transport uses no socket and no clock: packets and the time are arguments. So the same code runs in virtual time and over
sockets (docs/own-program.md).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import UserError
from sa_atp.basics.words import join
from sa_atp.protocol.job.errors import TransportError
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.frames import HEADERS_BYTES
from sa_atp.switches import artefacts
from sa_atp.switches.artefacts import CompiledProgram
from sa_atp.switches.p4runtime.entities import Entity

WIRE_OVERHEAD_BYTES = 24  # preamble, frame check sequence and gap around every Ethernet frame


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """A worker's place on the switch."""

    ip: str
    mac: int
    udp_port: int
    switch_port: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerJob:
    """A job on one switch."""

    seats: tuple[Seat, ...]
    """By rank."""
    switch: Address
    """The address that workers send to. In the packets that its program sees, the port is `spec.UDP_PORT`."""
    switch_mac: int
    lanes: int
    """Values in a packet."""
    slots: int
    """The most packets of a worker that the switch holds at a time."""
    timeout_us: int
    """After which a worker sends a packet again."""
    routes: tuple[tuple[str, int], ...] = ()
    """Hosts behind the switch, by IP address, each with its port: for packets of others (see `Peer.forwards`)."""


class Transport(Protocol):
    """A worker's end of the protocol: one all-reduce after the other."""

    @property
    def error(self) -> TransportError | None:
        """The error that ended it."""

    @property
    def sent(self) -> int:
        """Packets sent, without retransmissions."""

    @property
    def retransmitted(self) -> int: ...

    def begin(self, values: Values, now_us: int) -> None:
        """Begins the all-reduce of float32[n], when the last one is done; n is the same on every worker."""

    def receive(self, bursts: Sequence[Burst], now_us: int) -> None:
        """Takes datagrams that have arrived."""

    def transmit(self, now_us: int, budget_bytes: int | None = None) -> list[Burst]:
        """Returns the datagrams to send now. Args: budget_bytes: how many bytes the host's queue takes; None: all."""

    def next_timer_us(self) -> int | None:
        """When `handle_timer` is to be called; None: not at all."""

    def handle_timer(self, now_us: int) -> None: ...

    def next_event(self) -> Values | None:
        """The sum that has been completed since the last call, float32[n]; None: there is none."""


class Peer(ABC):
    """A protocol. It has one instance, without state."""

    slots: ClassVar[int] = 128
    """The most packets of a worker that the switch holds at a time, if nothing else is said."""
    most_workers: ClassVar[int] = 32
    """The most workers of a job."""
    forwards: ClassVar[bool] = False
    """Whether its program forwards packets of others, along `PeerJob.routes`. Background traffic in Mininet needs that."""

    @abstractmethod
    def programs(self) -> Mapping[int, Path]:
        """Folders of its compiled programs, each with one BMv2 JSON and its P4Info, by the values in a packet."""

    @abstractmethod
    def packet_bytes(self, lanes: int) -> int:
        """The size of a datagram with values."""

    @abstractmethod
    def reference(self, parts: Sequence[Values], lanes: int) -> Values:
        """The sum that it makes of all workers' tensors, float32[n], worked out without packets."""

    @abstractmethod
    def entries(self, job: PeerJob) -> list[Entity]:
        """The entries of its program's tables, and the multicast groups, for a job."""

    def lanes(self, most: int) -> int:
        """The values in a packet of its widest program with at most so many. If there is none, `program` refuses it."""
        fits = [lanes for lanes in self.programs() if lanes <= most]
        return max(fits, default=most)

    def program(self, lanes: int) -> CompiledProgram:
        """The compiled program with so many values in a packet. Raises: UserError: there is none; it lists the others."""
        found = self.programs()
        if lanes not in found:
            known = join(str(each) for each in sorted(found))
            raise UserError(f"lanes {lanes}: there is no such build of {type(self).__name__}; there is {known}")
        return artefacts.from_folder(found[lanes])

    def wire_bytes(self, lanes: int) -> int:
        """The size of a packet with values on the wire, with what Ethernet puts around a frame."""
        return WIRE_OVERHEAD_BYTES + HEADERS_BYTES + self.packet_bytes(lanes)

    def timeout_us(self, slots: int, lanes: int, link_mbps: float, delay_us: int = 0) -> int:
        """The time-out if none is said: twice what a window takes to leave and to come back, and at least a millisecond.

        Args: delay_us: of a link, one way.
        """
        window_us = slots * 8 * self.wire_bytes(lanes) / link_mbps
        return max(1000, round(2 * (window_us + 2 * delay_us)))

    @abstractmethod
    def transport(self, rank: int, job: PeerJob) -> Transport:
        """The transport of one worker."""
