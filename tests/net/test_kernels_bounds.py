"""No packet makes a kernel touch memory that is not its own: arrays with a guard on both sides, and any packets at all.

The packets' bytes, their number and size, where a stream begins and ends and what it claims to be are all drawn; what a
program decides (sizes of its arrays) is not. `BOUNDS_PACKETS` makes it longer.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sa_atp.net.loop.compiled import socket_kernels, steady_kernels, worker_kernels
from sa_atp.net.sockets.compiled_bursts import PackedReceive
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.rank.compiled import kernels as k
from sa_atp.protocol.rank.compiled import steady_kernels as s
from sa_atp.protocol.rank.pace.timing import RoundTrip
from sa_atp.protocol.rank.pace.window import Window
from sa_atp.protocol.rank.recovery.asking import Asked
from sa_atp.protocol.records import Record, dtype_of

from .guarded import Guarded

LANES = 64
PACKETS = int(os.environ.get("BOUNDS_PACKETS", "60000"))
ROWS = 96  # at most, of one batch
QUESTIONS = 12  # that wait for answers


def batch(rng: random.Random, made: np.random.Generator, bits: int) -> Guarded:
    """Random packets; most are nearly right, so that they pass many checks. Args: bits: words of a bitmap."""
    rows, header = rng.randrange(1, ROWS), 3 + bits
    packets = Guarded((rows, header + LANES), np.uint32)
    packets.array[...] = made.integers(0, 2**32, packets.array.shape, np.uint32)
    if rng.random() < 0.9:
        head = packets.array.view(np.uint8)[:, : 4 * header]
        head[:, 0], head[:, 4], head[:, 5] = 0x12, 3, 9
        head[:, 12:] = 255
        first = rng.choice((0, 2**32 - 30, rng.randrange(2**32), rng.randrange(400)))
        seqs = (first + np.arange(rows)) % 2**32
        head[:, 8:12] = seqs.astype(">u4").view(np.uint8).reshape(rows, 4)
        head[:, 6], head[:, 7] = rng.choice((20, rng.randrange(256))), 7
        for _ in range(rng.choice((0, 0, 1, 3))):
            packets.array[rng.randrange(rows), rng.randrange(header)] ^= np.uint32(1 << rng.randrange(32))
    return packets


def guarded(memory: list[Guarded], shape: int | tuple[int, ...], kind: type) -> Any:
    """An array of a type, or of records, with a guard that `memory` keeps."""
    is_record = not (kind is bool or issubclass(kind, np.generic))
    memory.append(Guarded(shape, dtype_of(kind) if is_record else kind))
    return memory[-1].array


def made_sums(memory: list[Guarded], attempt: int, fragments: int, chunks: int) -> k.Sums:
    shapes: dict[str, tuple[int, type]] = {
        "pending": (2 * attempt, bool), "waiting": (chunks, np.int32), "exponents": (chunks, np.int16),
        "attempts": (chunks, np.int8), "accepted": (chunks, bool), "lanes": (fragments * LANES, np.int32),
        "histories": (chunks, k.HistoryRow),
    }  # fmt: skip
    return k.Sums(**{name: guarded(memory, *shape) for name, shape in shapes.items()})


def made_sent(memory: list[Guarded], attempt: int) -> k.Sent:
    kinds = {
        "sent_us": np.int64, "order": np.int64, "tries": np.uint8, "lost": bool, "ask_again_us": np.int64, "held": bool,
    }  # fmt: skip
    return k.Sent(**{name: guarded(memory, 2 * attempt, kind) for name, kind in kinds.items()})


def expected(rare: int) -> Any:
    made = Record(k.Expected)
    made.write(k.Expected(0x12, 3, 9, 16, 32, rare))
    return made.array


def part_of(data_start: int, fragments: int, chunk_fragments: int, bits: int) -> Any:
    made = Record(k.Part)
    made.write(k.Part(0, data_start, fragments, chunk_fragments, 0, 20, 0, 1 << 30, 20, 7, 3, -126, 127, bits))
    return made.array


@pytest.mark.parametrize(("seed", "bits"), [(0, 2), (1, 2), (2, 2), (3, 16)])
def test_results(seed: int, bits: int) -> None:
    rng, made = random.Random(seed), np.random.default_rng(seed)
    fast = worker_kernels()
    done = taken = 0
    while done < PACKETS // 4:
        fragments, chunk_fragments, scales = rng.randrange(1, 600), rng.choice((1, 7, 256)), rng.randrange(1, 4)
        chunks, attempt = -(-fragments // chunk_fragments), scales + fragments
        memory: list[Guarded] = []
        sums, sent = made_sums(memory, attempt, fragments, chunks), made_sent(memory, attempt)
        found, chunks_done = guarded(memory, 1, k.Found), guarded(memory, chunks, k.Complete)
        sums.pending[:] = rng.random() < 0.9 or made.random(2 * attempt) < 0.9
        sums.exponents[:] = 20
        sums.waiting[:] = chunk_fragments
        sums.accepted[:] = made.random(chunks) < 0.05
        for _ in range(8):
            packets = batch(rng, made, bits)
            rows = Guarded(len(packets.array), dtype_of(k.Stream))
            fan_in = Guarded(rng.choice((bits, bits, bits, 200)), np.uint32)  # of another build than the packets, too
            fan_in.array[:] = 0xFFFFFFFF
            count = fast.streams(packets.array, expected(rare=1), fan_in.array, rows.array)
            assert -1 <= count <= len(packets.array)
            streams = [k.Stream(*row) for row in rows.array[: max(count, 0)].tolist()]
            streams.append(k.Stream(*(rng.randrange(-5, 200) for _ in k.Stream._fields)))
            for row in streams:
                local = rng.choice((row.seq, row.seq % (2 * attempt), rng.randrange(-100, 2 * attempt + 100)))
                which = rng.randrange(2)
                part = part_of(scales, fragments, chunk_fragments, bits)
                part["local"], part["exponent"], part["high"] = local, row.exponent, 2 * attempt
                part["data_start"] = which * attempt + scales
                part["foretold"] = rng.random() < 0.7
                taken += fast.take(packets.array, row.start, row.end, part, sums, sent, found, chunks_done)
            done += len(packets.array)
            for each in (packets, rows, *memory):
                each.check()
    assert taken


@pytest.mark.parametrize(("seed", "bits"), [(0, 2), (1, 2), (2, 16)])
def test_results_of_a_stream_that_flows(seed: int, bits: int) -> None:
    """Kernels that go on by themselves, in the hands of whoever sends: each packet is what a state is changed by."""
    rng, made = random.Random(seed), np.random.default_rng(seed)
    fast = steady_kernels()
    done = taken = answered = 0
    while done < PACKETS // 6:
        fragments, chunk_fragments, scales = rng.randrange(1, 600), rng.choice((1, 7, 256)), rng.randrange(1, 4)
        chunks, attempt = -(-fragments // chunk_fragments), scales + fragments
        memory: list[Guarded] = []
        rows = rng.choice((ROWS, ROWS, ROWS // 2))
        state = s.State(
            flow=guarded(memory, 1, s.Flow), contribution=guarded(memory, 1, k.Contribution),
            expected=expected(rng.choice((0, 0, 1))), part=part_of(scales, fragments, chunk_fragments, bits),
            found=guarded(memory, 1, k.Found), bits=guarded(memory, bits, np.uint32),
            fan_in=guarded(memory, bits, np.uint32), rows=guarded(memory, rows, k.Stream),
            sums=made_sums(memory, attempt, fragments, chunks), sent=made_sent(memory, attempt),
            fits=guarded(memory, chunks, np.int8), done=guarded(memory, chunks, k.Complete),
            asked=guarded(memory, QUESTIONS, Asked), gaps=guarded(memory, 4, s.Gap),
            question=guarded(memory, 3 + bits, np.uint32),
        )  # fmt: skip
        state.fan_in[:] = 0xFFFFFFFF
        state.part["foretold"] = rng.random() < 0.7
        state.sums.pending[:], state.sums.waiting[:], state.sums.exponents[:] = True, chunk_fragments, 20
        state.sent.order[:] = made.integers(0, 2 * attempt, 2 * attempt)
        state.sent.tries[:] = made.integers(0, 3, 2 * attempt)
        flow = state.flow
        window, path, windows, paths = Window(64), RoundTrip(), Record(Window), Record(RoundTrip)
        window.network, path.smoothed_us = 64.0, 2000
        windows.write(window)
        paths.write(path)
        flow["window"], flow["round_trip"] = windows.array, paths.array
        high = rng.choice((2 * attempt, scales + fragments // 2))
        flow["progress"]["tag"], flow["group"]["high"] = 7, high
        flow["fresh_first"], flow["fresh_end"] = high, scales + fragments
        flow["under_way"]["missing"], flow["under_way"]["in_flight"] = 1 << 20, 1 << 20
        flow["asked"], flow["reply"], flow["is_flat"] = QUESTIONS, 0x12, rng.random() < 0.7
        for n in range(QUESTIONS):
            place = (3 * n + scales) % (2 * attempt)
            state.asked[n] = place, place, place, False
        for now in range(1000, 9000, 1000):
            packets = batch(rng, made, bits)
            seq = int.from_bytes(packets.array.view(np.uint8)[0, 8:12].tobytes(), "big")
            place = rng.choice((scales, scales, rng.randrange(2 * attempt), rng.randrange(2**32)))
            flow["progress"]["first_seq"] = (seq - place) % 2**32
            count = fast.receive(packets.array, now, state)
            assert 0 <= count <= len(packets.array)
            taken += count
            done += len(packets.array)
            for row in range(min(count, 40)):  # as if they were answers: to what was asked, and to anything
                words = Guarded(rng.choice((3 + bits, 3 + bits, 2, 40)), np.uint32)
                words.array[:] = np.resize(packets.array[row, : 3 + bits], words.array.size)
                if rng.random() < 0.7:
                    words.array.view(np.uint8)[1] &= 0x10  # flags
                answered += fast.answer(words.array, now, state)
                words.check()
            for each in (packets, *memory):
                each.check()
    assert taken
    assert answered


def test_contributions() -> None:
    rng, made, fast = random.Random(1), np.random.default_rng(1), worker_kernels()
    for _ in range(300):
        fragments, chunk_fragments = rng.randrange(1, 300), rng.choice((1, 7, 256))
        chunks = -(-fragments // chunk_fragments)
        values = Guarded(fragments * LANES - rng.randrange(LANES), np.float32)
        values.array[:] = made.standard_normal(values.array.size)
        if rng.random() < 0.3:
            values.array[rng.randrange(values.array.size)] = rng.choice((np.nan, np.inf, -1e38))
        bits = Guarded(rng.choice((2, 2, 16)), np.uint32)
        words, exponents, fits = (
            Guarded((rng.randrange(1, 64), 3 + bits.array.size + LANES), np.uint32),
            Guarded(chunks, np.int16),
            Guarded(chunks, np.int8),
        )
        exponents.array[:] = rng.randrange(-126, 127)
        for _ in range(10):
            what = Record(k.Contribution)
            what.write(
                k.Contribution(
                    slot_count=16, data_start=3, chunk_fragments=chunk_fragments, limit=1 << 24, add=rng.random() < 0.5
                )
            )
            at, first = rng.randrange(-2, 70), rng.randrange(-3, fragments + 9)
            end = first + rng.randrange(1, 70)
            written = fast.fill(
                words.array, at, first, end, what.array, bits.array, exponents.array, fits.array, values.array
            )
            assert 0 <= written <= end - first
            for each in (words, bits, exponents, fits, values):
                each.check()


def test_datagrams_of_any_size_beside_one_another(open_socket: Callable[[], UdpSocket]) -> None:
    """A socket receives the datagrams that were sent, however the kernel coalesced them."""
    rng = random.Random(3)
    sender, other, taker = open_socket(), open_socket(), open_socket()
    packed = PackedReceive(socket_kernels())
    sender.use_kernels(socket_kernels())
    room = Guarded(packed._room.size, np.uint8)
    packed._room = room.array
    for _ in range(150):
        sent = []
        for _ in range(rng.randrange(1, 12)):
            size, count = rng.choice((1, 3, 20, 276, 1044, 1400, 9000)), rng.randrange(1, 90)
            data = np.frombuffer(rng.randbytes(size * min(count, 120_000 // size + 1)), np.uint8).reshape(-1, size)
            who = rng.choice((sender, sender, other))
            who.send([Burst(taker.address, data)])
            sent += [(who.address[1], row.tobytes()) for row in data]
        found = []
        drained = False
        while not drained:
            bursts, drained = packed.receive(taker.fileno())
            found += [(burst.address[1], row.tobytes()) for burst in bursts for row in burst.data]
            room.check()
        for port in (sender.address[1], other.address[1]):
            assert [each for each in found if each[0] == port] == [each for each in sent if each[0] == port]
