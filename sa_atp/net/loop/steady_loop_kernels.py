"""Turns of a worker's loop in compiled code, waiting included, for as long as a stream flows. See net/loop/compiled.py.

A turn waits, takes what has arrived, and sends what may leave then, as fast as it leaves this host: as Driver does, by
the same rules for how long datagrams gather (receive_coalescing.py) and how much may wait in this host (send_pacer.py).
What becomes of datagrams is in protocol/rank/compiled.

Compiled code calls the C library by name; `receive` and `send` are those of socket_kernels.py.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numba

from sa_atp.net.loop.receive_coalescing import ReceiveCoalescing, pause_us
from sa_atp.net.loop.send_pacer import UNLIMITED, SendPacer, budget_bytes, resume_us, wrote
from sa_atp.net.shared_memory.layout import AT_ONCE_BYTES, ROOM_US
from sa_atp.net.shared_memory.ring_kernels import (
    PLACE,
    commit,
    fall_asleep,
    give_back,
    has_arrived,
    place,
    publish,
    put,
    take,
    wake_up,
)
from sa_atp.net.sockets.socket_kernels import receive as receive_messages
from sa_atp.net.sockets.socket_kernels import send
from sa_atp.protocol.rank.compiled.steady_kernels import answer, due_us, may_gather, receive, transmit

types: Any = numba.types
ppoll = types.ExternalFunction("ppoll", types.int32(types.uintp, types.uint64, types.uintp, types.uintp))
clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))
ioctl = types.ExternalFunction("ioctl", types.int32(types.int32, types.uint64, types.uintp))

NO_TIME = -1


@dataclass(slots=True)
class Loop:
    """What the loop knows, and what has come of it: a record class (protocol/records.py)."""

    pacer: SendPacer
    coalescing: ReceiveCoalescing
    socket: int = 0
    wake: int = 0
    """Descriptors, of the socket and of what wakes the loop."""
    sender: int = 0
    other_sender: int = 0
    """From whom results come, as struct sockaddr_in begins."""
    until_us: int = 0
    """When to end."""
    pause_us: int = 0
    """How long datagrams may gather first."""
    resume_us: int = 0
    """When there will be room to send; NO_TIME: there is some."""
    segments: int = 0
    """Datagrams of a call to the kernel."""
    size: int = 0
    """Bytes of a fragment."""
    looks: int = 0
    """At the socket, in a turn."""
    shares: bool = False
    """Whether datagrams to and from the switch travel by shared memory."""
    bell: int = -1
    """The descriptor at which the switch wakes this end then."""
    owes: bool = False
    """Whether something may leave before all else."""
    turns: int = 0
    received: int = 0
    sent: int = 0
    """Datagrams."""
    taken: int = 0
    """Of these, results and answers that kernels took."""
    now_us: int = 0
    """When datagrams last came."""
    is_shared: bool = False
    """Whether `found` means rows of Ring.found."""
    found: int = 0
    """Rows of Incoming.found that are not all taken: from `row` on, and from `datagram` on of that."""
    row: int = 0
    datagram: int = 0
    written: int = 0
    """Datagrams of a burst that are not all sent: from `datagram` on."""
    asks: bool = False
    """Whether the question behind them has not been sent."""


class Incoming(NamedTuple):
    """Memory of socket_kernels.receive; see there."""

    room: Any
    words: Any
    """uint32[...], the memory of `room`."""
    header: Any
    vector: Any
    name: Any
    control: Any
    found: Any


class Outgoing(NamedTuple):
    """Memory of socket_kernels.send; see there."""

    header: Any
    vector: Any
    name: Any
    control: Any


class Memory(NamedTuple):
    """What the loop works on, beside the connection's state."""

    polls: Any
    """int64[3]: struct pollfd of the socket, of what wakes the loop, and of the bell."""
    times: Any
    """int64[2]."""
    held: Any
    """int32[1]."""
    incoming: Any
    outgoing: Any
    ring: Any
    out: Any
    """uint32[most of a burst, words of a fragment]."""
    data: Any
    """uint8[...], the memory of `out`."""
    question: Any
    """uint8[1, bytes of a header], the memory of State.question."""


def clock(times: Any) -> int:
    """Microseconds, as net/clock.py has them. Args: times: int64[2]."""
    clock_gettime(1, times.ctypes.data)
    return int((times[0] * 1_000_000_000 + times[1]) // 1000)


def wait(polls: Any, times: Any, first: int, count: int, wait_us: int) -> int:
    """Until there is something at one of the descriptors, or the time is over.

    Args: polls: int64[3], struct pollfd each; first, count: of these. Returns: at how many; negative: a signal came.
    """
    for i in range(3):
        polls[i] = (polls[i] & 0xFFFFFFFF) | (1 << 32)
    times[0] = wait_us // 1_000_000
    times[1] = wait_us % 1_000_000 * 1000
    return int(ppoll(polls.ctypes.data + 8 * first, count, times.ctypes.data, 0))


def take_found(loop: Any, incoming: Any, count: int, now_us: int, state: Any) -> bool:
    """Gives what has arrived to the connection. Returns: whether all was a stream's; else Loop.row says where it is not."""
    room, found = incoming.words, incoming.found
    size = loop.size
    words = size // 4
    question_words = state.question.size
    question_bytes = 4 * question_words
    for row in range(count):
        loop.row = row
        loop.datagram = 0
        start, length = found[row, 0] // 4, found[row, 1]
        is_known = found[row, 3] == loop.sender or found[row, 3] == loop.other_sender
        if is_known and found[row, 2] == question_bytes and length % question_bytes == 0:
            for n in range(length // question_bytes):
                at = start + n * question_words
                if not answer(room[at : at + question_words], now_us, state):
                    loop.datagram = n
                    return False
                loop.taken += 1
            continue
        if not is_known or found[row, 2] != size or length % size != 0:
            return False
        datagrams = length // size
        packets = room[start : start + datagrams * words].reshape(datagrams, words)
        taken = receive(packets, now_us, state)
        loop.taken += taken
        if taken < datagrams or state.flow[0].unfinished != 0:
            loop.datagram = taken
            return False
    loop.row = count
    return True


def hear(loop: Any, source: Any, count: int, times: Any, state: Any) -> bool:
    """Counts what has come, and gives it to the connection. Args: source: an Incoming, or a Ring.

    Returns: whether all was a stream's; else Loop.found says how many rows there are.
    """
    for row in range(count):
        loop.received += -(-source.found[row, 1] // source.found[row, 2])
    loop.now_us = clock(times)
    if take_found(loop, source, count, loop.now_us, state):
        return True
    loop.found = count
    return False


def held_bytes(loop: Any, memory: Any) -> int:
    """What was written, and waits in this host."""
    ioctl(loop.socket, 0x5411, memory.held.ctypes.data)  # SIOCOUTQ
    return int(memory.held[0])


def give(loop: Any, data: Any, segments: int, outgoing: Any) -> int:
    """Sends datagrams, counts them, and says how many the kernel took."""
    sent = send(loop.socket, data, 0, segments, outgoing.header, outgoing.vector, outgoing.name, outgoing.control)
    loop.sent += sent
    return int(sent)


def flush(loop: Any, memory: Any, values: Any, state: Any) -> bool:
    """Sends what may leave. Returns: False if that is for the rules; Loop.written: so many are written."""
    loop.resume_us = NO_TIME
    if loop.shares:
        return flush_shared(loop, memory, values, state)
    budget = 0
    while True:
        budget = budget_bytes(loop.pacer, held_bytes(loop, memory), clock(memory.times))
        count = transmit(memory.out, budget, clock(memory.times), values, state)
        if count < 0:
            return False
        if count == 0:
            break
        sent = give(loop, memory.data[:count], loop.segments, memory.outgoing)
        if sent < count:
            loop.written, loop.datagram, loop.asks = count, sent, state.flow[0].asks
            return False
        written = count * loop.size
        if state.flow[0].asks:
            if give(loop, memory.question, 1, memory.outgoing) != 1:
                loop.asks = True
                return False
            written += memory.question.size
        wrote(loop.pacer, written, held_bytes(loop, memory), clock(memory.times))
        if not state.flow[0].has_more:
            break
    if budget != UNLIMITED:
        loop.resume_us = resume_us(loop.pacer)
    return True


def flush_shared(loop: Any, memory: Any, values: Any, state: Any) -> bool:
    """As `flush`: contributions are written where the switch reads them."""
    ring, words = memory.ring, loop.size // 4
    most = max(1, min(memory.out.shape[0], AT_ONCE_BYTES // loop.size))
    give_back(ring)
    while True:
        room = place(ring, loop.size, most)
        start = ring.mine[PLACE] // 4
        out = ring.up_words[start : start + room * words].reshape(room, words)
        count = transmit(out, room * loop.size, clock(memory.times), values, state)
        if count <= 0:
            if room == 0:
                loop.resume_us = clock(memory.times) + ROOM_US
            return bool(count == 0)
        commit(ring, loop.size, count)
        publish(ring)
        loop.sent += count
        if state.flow[0].asks:
            if put(ring, memory.question, 0) != 1:
                loop.asks = True
                return False
            loop.sent += 1
        if not state.flow[0].has_more:
            return True


def run(loop_: Any, memory: Any, values: Any, state: Any) -> None:
    """Goes on until it is time, somebody wants the loop, or something is for the rules.

    Args: loop_: Loop[1], which says what has come of it. memory: a Memory. values, state: see steady_kernels.
    """
    loop, polls, times, incoming, ring = loop_[0], memory.polls, memory.times, memory.incoming, memory.ring
    polls[0], polls[1], polls[2] = loop.socket, loop.wake, loop.bell
    descriptors = 3 if loop.shares else 2
    pause = loop.pause_us
    loop.found = loop.row = loop.datagram = loop.written = 0
    now = clock(times)
    loop.now_us = now
    if loop.owes and not flush(loop, memory, values, state):
        return
    while now < loop.until_us:
        if pause > 0 and wait(polls, times, 1, 1, pause) != 0:
            return  # somebody wants the loop
        due = due_us(state)
        until = min(due, loop.until_us)
        if loop.resume_us >= 0:
            until = min(until, loop.resume_us)
        now = clock(times)
        wait_us = max(0, until - now)
        sleeps = loop.shares and wait_us > 0 and fall_asleep(ring)
        if loop.shares and not sleeps:
            wait_us = 0
        is_woken = wait(polls, times, 0, descriptors, wait_us)
        if sleeps:
            wake_up(ring, is_woken > 0 and polls[2] >> 48 != 0)
        if is_woken < 0 or polls[1] >> 48 != 0:
            return
        received = 0
        for _ in range(loop.looks):
            before = loop.taken
            loop.is_shared = loop.shares and has_arrived(ring)
            is_drained = False
            if loop.is_shared:
                count = take(ring)
                if count == 0 or not hear(loop, ring, count, times, state):
                    return
            elif polls[0] >> 48 != 0:
                count = receive_messages(
                    loop.socket, incoming.room, incoming.header, incoming.vector, incoming.name, incoming.control,
                    incoming.found,
                )  # fmt: skip
                is_drained = count < 0
                if not hear(loop, incoming, -1 - count if is_drained else count, times, state):
                    return
            else:
                break
            received += loop.taken - before
            due = due_us(state)  # results may have made it later
            if is_drained:
                break
            if not flush(loop, memory, values, state):
                return
        loop.turns += 1
        now = clock(times)
        if now >= due:
            return
        if not flush(loop, memory, values, state):
            return
        pause = 0
        if received > 0:
            now = clock(times)
            pause = int(pause_us(loop.coalescing, received, may_gather(state), now))
            if loop.resume_us >= 0:  # what waits to be sent need not wait longer
                pause = min(pause, loop.resume_us - now)
