"""The loop of the embedded switch's process, which moves frames between ports through the pipeline."""

import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from sa_atp.basics.arrays import AnyIntegers, ByteRows, Indices, Lengths
from sa_atp.basics.folders import make_folder
from sa_atp.net import drops
from sa_atp.net.clock import now_us
from sa_atp.net.drops import Drops
from sa_atp.net.sockets.ports import CaptureWriter, InterfacePort, Port, UdpPort
from sa_atp.net.switch_process.datapath import state
from sa_atp.net.switch_process.datapath.loop import CompiledLoop
from sa_atp.net.switch_process.impair import ImpairedPort
from sa_atp.switches.embedded.device import Device
from sa_atp.switches.embedded.pipeline import PORTS, Packets

LONGEST_WAIT_S = 0.2


def _wires(ports: Mapping[int, Port]) -> AnyIntegers | None:
    """Returns the array WIRES (see `datapath.state`), whose rows the links use from now on; None: no link is impaired."""
    if not any(isinstance(port, ImpairedPort) for port in ports.values()):
        return None
    wires = np.zeros((2 * len(ports), state.WIRE_ITEMS), np.int64)
    for slot, port in enumerate(ports.values()):
        links = (port.arrivals, port.departures) if isinstance(port, ImpairedPort) else ()
        for row, link in enumerate(links, 2 * slot):
            if link is not None:
                wires[row] = link.wire
                link.wire = wires[row]
    return wires


class SwitchLoop:
    """Moves frames from ports through a device's pipeline to ports, a batch at a time.

    It runs as compiled code (`datapath`), unless single frames must be seen: with captures, or a program that runs as plain
    Python. Then each batch goes through NumPy arrays.
    """

    def __init__(
        self,
        device: Device,
        ports: Mapping[int, Port],
        captures: Path | None = None,
        *,
        say: Callable[[str], None] | None = None,
        packet_ins_dropped: Callable[[], int] = lambda: 0,
        shares: bool = False,
        link_up: int | None = None,
    ) -> None:
        """Args:
        captures: folder for a pcap file of each port; default: none are written.
        say: called with a warning when the first packet of each cause is dropped.
        packet_ins_dropped: the number of packet-ins that the P4Runtime server has dropped so far.
        shares: whether ranks of the same user on this machine may share memory with the switch, in place of sending to its
            UDP ports. Only the compiled loop can.
        link_up: of a leaf on a host (docs/embedded-target.md), the UDP port of the link up: packets leave it from the
            sockets of the ranks that have sent them.
        """
        self.device = device
        self.ports = dict(ports)
        self.packets_in = 0
        self.packets_out = 0
        self.unattached = 0  # packets for ports that are not attached
        self._say = say
        self._said: set[tuple[str, str]] = set()
        self._packet_ins_dropped = packet_ins_dropped
        self._impaired = {number: port for number, port in self.ports.items() if isinstance(port, ImpairedPort)}
        # select, because epoll counts milliseconds and delays of links are finer
        self._selector: selectors.BaseSelector = (
            selectors.SelectSelector() if self._impaired else selectors.DefaultSelector()
        )
        self._stop = False
        self._calls: deque[Callable[[], None]] = deque()
        self._captures: dict[int, CaptureWriter] = {}
        # Programs measure time from when the switch started.
        self._started_us = now_us()
        self._depths = np.zeros(PORTS, np.int64)
        self._sending = threading.Lock()  # packet-outs are sent from the control plane's threads
        for number, port in self.ports.items():
            self._selector.register(port, selectors.EVENT_READ, number)
            if captures is not None:
                make_folder(captures)
                self._captures[number] = CaptureWriter(captures / f"port{number}.pcap")
        inner = {n: port.port if isinstance(port, ImpairedPort) else port for n, port in self.ports.items()}
        plain = {n: port for n, port in inner.items() if isinstance(port, InterfacePort | UdpPort)}
        self._compiled = (
            CompiledLoop(device, plain, self._started_us, wires=_wires(self.ports), shares=shares, link_up=link_up)
            if device.compiled and plain and len(plain) == len(self.ports) and captures is None
            else None
        )
        self._outgoing: Mapping[int, Port] = self.ports if self._compiled is None else inner
        device.emit = self.send

    def now_us(self) -> int:
        """The switch's own time."""
        return now_us() - self._started_us

    def run(self) -> None:
        """Moves packets until `stop` is called from another thread or a signal handler."""
        while not self._stop:
            self.turn(LONGEST_WAIT_S)
            self._tell_drops()
            while self._calls:
                self._calls.popleft()()

    def call(self, action: Callable[[], None]) -> None:
        """Has `run` call `action` between two turns, soon. Called from any thread."""
        self._calls.append(action)
        if self._compiled is not None:
            self._compiled.wake()

    def stop(self) -> None:
        self._stop = True
        if self._compiled is not None:
            self._compiled.wake()

    def turn(self, longest_s: float) -> None:
        """Waits for packets, and passes the packets of all ports through the pipeline at once."""
        if self._compiled is not None:
            self._compiled.turn(longest_s)
            return
        readable = {key.data for key, _ in self._selector.select(self._wait_s(longest_s))}
        batches = []
        for number in readable | self._overdue():
            found = self.ports[number].receive()
            if found is not None:
                self._capture(number, *found)
                batches.append((np.full(len(found[1]), number), *found))
        for port in self._impaired.values():
            port.flush()
        if batches:
            self._process(batches)

    def _process(self, batches: list[tuple[Indices, ByteRows, Lengths]]) -> None:
        """Args: port numbers, frames and lengths of each batch."""
        numbers, data, lengths = batches[0] if len(batches) == 1 else map(np.concatenate, zip(*batches, strict=True))
        self.packets_in += len(lengths)
        for number, port in self.ports.items():
            self._depths[number] = port.waiting()
        self.send(self.device.process(data, lengths, numbers, self.now_us(), self._depths))

    def _wait_s(self, longest_s: float) -> float:
        due = min((d for port in self._impaired.values() if (d := port.due_us) is not None), default=None)
        return longest_s if due is None else min(longest_s, max(0.0, (due - now_us()) / 1e6))

    def _overdue(self) -> set[int]:
        """Impaired ports whose links have packets that have arrived by now."""
        now = now_us()
        return {number for number, port in self._impaired.items() if (due := port.due_us) is not None and due <= now}

    def send(self, out: Packets) -> None:
        """Sends packets to their ports, each port's in order."""
        with self._sending:
            self._send(out)

    def _send(self, out: Packets) -> None:
        for number in np.unique(out.ports).tolist():
            rows = np.flatnonzero(out.ports == number)
            port = self._outgoing.get(number)
            if port is None:
                self.unattached += len(rows)
                continue
            data, lengths = out.data[rows], out.lengths[rows]
            self._capture(number, data, lengths)
            port.send(data, lengths)
            self.packets_out += len(rows)

    def _capture(self, number: int, data: ByteRows, lengths: Lengths) -> None:
        if number in self._captures:
            self._captures[number].write(data, lengths, time.time_ns() // 1000)

    def packet_counts(self) -> tuple[int, int, int]:
        """Packets that arrived, left, and were for unattached ports; also updates the counters of the ports."""
        found = self._compiled.packet_counts() if self._compiled is not None else (0, 0, 0)
        return found[0] + self.packets_in, found[1] + self.packets_out, found[2] + self.unattached

    def drops(self) -> list[Drops]:
        """Packets dropped so far, by port and cause; those for unattached ports are in `packet_counts`."""
        self.packet_counts()
        found = [
            *drops.of_ports(self.ports),
            *drops.of_switch(
                without_program=self.device.dropped_without_pipeline,
                punts=self.device.punts_lost,
                packet_ins=self._packet_ins_dropped(),
            ),
        ]
        return [each for each in found if each.count]

    def _tell_drops(self) -> None:
        for each in self.drops() if self._say is not None else ():
            if each.remedy and (each.where, each.description) not in self._said:
                self._said.add((each.where, each.description))
                assert self._say is not None
                self._say(each.warning())

    def close(self) -> None:
        self.device.emit = None
        if self._compiled is not None:
            self._compiled.close()
        self._selector.close()
        for port in self.ports.values():
            port.close()
        for capture in self._captures.values():
            capture.close()
