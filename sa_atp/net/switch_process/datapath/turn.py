"""One turn of the loop: moves packets from ports through the pipeline to ports."""

from typing import TYPE_CHECKING

from sa_atp.net.switch_process.datapath.state import (
    ATTENTION,
    CALLS,
    COST_UNITS,
    DOORBELL_FD,
    EVENT_FD,
    FEW_ROWS,
    HELD_COUNT,
    HELD_DUE,
    INTERFACE,
    IS_LARGE,
    LARGE_BYTES,
    MESSAGE_WORDS,
    NO_DESCRIPTOR,
    PACKETS_IN,
    PORT_POLLS,
    PUNTED,
    SCRATCH,
    SENT,
    WITHOUT_PIPELINE,
)

if TYPE_CHECKING:
    from sa_atp.net.switch_process.datapath.arrays import (
        channels,
        depths,
        held,
        in_messages,
        in_slots,
        port_costs,
        port_fds,
        port_holds,
        port_kinds,
        port_numbers,
        port_polls,
        port_takes,
        totals,
        wires,
    )
    from sa_atp.net.switch_process.datapath.arriving import find_frames, take_rows
    from sa_atp.net.switch_process.datapath.channels import (
        choose_output,
        fall_asleep,
        give_back,
        keep_output,
        say_whether_asleep,
        take_shared,
    )
    from sa_atp.net.switch_process.datapath.leaving import send_all
    from sa_atp.net.switch_process.datapath.operations import (
        address_in,
        call_program,
        compiled,
        frame_word,
        hear_bell,
        inner,
        monotonic_us,
        poll,
        queued_bytes,
        set_frame_word,
    )
    from sa_atp.net.switch_process.datapath.wires import hold_arriving, list_crossed


OTHERS_TURN = 16  # batches, after which kernel's ports are looked at however much comes through channels


@inner
def look(s: int, timeout_us: int) -> int:
    """Waits until a port has packets, or a channel.

    Returns: the number of ports with packets, plus 1 if a thread wants the pipeline, plus 1 if a channel may have
    packets; -1: a signal came.
    """
    count = len(port_fds)
    for slot in range(count):
        fd = port_fds[slot] if port_takes[slot] != 0 else NO_DESCRIPTOR
        port_polls[slot] = fd | 1 << 32  # POLLIN
    port_polls[count] = totals[EVENT_FD] | 1 << 32
    port_polls[count + 1] = totals[DOORBELL_FD] | 1 << 32
    waits = timeout_us > 0 and len(channels) > 0
    waiting = fall_asleep(s) if waits else 0
    found = poll(address_in(s, PORT_POLLS), count + 2, timeout_us if waiting == 0 else 0, address_in(s, SCRATCH))
    if waits and waiting == 0:
        say_whether_asleep(s, 0)
    if found > 0 and port_polls[count] >> 48 != 0:
        totals[ATTENTION] = 1
    if found > 0 and port_polls[count + 1] >> 48 != 0:
        hear_bell(totals[DOORBELL_FD], address_in(s, SCRATCH))
    return found + 1 if waiting > 0 and found >= 0 else found


@inner
def take(s: int, has_looked: bool) -> int:
    """Receives messages: from channels, and from a single port, or from those of several where `look` has found some.

    Returns: how many.
    """
    count = len(port_fds)
    room = FEW_ROWS if totals[IS_LARGE] != 0 else len(in_slots)
    taken = 0
    if len(channels) > 0:
        taken = take_shared(s, totals[CALLS], room - room // 4)
        if taken > 0:
            if totals[CALLS] % OTHERS_TURN != 0:
                return taken
            has_looked = has_looked or look(s, 0) > 0
    if count == 1:  # no need to look
        return taken + take_rows(s, 0, taken, room - taken)
    if not has_looked:
        return taken
    readable = 0
    for slot in range(count):
        if port_polls[slot] >> 48 != 0:
            readable += 1
    each = max(1, (room - taken) // max(readable, 1))
    for i in range(count):
        slot = (i + totals[CALLS]) % count  # each port is first in turn
        if port_polls[slot] >> 48 != 0 and taken < room:
            taken += take_rows(s, slot, taken, min(each, room - taken))
    return taken


@inner
def look_at_queues(s: int) -> None:
    """Estimates how many frames wait at each interface: none, if none did and none has been sent since."""
    sends_alone = True  # other cores send there, too, without updating PORT_HOLDS
    for slot in range(len(port_takes)):
        sends_alone = sends_alone and port_takes[slot] != 0
    for slot in range(len(port_fds)):
        if port_kinds[slot] == INTERFACE and port_holds[slot] != 0:
            waiting = queued_bytes(port_fds[slot], address_in(s, SCRATCH)) * COST_UNITS
            depths[port_numbers[slot]] = waiting // port_costs[slot]
            port_holds[slot] = 0 if sends_alone and waiting == 0 else 1


@inner
def process(s: int, count: int, program: int, frame: int, started_us: int, cpu_port: int, now: int) -> None:
    """Passes the listed frames through the program, and sends what leaves it."""
    if count == 0:
        return
    totals[PACKETS_IN] += count
    if program == 0:
        totals[WITHOUT_PIPELINE] += count
        return
    look_at_queues(s)
    first = 0
    while first < count:
        set_frame_word(frame, 0, first)
        set_frame_word(frame, 3, count)
        set_frame_word(frame, 6, now - started_us)
        choose_output(s, frame)
        call_program(program, frame)
        first = frame_word(frame, 0)
        send_all(s, frame_word(frame, 3), cpu_port, now)
        keep_output(s, frame_word(frame, 3))


@compiled
def run_turn(s: int, program: int, frame: int, started_us: int, most_bytes: int, cpu_port: int, longest_us: int) -> int:
    """Waits for packets and moves them, until the time is over, a thread wants the pipeline, or Python has work.

    Args: program, frame: addresses, see `embedded.call_frame`; program 0: there is none, and packets are dropped.

    Returns: how many packets arrived.
    """
    begun = monotonic_us(address_in(s, SCRATCH))
    now = begun
    arrived = 0
    has_looked = False
    while totals[ATTENTION] == 0 and totals[PUNTED] == 0:  # other threads may set ATTENTION at any time
        if totals[HELD_COUNT] > 0:
            now = monotonic_us(address_in(s, SCRATCH))
            crossed, left = list_crossed(s, now)
            send_all(s, left, cpu_port, -1)
            process(s, crossed, program, frame, started_us, cpu_port, now)
        taken = take(s, has_looked)
        has_looked = False
        if taken == 0:
            now = monotonic_us(address_in(s, SCRATCH))
            left_us = longest_us - (now - begun)
            wait_us = left_us if totals[HELD_COUNT] == 0 else min(left_us, max(0, held[0, HELD_DUE] - now))
            found = look(s, wait_us) if left_us > 0 else 0
            if found < 0 or (found == 0 and wait_us == left_us):
                break
            has_looked = found > 0
            continue
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
            if len(wires) > 0:
                count = hold_arriving(s, count, now)
            process(s, count, program, frame, started_us, cpu_port, now)
        give_back(s)
        if now - begun >= longest_us:
            break
    return arrived
