"""A rank's end of a channel (layout.py), in compiled code. See net/loop/compiled.py.

The switch's end is net/switch_process/datapath/channels.py. Whatever the other end writes, nothing outside the channel is
read or written: a number that cannot be makes the channel *broken*, and it is not used any more.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from sa_atp.net.shared_memory.atomics import copy_memory, fence, load_acquire, store_release
from sa_atp.net.shared_memory.layout import (
    AT_ONCE_BYTES,
    DOWN_BYTES,
    DOWN_HEAD,
    DOWN_RECORDS,
    DOWN_TAIL,
    FIELD,
    FIELD_BITS,
    GAP,
    MOST_UP,
    RANK_SLEEPS,
    RECORDS,
    RESULT_BYTES,
    SWITCH_SLEEPS,
    UP_BYTES,
    UP_HEAD,
    UP_RECORDS,
    UP_TAIL,
)

types: Any = numba.types
c_write = types.ExternalFunction("write", types.intp(types.int32, types.uintp, types.uintp))
c_read = types.ExternalFunction("read", types.intp(types.int32, types.uintp, types.uintp))

# Ring.mine: numbers that only this end knows. SENDER: the switch, as in socket_kernels.FOUND_SENDER. WRITTEN: bytes of the
# data that have ever been written or skipped. PLACE, SKIPPED: of the record that is being written.
HEAD, TAIL, OTHERS_TAIL, WRITTEN, SLEEPS, DOORBELL, BELL, SENDER, BROKEN, SCRATCH, PLACE, SKIPPED = range(12)
MINE = 12


class Ring(NamedTuple):
    """A channel as a rank's compiled code has it."""

    control: Any
    """int64[...]: the channel up to its data."""
    up: Any
    """uint8[UP_BYTES]."""
    up_words: Any
    """uint32[UP_BYTES / 4]: the same."""
    words: Any
    """uint32[(DOWN_BYTES + RESULT_BYTES) / 4]: the data going down, and the results."""
    mine: Any
    """int64[MINE]."""
    starts: Any
    """int64[RECORDS]: WRITTEN where each of this end's records begins."""
    found: Any
    """int64[rows, 4]: see socket_kernels.receive."""


def no_ring() -> Ring:
    """A ring of nothing, for compiled code where there is no channel."""
    words = np.zeros(1, np.int64)
    return Ring(
        words,
        np.zeros(1, np.uint8),
        np.zeros(1, np.uint32),
        np.zeros(1, np.uint32),
        words,
        words,
        np.zeros((1, 4), np.int64),
    )


def has_arrived(ring: Any) -> bool:
    """Whether there are records that have not been taken."""
    return bool(load_acquire(ring.control.ctypes.data + DOWN_HEAD) != ring.mine[TAIL])


def give_back(ring: Any) -> None:
    """Tells the switch that the records which were taken have been used."""
    store_release(ring.control.ctypes.data + DOWN_TAIL, ring.mine[TAIL])


def take(ring: Any) -> int:
    """Takes records that are there, as many as a processor's cache holds beside the sums that they become part of: they are
    valid until the next call of `take`, `put` or `fall_asleep`.

    Returns: how many rows of `found`: as socket_kernels.receive, but that records are in Ring.words.
    """
    base, mine, found = ring.control.ctypes.data, ring.mine, ring.found
    give_back(ring)
    tail = mine[TAIL]
    head = load_acquire(base + DOWN_HEAD)
    if head < tail or head - tail > RECORDS:
        mine[BROKEN] = 1
        return 0
    count = 0
    end = -1  # of the last row
    taken = 0
    while tail < head and taken < AT_ONCE_BYTES:
        word = load_acquire(base + DOWN_RECORDS + 8 * (tail % RECORDS))
        size = word & FIELD
        segment = (word >> FIELD_BITS) & FIELD
        start = 4 * (word >> 2 * FIELD_BITS)
        if word < 0 or size == 0 or segment == 0 or start + size > DOWN_BYTES + RESULT_BYTES:
            mine[BROKEN] = 1
            return 0
        if start == end and segment == found[count - 1, 2]:
            found[count - 1, 1] += size
        elif count == found.shape[0]:
            break
        else:
            found[count, 0] = start
            found[count, 1] = size
            found[count, 2] = segment
            found[count, 3] = mine[SENDER]
            count += 1
        end = start + size if size % segment == 0 else -1
        taken += size
        tail += 1
    mine[TAIL] = tail
    return count


def _look(ring: Any) -> None:
    """Reads how many records the switch has taken."""
    mine = ring.mine
    tail = load_acquire(ring.control.ctypes.data + UP_TAIL)
    if tail < mine[OTHERS_TAIL] or tail > mine[HEAD]:
        mine[BROKEN] = 1
    else:
        mine[OTHERS_TAIL] = tail


def held_bytes(ring: Any) -> int:
    """Bytes of the ring that the switch has not taken."""
    _look(ring)
    mine = ring.mine
    if mine[OTHERS_TAIL] == mine[HEAD]:
        return 0
    return int(mine[WRITTEN] - ring.starts[mine[OTHERS_TAIL] % RECORDS])


def place(ring: Any, size: int, most: int) -> int:
    """Finds room for a record of datagrams, which are then written from Ring.up[mine[PLACE]] on.

    Args: size: of a datagram; most: datagrams.
    Returns: how many fit; 0: none does now.
    """
    mine = ring.mine
    held = held_bytes(ring)
    if mine[BROKEN] != 0 or size < 1 or size > MOST_UP or mine[HEAD] - mine[OTHERS_TAIL] >= RECORDS:
        return 0
    if held == 0:  # the beginning is likely to be in the cache
        mine[WRITTEN] = -(-mine[WRITTEN] // UP_BYTES) * UP_BYTES
    at = mine[WRITTEN] % UP_BYTES
    free = UP_BYTES - held
    skipped = 0
    room = min(UP_BYTES - at, free) - GAP
    if room < most * size and free - (UP_BYTES - at) - GAP > room:
        skipped = UP_BYTES - at
        room = free - skipped - GAP
        at = 0
    mine[PLACE], mine[SKIPPED] = at + GAP, skipped
    return int(max(0, min(most, min(room, MOST_UP) // size)))


def commit(ring: Any, size: int, count: int) -> None:
    """Makes a record of the datagrams that have been written where `place` said. Others see it after `publish`."""
    mine = ring.mine
    at, head = mine[PLACE], mine[HEAD]
    ring.starts[head % RECORDS] = mine[WRITTEN]
    word = (count * size) | size << FIELD_BITS | at // 4 << 2 * FIELD_BITS
    store_release(ring.control.ctypes.data + UP_RECORDS + 8 * (head % RECORDS), word)
    mine[WRITTEN] += mine[SKIPPED] + ((GAP + count * size + 63) & ~63)
    mine[HEAD] = head + 1


def publish(ring: Any) -> None:
    """Shows the switch the records that have been written, and wakes it if it sleeps."""
    base, mine = ring.control.ctypes.data, ring.mine
    store_release(base + UP_HEAD, mine[HEAD])
    fence()
    if load_acquire(base + SWITCH_SLEEPS) != 0:
        mine[SCRATCH] = 1
        c_write(mine[DOORBELL], mine.ctypes.data + 8 * SCRATCH, 8)


def put(ring: Any, data: Any, first: int) -> int:
    """Writes datagrams as records.

    Args: data: uint8[datagrams, size]. first: the first to write.
    Returns: the index of the first that was not written, because there is no room.
    """
    size = data.shape[1]
    give_back(ring)
    begun = first
    while first < data.shape[0]:
        count = place(ring, size, data.shape[0] - first)
        if count == 0:
            break
        copy_memory(ring.up.ctypes.data + ring.mine[PLACE], data.ctypes.data + first * size, count * size)
        commit(ring, size, count)
        first += count
    if first != begun:
        publish(ring)
    return int(first)


def fall_asleep(ring: Any) -> bool:
    """Asks the switch to ring the bell. Returns: False if records have arrived: then there is no reason to sleep."""
    mine = ring.mine
    give_back(ring)
    if mine[SLEEPS] % 2 == 0:
        mine[SLEEPS] += 1
        store_release(ring.control.ctypes.data + RANK_SLEEPS, mine[SLEEPS])
        fence()
    if has_arrived(ring):
        wake_up(ring, False)
        return False
    return True


def wake_up(ring: Any, has_rung: bool) -> None:
    """Tells the switch that this rank is awake, and needs no bell. Args: has_rung: whether the bell is to be reset."""
    mine = ring.mine
    if mine[SLEEPS] % 2 == 1:
        mine[SLEEPS] += 1
        store_release(ring.control.ctypes.data + RANK_SLEEPS, mine[SLEEPS])
    if has_rung:
        c_read(mine[BELL], mine.ctypes.data + 8 * SCRATCH, 8)
