"""A switch without its sockets: a pipeline that may be replaced while packets arrive, and the CPU port.

    I/O loop ──process()──> pipeline ──> packets for ports   ──> returned to the I/O loop
                               │
    P4Runtime ─packet_out()────┤  └────> packets for the CPU port ──> packet-in listeners
                               └───────> packets caused by a packet-out ──> emit()

No socket and no clock: packets and the time are arguments, or come from the owner's `clock`.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sa_atp.basics.arrays import ByteRows, Counts, Indices, Lengths
from sa_atp.basics.errors import UserError
from sa_atp.switches.embedded.pipeline import PORTS, ROW_BYTES, Packets, Pipeline

PacketInListener = Callable[[bytes], None]


class Device:
    """A switch without its ports.

    One thread (the I/O loop) calls `process`; `install`, `packet_out` and everything that changes the pipeline's
    tables may come from other threads at the same time.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        device_id: int = 0,
        cpu_port: int | None = None,
        compiled: bool = True,
        cache: Path | None = None,
        cores: int = 1,
    ) -> None:
        """Args:
        clock: the time in microseconds, for packets that the control plane sends; the I/O loop passes its own.
        device_id: the switch's id in P4Runtime (0 is BMv2's default, too).
        cpu_port: port number through which the program exchanges packets with the control plane; default: none.
        compiled, cache: see `Pipeline`.
        cores: how many may run the pipeline at the same time.

        Raises: UserError: the CPU port is not a port number.
        """
        if cpu_port is not None and not 0 < cpu_port < PORTS - 1:
            raise UserError(f"CPU port {cpu_port}: expected 1 to {PORTS - 2} ({PORTS - 1} means drop)")
        if not 0 <= device_id < 1 << 64:
            raise UserError(f"device id {device_id}: expected 0 to 2**64 - 1")
        self.device_id = device_id
        self.cpu_port = cpu_port
        self.compiled = compiled
        self.cache = cache
        self.cores = cores
        self.clock = clock
        self.emit: Callable[[Packets], None] | None = None  # takes packets caused by a packet-out; None: they are lost
        self.changed: Callable[[], None] | None = None  # called when the pipeline has been replaced
        self.dropped_without_pipeline = 0  # packets
        self.punts_lost = 0  # packets for the CPU port that were not taken in time
        self._pipeline: Pipeline | None = None
        self._listeners: tuple[PacketInListener, ...] = ()
        self._lock = threading.Lock()

    # --- pipeline -----------------------------------------------------------------------------------------------------

    @property
    def pipeline(self) -> Pipeline | None:
        """The installed pipeline; None until there is one."""
        return self._pipeline

    def prepare(self, device_config: bytes) -> Pipeline:
        """Makes a pipeline without installing it. Compiling takes seconds, unless the code is in the cache.

        Args: device_config: BMv2 JSON.

        Raises: PipelineError, Unsupported: see `loading.load`.
        """
        pipeline = Pipeline.from_config(device_config, compiled=self.compiled, cache=self.cache, shared=self.cores > 1)
        # numba compiles at the first call: make it now, and not when the first packet arrives
        none = np.zeros(0, np.int64)
        pipeline.process(np.zeros((0, ROW_BYTES), np.uint8), none, none, 0)
        return pipeline

    def commit(self, pipeline: Pipeline) -> None:
        """Installs a pipeline that `prepare` returned. A batch that has begun ends in the old pipeline."""
        if not isinstance(pipeline, Pipeline):
            raise TypeError("commit takes what prepare returned")
        self._pipeline = pipeline
        if self.changed is not None:
            self.changed()

    def install(self, device_config: bytes) -> Pipeline:
        """`prepare`, then `commit`."""
        pipeline = self.prepare(device_config)
        self.commit(pipeline)
        return pipeline

    # --- packets ------------------------------------------------------------------------------------------------------

    def process(
        self,
        data: ByteRows,
        lengths: Lengths,
        ports: Indices,
        now_us: int,
        depths: Counts | None = None,
    ) -> Packets:
        """Runs arriving packets through the pipeline; see `Pipeline.process` for the arguments.

        Packets for the CPU port go to the packet-in listeners. The others are returned, and valid until the next call,
        also if the control plane sends packets in between.
        """
        pipeline = self._pipeline
        if pipeline is None:
            self.dropped_without_pipeline += len(lengths)
            return nothing()
        return self._without_cpu_port(pipeline.process(data, lengths, ports, now_us, depths))

    def packet_out(self, packet: bytes) -> None:
        """Runs a packet from the CPU port through the pipeline, and gives the packets that leave to `emit`.

        Args: packet: begins with the program's header of packets from the controller, if it has one.

        Raises: UserError: there is no CPU port, or no pipeline.
        """
        pipeline = self._pipeline
        if self.cpu_port is None:
            raise UserError("packet-out: the switch was started without a CPU port")
        if pipeline is None:
            raise UserError("packet-out: no pipeline has been pushed")
        data = np.zeros((1, max(ROW_BYTES, len(packet))), np.uint8)
        data[0, : len(packet)] = np.frombuffer(packet, np.uint8)
        with pipeline.lock:
            pipeline.detach_output()  # the I/O loop may still be sending from the old buffers
            out = pipeline.process(data, np.array([len(packet)]), np.array([self.cpu_port]), self.clock())
            pipeline.detach_output()
        out = self._without_cpu_port(out)
        emit = self.emit
        if len(out) and emit is not None:
            emit(out)

    def packet_in(self, packet: bytes) -> None:
        """Gives a packet for the CPU port to the listeners."""
        for listener in self._listeners:
            listener(packet)

    def add_packet_in_listener(self, listener: PacketInListener) -> None:
        """Calls `listener` with each packet that the program sends to the CPU port.

        The thread that processes packets calls it, so it must not block.
        """
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def remove_packet_in_listener(self, listener: PacketInListener) -> None:
        with self._lock:
            self._listeners = tuple(each for each in self._listeners if each != listener)

    def _without_cpu_port(self, out: Packets) -> Packets:
        if self.cpu_port is None or not len(out):
            return out
        punted = out.ports == self.cpu_port
        if not punted.any():
            return out
        for i in np.flatnonzero(punted):
            packet = out.packet(int(i))
            self.packet_in(packet)
        kept = ~punted
        return Packets(out.data[kept], out.lengths[kept], out.ports[kept], out.sources[kept])


def nothing() -> Packets:
    """An empty batch of packets."""
    none = np.zeros(0, np.int64)
    return Packets(np.zeros((0, ROW_BYTES), np.uint8), none, none, none)
