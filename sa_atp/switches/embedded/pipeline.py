"""A loaded program with its state: processes packets, and gives the control plane access to the state.

It has no ports and no clock: packets and time are arguments. A switch process connects it to sockets, and the simulator to
a simulated network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sa_atp.basics.arrays import AnyIntegers, ByteRows, Cells, Counts, Indices, Lengths, Words
from sa_atp.switches.embedded import program_cache
from sa_atp.switches.embedded.block_locks import new_locks
from sa_atp.switches.embedded.call_frame import PLACES, CallFrame
from sa_atp.switches.embedded.loading import load
from sa_atp.switches.embedded.program import Program
from sa_atp.switches.embedded.tables import TableState
from sa_atp.switches.embedded.translate import Translation, translate
from sa_atp.switches.embedded.translate.deparsing import HEAD_BYTES
from sa_atp.switches.embedded.translate.expressions import FIXED_ARGUMENTS, FRAME_WORDS
from sa_atp.switches.embedded.turn_lock import TurnLock
from sa_atp.switches.p4runtime.errors import Code, Refusal
from sa_atp.switches.p4runtime.schema import find

PORTS = 512  # 9-bit port numbers; 511 means drop
ROW_BYTES = 9280  # room for a frame of a link with an MTU of 9216, and for headers that the program adds
NOTHING_WAITS = np.zeros(PORTS, np.int64)
FIRST, LAST, NOW, PACKETS, LENGTHS, IN_PORTS, DEPTHS = (
    PLACES[name] for name in ("first", "last", "now", "packets", "lengths", "ports", "depths")
)
NO_BYTES = np.zeros(0, np.uint8)
NO_LOCKS = np.zeros(0, np.int64)
COUNTED = ("counter", "entries")  # arguments that each core has for itself, if several run the program


@dataclass(frozen=True, slots=True)
class Packets:
    """A batch of packets, the pipeline's input or output.

    data: uint8[n, row]; row i has a packet in its first lengths[i] bytes, starting with the Ethernet header.
    lengths, ports: int64[n]. sources: in an output, the row of the input packet that caused each.
    """

    data: ByteRows
    lengths: Lengths
    ports: Indices
    sources: Indices

    def __len__(self) -> int:
        return len(self.lengths)

    def packet(self, i: int) -> bytes:
        return self.data[i, : self.lengths[i]].tobytes()


class Pipeline:
    """One program, its tables, registers, counters and multicast groups."""

    def __init__(
        self,
        program: Program,
        *,
        compiled: bool = True,
        cache: Path | None = None,
        translation: Translation | None = None,
        shared: bool = False,
    ) -> None:
        """Args:
        program: a loaded program (see `loading.load`).
        compiled: whether numba compiles it; False runs the same source as plain Python, to step through it.
        cache: folder for compiled code; default: compiled code is not kept.
        translation: that of the program, if it has been made already.
        shared: whether several cores may `run` it at the same time, each with its own call frame (see `block_locks`).

        Raises: Unsupported: the program uses a construct that the target does not support; the message names it.
        """
        self.program = program
        self.translation = translation or translate(program, shared=shared)
        self.lock = TurnLock()  # held while packets are processed and while the state is changed
        self._compiled = compiled
        self._process = program_cache.process(self.translation, compiled=compiled, cache=cache)
        # the head of a packet is written completely, also if the packet is shorter
        self.most_added = max(self.translation.layout.header_room + 8, HEAD_BYTES)
        self.tables = {t.name: TableState(program, t, self.translation.layout.tables[t.name]) for t in program.tables()}
        self.registers = {a.name: a.zeros() for a in self.translation.layout.arrays}
        self.counters = {c.name: np.zeros((c.size, 2), np.uint64) for c in program.counters}
        self.groups: dict[int, tuple[tuple[int, int], ...]] = {}  # group: (port, copy) of each replica
        self._holds = new_locks() if self.translation.shared else NO_LOCKS
        self._frame = self.new_frame()
        self._frame.array(PLACES["heads_in"], NO_BYTES)
        self._frame.array(PLACES["heads"], NO_BYTES)
        self._frame.array(PLACES["kept"], NO_BYTES)
        self._data: ByteRows | None = None
        self._pointed_to = -1  # the first output row in the call frame
        self._starts = self._no_heads = np.zeros(0, np.int64)
        self.detach_output()
        self.version = 1  # of the state that `bring_up_to_date` puts into call frames
        self._group_arrays()

    @classmethod
    def from_file(cls, path: Path, *, compiled: bool = True, cache: Path | None = None) -> "Pipeline":
        """Loads a program from its BMv2 JSON. Raises: PipelineError, Unsupported: see `loading.load`."""
        if cache is None or not path.is_file():
            return cls(load(path), compiled=compiled, cache=cache)
        return cls.from_config(path.read_bytes(), compiled=compiled, cache=cache)

    @classmethod
    def from_config(
        cls, config: bytes, *, compiled: bool = True, cache: Path | None = None, shared: bool = False
    ) -> "Pipeline":
        """Loads a program; its translation is cached, too. Args: config: BMv2 JSON. Raises: see `from_file`."""
        program, translation = program_cache.loaded(config, cache, shared=shared)
        return cls(program, compiled=compiled, cache=cache, translation=translation)

    # --- packets ------------------------------------------------------------------------------------------------------

    def process(
        self,
        data: ByteRows,
        lengths: Lengths,
        ports: Indices,
        now_us: int,
        depths: Counts | None = None,
    ) -> Packets:
        """Runs packets through parser, ingress, replication, egress and deparser, in order.

        Args:
            data: uint8[n, row], C-contiguous; bytes of a row beyond its length are ignored.
            lengths, ports: length and ingress port of each packet.
            now_us: the time for the program, in microseconds.
            depths: int64[512], the length of each port's queue, for the program; default: all are empty.

        Returns: the packets that leave, in order, valid until the next call.
        """
        count, row_bytes = data.shape
        frame = self._frame
        with self.lock:
            self.bring_up_to_date(frame)
            room = row_bytes + self.most_added
            self._reserve(max(2 * count, 64) + self.most_copies, room)
            self._lay_rows(count, row_bytes)
            frame.number(NOW, now_us)
            if data is not self._data:
                self._data = data
                frame.array(PACKETS, data.reshape(-1))
            frame.array(LENGTHS, np.ascontiguousarray(lengths, np.int64))
            frame.array(IN_PORTS, np.ascontiguousarray(ports, np.int64))
            frame.array(DEPTHS, NOTHING_WAITS if depths is None else depths)
            first, made_all = 0, 0
            while True:
                self._point_to_output(made_all)
                frame.number(FIRST, first)
                frame.number(LAST, count)
                self.run(frame)
                first, made = frame.result(FIRST), frame.result(LAST)
                made_all += made
                if first == count:
                    break
                self._reserve(2 * len(self._out) + self.most_copies, room)
            self.add_counts(frame)
            return Packets(
                self._out[:made_all],
                self._out_lengths[:made_all],
                self._out_ports[:made_all],
                self._out_sources[:made_all],
            )

    def run(self, frame: CallFrame) -> None:
        """Calls the program. The caller holds `lock`; the call frame is up to date.

        Threads may run a shared program at the same time, each with its own frame, while one of them holds `lock` for all.
        """
        self._process(frame.handle)

    def new_frame(self) -> CallFrame:
        """A call frame for this program, without the fixed arguments. It has its own scratch memory and counters."""
        frame = CallFrame(len(FIXED_ARGUMENTS) + len(self.translation.arguments), compiled=self._compiled)
        for name, (count, signed) in self.translation.layout.vectors.items():
            frame.own["vector", name] = np.zeros(count, np.int32 if signed else np.uint32)
        return frame

    def bring_up_to_date(self, frame: CallFrame) -> None:
        """Updates the tables, registers, counters and groups in a call frame. The caller holds `lock`."""
        if frame.version == self.version:
            return
        frame.version = self.version
        for i, (kind, name) in enumerate(self.translation.arguments, len(FIXED_ARGUMENTS)):
            array = self._argument(kind, name) if kind != "vector" else frame.own[kind, name]
            if self.translation.shared and kind in COUNTED:
                known = frame.own.get((kind, name))
                array = frame.own[kind, name] = known if known is not None and len(known) == len(array) else 0 * array
            frame.array(FRAME_WORDS * i, array)
        frame.array(PLACES["group_starts"], self._group_starts)
        frame.array(PLACES["group_ports"], self._group_ports)
        frame.array(PLACES["group_copies"], self._group_copies)
        frame.number(PLACES["most_copies"], self.most_copies)
        frame.number(PLACES["most_added"], self.most_added)

    def add_counts(self, frame: CallFrame) -> None:
        """Adds the counts in a call frame to the counters. The caller holds `lock`, and has changed nothing since `run`."""
        for (kind, name), counted in frame.own.items():
            if kind in COUNTED:
                self._argument(kind, name)[:] += counted
                counted[:] = 0

    @property
    def address(self) -> int:
        """The address of the compiled program, for compiled callers: int64 (*)(int64 address of the frame's words)."""
        return program_cache.address_of(self._process)

    def compile(self) -> None:
        """Compiles the program, or loads it from the cache, before the first packet does."""
        if self._compiled:
            program_cache.address_of(self._process)

    def detach_output(self) -> None:
        """Makes the next call use new buffers, so that the last output stays valid."""
        self._out = np.zeros((0, 0), np.uint8)
        self._pointed_to = -1
        self._out_lengths = self._out_ports = self._out_sources = np.zeros(0, np.int64)

    def process_one(
        self, packet: bytes, port: int, now_us: int, depths: Counts | None = None
    ) -> list[tuple[int, bytes]]:
        """Processes one packet. Returns: (port, packet) of each packet that leaves."""
        data = np.zeros((1, max(ROW_BYTES, len(packet))), np.uint8)
        data[0, : len(packet)] = np.frombuffer(packet, np.uint8)
        out = self.process(data, np.array([len(packet)]), np.array([port]), now_us, depths)
        return [(int(out.ports[i]), out.packet(i)) for i in range(len(out))]

    def _reserve(self, count: int, room: int) -> None:
        """Makes space for `count` output packets, keeping those that are there."""
        if self._out.shape[0] >= count and self._out.shape[1] >= room:
            return
        old = self._out.shape
        count = max(count, old[0])
        grown = np.zeros((count, max(room, old[1])), np.uint8)
        columns = [np.zeros(count, np.int64) for _ in range(3)]
        grown[: old[0], : old[1]] = self._out
        for new, before in zip(columns, (self._out_lengths, self._out_ports, self._out_sources), strict=True):
            new[: old[0]] = before
        self._out = grown
        self._pointed_to = -1
        self._out_starts = np.zeros(count, np.int64)
        self._out_lengths, self._out_ports, self._out_sources = columns

    def _lay_rows(self, count: int, row_bytes: int) -> None:
        """Describes input packets that are in rows."""
        if len(self._starts) < count or (count > 1 and self._starts[1] != row_bytes):
            self._starts = np.arange(max(count, 64)) * row_bytes
            self._no_heads = np.full(len(self._starts), -1)
            self._frame.array(PLACES["starts"], self._starts)
            self._frame.array(PLACES["head_of"], self._no_heads)

    def _point_to_output(self, first: int) -> None:
        """Sets the rows for output packets: those from this one on."""
        frame = self._frame
        if self._pointed_to == first:
            return
        self._pointed_to = first
        frame.array(PLACES["out"], self._out[first:].reshape(-1))
        frame.array(PLACES["out_lengths"], self._out_lengths[first:])
        frame.array(PLACES["out_starts"], self._out_starts)
        frame.array(PLACES["out_ports"], self._out_ports[first:])
        frame.array(PLACES["out_sources"], self._out_sources[first:])
        frame.number(PLACES["row_bytes"], self._out.shape[1])

    def _argument(self, kind: str, name: str) -> AnyIntegers:
        if kind == "table":
            return self.tables[name].rows
        if kind == "index":
            return self.tables[name].index
        if kind == "entries":
            return self.tables[name].counters
        if kind == "register":
            return self.registers[name]
        if kind == "holds":
            return self._holds
        return self.counters[name]

    # --- control plane ------------------------------------------------------------------------------------------------

    def table(self, name: str) -> TableState:
        """A table by its full name, or by its last part if that is unambiguous."""
        return find("table", name, self.tables)

    def commit(self, state: TableState) -> None:
        """Makes changes of a table visible to packets."""
        with self.lock:
            state.rebuild()
            self.version += 1

    def set_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Defines a multicast group. replicas: (port, copy); the program sees the copy as egress_rid."""
        if not 0 < group < 1 << 16:
            raise Refusal(Code.OUT_OF_RANGE, f"multicast group {group}: a group's number is 1 to 65535")
        for port, copy in replicas:
            if not 0 <= port < PORTS - 1 or not 0 <= copy < 1 << 16:
                raise Refusal(
                    Code.INVALID_ARGUMENT, f"multicast group {group}: port {port}, copy {copy} is out of range"
                )
        with self.lock:
            self.groups[group] = tuple(replicas)
            self._group_arrays()

    def delete_group(self, group: int) -> None:
        with self.lock:
            del self.groups[group]
            self._group_arrays()

    def _group_arrays(self) -> None:
        starts = np.zeros(max(self.groups, default=0) + 2, np.int64)
        ports: list[int] = []
        copies: list[int] = []
        for group in range(len(starts) - 1):
            starts[group] = len(ports)
            for port, copy in self.groups.get(group, ()):
                ports.append(port)
                copies.append(copy)
        starts[-1] = len(ports)
        self._group_starts = starts
        self._group_ports = np.array([*ports, 0], np.int64)
        self._group_copies = np.array([*copies, 0], np.int64)
        self.most_copies = max(1, max((len(r) for r in self.groups.values()), default=1))
        self.version += 1

    def register(self, name: str) -> Cells:
        """The cells of a register: a view, so writing it changes the state. Hold `lock` if packets may be processed."""
        place = find("register", name, self.translation.layout.registers)
        array = self.registers[place.array]
        return array if place.column is None else array[:, place.column]

    def counter(self, name: str) -> Words:
        """uint64[size, 2]: packets and bytes of each cell; a view."""
        return find("counter", name, self.counters)

    def reset(self) -> None:
        """Restores the state after loading, as after a power cycle."""
        with self.lock:
            for state in self.tables.values():
                state.clear()
            for array in (*self.registers.values(), *self.counters.values()):
                array[:] = 0
            self.groups.clear()
            self._group_arrays()
