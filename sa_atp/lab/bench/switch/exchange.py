"""The hosts of the switch benchmark as compiled code, so that they do not limit the switch. See `hosts`.

Executed in a namespace of operations (see `basics/code_cache.py`), never imported.
"""

from typing import TYPE_CHECKING

from sa_atp.lab.bench.switch.hosts import (
    COUNTS,
    DONE,
    EXPECTED,
    FDS,
    HEADS_BYTES,
    MESSAGES_OUT,
    MISSING,
    PAYLOADS,
    POLL,
    RESULT_BYTE,
    ROW_BYTES,
    ROWS,
    ROWS_IN,
    SENT,
    STALLED_US,
    WORDS_IN,
    WRONG,
)
from sa_atp.lab.bench.switch.traffic import SLOTS

if TYPE_CHECKING:
    from sa_atp.basics.arrays import Octets
    from sa_atp.net.switch_process.datapath.operations import (
        address_in,
        array_i64_1,
        array_u8_1,
        compiled,
        inner,
        load1,
        load8,
        poll,
        recvmmsg,
        sendmmsg,
        store2,
        store4,
        u64,
    )

WORDS = 8  # of struct mmsghdr


@inner
def is_expected(rows: "Octets", at: int, expected: "Octets") -> bool:
    for i in range(0, len(expected), 8):  # noqa: SIM110  (numba knows no generators in all())
        if load8(rows, at + i) != load8(expected, i):
            return False
    return True


@inner
def send_burst(s: int, first: int, burst: int, size: int, messages: int) -> None:
    """Sends every worker's contributions to `burst` fragments. Packets that an interface refuses are sent again later."""
    fds = array_i64_1(s, FDS)
    payloads = array_u8_1(s, PAYLOADS)
    for rank in range(len(fds)):
        for i in range(burst):
            at = (rank * burst + i) * size
            store2(payloads, at + 2, u64((first + i) % SLOTS))
            store4(payloads, at + 8, u64(first + i))
        sent = 0
        while sent < messages:
            place = address_in(s, MESSAGES_OUT) + 8 * WORDS * (rank * messages + sent)
            taken = sendmmsg(fds[rank], place, messages - sent)
            if taken <= 0:
                break
            sent += taken


@inner
def take_results(s: int, row: int, first: int, size: int) -> None:
    """Notes the results in a packet that worker 0 received."""
    rows = array_u8_1(s, ROWS_IN)
    words = array_i64_1(s, WORDS_IN)
    done = array_u8_1(s, DONE)
    expected = array_u8_1(s, EXPECTED)
    counts = array_i64_1(s, COUNTS)
    payload = (words[row * WORDS + 7] & 0xFFFFFFFF) - HEADS_BYTES
    if payload < size or payload % size != 0 or payload > ROW_BYTES - HEADS_BYTES:
        return
    start = row * ROW_BYTES + HEADS_BYTES
    if payload > size and load1(rows, start - HEADS_BYTES + 1) == u64(0):
        return  # a frame of another size
    for at in range(start, start + payload, size):
        seq = 0
        for i in range(4):
            seq = seq << 8 | rows[at + 8 + i]
        if rows[at] != RESULT_BYTE or not 0 <= seq - first < len(done):
            continue
        if not is_expected(rows, at + size - len(expected), expected):
            counts[WRONG] += 1
        done[seq - first] = 1


@compiled
def exchange(s: int, first: int, window: int, burst: int, size: int, messages: int) -> int:
    """Contributes to fragments from `first` on in whole bursts, with at most `window` in flight.

    Args: size: bytes of a payload; messages: number of messages in a worker's burst.

    Returns: 1 when all whole bursts are summed, 0 when nothing has arrived for STALLED_US.
    """
    counts = array_i64_1(s, COUNTS)
    done = array_u8_1(s, DONE)
    fds = array_i64_1(s, FDS)
    wait = array_i64_1(s, POLL)
    target = len(done) // burst * burst
    while True:
        while counts[MISSING] < target and done[counts[MISSING]] != 0:
            counts[MISSING] += 1
        if counts[MISSING] == target:
            return 1
        while counts[SENT] < target and counts[SENT] + burst <= counts[MISSING] + window:
            send_burst(s, first + counts[SENT], burst, size, messages)
            counts[SENT] += burst
        taken = recvmmsg(fds[0], address_in(s, WORDS_IN), ROWS)
        if taken <= 0:
            wait[0] = fds[0] | 1 << 32  # POLLIN
            if poll(address_in(s, POLL), 1, STALLED_US, address_in(s, POLL) + 8) <= 0:
                return 0
        for row in range(min(taken, ROWS)):
            take_results(s, row, first, size)
