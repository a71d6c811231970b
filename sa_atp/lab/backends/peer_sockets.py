"""Another protocol's worker in real time: its transport over a UDP socket."""

import select
from typing import Any

import msgspec

from sa_atp.basics.arrays import Values
from sa_atp.lab.peers.peer import Peer, PeerJob, Transport
from sa_atp.net.clock import now_us
from sa_atp.net.sockets.udp import UdpSocket


class PeerConnection:
    """A worker: all-reduces one after the other, each in the thread that asks for it."""

    def __init__(self, peer: Peer, rank: int, job: PeerJob) -> None:
        """Raises: UserError: the rank's address cannot be bound."""
        seat = job.seats[rank]
        self._socket = UdpSocket((seat.ip, seat.udp_port))
        self.transport: Transport = peer.transport(rank, job)

    def all_reduce(self, values: Values) -> Values:
        """The sum of float32[n] over all ranks. Raises: UserError, TransportError."""
        transport = self.transport
        transport.begin(values, now_us())
        while True:
            if bursts := transport.transmit(now_us()):
                self._socket.send(bursts)
            if (found := transport.next_event()) is not None:
                return found
            if transport.error is not None:
                raise transport.error
            due_us = transport.next_timer_us()
            wait_s = None if due_us is None else max(0, due_us - now_us()) / 1e6
            if select.select([self._socket], [], [], wait_s)[0]:
                transport.receive(self._socket.receive(), now_us())
            elif due_us is not None:
                transport.handle_timer(now_us())

    def close(self) -> None:
        self._socket.close()


def job_of(told: dict[str, Any]) -> PeerJob:
    """The job that `peer_switch.PeerSwitch.new_job` returned, in another process."""
    return msgspec.convert(told, PeerJob, strict=False)
