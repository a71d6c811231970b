"""Turns of a worker's loop in compiled code, waiting included, for as long as a stream flows. See net/loop/compiled.py.

A turn waits, takes what has arrived, and sends what may leave then, as fast as it leaves this host: as Driver does, with
the same rules for how long datagrams gather (receive_coalescing.py) and how much may wait in this host (send_pacer.py),
which tests/net/test_steady_loop.py holds together. What becomes of datagrams is in protocol/rank/compiled.

Compiled code calls the C library by name; `receive` and `send` are those of socket_kernels.py.
"""

import math
from typing import Any

import numba

from sa_atp.net.sockets.socket_kernels import receive as receive_messages
from sa_atp.net.sockets.socket_kernels import send
from sa_atp.protocol.rank.compiled.steady_kernels import (
    A_QUESTION,
    N_ASKS,
    N_HAS_MORE,
    N_PART,
    answer,
    due_us,
    may_gather,
    receive,
    transmit,
)

types: Any = numba.types
ppoll = types.ExternalFunction("ppoll", types.int32(types.uintp, types.uint64, types.uintp, types.uintp))
clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))
ioctl = types.ExternalFunction("ioctl", types.int32(types.int32, types.uint64, types.uintp))

# --- what the loop knows, as items of int64[L_ITEMS] and float64[F_ITEMS] -----------------------------------------------
# descriptors, of the socket and of what wakes the loop; from whom results come, as struct sockaddr_in begins, twice
(L_SOCKET, L_WAKE, L_SENDER, L_OTHER_SENDER) = range(4)
# until when to go on; how long datagrams may gather first; when there will be room to send, -1: there is some
(L_UNTIL, L_PAUSE, L_RESUME) = range(4, 7)
# of the pacer (SendPacer.counted) and of coalescing (ReceiveCoalescing.counted)
(L_HELD, L_AT, L_LEFT, L_BUSY) = range(7, 11)
(L_COUNTED, L_LONGEST, L_ENOUGH, L_WORTH_IT) = range(11, 15)
# datagrams of a call to the kernel, bytes of a fragment, data fragments of the operation, looks at the socket in a turn;
# whether something may leave before all else
(L_SEGMENTS, L_SIZE, L_DATA_FRAGMENTS, L_LOOKS, L_OWES) = range(15, 20)
# what has come of it: turns, datagrams that came and were sent; when the last came; rows that were found, and are not all
# taken: from which row, and which datagram of it; datagrams that were written, and are not all sent: from which
# and whether the question behind them has not been sent
(L_TURNS, L_RECEIVED, L_SENT, L_NOW, L_FOUND, L_ROW, L_DATAGRAM, L_WRITTEN, L_TAKEN, L_ASKS) = range(20, 30)
L_ITEMS = 30
F_PACE, F_RECENT, F_ITEMS = range(3)

# As in send_pacer.py and receive_coalescing.py, which a test compares
AHEAD_US, LEAST_BYTES, MEASURED_US, LATER_US, SMOOTHING, GROWTH = 10_000, 32_768, 40_000, 1_000, 0.5, 1.25
MEMORY_US, SOON = 50_000.0, 2


def clock(times: Any) -> int:
    """Microseconds, as net/clock.py has them. Args: times: int64[2]."""
    clock_gettime(1, times.ctypes.data)
    return int((times[0] * 1_000_000_000 + times[1]) // 1000)


def wait(polls: Any, times: Any, first: int, count: int, wait_us: int) -> int:
    """Until there is something at one of the descriptors, or the time is over.

    Args: polls: int64[2], struct pollfd each; first, count: of these. Returns: at how many; negative: a signal came.
    """
    for i in range(2):
        polls[i] = (polls[i] & 0xFFFFFFFF) | (1 << 32)
    times[0] = wait_us // 1_000_000
    times[1] = wait_us % 1_000_000 * 1000
    return int(ppoll(polls.ctypes.data + 8 * first, count, times.ctypes.data, 0))


def limit(reals: Any) -> int:
    """SendPacer._limit"""
    return max(LEAST_BYTES, int(reals[F_PACE] * AHEAD_US))


def look(numbers: Any, reals: Any, held: int, now_us: int) -> None:
    """SendPacer._look"""
    before = numbers[L_HELD]
    if before != 0 and (held != 0 or before >= limit(reals) // 2):
        numbers[L_LEFT] += max(0, before - held)
        numbers[L_BUSY] += now_us - numbers[L_AT]
        if numbers[L_BUSY] >= MEASURED_US or (reals[F_PACE] == 0 and held == 0 and numbers[L_BUSY] != 0):
            pace = numbers[L_LEFT] / numbers[L_BUSY]
            reals[F_PACE] += (SMOOTHING if reals[F_PACE] != 0 else 1.0) * (pace - reals[F_PACE])
            numbers[L_LEFT] = numbers[L_BUSY] = 0
        if held == 0:
            reals[F_PACE] *= GROWTH
    numbers[L_HELD], numbers[L_AT] = held, now_us


def budget_bytes(numbers: Any, reals: Any, held: int, now_us: int) -> int:
    """SendPacer.budget_bytes; -1: nothing holds them back."""
    look(numbers, reals, held, now_us)
    if reals[F_PACE] == 0 and held == 0:
        return -1
    return max(0, limit(reals) - held)


def wrote(numbers: Any, reals: Any, count: int, held: int, now_us: int) -> None:
    """SendPacer.wrote"""
    numbers[L_HELD], numbers[L_AT] = held, now_us
    if held == 0 and count >= LEAST_BYTES // 2:
        reals[F_PACE] = 0.0
        numbers[L_LEFT] = numbers[L_BUSY] = 0


def resume_us(numbers: Any, reals: Any) -> int:
    """SendPacer.resume_us; -1: nothing is held back."""
    held = numbers[L_HELD]
    if held <= limit(reals) // 2:
        return -1
    if reals[F_PACE] == 0:
        return int(numbers[L_AT] + LATER_US)
    wait_us = int((held - limit(reals) / 2) / reals[F_PACE])
    return int(numbers[L_AT] + min(max(LATER_US // 2, wait_us), AHEAD_US))


def pause_us(numbers: Any, reals: Any, packets: int, most: int, now_us: int) -> int:
    """ReceiveCoalescing.pause_s, in microseconds."""
    pace = packets / max(1, now_us - numbers[L_COUNTED])
    reals[F_RECENT] = reals[F_RECENT] * math.exp((numbers[L_COUNTED] - now_us) / MEMORY_US) + packets
    numbers[L_COUNTED] = now_us
    enough = min(numbers[L_ENOUGH], most)
    pace = max(pace, reals[F_RECENT] / MEMORY_US)
    if packets <= 0 or enough <= 0 or (packets >= enough and pace * numbers[L_LONGEST] >= SOON * enough):
        return 0
    gathered = min(float(enough), pace * numbers[L_LONGEST])
    return int(gathered / pace) if gathered >= numbers[L_WORTH_IT] else 0


def take_found(numbers: Any, room: Any, found: Any, count: int, now_us: int, state: Any) -> bool:
    """Gives what has arrived to the connection. Returns: whether all was a stream's; else L_ROW says where it is not."""
    size = numbers[L_SIZE]
    words = size // 4
    question_bytes = 4 * state[A_QUESTION].size
    for row in range(count):
        numbers[L_ROW] = row
        numbers[L_DATAGRAM] = 0
        start, length = found[row, 0] // 4, found[row, 1]
        is_known = found[row, 3] == numbers[L_SENDER] or found[row, 3] == numbers[L_OTHER_SENDER]
        if is_known and found[row, 2] == question_bytes and length % question_bytes == 0:
            for n in range(length // question_bytes):
                at = start + n * state[A_QUESTION].size
                if not answer(room[at : at + state[A_QUESTION].size], now_us, state):
                    numbers[L_DATAGRAM] = n
                    return False
                numbers[L_TAKEN] += 1
            continue
        if not is_known or found[row, 2] != size or length % size != 0:
            return False
        datagrams = length // size
        packets = room[start : start + datagrams * words].reshape(datagrams, words)
        taken = receive(packets, now_us, state)
        numbers[L_TAKEN] += taken
        if taken < datagrams or state[0][N_PART] != 0:
            numbers[L_DATAGRAM] = taken
            return False
    numbers[L_ROW] = count
    return True


def flush(
    numbers: Any, reals: Any, times: Any, held: Any, out: Any, data: Any, question: Any, header: Any, vector: Any,
    name: Any, control: Any, values: Any, state: Any,
) -> bool:  # fmt: skip
    """Sends what may leave. Returns: False if that is for the rules; L_WRITTEN: so many are written, L_SENT were sent."""
    fd = numbers[L_SOCKET]
    numbers[L_RESUME] = -1
    budget = 0
    while True:
        ioctl(fd, 0x5411, held.ctypes.data)  # SIOCOUTQ
        budget = budget_bytes(numbers, reals, held[0], clock(times))
        count = transmit(out, budget, clock(times), values, state)
        if count < 0:
            return False
        if count == 0:
            break
        sent = send(fd, data[:count], 0, numbers[L_SEGMENTS], header, vector, name, control)
        numbers[L_SENT] += sent
        if sent < count:
            numbers[L_WRITTEN], numbers[L_DATAGRAM], numbers[L_ASKS] = count, sent, state[0][N_ASKS]
            return False
        written = count * numbers[L_SIZE]
        if state[0][N_ASKS] != 0:
            if send(fd, question, 0, 1, header, vector, name, control) != 1:
                numbers[L_ASKS] = 1
                return False
            numbers[L_SENT] += 1
            written += question.size
        ioctl(fd, 0x5411, held.ctypes.data)
        wrote(numbers, reals, written, held[0], clock(times))
        if state[0][N_HAS_MORE] == 0:
            break
    if budget >= 0:
        numbers[L_RESUME] = resume_us(numbers, reals)
    return True


def run(
    numbers: Any, reals: Any, polls: Any, times: Any, held: Any, room: Any, words: Any, header: Any, vector: Any,
    name: Any, control: Any, found: Any, out: Any, data: Any, question: Any, header_out: Any, vector_out: Any,
    name_out: Any, control_out: Any, values: Any, state: Any,
) -> None:  # fmt: skip
    """Goes on until it is time, somebody wants the loop, or something is for the rules. `numbers` says what has come of it.

    Args:
        numbers: int64[L_ITEMS]. reals: float64[F_ITEMS]. polls, times: int64[2]. held: int32[1].
        room: uint8[...], and the same memory as words: uint32[...]; header, vector, name, control, found: see
            socket_kernels.receive.
        out: uint32[most of a burst, words of a fragment], and the same memory as data: uint8[...]; question: uint8[1, bytes
            of a header], memory of the state's question; header_out, ...: see socket_kernels.send.
        values, state: see steady_kernels.
    """
    fd = numbers[L_SOCKET]
    polls[0], polls[1] = fd, numbers[L_WAKE]
    pause = numbers[L_PAUSE]
    numbers[L_FOUND] = numbers[L_ROW] = numbers[L_DATAGRAM] = numbers[L_WRITTEN] = 0
    now = clock(times)
    numbers[L_NOW] = now
    if numbers[L_OWES] != 0 and not flush(
        numbers, reals, times, held, out, data, question, header_out, vector_out, name_out, control_out, values, state
    ):
        return
    while now < numbers[L_UNTIL]:
        if pause > 0 and wait(polls, times, 1, 1, pause) != 0:
            return  # somebody wants the loop
        due = due_us(state[0], numbers[L_DATA_FRAGMENTS])
        until = min(due, numbers[L_UNTIL])
        if numbers[L_RESUME] >= 0:
            until = min(until, numbers[L_RESUME])
        now = clock(times)
        if wait(polls, times, 0, 2, max(0, until - now)) < 0 or polls[1] >> 48 != 0:
            return
        received = 0
        if polls[0] >> 48 != 0:
            for _ in range(numbers[L_LOOKS]):
                count = receive_messages(fd, room, header, vector, name, control, found)
                is_drained = count < 0
                count = -1 - count if is_drained else count
                before = numbers[L_TAKEN]
                for row in range(count):
                    numbers[L_RECEIVED] += -(-found[row, 1] // found[row, 2])
                numbers[L_NOW] = clock(times)
                if not take_found(numbers, words, found, count, numbers[L_NOW], state):
                    numbers[L_FOUND] = count
                    return
                received += numbers[L_TAKEN] - before
                due = due_us(state[0], numbers[L_DATA_FRAGMENTS])  # results may have made it later
                if is_drained:
                    break
                if not flush(
                    numbers, reals, times, held, out, data, question, header_out, vector_out, name_out, control_out,
                    values, state,
                ):  # fmt: skip
                    return
        numbers[L_TURNS] += 1
        now = clock(times)
        if now >= due:
            return
        if not flush(
            numbers, reals, times, held, out, data, question, header_out, vector_out, name_out, control_out,
            values, state,
        ):  # fmt: skip
            return
        pause = 0
        if received > 0:
            now = clock(times)
            pause = pause_us(numbers, reals, received, may_gather(state[0]), now)
