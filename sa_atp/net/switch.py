"""The embedded target as a process: ports, the loop between them, and P4Runtime beside it."""

import selectors
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sa_atp.net.clock import now_us
from sa_atp.net.moderation import Moderation
from sa_atp.net.ports import Capture, Port
from sa_atp.softswitch.device import Device
from sa_atp.softswitch.pipeline import PORTS, Packets

LONGEST_WAIT_S = 0.2
PAUSE_US = 500  # for packets to gather


class SwitchLoop:
    """Moves frames from ports through a device's pipeline to ports, a batch at a time."""

    def __init__(self, device: Device, ports: Mapping[int, Port], captures: Path | None = None) -> None:
        """Args: captures: folder for a pcap file of each port; default: none are written."""
        self.device = device
        self.ports = dict(ports)
        self.packets_in = 0
        self.packets_out = 0
        self.to_nowhere = 0  # packets for ports that are not attached
        self._selector = selectors.DefaultSelector()
        self._stop = False
        self._captures: dict[int, Capture] = {}
        # Programs measure time from when the switch started.
        self._started_us = now_us()
        self._depths = np.zeros(PORTS, np.int64)
        self._sending = threading.Lock()  # packet-outs are sent from the control plane's threads
        for number, port in self.ports.items():
            self._selector.register(port, selectors.EVENT_READ, number)
            if captures is not None:
                captures.mkdir(parents=True, exist_ok=True)
                self._captures[number] = Capture(captures / f"port{number}.pcap")
        self._moderation = Moderation(PAUSE_US)
        device.emit = self.send

    def now_us(self) -> int:
        """The switch's own time."""
        return now_us() - self._started_us

    def run(self) -> None:
        """Until `stop` is called from another thread or a signal handler."""
        while not self._stop:
            self.turn(LONGEST_WAIT_S)

    def stop(self) -> None:
        self._stop = True

    def turn(self, longest_s: float) -> None:
        before = self.packets_in
        for key, _ in self._selector.select(longest_s):
            number: int = key.data
            frames = self.ports[number].receive()
            if frames is None:
                continue
            data, lengths = frames
            self.packets_in += len(lengths)
            self._capture(number, data, lengths)
            for other, port in self.ports.items():
                self._depths[other] = port.waiting()
            out = self.device.process(data, lengths, np.full(len(lengths), number), self.now_us(), self._depths)
            self.send(out)
        pause_s = self._moderation.pause_s(self.packets_in - before)
        if pause_s:
            time.sleep(pause_s)

    def send(self, out: Packets) -> None:
        """Hands packets to their ports, each port's in order."""
        with self._sending:
            self._send(out)

    def _send(self, out: Packets) -> None:
        for number in np.unique(out.ports).tolist():
            rows = np.flatnonzero(out.ports == number)
            port = self.ports.get(number)
            if port is None:
                self.to_nowhere += len(rows)
                continue
            data, lengths = out.data[rows], out.lengths[rows]
            self._capture(number, data, lengths)
            port.send(data, lengths)
            self.packets_out += len(rows)

    def _capture(self, number: int, data: np.ndarray, lengths: np.ndarray) -> None:
        if number in self._captures:
            self._captures[number].write(data, lengths, time.time_ns() // 1000)

    def close(self) -> None:
        self.device.emit = None
        self._selector.close()
        for port in self.ports.values():
            port.close()
        for capture in self._captures.values():
            capture.close()
