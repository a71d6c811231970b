"""Nodes of the simulated network: switches that run the compiled program, and hosts that run connections."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from sa_atp.basics.arrays import ByteRows, Counts, Indices, Lengths
from sa_atp.lab.simulator.network import Clock, Link
from sa_atp.net.loop.send_pacer import SendPacer
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.frames import Endpoint, datagram, headers_for
from sa_atp.switches.embedded.pipeline import PORTS, ROW_BYTES, Packets


class HostConnection(Protocol):
    """The sans-I/O protocol end that a host runs: a rank's connection or a parameter server (`sa_atp.protocol`)."""

    def receive(self, bursts: Sequence[Burst], now_us: int) -> None: ...
    def transmit(self, now_us: int, budget_bytes: int | None = None) -> list[Burst]: ...
    def next_timer_us(self) -> int | None: ...
    def handle_timer(self, now_us: int) -> None: ...


class Forwarder(Protocol):
    """The part of a switch that runs its program: a `Pipeline`, or another target with the same methods."""

    def reset(self) -> None: ...
    def process(
        self, data: ByteRows, lengths: Lengths, ports: Indices, now_us: int, depths: Counts | None = None
    ) -> Packets: ...


class Switch:
    """A forwarder between links. Processing takes no time; packets queue only in links."""

    def __init__(self, clock: Clock, pipeline: Forwarder) -> None:
        self.clock = clock
        self.pipeline = pipeline
        self.ports: dict[int, Link] = {}
        self.up = True
        self._row = np.zeros((1, ROW_BYTES), np.uint8)
        self._length = np.zeros(1, np.int64)
        self._port = np.zeros(1, np.int64)

    def input(self, port: int) -> Callable[[bytes], None]:
        """The `deliver` callback of a link that ends at this port."""
        return lambda frame: self.receive(frame, port)

    def receive(self, frame: bytes, port: int) -> None:
        if not self.up or len(frame) > ROW_BYTES:
            return
        self._row[0, : len(frame)] = np.frombuffer(frame, np.uint8)
        self._length[0], self._port[0] = len(frame), port
        depths = np.zeros(PORTS, np.int64)
        for number, link in self.ports.items():
            depths[number] = link.queued
        out = self.pipeline.process(self._row, self._length, self._port, self.clock.now_us, depths)
        for i in range(len(out)):
            exit_ = self.ports.get(int(out.ports[i]))
            if exit_ is not None:
                exit_.send(out.packet(i))


class SimHost:
    """A host with one connection, which it calls when packets arrive or the timer is due."""

    def __init__(self, clock: Clock, ip: str, mac: int, udp_port: int) -> None:
        self.clock = clock
        self.endpoint = Endpoint(mac, (ip, udp_port))
        self.uplink: Link | None = None
        self.connection: HostConnection | None = None
        self.after: Callable[[], None] = lambda: None  # called after the connection has been served
        self.neighbours: dict[str, int] = {}  # MAC addresses by IP address
        self.not_datagrams = 0
        self.paused = False
        self.gather_us = 0
        """How long arriving packets are collected before the connection gets them; 0: it gets each one alone."""
        self._gathered: list[Burst] = []
        self._timer_us: int | None = None
        self._pacer = SendPacer()

    def receive(self, frame: bytes) -> None:
        if self.paused or self.connection is None:
            return
        found = datagram(frame)
        if found is None or found[1] != self.endpoint.address:
            self.not_datagrams += 1
            return
        source, _, payload = found
        self._gathered.append(Burst.of(source, payload))
        if not self.gather_us:
            self._take()
        elif len(self._gathered) == 1:
            self.clock.at(self.clock.now_us + self.gather_us, self._take)

    def _take(self) -> None:
        gathered, self._gathered = self._gathered, []
        if not self.paused and self.connection is not None:
            self.connection.receive(gathered, self.clock.now_us)
            self.serve()

    def serve(self) -> None:
        """Sends the connection's packets, and sets its timer."""
        if self.paused or self.connection is None or self.uplink is None:
            return
        resume_us = self._send(self.connection, self.uplink)
        self.after()
        due = [t for t in (self.connection.next_timer_us(), resume_us) if t is not None]
        when = min(due, default=None)
        if when is not None and (
            self._timer_us is None or when < self._timer_us or self._timer_us <= self.clock.now_us
        ):
            self._timer_us = max(when, self.clock.now_us + 1)
            self.clock.at(self._timer_us, self._timer)

    def _send(self, connection: HostConnection, uplink: Link) -> int | None:
        """Sends as `net.loop.driver` does, with the link's queue as the host's.

        Returns: when the queue will have room for packets held back; None: none are.
        """
        now_us = self.clock.now_us
        while True:
            budget_bytes = self._pacer.budget_bytes(uplink.queued_bytes, now_us)
            bursts = connection.transmit(now_us, budget_bytes)
            if not bursts:
                return None if budget_bytes is None else self._pacer.resume_us()
            for burst in bursts:
                target, size = self._target(burst.address), burst.data.shape[1]
                head = headers_for(self.endpoint, target, size, urgent=burst.urgent).tobytes()
                for row in burst.data:
                    uplink.send(head + row.tobytes())
            self._pacer.wrote(sum(burst.data.size for burst in bursts), uplink.queued_bytes, now_us)

    def _timer(self) -> None:
        if self.paused or self.connection is None or self._timer_us is None or self.clock.now_us < self._timer_us:
            return
        self._timer_us = None
        due = self.connection.next_timer_us()
        if due is not None and due <= self.clock.now_us:
            self.connection.handle_timer(self.clock.now_us)
        self.serve()

    def _target(self, address: Address) -> Endpoint:
        return Endpoint(self.neighbours.get(address[0], 0xFFFFFFFFFFFF), address)
