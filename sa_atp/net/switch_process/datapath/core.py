"""One core of the compiled loop: memory for packets, the program's frame, and the ports that it serves."""

import contextlib
import os
from collections.abc import Collection, Mapping

import numpy as np

from sa_atp.basics.arrays import AnyIntegers
from sa_atp.net.shared_memory.layout import CHANNEL_BYTES, RESULT_BYTES
from sa_atp.net.shared_memory.region import Region, seal, shared_memory
from sa_atp.net.sockets.mmsg import socket_address
from sa_atp.net.sockets.ports import QUEUED_FRAME_BYTES, InterfacePort, UdpPort
from sa_atp.net.switch_process.channel_server import Attach
from sa_atp.net.switch_process.datapath import state
from sa_atp.net.switch_process.datapath.code import ready
from sa_atp.switches.embedded.call_frame import PLACES, CallFrame
from sa_atp.switches.embedded.device import Device
from sa_atp.switches.embedded.pipeline import ROW_BYTES, Pipeline
from sa_atp.switches.embedded.translate.deparsing import HEAD_BYTES

MOST_SEGMENTS = 1 << 16  # no limit but that of `leaving`


def fill_frame(frame: CallFrame, memory: Mapping[int, AnyIntegers]) -> None:
    """Fills the part of a pipeline's frame that belongs to the loop, and not to the program."""
    for name, place in {
        "packets": state.IN_ROWS, "starts": state.IN_STARTS, "lengths": state.IN_LENGTHS, "ports": state.IN_PORTS,
        "heads_in": state.IN_HEADS, "head_of": state.IN_HEAD_OF, "depths": state.DEPTHS, "kept": state.KEPT,
        "out": state.OUT_BYTES, "heads": state.OUT_HEADS, "out_starts": state.OUT_STARTS,
        "out_lengths": state.OUT_LENGTHS, "out_ports": state.OUT_PORTS, "out_sources": state.OUT_SOURCES,
    }.items():  # fmt: skip
        frame.array(PLACES[name], memory[place])
    frame.number(PLACES["apart"], HEAD_BYTES)
    frame.number(PLACES["row_bytes"], 0)


def _shared_results() -> tuple[int, AnyIntegers]:
    """Makes memory that this process writes, and others can only read. Returns: its descriptor, and itself.

    Raises: OSError: there is none, or the kernel cannot seal it (before Linux 5.1).
    """
    memory = shared_memory("sa-atp results", RESULT_BYTES)
    try:
        region = Region(RESULT_BYTES)
        region.put(0, RESULT_BYTES, memory)
        seal(memory, writable=False)
    except OSError:
        os.close(memory)
        raise
    return memory, region.bytes


class Core:
    """Receives packets from its own ports, and sends to all. One thread at a time calls it; any may call `wake`."""

    def __init__(
        self,
        device: Device,
        ports: Mapping[int, InterfacePort | UdpPort],
        mine: Collection[int],
        started_us: int,
        channels: int = 0,
        link_up: int | None = None,
        wires: AnyIntegers | None = None,
    ) -> None:
        """Compiles, or loads code from the cache.

        Args: mine: numbers of the ports to receive from; channels: at most; link_up: see `SwitchLoop`; wires: see
            `CompiledLoop`.
        """
        self.results, results = -1, None
        """File descriptor of the memory of results, which ranks map to read; -1: there is none, and no channels either."""
        if channels:
            try:
                self.results, results = _shared_results()
            except OSError:
                channels = 0
        self._device = device
        self._started_us = started_us
        self._of = list(ports.values())
        kinds = [state.UDP if isinstance(port, UdpPort) else state.INTERFACE for port in self._of]
        region = Region(state.channel_at(channels)) if channels else None
        self._memory: dict[int, AnyIntegers] = {
            **state.ports(
                list(ports),
                [port.fileno() for port in self._of],
                kinds,
                [MOST_SEGMENTS if port.joins else 0 for port in self._of],
                [port.frame_target() if isinstance(port, UdpPort) else b"" for port in self._of],
                [number in mine for number in ports],
                link_up=link_up,
                lines=0 if link_up is None else channels,
            ),
            **state.crossing(wires),
            **state.arriving(channels=channels, memory=None if region is None else region.bytes, results=results),
        }
        self._region, self._bells = region, dict.fromkeys(range(channels), -1)
        self._memory[state.PORT_COSTS][:] = QUEUED_FRAME_BYTES * state.COST_UNITS
        self._totals = self._memory[state.TOTALS]
        self._state = CallFrame(state.PLACES, compiled=True)
        self._frame: CallFrame | None = None
        self._pipeline: Pipeline | None = None
        self._program = 0
        state.point_at_rows(self._memory)
        self._new_output(state.LEAST_OUT, state.LEAST_OUT_BYTES)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._totals[state.EVENT_FD] = self._event
        self.doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if channels else -1
        """The descriptor at which ranks with channels wake this core; -1: there are none."""
        if channels:
            self._totals[state.DOORBELL_FD] = self.doorbell
        self._run_turn = ready(device.cache)

    def attach(self, new: Attach) -> None:
        """Puts a channel's memory where the loop has it. Called between two calls of `move`. Raises: OSError."""
        assert self._region is not None
        known = self._memory[state.CHANNELS][new.number]
        try:
            self._region.put(int(known[state.CHANNEL_AT]), CHANNEL_BYTES, new.memory)
        except OSError:
            for each in filter(lambda each: each >= 0, (new.bell, new.line)):
                os.close(each)
            raise
        finally:
            os.close(new.memory)
        name = socket_address(new.address)
        self._memory[state.CHANNEL_NAMES].reshape(-1, state.NAME_ROW)[new.number] = np.frombuffer(name, np.uint8)
        slot = int(self._memory[state.PORT_SLOTS][new.port])
        known[[state.CHANNEL_TAIL, state.CHANNEL_HEAD, state.CHANNEL_WRITTEN, state.CHANNEL_OTHERS_TAIL]] = 0
        known[[state.CHANNEL_RUNG, state.CHANNEL_BROKEN]] = 0
        known[state.CHANNEL_BELL] = self._bells[new.number] = new.bell
        if new.above is not None:
            above_name = socket_address(new.above)
            known[state.CHANNEL_ABOVE] = int.from_bytes(above_name[4:8], "big") << 16 | new.above[1]
            self._set_line(new.number, new.line)
        known[state.CHANNEL_KEY] = slot << 48 | int.from_bytes(name[4:8], "big") << 16 | new.address[1]
        known[state.CHANNEL_SLOT] = slot

    def broken(self) -> list[int]:
        """The channels into which a rank has written what cannot be; see `detach`."""
        known = self._memory[state.CHANNELS]
        return np.flatnonzero((known[:, state.CHANNEL_BROKEN] != 0) & (known[:, state.CHANNEL_SLOT] >= 0)).tolist()

    def detach(self, number: int) -> None:
        """Takes a channel's memory away. Called between two calls of `move`."""
        assert self._region is not None
        known = self._memory[state.CHANNELS][number]
        if known[state.CHANNEL_SLOT] >= 0:
            known[state.CHANNEL_SLOT] = -1
            self._region.clear(int(known[state.CHANNEL_AT]), CHANNEL_BYTES)
            os.close(self._bells[number])
            self._bells[number] = -1
            self._set_line(number, -1)

    def _set_line(self, number: int, line: int) -> None:
        """Has packets of a channel's rank go up from this socket; -1: from none. Closes the one before."""
        slot = len(self._of) + number
        fds = self._memory[state.PORT_FDS]
        if slot >= len(fds):
            return
        if fds[slot] != state.NO_DESCRIPTOR:
            os.close(int(fds[slot]))
        fds[slot] = state.NO_DESCRIPTOR if line < 0 else line
        self._memory[state.PORT_JOINS][slot] = 0 if line < 0 else MOST_SEGMENTS

    def listen(self) -> None:
        """Forgets earlier calls of `wake`: a later one ends the next `move`."""
        self._totals[state.ATTENTION] = 0
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)

    def wake(self) -> None:
        """Makes a running `move` end after its batch. Called from any thread."""
        self._totals[state.ATTENTION] = 1
        with contextlib.suppress(OSError):  # the core is closed
            os.eventfd_write(self._event, 1)

    def prepare(self, pipeline: Pipeline) -> None:
        """Brings the frame up to date with the pipeline. The caller holds the pipeline's lock."""
        if pipeline is not self._pipeline:
            self._pipeline, self._program = pipeline, pipeline.address
            self._frame = pipeline.new_frame()
            fill_frame(self._frame, self._memory)
        frame = self._frame
        assert frame is not None
        if frame.version != pipeline.version:
            pipeline.bring_up_to_date(frame)
            needed = HEAD_BYTES + pipeline.most_copies * (ROW_BYTES + pipeline.most_added)
            self._totals[state.OUT_ROOM] = max(state.LEAST_RESULTS, needed)
            out, packets = self._memory[state.OUT_BYTES], self._memory[state.OUT_STARTS]
            if needed > len(out) or pipeline.most_copies > len(packets):
                self._new_output(max(state.LEAST_OUT, pipeline.most_copies), max(state.LEAST_OUT_BYTES, needed))
                fill_frame(frame, self._memory)

    def move(self, longest_s: float) -> int:
        """Waits for packets and moves them, until the time is over, `wake` is called, or Python has something to handle.

        The caller holds the lock of the prepared pipeline, if there is one. Returns: how many packets arrived.
        """
        frame = 0 if self._frame is None else self._frame.address  # without a program packets are dropped
        cpu_port = -1 if self._device.cpu_port is None else self._device.cpu_port
        longest_us = int(longest_s * 1e6)
        return self._run_turn(
            self._state.address, self._program, frame, self._started_us, ROW_BYTES, cpu_port, longest_us
        )

    def tell_counts(self) -> None:
        """Adds this core's counts to the pipeline's counters. The caller holds the pipeline's lock."""
        if self._pipeline is not None and self._frame is not None:
            self._pipeline.add_counts(self._frame)

    def _new_output(self, packets: int, out_bytes: int) -> None:
        self._memory.update(state.leaving(packets, out_bytes))
        state.fill(self._state, self._memory)

    def hand_over(self) -> None:
        """Gives packets for the CPU port to the device, and adds to its numbers of dropped packets."""
        self._device.dropped_without_pipeline += int(self._totals[state.WITHOUT_PIPELINE])
        self._totals[state.WITHOUT_PIPELINE] = 0
        self._device.punts_lost += int(self._totals[state.PUNTS_LOST])
        self._totals[state.PUNTS_LOST] = 0
        if not self._totals[state.PUNTED]:
            return
        end = int(self._totals[state.PUNTED_END])
        data = self._memory[state.PUNTED_PACKETS][:end].tobytes()
        self._totals[state.PUNTED] = self._totals[state.PUNTED_END] = 0
        at = 0
        while at < end:
            length = int.from_bytes(data[at : at + 4], "big")
            self._device.packet_in(data[at + 4 : at + 4 + length])
            at += 4 + length

    def close(self) -> None:
        event, self._event = self._event, -1
        os.close(event)
        if self._region is not None:
            for number in self._bells:
                self.detach(number)
            os.close(self.doorbell)
            os.close(self.results)

    def packet_counts(self) -> tuple[int, int, int]:
        """Packets that arrived, left, and were for unattached ports; also updates the counters of the ports."""
        counters = self._memory[state.PORT_COUNTERS]
        for up in np.flatnonzero(self._memory[state.PORT_LINES] >= 0):
            counters[up] += counters[len(self._of) :].sum(axis=0)
        for slot, port in enumerate(self._of):
            found = counters[slot].tolist()
            port.oversized += found[state.OVERSIZED]
            if isinstance(port, UdpPort):
                port.not_datagrams += found[state.NOT_DATAGRAMS]
                port.refused_in_loop += found[state.REFUSED]
                port.too_long_in_loop += found[state.TOO_LONG]
            else:
                port.refused += found[state.REFUSED]
                port.too_long += found[state.TOO_LONG]
        counters[:] = 0
        totals = self._totals.tolist()
        return totals[state.PACKETS_IN], totals[state.PACKETS_OUT], totals[state.UNATTACHED]
