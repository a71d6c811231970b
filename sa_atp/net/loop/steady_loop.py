"""Runs many turns of a worker's loop at once, in compiled code, while a stream flows."""

import sys

import numpy as np

from sa_atp.net.clock import now_us
from sa_atp.net.loop.compiled import steady_loop
from sa_atp.net.loop.receive_coalescing import ReceiveCoalescing
from sa_atp.net.loop.send_pacer import SendPacer
from sa_atp.net.loop.steady_loop_kernels import NO_TIME, Incoming, Loop, Memory, Outgoing
from sa_atp.net.shared_memory.ring_kernels import no_ring
from sa_atp.net.sockets.mmsg import sender_of
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.rank.worker import Worker
from sa_atp.protocol.records import Record

LONGEST_US = 200_000  # in compiled code at a time: signals, which Python handles, wait no longer
LOOKS = 8  # at the socket in a turn, as in Driver
LEAST_TAKEN = 16  # datagrams that make up for what it costs to lend and to take back
MOST_SKIPPED = 32  # turns after which it is tried again, where nothing came of it


class SteadyLoop:
    """Of one worker and its socket. It is used where its driver's loop is."""

    def __init__(self, worker: Worker, socket: UdpSocket, woken_by: int, segments: int) -> None:
        """Args: woken_by: a descriptor that is readable when somebody wants the loop; segments: datagrams of one send."""
        self._worker = worker
        self._socket = socket
        self._run = steady_loop()
        member = worker.membership
        self._address = member.data_address
        self._senders = sender_of(member.data_address), sender_of(member.server_address)
        self._woken_by, self._segments = woken_by, segments
        self._record = Record(Loop)
        self._polls, self._times, self._held = np.zeros(3, np.int64), np.zeros(2, np.int64), np.zeros(1, np.int32)
        self._no_ring = no_ring()
        self._skip = self._skipped = 0  # how many turns are, and were, left to Python

    def run(
        self, pacer: SendPacer, coalescing: ReceiveCoalescing, pause_s: float, resume_us: int | None, *, owes: bool
    ) -> list[Burst] | None:
        """Goes on from the end of a turn until something is to be done that is not compiled.

        Args: pause_s: how long datagrams may gather first; resume_us: when there will be room for what waits to be sent;
            owes: whether what may leave has not been sent yet.
        Returns: what has arrived, and belongs to the connection; None: no stream flows, and nothing was done.
        """
        if self._socket.reports_refusals:  # those the rules have to look at
            return None
        if self._skipped < self._skip:
            self._skipped += 1
            return None
        now, room, compiled = now_us(), self._worker.room, self._socket.compiled()
        steady = None if room is None or compiled is None else self._worker.steady(now)
        if steady is None or room is None or compiled is None:
            return None
        assert steady.state is not None
        packed, segmented = compiled
        channel = self._socket.channel
        loop = Loop(
            pacer, coalescing, self._socket.fileno(), self._woken_by, *self._senders, until_us=now + LONGEST_US,
            pause_us=int(1e6 * pause_s), resume_us=NO_TIME if resume_us is None else resume_us,
            segments=self._segments, size=room.shape[1], looks=LOOKS, owes=owes,
            shares=channel is not None, bell=-1 if channel is None else channel.bell,
        )  # fmt: skip
        self._record.write(loop)
        memory = Memory(
            polls=self._polls, times=self._times, held=self._held, incoming=Incoming(*packed.lent()),
            outgoing=Outgoing(*segmented.lent(self._address)),
            ring=self._no_ring if channel is None else channel.ring, out=room.view(np.uint32), data=room,
            question=steady.question,
        )  # fmt: skip
        self._run(self._record.array, memory, steady.values, steady.state)
        self._record.read(loop)
        self._worker.resume(loop.now_us)
        came_of_it = loop.turns or loop.taken >= LEAST_TAKEN
        self._skip, self._skipped = (0 if came_of_it else min(2 * self._skip + 1, MOST_SKIPPED)), 0
        self._socket.stats.received += loop.received
        self._socket.stats.sent += loop.sent
        if loop.written:
            self._socket.send([Burst(self._address, room[loop.datagram : loop.written])])
        if loop.asks:
            self._socket.send([Burst(self._address, steady.question)])
        if not loop.found:
            return []
        source = channel if channel is not None and loop.is_shared else packed
        return source.bursts(loop.row, loop.found, loop.datagram)


assert sys.maxsize > 1 << 32  # structures of the C library are those of 64-bit machines
