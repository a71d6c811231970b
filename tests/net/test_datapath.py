"""The compiled loop: what it makes of the kernel's messages and of the pipeline's packets, and that it never reads or
writes outside of its buffers, whatever a datagram says.

The sources run twice: as plain Python, with operations that look at every index, and compiled, with guard bytes around
every buffer. `python -m tests.net.test_datapath MILLIONS` does the second for longer.
"""

import ast
import ctypes
import random
import sys
from typing import Any

import numpy as np
import pytest

from sa_atp.basics.arrays import AnyIntegers
from sa_atp.basics.code_cache import executed
from sa_atp.basics.folders import cache_folder
from sa_atp.lab.bench.switch import traffic as switch_traffic
from sa_atp.net.sockets import offload
from sa_atp.net.switch_process.datapath import code, core, state
from sa_atp.net.switch_process.impair import Impairment, OneWayLink
from sa_atp.protocol.packets.frames import HEADERS_BYTES, Endpoint, datagram, headers_for, mac_for, wrap
from sa_atp.protocol.packets.header import HEADER
from sa_atp.protocol.packets.spec import LANE_BUILDS, Flag
from sa_atp.switches import artefacts
from sa_atp.switches.control import jobs
from sa_atp.switches.control.writer import LocalWriter
from sa_atp.switches.embedded.call_frame import PLACES, CallFrame
from sa_atp.switches.embedded.pipeline import ROW_BYTES, Pipeline
from sa_atp.switches.embedded.translate.deparsing import HEAD_AT, HEAD_BYTES, HEAD_ROW
from sa_atp.switches.p4runtime.entities import TableEntry, Update, UpdateKind

from .checked import checked_operations

GUARD = 4096
PATTERN = 0xA5
INTERFACES, UDP_PORTS = (1, 2, 5), (3, 4)
SLOTS = (0, 1, 3, 4)  # of the workers' ports among these
CPU_PORT = 9


class Memory:
    """The loop's memory with guards around each array, a pipeline, and the loop's functions."""

    def __init__(
        self,
        *,
        compiled: bool,
        lanes: int = 64,
        rows: int = 8,
        frames: int = 64,
        packets: int = 256,
        wires: AnyIntegers | None = None,
    ) -> None:
        self.lanes = lanes
        numbers = [*INTERFACES, *UDP_PORTS]
        kinds = [state.INTERFACE] * len(INTERFACES) + [state.UDP] * len(UDP_PORTS)
        mine = mac_for("10.0.0.100").to_bytes(6, "big") + bytes([10, 0, 0, 100]) + (21313).to_bytes(2, "big")
        made = {
            **state.ports(numbers, [-1] * len(numbers), kinds, [64] * len(numbers), [mine] * len(numbers)),
            **state.arriving(rows, frames),
            **state.leaving(packets, 200_000),
            **state.crossing(wires, most=100),
        }
        self._guarded: list[np.ndarray] = []
        self.arrays = {place: self._guard(array) for place, array in made.items()}
        state.point_at_rows(self.arrays)
        self.frame = CallFrame(state.PLACES, compiled=compiled)
        state.fill(self.frame, self.arrays)
        if compiled:
            self.functions = code.compiled(cache_folder())
        else:
            self.functions = executed("plain_datapath", code.sources(), None, checked_operations())
        self.pipeline = Pipeline.from_file(artefacts.program(lanes).json_path, compiled=compiled, cache=cache_folder())
        members, server = switch_traffic.hosts()
        jobs.install(LocalWriter(self.pipeline), switch_traffic.job(members, server))
        self.program_frame = self.pipeline.new_frame()
        core.fill_frame(self.program_frame, self.arrays)
        self.pipeline.bring_up_to_date(self.program_frame)
        self.now = 0

    def _guard(self, array: AnyIntegers) -> AnyIntegers:
        size = -(-array.nbytes // 8) * 8
        whole = np.full(GUARD + size + GUARD, PATTERN, np.uint8)
        self._guarded.append(whole)
        found = whole[GUARD : GUARD + array.nbytes].view(array.dtype).reshape(array.shape)
        found[...] = array
        whole[GUARD + array.nbytes : GUARD + size] = PATTERN
        return found

    def check_guards(self) -> None:
        for whole, array in zip(self._guarded, self.arrays.values(), strict=True):
            assert (whole[:GUARD] == PATTERN).all()
            assert (whole[GUARD + array.nbytes :] == PATTERN).all()

    def put(
        self, row: int, slot: int, message: bytes, *, told: int = 0, sender: bytes = bytes(16), flags: int = 0
    ) -> None:
        """Writes a message like the kernel. Args: told: size of coalesced datagrams; 0: none is reported."""
        at = row * state.ROW_BYTES + state.ROW_AT
        self.arrays[state.IN_ROWS][at : at + len(message)] = np.frombuffer(message, np.uint8)
        words = self.arrays[state.IN_MESSAGES].reshape(-1, state.MESSAGE_WORDS)[row]
        words[state.SENT], words[state.FLAGS], words[state.CONTROL_LENGTH] = len(message), flags, 24 if told else 0
        self.arrays[state.IN_SLOTS][row] = slot
        control = self.arrays[state.IN_CONTROLS].reshape(-1, state.CONTROL_ROW)[row]
        control[:24].view(np.int32)[:] = [20, 0, 17, 104, told, 0]
        self.arrays[state.IN_NAMES].reshape(-1, 16)[row] = np.frombuffer(sender, np.uint8)

    def put_frame(self, row: int, slot: int, frame: bytes, rank: int) -> None:
        """Writes a frame of a worker as it comes to its port: an interface's, or the datagram in it."""
        if slot < len(INTERFACES):
            self.put(row, slot, bytes(10) + frame)
        else:
            self.put(row, slot, frame[HEAD_BYTES:], sender=sender_of(f"10.0.0.{rank + 1}", 5000 + rank))

    def frames(self, rows: int, most_bytes: int = ROW_BYTES) -> list[tuple[int, bytes]]:
        """Port and bytes of each frame in rows, with its head written like by the pipeline."""
        found: list[tuple[int, bytes]] = []
        row, done = 0, 0
        while row < rows:
            row, done, count = self.call("find_frames", row, rows, done, 0, most_bytes)
            found += self.listed(count, most_bytes)
        return found

    def listed(self, count: int, most_bytes: int = ROW_BYTES) -> list[tuple[int, bytes]]:
        """Port and bytes of each of the listed frames."""
        found = []
        data, heads = self.arrays[state.IN_ROWS], self.arrays[state.IN_HEADS]
        for i in range(count):
            start, length = self.arrays[state.IN_STARTS][i], self.arrays[state.IN_LENGTHS][i]
            head = self.arrays[state.IN_HEAD_OF][i]
            assert start >= 0
            assert 0 < length <= most_bytes
            assert start + length <= len(data)
            frame = data[start : start + length].copy()
            if head >= 0:
                frame[:HEAD_BYTES] = heads[head : head + HEAD_BYTES]
            found.append((int(self.arrays[state.IN_PORTS][i]), frame.tobytes()))
        return found

    def leave(self, number: int, frame: bytes) -> None:
        """Writes a frame as a program's output, for a port."""
        data = np.frombuffer(frame, np.uint8)
        self.arrays[state.OUT_HEADS][HEAD_AT : HEAD_AT + HEAD_BYTES] = data[:HEAD_BYTES]
        self.arrays[state.OUT_BYTES][: len(data) - HEAD_BYTES] = data[HEAD_BYTES:]
        for place, value in ((state.OUT_STARTS, 0), (state.OUT_LENGTHS, len(data)), (state.OUT_PORTS, number)):
            self.arrays[place][0] = value

    def output(self, count: int) -> list[tuple[int, bytes]]:
        """Port and bytes of each packet of the output."""
        found = []
        for k in range(count):
            start, length = self.arrays[state.OUT_STARTS][k], self.arrays[state.OUT_LENGTHS][k]
            head = self.arrays[state.OUT_HEADS][k * HEAD_ROW + HEAD_AT :][:HEAD_BYTES].tobytes()
            body = self.arrays[state.OUT_BYTES][start : start + length - HEAD_BYTES].tobytes()
            found.append((int(self.arrays[state.OUT_PORTS][k]), head + body))
        return found

    def call(self, name: str, *arguments: int) -> Any:
        return self.functions[name](self.frame.handle, *arguments)

    def run(self, rows: int, joins: bool = True) -> dict[int, list[list[bytes]]]:
        """Passes rows through the pipeline. Returns: for each port the messages that leave, each as its parts."""
        row, done = 0, 0
        sent: dict[int, list[list[bytes]]] = {}
        self.arrays[state.PORT_JOINS][:] = 64 if joins else 0
        while row < rows:
            row, done, count = self.call("find_frames", row, rows, done, 0, ROW_BYTES)
            first = 0
            while first < count:
                self.now += 1
                self.program_frame.number(PLACES["first"], first)
                self.program_frame.number(PLACES["last"], count)
                self.program_frame.number(PLACES["now"], self.now)
                self.pipeline.run(self.program_frame)
                first = self.program_frame.result(PLACES["first"])
                self._leave(self.program_frame.result(PLACES["last"]), sent)
        return sent

    def _leave(self, made: int, sent: dict[int, list[list[bytes]]]) -> None:
        flows = self.call("sort_out", made, CPU_PORT, self.now)
        assert 0 <= flows <= made
        assert not self.arrays[state.FLOW_TABLE].any()
        first_flow = self.arrays[state.PORT_FIRST_FLOW]
        for slot in np.flatnonzero(first_flow >= 0).tolist():
            flow = int(first_flow[slot])
            k = int(self.arrays[state.FLOW_FIRSTS][flow])
            while flow >= 0:
                messages, flow, k = self.call("make_messages", slot, flow, k)
                number = int(self.arrays[state.PORT_NUMBERS][slot])
                sent.setdefault(number, []).extend(self._parts(i) for i in range(messages))
            first_flow[slot] = -1

    def _parts(self, message: int) -> list[bytes]:
        """The messages to the kernel, whose parts must be within the loop's memory."""
        words = self.arrays[state.OUT_MESSAGES].reshape(-1, state.MESSAGE_WORDS)[message]
        index = (int(words[state.IOV]) - self.arrays[state.OUT_PARTS].ctypes.data) // 16
        assert index >= 0
        assert index + words[state.IOV_COUNT] <= state.PARTS
        parts = self.arrays[state.OUT_PARTS].reshape(-1, 2)[index : index + int(words[state.IOV_COUNT])]
        return [self._bytes_at(int(base), int(size)) for base, size in parts]

    def _bytes_at(self, base: int, size: int) -> bytes:
        for place in (state.OUT_BYTES, state.OUT_HEADS):
            array = self.arrays[place]
            at = base - array.ctypes.data
            if at >= 0 and size >= 0 and at + size <= len(array):
                return array[at : at + size].tobytes()
        raise AssertionError("a part of a message lies outside of the buffers")


@pytest.fixture(scope="module")
def plain() -> Memory:
    return Memory(compiled=False)


@pytest.fixture(scope="module")
def compiled() -> Memory:
    return Memory(compiled=True)


@pytest.fixture(params=["plain", "compiled"])
def memory(request: pytest.FixtureRequest) -> Memory:
    found: Memory = request.getfixturevalue(request.param)
    return found


def impaired(impairment: Impairment) -> list[OneWayLink]:
    """A line of each direction of each port: the same in the loop and beside it."""
    return [OneWayLink(impairment, random.Random(seed)) for seed in range(2 * (len(INTERFACES) + len(UDP_PORTS)))]


def sender_of(ip: str, port: int) -> bytes:
    return b"\x02\0" + port.to_bytes(2, "big") + bytes(map(int, ip.split("."))) + bytes(8)


def payloads(count: int, size: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8)


def test_a_name_means_one_thing_in_all_sources() -> None:
    """They are executed in one namespace, so a later source's name would replace an earlier one's."""
    meanings: dict[str, set[str]] = {}
    for file, text in code.sources():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ImportFrom):
                for each in node.names:
                    meanings.setdefault(each.asname or each.name, set()).add(f"{node.module}.{each.name}")
            elif isinstance(node, ast.FunctionDef):
                meanings.setdefault(node.name, set()).add(file)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name):
                            meanings.setdefault(name.id, set()).add(f"{file}: {ast.unparse(node.value)}")
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}


# --- in -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sizes", "told"), [((100,) * 9, 100), ((276,) * 5 + (3,), 276), ((7,), 0), ((1,) * 130, 1)])
def test_datagrams_become_frames_where_they_lie(memory: Memory, sizes: tuple[int, ...], told: int) -> None:
    data = [payloads(1, size, i).tobytes() for i, size in enumerate(sizes)]
    memory.put(0, 3, b"".join(data), told=told, sender=sender_of("10.0.0.7", 5000))
    source = Endpoint(mac_for("10.0.0.7"), ("10.0.0.7", 5000))
    target = Endpoint(mac_for("10.0.0.100"), ("10.0.0.100", 21313))
    expected = [(3, headers_for(source, target, len(each)).tobytes() + each) for each in data]
    assert memory.frames(1) == expected
    memory.check_guards()


@pytest.mark.parametrize("last", [0, 60])
def test_super_packets_are_cut_as_offload_cuts_them(memory: Memory, last: int) -> None:
    """`offload` does the same with arrays."""
    source, target = (Endpoint(mac_for(ip), (ip, 5000)) for ip in ("10.0.0.1", "10.0.0.100"))
    frames = wrap(payloads(9, 100), source, target)
    lengths = np.full(9, HEADERS_BYTES + 100)
    made = offload.gather(frames, lengths, join=True)
    whole = b"".join(ctypes.string_at(int(b), int(n)) for b, n in zip(made.bases, made.sizes, strict=True))
    message = whole[: len(whole) - last]
    rows = np.zeros((1, len(message)), np.uint8)
    rows[0] = np.frombuffer(message, np.uint8)
    counts = offload.frames_in(rows, np.array([len(message)]), ROW_BYTES)
    out = np.zeros((int(counts.sum()), ROW_BYTES), np.uint8)
    sizes = offload.cut(rows, np.array([len(message)]), counts, out)
    memory.put(0, 1, message)
    assert memory.frames(1) == [(2, out[i, :n].tobytes()) for i, n in enumerate(sizes.tolist())]
    memory.check_guards()


@pytest.mark.parametrize("payload", [b"", b"x", b"an odd number", b"an even number"])
def test_checksums_that_hosts_left_out_are_completed(memory: Memory, payload: bytes) -> None:
    frame = bytes(34) + b"\x12\x34\0\0\0\x11" + payload
    header = (
        bytes([1, 0]) + (42).to_bytes(2, "little") + bytes(2) + (34).to_bytes(2, "little") + (4).to_bytes(2, "little")
    )
    rows = np.frombuffer(header + frame, np.uint8).reshape(1, -1).copy()
    out = np.zeros((1, ROW_BYTES), np.uint8)
    length = np.array([rows.shape[1]])
    offload.cut(rows, length, np.array([1]), out)
    memory.put(0, 0, header + frame)
    assert memory.frames(1) == [(1, out[0, : len(frame)].tobytes())]


def test_invalid_super_packets_are_counted_and_dropped(memory: Memory) -> None:
    memory.arrays[state.PORT_COUNTERS][:] = 0
    head = headers_for(Endpoint(1, ("10.0.0.1", 1)), Endpoint(2, ("10.0.0.2", 2)), 100).tobytes()
    memory.put(0, 0, b"short")
    memory.put(1, 0, bytes([0, 1]) + bytes(8) + head + bytes(100))  # TCP segments
    memory.put(2, 0, bytes([0, 5, 0, 0, 0, 0, 0, 0, 0, 0]) + head + bytes(100))  # no size
    memory.put(3, 0, bytes(10) + bytes(ROW_BYTES + 1))
    memory.put(4, 0, bytes(10) + head, flags=0x20)
    memory.put(5, 3, bytes(3 * ROW_BYTES), told=ROW_BYTES)
    assert memory.frames(6) == []
    assert memory.arrays[state.PORT_COUNTERS][:, state.OVERSIZED].tolist() == [5, 0, 0, 3, 0]


# --- impaired links -----------------------------------------------------------------------------------------------------

BAD = Impairment(delay_us=300, jitter_us=200, loss=0.1, duplicate=0.2, reorder=0.2)


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("impairment", [Impairment(delay_us=500), BAD], ids=["delay", "all"])
def test_frames_cross_impaired_links_as_they_cross_a_link_of_python(impairment: Impairment, compiled: bool) -> None:
    """The same seed loses, doubles and delays the same frames: of an interface, of a UDP port, and of a program."""
    beside = impaired(impairment)
    memory = Memory(compiled=compiled, wires=np.array([each.wire for each in beside]))
    arrays = memory.arrays
    arrived: list[tuple[int, int, bytes]] = []
    left: list[tuple[int, int, bytes]] = []
    expected = [[], []]  # type: list[list[tuple[int, int, bytes]]]
    for turn in range(90):
        now = 100 * turn
        for into, first in ((expected[0], 0), (expected[1], 1)):
            for slot in range(len(beside) // 2):
                for when, frame in taken(beside[2 * slot + first], now):
                    into.append((when, int(arrays[state.PORT_NUMBERS][slot]), frame))
        incoming, outgoing = memory.call("list_crossed", now)
        arrived += [(now, *each) for each in memory.listed(incoming)]
        left += [(now, *each) for each in memory.output(outgoing)]
        if turn >= 40:
            continue
        sent = [payloads(1, 60 + turn, 1000 * turn + i).tobytes() for i in range(4)]
        memory.put(0, 0, bytes(10) + sent[0])
        memory.put(1, 3, sent[1] + sent[2], told=len(sent[1]), sender=sender_of("10.0.0.7", 5000))
        _, _, count = memory.call("find_frames", 0, 2, 0, 0, ROW_BYTES)
        for number, frame in memory.listed(count):
            put_one(beside[2 * int(arrays[state.PORT_SLOTS][number])], frame, now)
        assert memory.call("hold_arriving", count, now) == 0
        memory.leave(1, sent[3])
        put_one(beside[2 * int(arrays[state.PORT_SLOTS][1]) + 1], sent[3], now)
        assert memory.call("sort_out", 1, CPU_PORT, now) == 0
    assert sorted(arrived) == sorted(expected[0])
    assert sorted(left) == sorted(expected[1])
    counts = arrays[state.WIRES].sum(axis=0)[[state.WIRE_LOST, state.WIRE_DUPLICATED, state.WIRE_REORDERED]]
    assert (counts > 0).all() == (impairment is BAD)
    assert arrays[state.TOTALS][state.HELD_COUNT] == 0
    assert arrays[state.WIRES][:, state.WIRE_FULL].sum() == 0
    memory.check_guards()


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_a_link_that_is_full_loses_frames_and_counts_them(compiled: bool) -> None:
    memory = Memory(compiled=compiled, wires=np.array([each.wire for each in impaired(Impairment(delay_us=10))]))
    frames = [payloads(1, 60, i).tobytes() for i in range(120)]
    for frame in frames:
        memory.leave(1, frame)
        memory.call("sort_out", 1, CPU_PORT, 0)
    assert memory.call("list_crossed", 9) == (0, 0)
    crossed = []
    for room in (64, 36):  # of the list of frames that arrive
        assert memory.call("list_crossed", 10) == (0, room)
        crossed += memory.output(room)
    assert crossed == [(1, frame) for frame in frames[:100]]
    assert memory.arrays[state.WIRES][1, [state.WIRE_CARRIED, state.WIRE_FULL]].tolist() == [120, 20]
    memory.check_guards()


def put_one(link: OneWayLink, frame: bytes, now: int) -> None:
    link.put(np.frombuffer(frame, np.uint8)[None], np.array([len(frame)]), now)


def taken(link: OneWayLink, now: int) -> list[tuple[int, bytes]]:
    found = link.take(now)
    rows, lengths = found if found is not None else (np.zeros((0, 0), np.uint8), np.zeros(0, np.int64))
    return [(now, row[:length].tobytes()) for row, length in zip(rows, lengths.tolist(), strict=True)]


# --- through the pipeline -----------------------------------------------------------------------------------------------


def contributions(rank: int, fragments: range, lanes: int = 64) -> list[bytes]:
    """Frames of a worker."""
    members, server = switch_traffic.hosts()
    made = switch_traffic.Contributions(members[rank], server, (lanes, 64), len(fragments))
    return [frame.tobytes() for frame in made.frames(np.array(fragments))]


def test_sums_leave_once_for_all_receivers(memory: Memory) -> None:
    """Four workers at interfaces and UDP ports: results have one body, and each receiver gets one message."""
    fragments = range(100, 116)
    for rank in range(4):
        frames = contributions(rank, fragments)
        slot = SLOTS[rank]
        if slot < 3:
            payload = b"".join(frame[HEAD_BYTES:] for frame in frames)
            size = len(frames[0]) - HEAD_BYTES
            vnet = bytes([1, 5]) + (42).to_bytes(2, "little") + size.to_bytes(2, "little") + bytes([34, 0, 6, 0])
            memory.put(rank, slot, vnet + frames[0][:HEAD_BYTES] + payload)
        else:
            payload = b"".join(frame[HEAD_BYTES:] for frame in frames)
            found = datagram(frames[0])
            assert found is not None
            memory.put(rank, slot, payload, told=len(frames[0]) - HEAD_BYTES, sender=sender_of(*found[0]))
    memory.arrays[state.TOTALS][:] = 0
    sent = memory.run(4)
    assert {port: len(messages) for port, messages in sent.items()} == dict.fromkeys((1, 2, 3, 4, 5), 1)
    bodies = {port: b"".join(messages[0][1:] if port in INTERFACES else messages[0]) for port, messages in sent.items()}
    assert len(set(bodies.values())) == 1
    results = np.frombuffer(bodies[3], np.uint8).reshape(16, -1)
    seqs = results[:, : HEADER.itemsize].copy().view(HEADER)["seq"][:, 0]
    assert seqs.tolist() == list(fragments)
    lanes = results[:, HEADER.itemsize :].copy().view(">i4")
    assert (lanes == 10 * (np.arange(64) + 1)).all()
    head = np.frombuffer(sent[1][0][0], np.uint8)
    assert len(head) == 10 + HEAD_BYTES
    memory.check_guards()
    # cut again, the super-packet is the frames that plain Python would have sent one by one
    rows = np.frombuffer(sent[1][0][0] + bodies[1], np.uint8).reshape(1, -1)
    assert offload.frames_in(rows, np.array([rows.shape[1]]), ROW_BYTES).tolist() == [16]


def test_a_copy_that_is_marked_has_a_body_of_its_own(memory: Memory) -> None:
    """The queue of one port is long, so packets that leave there are marked, and no others."""
    above = TableEntry(table="threshold", action="above", params={"packets": 40}, is_default=True)
    LocalWriter(memory.pipeline).write([Update(UpdateKind.MODIFY, above)])
    memory.pipeline.bring_up_to_date(memory.program_frame)
    memory.arrays[state.DEPTHS][2] = 50
    for rank, slot in enumerate(SLOTS):
        frame = contributions(rank, range(400, 401))[0]
        memory.put_frame(rank, slot, frame, rank)
    sent = memory.run(len(SLOTS))
    memory.arrays[state.DEPTHS][2] = 0
    bodies = {port: messages[0][-1] for port, messages in sent.items()}
    marked = bodies.pop(2)
    assert len(set(bodies.values())) == 1
    body = bodies[1]
    assert marked[1] == body[1] | Flag.CONGESTION
    assert marked[0] == body[0]
    assert marked[2:] == body[2:]
    assert sent[2][0][0][10 + 15] & 3 == 3  # congestion experienced, in the IP header
    assert sent[1][0][0][10 + 15] & 3 == 2


def test_where_nothing_is_joined_each_packet_is_a_message(memory: Memory) -> None:
    for rank, slot in enumerate(SLOTS):
        for i, frame in enumerate(contributions(rank, range(300, 302))):
            memory.put_frame(2 * rank + i, slot, frame, rank)
    sent = memory.run(8, joins=False)
    assert {port: len(messages) for port, messages in sent.items()} == dict.fromkeys((1, 2, 3, 4, 5), 2)
    assert all(part[:10] == bytes(10) for message in sent[1] for part in message[:1])


# --- whatever arrives ---------------------------------------------------------------------------------------------------


def fuzz(memory: Memory, rng: np.random.Generator, turns: int) -> int:
    """Random wrong messages. Returns: how many datagrams or frames were found."""
    count = 0
    rows = len(memory.arrays[state.IN_SLOTS])
    seeds = [
        np.frombuffer(frame, np.uint8) for rank in range(4) for frame in contributions(rank, range(8), memory.lanes)
    ]
    for _ in range(turns):
        for row in range(rows):
            count += _put_anything(memory, row, rng, seeds)
        memory.run(rows, joins=bool(rng.integers(2)))
        memory.arrays[state.TOTALS][state.PUNTED_END] = 0
        memory.check_guards()
    return count


def _put_anything(memory: Memory, row: int, rng: np.random.Generator, seeds: list[np.ndarray]) -> int:
    slot = int(rng.integers(5))
    seed = seeds[rng.integers(len(seeds))].copy()
    for _ in range(rng.integers(4)):
        seed[rng.integers(len(seed))] = rng.integers(256)
    repeats = int(rng.integers(1, 70 if rng.random() < 0.3 else 4))
    repeats = min(repeats, (state.ROW_BYTES - 200) // len(seed))
    size = int(rng.integers(0, len(seed) + 1)) if rng.random() < 0.3 else len(seed)
    if slot >= 3:
        message = np.tile(seed[HEAD_BYTES:size], repeats).tobytes()[: state.ROW_BYTES - 200]
        told = (0, 1, 5, max(size - HEAD_BYTES, 0), int(rng.integers(0, 65536)))[rng.integers(5)]
        memory.put(row, slot, message, told=told, sender=rng.integers(0, 256, 16, np.uint8).tobytes())
        return repeats
    vnet = rng.integers(0, 256, 10, np.uint8) if rng.random() < 0.2 else np.zeros(10, np.uint8)
    vnet[:2] = rng.integers(2), (0, 0, 5, 5, 1)[rng.integers(5)]
    sizes = (len(seed) - HEAD_BYTES, rng.integers(0, 65536), rng.integers(1, 40))
    numbers = vnet.view("<u2")
    numbers[2] = sizes[rng.integers(3)]
    numbers[3] = 34 if rng.random() < 0.5 else rng.integers(0, 65536)
    numbers[4] = 6 if rng.random() < 0.5 else rng.integers(0, 65536)
    body = np.concatenate([seed[:HEAD_BYTES], np.tile(seed[HEAD_BYTES:], repeats)]) if vnet[1] else seed[:size]
    flags = 0x20 if rng.random() < 0.05 else 0
    message = np.concatenate([vnet, body]).tobytes()
    memory.put(row, slot, message[: int(rng.integers(0, 60)) if rng.random() < 0.05 else None], flags=flags)
    return repeats


def test_nothing_leads_out_of_the_buffers_in_plain_python(plain: Memory) -> None:
    assert fuzz(plain, np.random.default_rng(1), 4) > 30


def test_nothing_leads_out_of_the_buffers_compiled(compiled: Memory) -> None:
    assert fuzz(compiled, np.random.default_rng(2), 300) > 10_000


def test_nothing_leads_out_of_the_buffers_with_the_largest_packets() -> None:
    """The same with packets of which a few fill a message."""
    memory = Memory(compiled=True, lanes=max(LANE_BUILDS))
    assert fuzz(memory, np.random.default_rng(3), 150) > 1_000


def main(millions: float) -> None:
    memory = Memory(compiled=True)
    count = seed = 0
    while count < millions * 1e6:
        seed += 1
        count += fuzz(memory, np.random.default_rng(seed), 200)
        print(f"{count} datagrams and frames, seed {seed}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
