"""Many turns of a worker's loop at once, in compiled code, while a stream flows: what goes in, and what has come of it."""

import struct
import sys

import numpy as np

from sa_atp.net.clock import now_us
from sa_atp.net.loop import steady_loop_kernels as k
from sa_atp.net.loop.compiled import steady_loop
from sa_atp.net.loop.receive_coalescing import ReceiveCoalescing
from sa_atp.net.loop.send_pacer import SendPacer
from sa_atp.net.sockets.mmsg import socket_address
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.rank.worker import Worker

LONGEST_US = 200_000  # without Python: signals and its other threads come to their right
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
        self._numbers = np.zeros(k.L_ITEMS, np.int64)
        self._numbers[: k.L_UNTIL] = (
            socket.fileno(), woken_by, sender_of(member.data_address), sender_of(member.server_address),
        )  # fmt: skip
        self._reals = np.zeros(k.F_ITEMS)
        self._polls, self._times, self._held = np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(1, np.int32)
        self._segments = segments
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
        packed, segmented = compiled
        numbers, reals = self._numbers, self._reals
        numbers[k.L_UNTIL : k.L_HELD] = now + LONGEST_US, int(1e6 * pause_s), -1 if resume_us is None else resume_us
        numbers[k.L_HELD : k.L_COUNTED], reals[k.F_PACE] = pacer.counted()
        numbers[k.L_COUNTED : k.L_SEGMENTS], reals[k.F_RECENT] = coalescing.counted()
        numbers[k.L_SEGMENTS :] = 0
        numbers[k.L_SEGMENTS : k.L_TURNS] = self._segments, room.shape[1], steady.data_fragments, LOOKS, int(owes)
        self._run(
            numbers, reals, self._polls, self._times, self._held, *packed.lent(), room.view(np.uint32), room,
            steady.question, *segmented.lent(self._address), steady.values, steady.state,
        )  # fmt: skip
        self._worker.resume(int(numbers[k.L_NOW]))
        pacer.set_counted(numbers[k.L_HELD : k.L_COUNTED].tolist(), float(reals[k.F_PACE]))
        coalescing.set_counted(int(numbers[k.L_COUNTED]), float(reals[k.F_RECENT]))
        turns, received, sent, _, found, row, datagram, written, taken, asks = numbers[k.L_TURNS :].tolist()
        came_of_it = turns or taken >= LEAST_TAKEN
        self._skip, self._skipped = (0 if came_of_it else min(2 * self._skip + 1, MOST_SKIPPED)), 0
        self._socket.stats.received += received
        self._socket.stats.sent += sent
        if written:
            self._socket.send([Burst(self._address, room[datagram:written])])
        if asks:
            self._socket.send([Burst(self._address, steady.question)])
        return packed.bursts(row, found, datagram) if found else []


def sender_of(address: Address) -> int:
    """An address as socket_kernels.receive names it."""
    (number,) = struct.unpack("=q", socket_address(address)[:8])
    return int(number)


assert sys.maxsize > 1 << 32  # structures of the C library are those of 64-bit machines
