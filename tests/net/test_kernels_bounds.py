"""No packet makes a kernel touch memory that is not its own: arrays with a guard on both sides, and any packets at all.

The packets' bytes, their number and size, where a stream begins and ends and what it claims to be are all drawn; what a
program decides (sizes of its arrays) is not. `BOUNDS_PACKETS` makes it longer.
"""

import os
import random

import numpy as np
import pytest

from sa_atp.net.loop.compiled import socket_kernels, steady_kernels, worker_kernels
from sa_atp.net.sockets.compiled_bursts import PackedReceive
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.rank.compiled import kernels as k
from sa_atp.protocol.rank.compiled import steady_kernels as s

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


@pytest.mark.parametrize(("seed", "bits"), [(0, 2), (1, 2), (2, 2), (3, 16)])
def test_results(seed: int, bits: int) -> None:
    rng, made = random.Random(seed), np.random.default_rng(seed)
    fast = worker_kernels()
    done = taken = 0
    while done < PACKETS // 4:
        fragments, chunk_fragments, scales = rng.randrange(1, 600), rng.choice((1, 7, 256)), rng.randrange(1, 4)
        chunks, attempt = -(-fragments // chunk_fragments), scales + fragments
        arrays = {
            "pending": Guarded(2 * attempt, bool), "waiting": Guarded(chunks, np.int32),
            "exponents": Guarded(chunks, np.int16), "attempts": Guarded(chunks, np.int8),
            "accepted": Guarded(chunks, bool), "sums": Guarded(fragments * LANES, np.int32),
            "predicted": Guarded(chunks, bool), "histories": Guarded((chunks, k.H_ITEMS), np.int16),
            "sent_us": Guarded(2 * attempt, np.int64), "tries": Guarded(2 * attempt, np.uint8),
            "lost": Guarded(2 * attempt, bool), "found": Guarded(k.OUT_ITEMS, np.int64),
            "done": Guarded((chunks, 2), np.int64),
        }  # fmt: skip
        arrays["pending"].array[:] = rng.random() < 0.9 or made.random(2 * attempt) < 0.9
        arrays["exponents"].array[:] = 20
        arrays["waiting"].array[:] = chunk_fragments
        arrays["predicted"].array[:] = made.random(chunks) < 0.7
        arrays["accepted"].array[:] = made.random(chunks) < 0.05
        for _ in range(8):
            packets = batch(rng, made, bits)
            rows = Guarded((len(packets.array), k.ROW_ITEMS), np.int64)
            what = np.array([0x12, 3, 9, 16, 32, 1], np.int64)
            fan_in = Guarded(rng.choice((bits, bits, bits, 200)), np.uint32)  # of another build than the packets, too
            fan_in.array[:] = 0xFFFFFFFF
            count = fast.streams(packets.array, what, fan_in.array, rows.array)
            assert -1 <= count <= len(packets.array)
            streams = rows.array[: max(count, 0)].tolist()
            streams.append([rng.randrange(-5, 200) for _ in range(k.ROW_ITEMS)])
            for row in streams:
                local = rng.choice(
                    (row[k.ROW_SEQ], row[k.ROW_SEQ] % (2 * attempt), rng.randrange(-100, 2 * attempt + 100))
                )
                which = rng.randrange(2)
                given = np.array(
                    [local, which * attempt + scales, fragments, chunk_fragments, 0, row[k.ROW_EXPONENT], 2 * attempt,
                     1 << 30, 20, 7, 3, -126, 127, bits],
                    np.int64,
                )  # fmt: skip
                taken += fast.take(
                    packets.array, row[k.ROW_START], row[k.ROW_END], given, *(each.array for each in arrays.values())
                )
            done += len(packets.array)
            for each in (packets, rows, *arrays.values()):
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
        kinds: list[tuple[int | tuple[int, ...], type]] = [
            (s.N_ITEMS, np.int64), (s.R_ITEMS, np.float64), (k.F_ITEMS, np.int64), (k.S_ITEMS, np.int64),
            (k.T_ITEMS, np.int64), (bits, np.uint32), (bits, np.uint32),
            ((rng.choice((ROWS, ROWS, ROWS // 2)), k.ROW_ITEMS), np.int64), (2 * attempt, bool), (chunks, np.int32),
            (chunks, np.int16), (chunks, np.int8), (chunks, bool), (fragments * LANES, np.int32), (chunks, bool),
            ((chunks, k.H_ITEMS), np.int16), (2 * attempt, np.int64), (2 * attempt, np.int64), (2 * attempt, np.uint8),
            (2 * attempt, bool), (chunks, np.int8), (k.OUT_ITEMS, np.int64), ((chunks, 2), np.int64),
            (2 * attempt, np.int64), (2 * attempt, bool), ((QUESTIONS, s.Q_ITEMS), np.int64), ((4, 2), np.int64),
            (3 + bits, np.uint32),
        ]  # fmt: skip
        arrays = [Guarded(shape, kind) for shape, kind in kinds]
        state = tuple(each.array for each in arrays)
        numbers, reals, _, streams, take, _, fan_in, _, pending, waiting, exponents = state[:11]
        streams[:] = 0x12, 3, 9, 16, 32, rng.choice((0, 0, 1))
        take[:] = 0, scales, fragments, chunk_fragments, 0, 20, 0, 1 << 30, 20, 7, 3, -126, 127, bits
        fan_in[:] = 0xFFFFFFFF
        pending[:], waiting[:], exponents[:], state[14][:] = True, chunk_fragments, 20, made.random(chunks) < 0.7
        state[17][:], state[18][:] = made.integers(0, 2 * attempt, 2 * attempt), made.integers(0, 3, 2 * attempt)
        reals[:] = 64.0, 64.0, np.inf, 1.0, 0.0
        numbers[[s.N_SLOT_COUNT, s.N_TAG, s.N_HIGH]] = 64, 7, rng.choice((2 * attempt, scales + fragments // 2))
        numbers[[s.N_FRESH_FIRST, s.N_FRESH_END]] = numbers[s.N_HIGH], scales + fragments
        numbers[[s.N_MISSING, s.N_IN_FLIGHT, s.N_SMOOTHED]] = 1 << 20, 1 << 20, 2000
        numbers[s.N_ASKED], numbers[s.N_REPLY], numbers[s.N_IS_FLAT] = QUESTIONS, 0x12, rng.random() < 0.7
        state[s.A_ASKED][:] = np.column_stack([np.arange(QUESTIONS) * 3 + scales] * s.Q_ITEMS) % (2 * attempt)
        for now in range(1000, 9000, 1000):
            packets = batch(rng, made, bits)
            seq = int.from_bytes(packets.array.view(np.uint8)[0, 8:12].tobytes(), "big")
            place = rng.choice((scales, scales, rng.randrange(2 * attempt), rng.randrange(2**32)))
            numbers[s.N_FIRST_SEQ] = (seq - place) % 2**32
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
            for each in (packets, *arrays):
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
            what = np.zeros(k.F_ITEMS, np.int64)
            what[[k.F_SLOT_COUNT, k.F_DATA_START, k.F_CHUNK_FRAGMENTS, k.F_LIMIT]] = 16, 3, chunk_fragments, 1 << 24
            what[k.F_ADD] = rng.randrange(2)
            at, first = rng.randrange(-2, 70), rng.randrange(-3, fragments + 9)
            end = first + rng.randrange(1, 70)
            written = fast.fill(
                words.array, at, first, end, what, bits.array, exponents.array, fits.array, values.array
            )
            assert 0 <= written <= end - first
            for each in (words, bits, exponents, fits, values):
                each.check()


def test_datagrams_of_any_size_beside_one_another() -> None:
    """A socket receives the datagrams that were sent, however the kernel coalesced them."""
    rng = random.Random(3)
    sender, other, taker = UdpSocket(("127.0.0.1", 0)), UdpSocket(("127.0.0.1", 0)), UdpSocket(("127.0.0.1", 0))
    packed = PackedReceive(socket_kernels())
    sender.use_kernels(socket_kernels())
    room = Guarded(packed._room.size, np.uint8)
    packed._room = room.array
    try:
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
    finally:
        for socket in (sender, other, taker):
            socket.close()
