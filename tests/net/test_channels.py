"""Channels: memory that a switch shares with processes on its machine. The same datagrams come through as through sockets,
whoever else writes rubbish, stands still or ends.

`python -m tests.net.test_channels MILLIONS` scribbles for longer.
"""

import contextlib
import errno
import mmap
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sa_atp.basics.code_cache import executed
from sa_atp.lab.bench.switch import traffic as switch_traffic
from sa_atp.net.loop.compiled import ring_kernels, socket_kernels
from sa_atp.net.shared_memory import handshake, layout
from sa_atp.net.shared_memory.channel import Channel
from sa_atp.net.shared_memory.layout import (
    AT_ONCE_BYTES,
    CHANNEL_BYTES,
    DOWN_BYTES,
    DOWN_DATA,
    FIELD,
    GAP,
    RECORDS,
    RESULT_BYTES,
    UP_BYTES,
    UP_DATA,
)
from sa_atp.net.shared_memory.open_channel import VARIABLE, open_channel
from sa_atp.net.shared_memory.region import Region, shared_memory
from sa_atp.net.shared_memory.ring_kernels import WRITTEN
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.net.switch_process.datapath import code, core, state
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.frames import HEADERS_BYTES
from sa_atp.switches.embedded.call_frame import PLACES, CallFrame
from sa_atp.switches.embedded.translate.deparsing import HEAD_BYTES

from .checked import checked_operations
from .test_switch_loop import LOOPBACK, WAIT_S, Switch, running, wait_until

WORKERS = switch_traffic.WORKERS
ROWS, SLOT = 8, 0
MOST_ROUNDS = 10_000


def share(switch: Switch, rank: int) -> Channel:
    """Gives a worker's socket a channel."""
    each = switch.sockets[rank]
    each.use_kernels(socket_kernels())
    channel = open_channel(switch.port.address, each.address)
    assert channel is not None
    each.channel = channel
    return channel


def sums(switch: Switch, first: int, count: int = 40) -> list[list[bytes]]:
    """Lets all workers contribute to fragments. Returns: what each gets, and the parameter server."""
    for rank in range(WORKERS):
        switch.contribute(rank, range(first, first + count))
    return [sorted(switch.received(rank, count)) for rank in range(WORKERS + 1)]


# --- the same datagrams -------------------------------------------------------------------------------------------------


def test_through_channels_come_the_same_datagrams_as_through_sockets() -> None:
    seen = []
    for sharing in ((), range(WORKERS + 1), (0, 2, WORKERS)):  # nobody, all, some
        with running(compiled=True, shares=True) as switch:
            switch.install()
            for rank in sharing:
                share(switch, rank)
            seen.append([sums(switch, first) for first in range(0, 400, 40)])
            assert switch.loop.packet_counts() == (400 * WORKERS, 400 * (WORKERS + 1), 0)
            if len(sharing) == WORKERS + 1:
                for each in switch.sockets:  # nothing came through the kernel
                    assert not select.select([each.socket], [], [], 0)[0]
    assert seen[0] == seen[1] == seen[2]


def test_a_rank_can_only_read_results() -> None:
    with running(compiled=True, shares=True) as switch:
        found = handshake.ask(switch.port.address, handshake.Hello((LOOPBACK, 5000)))
        assert found is not None
        peer, descriptors = found
        with peer, contextlib.ExitStack() as opened:
            for each in descriptors:
                opened.callback(os.close, each)
            results = descriptors[1]
            with pytest.raises(PermissionError):
                mmap.mmap(results, RESULT_BYTES)
            with pytest.raises(PermissionError):
                os.pwrite(results, b"x", 0)
            with pytest.raises(PermissionError):
                os.ftruncate(results, 0)
            again = os.open(f"/proc/self/fd/{results}", os.O_RDWR)
            opened.callback(os.close, again)
            with pytest.raises(PermissionError):
                mmap.mmap(again, RESULT_BYTES)


def test_a_ring_that_is_full_loses_packets_of_its_own_reader_only() -> None:
    with running(compiled=True, shares=True) as switch:
        switch.install()
        silent, _ = share(switch, 0), share(switch, 1)
        size = len(sums(switch, 0)[0][0])
        rounds = DOWN_BYTES // (40 * size) + 20  # rank 0 takes nothing of these
        seen: list[bytes] = []
        for n in range(1, rounds):
            for rank in range(WORKERS):
                switch.contribute(rank, range(40 * n, 40 * n + 40))
            seen += switch.received(1, 40)
            assert len(seen) == 40 * n
        lost = switch.loop.drops()
        assert len(lost) == 1
        assert lost[0].count > 0
        late = switch.received(0, 1)
        while more := switch.sockets[0].receive():
            late += [row.tobytes() for burst in more for row in burst.data]
        assert late == seen[: len(late)]  # nobody has written over what it had not taken
        assert len(sums(switch, 40 * rounds)[0]) == 40  # there is room again
        assert not silent.is_broken


@given(
    st.lists(st.tuples(st.integers(1, 9000), st.integers(1, 40)), min_size=1, max_size=30),
    st.integers(0, UP_BYTES - 1),
)
@settings(max_examples=60, deadline=None)
def test_what_a_rank_writes_is_what_the_layout_says(bursts: list[tuple[int, int]], begun: int) -> None:
    """Records of all sizes, from any place of the ring on, as a reader sees them that knows layout.py alone."""
    with end_of_a_channel() as (channel, seen):
        channel.ring.mine[WRITTEN] = begun // 64 * 64
        check_what_is_written(channel, seen, bursts, np.random.default_rng(begun))


def check_what_is_written(
    channel: Channel, seen: np.ndarray, bursts: list[tuple[int, int]], rng: np.random.Generator
) -> None:
    numbers = seen[:UP_DATA].view(np.int64)
    wanted: list[bytes] = []
    got: list[bytes] = []
    for size, count in bursts:
        data = rng.integers(0, 256, (count, size), np.uint8)
        done = 0
        while done < count:
            written = channel.send(data, done)
            wanted += [row.tobytes() for row in data[done:written]]
            if written == done or rng.random() < 0.3:  # a reader that takes some of it
                tail, head = int(numbers[layout.UP_TAIL // 8]), int(numbers[layout.UP_HEAD // 8])
                for n in range(tail, head if written == done else int(rng.integers(tail, head + 1))):
                    word = int(numbers[layout.UP_RECORDS // 8 + n % RECORDS])
                    whole, each, start = word & FIELD, word >> 20 & FIELD, 4 * (word >> 40)
                    assert start >= GAP
                    assert start + whole <= UP_BYTES
                    record = seen[UP_DATA + start : UP_DATA + start + whole].tobytes()
                    got += [record[at : at + each] for at in range(0, whole, each)]
                    numbers[layout.UP_TAIL // 8] = n + 1
            done = written
    waiting = wanted[len(got) :]
    assert got == wanted[: len(got)]
    assert channel.held_bytes() >= sum(map(len, waiting))


# --- rubbish ------------------------------------------------------------------------------------------------------------


class Plain:
    """The switch's end of two channels as plain Python, with operations that check every index."""

    def __init__(self, result_bytes: int = 0, room: int = 0) -> None:
        """Args: result_bytes: of the memory that ranks share; room: in it, for what leaves at once."""
        numbers = state.ports([3], [-1], [state.UDP], [64], [bytes(16)])
        arriving = state.arriving(ROWS, 64, channels=2, results=np.zeros(result_bytes, np.uint8))
        made = {**numbers, **arriving, **state.leaving(256, 400_000)}
        made[state.TOTALS][state.OUT_ROOM] = room
        self.program = CallFrame(len(PLACES), compiled=False)
        self.arrays = made
        self.frame = CallFrame(state.PLACES, compiled=False)
        state.fill(self.frame, made)
        for c in range(2):
            made[state.CHANNELS][c, [state.CHANNEL_SLOT, state.CHANNEL_KEY]] = SLOT, c
        self.functions = executed("plain_channels", code.sources(), None, checked_operations())

    def memory(self, c: int) -> np.ndarray:
        at = int(self.arrays[state.CHANNELS][c, state.CHANNEL_AT])
        return self.arrays[state.IN_ROWS][at : at + CHANNEL_BYTES]

    def call(self, name: str, *arguments: int) -> int:
        return int(self.functions[name](self.frame.handle, *arguments))

    def leave(self, sizes: Sequence[int], rng: np.random.Generator, share: float = 1.0) -> list[bytes]:
        """Has the program write packets, a share of which goes to both ranks. Returns: the payloads of these."""
        made, handle = self.arrays, self.frame.handle
        self.functions["choose_output"](handle, self.program.handle)
        out = handle[state.OUT_BYTES]
        assert np.shares_memory(out, self.program.handle[state.PROGRAM_OUT])
        payloads, at = [rng.bytes(size) for size in sizes], HEAD_BYTES
        for k, payload in enumerate(payloads):
            out[at : at + len(payload)] = np.frombuffer(payload, np.uint8)
            made[state.OUT_STARTS][k], made[state.OUT_LENGTHS][k] = at, HEAD_BYTES + len(payload)
            at += len(payload)
        chosen = np.flatnonzero(rng.random(len(sizes)) < share).tolist()
        made[state.NEXT_PACKET][chosen] = [*chosen[1:], -1][: len(chosen)]
        for c in range(2):
            if chosen and made[state.CHANNELS][c, state.CHANNEL_BROKEN] == 0:
                self.functions["send_shared"](handle, c, SLOT, chosen[0], len(sizes))
        self.functions["keep_output"](handle, len(sizes))
        return [payloads[k] for k in chosen]

    def read(self, c: int, most: int) -> list[bytes]:
        """A rank that takes records, as layout.py says."""
        memory, found = self.memory(c), []
        numbers = memory[:UP_DATA].view(np.int64)
        data = np.concatenate((memory[DOWN_DATA : DOWN_DATA + DOWN_BYTES], self.arrays[state.RESULTS]))
        tail = int(numbers[layout.DOWN_TAIL // 8])
        for n in range(tail, min(tail + most, int(numbers[layout.DOWN_HEAD // 8]))):
            word = int(numbers[layout.DOWN_RECORDS // 8 + n % RECORDS])
            whole, each, start = word & FIELD, word >> 20 & FIELD, 4 * (word >> 40)
            record = data[start : start + whole].tobytes()
            found += [record[at : at + each] for at in range(0, whole, each)]
            numbers[layout.DOWN_TAIL // 8] = n + 1
        return found


@given(
    st.lists(
        st.tuples(
            st.lists(st.one_of(st.sampled_from((276, 20)), st.integers(1, 300)), min_size=1, max_size=6),
            st.integers(0, 12),
            st.integers(-2, 12),
        ),
        max_size=40,
    ),
    st.integers(0, 1 << 20),
)
@example(  # a record of results waits, and the data, of which none is held, begin anew
    turns=[([276], 1, 0), ([1, 20], 0, 0), ([276], 2, 0), ([276, 276], 0, 0), ([276, 276, 276, 1, 276], 0, 0)], seed=0
)
@settings(max_examples=60, deadline=None)
def test_results_are_written_once_and_stay_until_all_have_taken_them(
    turns: list[tuple[list[int], int, int]], seed: int
) -> None:
    """One rank takes records when it likes, another one says anything about what it has taken, or nothing for long."""
    plain, rng = Plain(result_bytes=8192, room=2048), np.random.default_rng(seed)
    wanted: list[bytes] = []
    got: list[bytes] = []
    others = plain.memory(0)[:UP_DATA].view(np.int64)
    for sizes, taken, others_taken in turns:
        wanted += plain.leave(sizes, rng, share=0.7)
        got += plain.read(1, taken)
        others[layout.DOWN_TAIL // 8] += others_taken
    got += plain.read(1, RECORDS)
    assert got == wanted


def test_results_are_copied_only_where_a_rank_does_not_take_them() -> None:
    plain, rng = Plain(result_bytes=8192, room=2048), np.random.default_rng(1)
    copies = [plain.memory(c)[DOWN_DATA:] for c in range(2)]
    for _ in range(100):
        wanted = plain.leave([276, 276, 20], rng)
        assert plain.read(0, RECORDS) == plain.read(1, RECORDS) == wanted
    assert not any(each.any() for each in copies)
    waiting = []
    for _ in range(100):
        waiting += plain.leave([276, 276, 20], rng)
        plain.read(1, RECORDS)
    assert all(each.any() for each in copies)
    assert plain.read(0, RECORDS) == waiting
    for each in copies:
        each[:] = 0
    wanted = plain.leave([276, 276, 20], rng)
    assert plain.read(0, RECORDS) == plain.read(1, RECORDS) == wanted
    assert not any(each.any() for each in copies)


NUMBERS = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-2, RECORDS + 2),
    st.builds(
        lambda whole, each, start: whole | each << 20 | start << 40,
        st.integers(0, FIELD),
        st.sampled_from((0, 1, 42, 276, FIELD)),
        st.one_of(st.integers(0, UP_BYTES // 4 + 2), st.integers(0, (1 << 23) - 1)),
    ),
)


@given(st.lists(st.tuples(st.sampled_from(("head", "record", "tail")), NUMBERS, st.integers(1, 12)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_no_number_of_a_rank_makes_the_switch_read_or_write_elsewhere(changes: list[tuple[str, int, int]]) -> None:
    """The other channel's memory stays as it was, and every index is within its array, which the operations check."""
    plain = Plain()
    other = plain.memory(1)
    numbers = plain.memory(0)[:UP_DATA].view(np.int64)
    made = plain.arrays
    for what, number, n in changes:
        if what == "head":
            numbers[layout.UP_HEAD // 8] = number
        elif what == "tail":
            numbers[layout.DOWN_TAIL // 8] = number
        else:
            numbers[layout.UP_RECORDS // 8 : layout.UP_RECORDS // 8 + RECORDS] = number
        taken = plain.call("take_shared", n, ROWS)
        assert 0 <= taken <= ROWS
        row = done = 0
        while row < taken:
            row, done, count = plain.functions["find_frames"](plain.frame.handle, row, taken, done, 0, 9216)
            starts, lengths = made[state.IN_STARTS][:count], made[state.IN_LENGTHS][:count]
            at = int(made[state.CHANNELS][0, state.CHANNEL_AT]) + UP_DATA
            assert (starts >= at).all()
            assert (starts + lengths <= at + UP_BYTES).all()
        plain.functions["give_back"](plain.frame.handle)
        # what leaves: n packets of one size
        made[state.OUT_LENGTHS][:n] = HEADERS_BYTES + 276
        made[state.OUT_STARTS][:n] = 0
        made[state.NEXT_PACKET][:n] = [*range(1, n), -1]
        plain.functions["send_shared"](plain.frame.handle, 0, SLOT, 0, n)
        written = int(made[state.CHANNELS][0, state.CHANNEL_HEAD]) - int(
            made[state.CHANNELS][0, state.CHANNEL_OTHERS_TAIL]
        )
        assert 0 <= written <= RECORDS
    assert not other.any() or not other[:UP_DATA].any()
    assert not other[UP_DATA:DOWN_DATA].any()


@contextlib.contextmanager
def end_of_a_channel() -> Iterator[tuple[Channel, np.ndarray]]:
    """A rank's end, and all memory as the switch's end sees it."""
    with contextlib.ExitStack() as opened:
        memory, bells = os.memfd_create("test"), (os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK))
        os.ftruncate(memory, CHANNEL_BYTES)
        seen = np.memmap(f"/proc/self/fd/{memory}", np.uint8, "r+", shape=(CHANNEL_BYTES,))
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened.enter_context(there)
        results = shared_memory("test", RESULT_BYTES)
        channel = Channel((LOOPBACK, 1), here, memory, results, *bells, ring_kernels())
        opened.callback(channel.close)
        yield channel, seen


def test_a_ring_has_no_more_records_than_places_for_them() -> None:
    """Small packets use the places up before the bytes."""
    packet, kernels = np.zeros((1, 20), np.uint8), ring_kernels()
    with end_of_a_channel() as (channel, _):
        assert [kernels.put(channel.ring, packet, 0) for _ in range(RECORDS + 1)] == [1] * RECORDS + [0]


@given(st.lists(st.tuples(st.sampled_from(("head", "record", "tail")), NUMBERS), max_size=40))
@example([("head", 1), ("record", 4867655623909572609)])  # in the results, behind what is the rank's own
@settings(max_examples=60, deadline=None)
def test_no_number_of_a_switch_makes_a_rank_read_or_write_elsewhere(changes: list[tuple[str, int]]) -> None:
    """A record may stand for any place of the data and of the results: whose sums are there, their headers say."""
    data = np.zeros((7, 276), np.uint8)
    with end_of_a_channel() as (channel, seen):
        numbers = seen[:UP_DATA].view(np.int64)
        for what, number in changes:
            if what == "head":
                numbers[layout.DOWN_HEAD // 8] = number
            elif what == "tail":
                numbers[layout.UP_TAIL // 8] = number
            else:
                numbers[layout.DOWN_RECORDS // 8 : layout.DOWN_RECORDS // 8 + RECORDS] = number
            taken = channel.receive()
            assert sum(burst.data.size for burst in taken) < AT_ONCE_BYTES + FIELD
            for burst in taken:
                place = burst.data.__array_interface__["data"][0] - channel.ring.words.ctypes.data
                assert 0 <= place <= DOWN_BYTES + RESULT_BYTES - burst.data.size
            assert 0 <= channel.send(data) <= len(data)
            assert 0 <= channel.held_bytes() <= UP_BYTES
            if channel.fall_asleep():
                channel.wake_up(False)
        assert not seen[layout.DOWN_DATA :].any()


def scribble(channel: Channel, writes: int, seed: int, stop: threading.Event) -> None:
    """Writes rubbish anywhere into a channel, as fast as it can."""
    rng = np.random.default_rng(seed)
    control, up = channel.ring.control, channel.ring.up
    done = 0
    while done < writes and not stop.is_set():
        kind = rng.integers(0, 4)
        if kind == 0:
            control[rng.integers(0, len(control), 64)] = rng.integers(-(1 << 62), 1 << 62, 64)
        elif kind == 1:  # plausible records, and more of them
            control[layout.UP_RECORDS // 8 :][rng.integers(0, RECORDS, 64)] = (
                rng.integers(0, 70_000, 64)
                | rng.choice((1, 42, 276), 64) << 20
                | rng.integers(0, UP_BYTES // 4, 64) << 40
            )
            control[layout.UP_HEAD // 8] += int(rng.integers(0, 4))
        elif kind == 2:
            up[rng.integers(0, len(up), 64)] = rng.integers(0, 256, 64)
        else:
            control[layout.DOWN_TAIL // 8] += int(rng.integers(-1, 3))
        done += 64


def scribbled(writes: int, seed: int, rounds: int) -> int:
    """Lets others sum while one scribbles. Returns: how many channels the scribbler has used up.

    Args: rounds: of sums, at least; they go on until the scribbler has had a second channel, however slow it is.
    """
    used = 0
    with running(compiled=True, shares=True) as switch:
        switch.install()
        for rank in range(WORKERS):
            share(switch, rank)
        expected = sums(switch, 0)[0]
        stop = threading.Event()
        others = UdpSocket((LOOPBACK, 0))

        def run() -> None:
            nonlocal used
            rng = np.random.default_rng(seed)
            while not stop.is_set():
                channel = open_channel(switch.port.address, others.address)
                if channel is None:
                    time.sleep(0.01)  # the switch has not heard yet that the last one is over
                    continue
                used += 1
                with contextlib.closing(channel):
                    scribble(channel, writes, int(rng.integers(1 << 30)), stop)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            n = 0
            while thread.is_alive() and n < MOST_ROUNDS and (n < rounds or used < 2):
                n += 1
                got = sums(switch, 40 * n)
                assert [len(each) for each in got[:WORKERS]] == [40] * WORKERS
                assert got[0] == got[1] == got[2] == got[3]
                lanes = [each[20:] for each in expected]
                assert len(got[0]) == len(lanes)
        finally:
            stop.set()
            thread.join(WAIT_S)
            others.close()
    return used


def test_a_rank_that_scribbles_harms_nobody() -> None:
    assert scribbled(20_000, seed=1, rounds=60) > 1


# --- beginnings and ends ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def a_channel(switch: Switch) -> Iterator[Channel]:
    """A channel that the switch gives to a rank of this process."""
    channel = open_channel(switch.port.address, (LOOPBACK, 5000))
    assert channel is not None
    with contextlib.closing(channel):
        yield channel


def can_have_a_channel(switch: Switch, address: Address) -> bool:
    channel = open_channel(switch.port.address, address)
    if channel is None:
        return False
    channel.close()
    return True


def test_channels_of_ranks_that_end_are_free_again() -> None:
    with running(compiled=True, shares=True) as switch:
        switch.install()
        address = switch.sockets[0].address
        files = len(os.listdir("/proc/self/fd"))
        for _ in range(2 * state.MOST_CHANNELS):
            wait_until(lambda: can_have_a_channel(switch, address))
        wait_until(lambda: can_have_a_channel(switch, address))
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files)
        found = 0
        with contextlib.ExitStack() as opened:
            for port in range(5000, 5000 + state.MOST_CHANNELS + 1):
                channel = open_channel(switch.port.address, (LOOPBACK, port))
                if channel is not None:
                    opened.callback(channel.close)
                    found += 1
                    assert not can_have_a_channel(switch, (LOOPBACK, port))  # one for each address
            assert state.MOST_CHANNELS - 1 <= found <= state.MOST_CHANNELS


def test_a_rank_sees_at_once_that_its_switch_has_ended() -> None:
    with contextlib.ExitStack() as opened:
        with running(compiled=True, shares=True) as switch:
            channel = opened.enter_context(a_channel(switch))
            assert not channel.is_over()
            address = switch.port.address
        wait_until(channel.is_over)
        assert open_channel(address, (LOOPBACK, 5000)) is None


def test_a_rank_that_has_written_what_cannot_be_loses_its_channel() -> None:
    with running(compiled=True, shares=True) as switch:
        with a_channel(switch) as channel:
            channel.ring.control[layout.UP_HEAD // 8] = RECORDS + 1
            wait_until(channel.is_over)
        wait_until(lambda: can_have_a_channel(switch, (LOOPBACK, 5000)))


def test_a_channel_for_which_there_is_no_memory_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(compiled=True, shares=True) as switch:
        put = Region.put

        def refuse(region: Region, offset: int, size: int, descriptor: int, *, writable: bool = True) -> None:
            if size == CHANNEL_BYTES:  # the switch's end
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            put(region, offset, size, descriptor, writable=writable)

        with monkeypatch.context() as patch:
            patch.setattr(Region, "put", refuse)
            with a_channel(switch) as channel:
                wait_until(channel.is_over)
        wait_until(lambda: can_have_a_channel(switch, (LOOPBACK, 5000)))


def test_no_channels_where_packets_are_looked_at_one_by_one_or_nobody_wants_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for compiled, cores, shares in ((False, 1, True), (True, 2, True), (True, 1, False)):
        with running(compiled=compiled, cores=cores, shares=shares) as switch:
            assert open_channel(switch.port.address, (LOOPBACK, 5000)) is None
    with running(compiled=True, shares=True) as switch:
        monkeypatch.setenv(VARIABLE, "0")
        assert open_channel(switch.port.address, (LOOPBACK, 5000)) is None


def test_a_switch_that_can_keep_nobody_from_writing_results_gives_no_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(memory: int, *, writable: bool) -> None:
        raise OSError(errno.EINVAL, "an old kernel")

    monkeypatch.setattr(core, "seal", refuse)
    with running(compiled=True, shares=True) as switch:
        switch.install()
        assert open_channel(switch.port.address, (LOOPBACK, 5000)) is None
        assert len(sums(switch, 0)[0]) == 40


def test_what_is_no_question_gets_no_channel() -> None:
    with running(compiled=True, shares=True) as switch:
        for data in (b"", b"x", b"x" * 64, handshake.Hello((LOOPBACK, 5000)).encode()[:-1]):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                peer.settimeout(WAIT_S)
                peer.connect(handshake.name_of(switch.port.address))
                if data:
                    peer.send(data)
                    assert peer.recv(16) == b""
        with contextlib.ExitStack() as silent:
            for _ in range(40):
                peer = silent.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                peer.setblocking(False)
                try:
                    peer.connect(handshake.name_of(switch.port.address))
                except BlockingIOError:
                    break
            wait_until(lambda: can_have_a_channel(switch, (LOOPBACK, 5000)))


@pytest.mark.needs("root")
def test_another_user_gets_no_channel() -> None:
    with running(compiled=True, shares=True) as switch:
        host, port = switch.port.address
        found = subprocess.run(
            [
                sys.executable, "-c",
                "import os, sys; from sa_atp.net.shared_memory import handshake; os.setuid(65534); "
                f"print(handshake.ask(({host!r}, {port}), handshake.Hello(('127.0.0.1', 5000))))",
            ],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert found.stdout == "None\n"


def test_a_forked_child_keeps_no_channel_open() -> None:
    with running(compiled=True, shares=True) as switch:
        share(switch, 0)
        child = os.fork()
        if child == 0:
            time.sleep(WAIT_S)
            os._exit(0)
        try:
            address = switch.sockets[0].address
            switch.sockets[0].close()
            wait_until(lambda: can_have_a_channel(switch, address))
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)


def test_a_region_is_one_array_whatever_is_mapped_into_it() -> None:
    region = Region(3 * 4096)
    memory = os.memfd_create("test")
    os.ftruncate(memory, 4096)
    region.put(4096, 4096, memory)
    region.bytes[4095:4098] = (1, 2, 3)
    assert os.pread(memory, 3, 0) == bytes((2, 3, 0))
    region.clear(4096, 4096)
    assert region.bytes[4094:4099].tolist() == [0, 1, 0, 0, 0]
    with pytest.raises(OSError, match="Bad file descriptor"):
        region.put(4096, 4096, 1 << 20)
    memory_to_read = region.bytes[4096:8192]
    region.put(4096, 4096, memory, writable=False)
    assert memory_to_read[:2].tolist() == [2, 3]
    os.close(memory)


if __name__ == "__main__":
    print(scribbled(int(float(sys.argv[1]) * 1e6), seed=int(time.time()), rounds=2000), "channels")
