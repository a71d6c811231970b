"""All interfaces of a switch handled at once: what a call into NumPy costs is paid for a batch, not for each port."""

from collections.abc import Iterable, Mapping

import numpy as np

from sa_atp.arrays import ByteRows, Indices, Lengths
from sa_atp.net import offload
from sa_atp.net.ports import RECEIVE_BYTES, RECEIVE_PACKETS, InterfacePort
from sa_atp.softswitch.pipeline import ROW_BYTES, Packets


class Interfaces:
    def __init__(self, ports: Mapping[int, InterfacePort]) -> None:
        """Args: ports: by port number."""
        self.ports = dict(ports)
        self._packets = np.empty((max(1, len(ports)) * RECEIVE_PACKETS, RECEIVE_BYTES), np.uint8)
        self._frames = np.zeros((1024, ROW_BYTES), np.uint8)

    def receive(self, readable: Iterable[int]) -> tuple[Indices, ByteRows, Lengths] | None:
        """What ports have: the port of each frame, the frames, and their lengths; valid until the next call.

        None if they have nothing.
        """
        numbers, found, count = [], [], 0
        for number in readable:
            lengths = self.ports[number].fill(self._packets[count:])
            if len(lengths):
                numbers.append(number)
                found.append(lengths)
                count += len(lengths)
        if not count:
            return None
        packets = self._packets[:count]
        lengths = np.concatenate(found)
        counts = offload.frames_in(packets, lengths, ROW_BYTES)
        port_of = np.repeat(numbers, [len(each) for each in found])
        for number in port_of[counts == 0].tolist():
            self.ports[number].oversized += 1
        total = int(counts.sum())
        if total > len(self._frames):
            self._frames = np.zeros((2 * total, ROW_BYTES), np.uint8)
        frames = self._frames[:total]
        return np.repeat(port_of, counts), frames, offload.cut(packets, lengths, counts, frames)

    def send(self, out: Packets, rows: Indices) -> int:
        """Sends some rows of what the pipeline has made, each port's in order. Returns: how many."""
        order = rows[np.argsort(out.ports[rows], kind="stable")]
        frames, lengths, ports = out.data[order], out.lengths[order], out.ports[order]
        starts = [0, *(np.flatnonzero(np.diff(ports)) + 1).tolist()]
        join = all(port.joins for port in self.ports.values())
        packets = offload.gather(frames, lengths, join=join, breaks=starts[1:])
        firsts = [*np.searchsorted(packets.firsts, starts).tolist(), len(packets.counts)]
        for n, start in enumerate(starts):
            port = self.ports[int(ports[start])]
            if not port.send_packets(packets.packets(firsts[n], firsts[n + 1])):
                end = starts[n + 1] if n + 1 < len(starts) else len(frames)
                port.send(frames[start:end], lengths[start:end])
        return len(frames)
