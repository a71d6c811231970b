"""The compiled loop's interface for Python: one call moves packets as long as some arrive, on one core or several.

Each core receives from some of the ports, and may send to all. The loop holds the pipeline's lock for all cores, so tables
change while none of them runs; a core that touches a slot locks its block (`embedded.block_locks`).
"""

import contextlib
import queue
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait

from sa_atp.basics.arrays import AnyIntegers
from sa_atp.net.sockets.ports import InterfacePort, UdpPort
from sa_atp.net.switch_process.channel_server import ChannelServer, Detach
from sa_atp.net.switch_process.datapath.core import Core
from sa_atp.net.switch_process.datapath.state import MOST_CHANNELS
from sa_atp.switches.embedded.device import Device
from sa_atp.switches.embedded.pipeline import Pipeline

GIVE_WAY_S = 0.0005  # between turns, to threads that wait for the pipeline


class CompiledLoop:
    """Ports, a device's pipeline, and the memory between them. One thread calls `turn`."""

    def __init__(
        self,
        device: Device,
        ports: Mapping[int, InterfacePort | UdpPort],
        started_us: int,
        *,
        wires: AnyIntegers | None = None,
        shares: bool = False,
        link_up: int | None = None,
    ) -> None:
        """Compiles, or loads code from the cache. Distributes the ports over the device's cores, in turn.

        Args: started_us: when the switch's own time began. wires: WIRES, see `state`; None: no link is impaired.
            shares: whether ranks on this machine may share memory with the switch in place of sending to its
            UDP ports; by one core only, because two would write into the same ring.
        link_up: see SwitchLoop.
        """
        self._device = device
        numbers = list(ports)
        cores = max(1, min(device.cores, len(numbers)))
        udp = {
            number: port.address for number, port in ports.items() if isinstance(port, UdpPort) and number != link_up
        }
        most = MOST_CHANNELS if shares and udp and cores == 1 and wires is None else 0
        self._cores = [Core(device, ports, numbers[i::cores], started_us, most, link_up, wires) for i in range(cores)]
        first = self._cores[0]
        self._channels = (
            ChannelServer(udp, first.doorbell, first.results, most, self.wake, has_lines=link_up is not None)
            if first.results >= 0
            else None
        )
        # for all cores but the first, which runs in the thread that calls `turn`
        self._threads = ThreadPoolExecutor(cores - 1, "sa-atp-core") if cores > 1 else None
        device.changed = self.wake

    def turn(self, longest_s: float) -> int:
        """Waits for packets and moves them, until the time is over, or another thread wants the pipeline.

        Returns: how many packets arrived.
        """
        for core in self._cores:
            core.listen()
        self._change_channels()
        pipeline = self._device.pipeline
        arrived = self._on_all(longest_s) if pipeline is None else self._with(pipeline, longest_s)
        for core in self._cores:
            core.hand_over()
        return arrived

    def _change_channels(self) -> None:
        if self._channels is None:
            return
        for number in self._cores[0].broken():
            self._channels.end(number)
        with contextlib.suppress(queue.Empty):
            while True:
                change = self._channels.changes.get_nowait()
                if isinstance(change, Detach):
                    self._cores[0].detach(change.number)
                    self._channels.detached(change.number)
                    continue
                try:
                    self._cores[0].attach(change)
                except OSError:  # the machine has no memory for it
                    self._channels.end(change.number)

    def _with(self, pipeline: Pipeline, longest_s: float) -> int:
        pipeline.lock.wake = self.wake
        if pipeline.lock.waiting:
            time.sleep(GIVE_WAY_S)
        with pipeline.lock:  # tables change between batches
            for core in self._cores:
                core.prepare(pipeline)
            arrived = self._on_all(longest_s)
            for core in self._cores:
                core.tell_counts()
        return arrived

    def _on_all(self, longest_s: float) -> int:
        if self._threads is None:
            return self._cores[0].move(longest_s)
        others = [self._threads.submit(self._move, core, longest_s) for core in self._cores[1:]]
        try:
            arrived = self._move(self._cores[0], longest_s)
        finally:
            wait(others)  # also after an error: the lock is held until no core runs
        return arrived + sum(other.result() for other in others)

    def _move(self, core: Core, longest_s: float) -> int:
        try:
            return core.move(longest_s)
        finally:
            self.wake()  # a core that ends, ends the turn of all

    def wake(self) -> None:
        """Makes a running `turn` end after its batch. Called from any thread."""
        for core in self._cores:
            core.wake()

    def close(self) -> None:
        self._device.changed = None
        if self._channels is not None:
            self._channels.close()
            self._change_channels()
        if self._threads is not None:
            self._threads.shutdown()
        for core in self._cores:
            core.close()

    def packet_counts(self) -> tuple[int, int, int]:
        """Packets that arrived, left, and were for unattached ports; also updates the counters of the ports."""
        found = [core.packet_counts() for core in self._cores]
        return sum(each[0] for each in found), sum(each[1] for each in found), sum(each[2] for each in found)
