"""One turn of the loop: what ports have goes through the pipeline, and where it goes then."""

from typing import TYPE_CHECKING

from sa_atp.net.datapath.state import (
    CALLS,
    COST_UNITS,
    DEPTHS,
    FEW_ROWS,
    IN_MESSAGES,
    IN_SLOTS,
    INTERFACE,
    IS_LARGE,
    LARGE_BYTES,
    MESSAGE_WORDS,
    PACKETS_IN,
    PORT_COSTS,
    PORT_FDS,
    PORT_KINDS,
    PORT_NUMBERS,
    PORT_POLLS,
    PUNTED_BYTES,
    PUNTED_END,
    SCRATCH,
    SENT,
    TOTALS,
    WITHOUT_PIPELINE,
)

if TYPE_CHECKING:
    from sa_atp.net.datapath.arriving import find_frames, take_rows
    from sa_atp.net.datapath.leaving import send_all
    from sa_atp.net.datapath.operations import (
        address_in,
        array_i64_1,
        call_program,
        compiled,
        frame_word,
        inner,
        monotonic_us,
        poll,
        queued_bytes,
        set_frame_word,
    )

LONGEST_TURN_US = 1000  # then Python has a look at what else there is to do


@inner
def take(s: int) -> int:
    """Fills rows with what ports have. Returns: how many."""
    in_slots = array_i64_1(s, IN_SLOTS)
    port_fds = array_i64_1(s, PORT_FDS)
    port_polls = array_i64_1(s, PORT_POLLS)
    totals = array_i64_1(s, TOTALS)
    count = len(port_fds)
    room = FEW_ROWS if totals[IS_LARGE] != 0 else len(in_slots)
    if count == 1:  # there is nothing to choose
        return take_rows(s, 0, 0, room)
    for slot in range(count):
        port_polls[slot] = port_fds[slot] | 1 << 32  # POLLIN
    if poll(address_in(s, PORT_POLLS), count, 0) <= 0:
        return 0
    readable = 0
    for slot in range(count):
        if port_polls[slot] >> 48 != 0:
            readable += 1
    each = max(1, room // max(readable, 1))
    taken = 0
    for i in range(count):
        slot = (i + totals[CALLS]) % count  # everybody is first once
        if port_polls[slot] >> 48 != 0 and taken < room:
            taken += take_rows(s, slot, taken, min(each, room - taken))
    return taken


@inner
def look_at_queues(s: int) -> None:
    """How many frames wait at each interface, as far as its socket knows."""
    depths = array_i64_1(s, DEPTHS)
    port_costs = array_i64_1(s, PORT_COSTS)
    port_fds = array_i64_1(s, PORT_FDS)
    port_kinds = array_i64_1(s, PORT_KINDS)
    port_numbers = array_i64_1(s, PORT_NUMBERS)
    for slot in range(len(port_fds)):
        if port_kinds[slot] == INTERFACE:
            waiting = queued_bytes(port_fds[slot], address_in(s, SCRATCH)) * COST_UNITS
            depths[port_numbers[slot]] = waiting // port_costs[slot]


@compiled
def run_turn(s: int, program: int, frame: int, started_us: int, most_bytes: int, cpu_port: int) -> int:
    """Moves packets until ports have no more, or LONGEST_TURN_US have passed.

    Args: program, frame: addresses, see `softswitch.frame`; program 0: there is none, packets are dropped.

    Returns: packets that arrived.
    """
    totals = array_i64_1(s, TOTALS)
    in_messages = array_i64_1(s, IN_MESSAGES)
    begun = monotonic_us(address_in(s, SCRATCH))
    arrived = 0
    while True:
        taken = take(s)
        if taken == 0:
            break
        totals[CALLS] += 1
        row, done = 0, 0
        received = 0
        for i in range(taken):
            received += in_messages[i * MESSAGE_WORDS + SENT] & 0xFFFFFFFF
        totals[IS_LARGE] = 1 if received > LARGE_BYTES * taken else 0
        now = monotonic_us(address_in(s, SCRATCH))
        while row < taken:
            row, done, count = find_frames(s, row, taken, done, 0, most_bytes)
            arrived += count
            totals[PACKETS_IN] += count
            if program == 0:
                totals[WITHOUT_PIPELINE] += count
                continue
            look_at_queues(s)
            first = 0
            while first < count:
                set_frame_word(frame, 0, first)
                set_frame_word(frame, 3, count)
                set_frame_word(frame, 6, now - started_us)
                call_program(program, frame)
                first = frame_word(frame, 0)
                send_all(s, frame_word(frame, 3), cpu_port)
        if now - begun > LONGEST_TURN_US or 2 * totals[PUNTED_END] > PUNTED_BYTES:
            break
    return arrived
