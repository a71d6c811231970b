"""Impaired links. A *wire* is one direction of such a link: it loses, delays, duplicates and reorders frames.

A frame on its way waits in a heap (HELD) until it is due. A frame that has crossed a wire to the switch is then listed with
those that arrive; a frame that has crossed a wire from the switch is sent to the port.
"""

from typing import TYPE_CHECKING

from sa_atp.net.switch_process.datapath.state import (
    HELD_COUNT,
    HELD_DUE,
    HELD_ITEMS,
    HELD_LENGTH,
    HELD_ORDER,
    HELD_ORDER_NEXT,
    HELD_PLACE,
    HELD_WIRE,
    OUT_ROOM,
    REORDER_BY_US,
    WIRE_CARRIED,
    WIRE_DELAY_US,
    WIRE_DUPLICATE,
    WIRE_DUPLICATED,
    WIRE_FULL,
    WIRE_JITTER_US,
    WIRE_LAST_US,
    WIRE_LOSS,
    WIRE_LOST,
    WIRE_RANDOM,
    WIRE_REORDER,
    WIRE_REORDERED,
    WIRE_USED,
)
from sa_atp.switches.embedded.pipeline import ROW_BYTES as FRAME_BYTES
from sa_atp.switches.embedded.translate.deparsing import HEAD_AT, HEAD_BYTES, HEAD_ROW

if TYPE_CHECKING:
    from sa_atp.net.switch_process.datapath.arrays import (
        held,
        held_bytes,
        in_head_of,
        in_heads,
        in_lengths,
        in_ports,
        in_rows,
        in_starts,
        out_bytes,
        out_heads,
        out_lengths,
        out_ports,
        out_starts,
        port_numbers,
        port_slots,
        totals,
        wires,
    )
    from sa_atp.net.switch_process.datapath.operations import copy_bytes, i64, inner

MULTIPLIER, INCREMENT, RANDOM_MASK = 0x5DEECE66D, 11, (1 << 48) - 1  # of drand48 (POSIX)


@inner
def drawn(s: int, wire: int) -> int:
    """A random number of 32 bits."""
    wires[wire, WIRE_RANDOM] = (i64(wires[wire, WIRE_RANDOM]) * MULTIPLIER + INCREMENT) & RANDOM_MASK
    return i64(wires[wire, WIRE_RANDOM]) >> 16


@inner
def drawn_below(s: int, wire: int, most: int) -> int:
    """Returns a random number from 0 to most - 1."""
    return drawn(s, wire) * most >> 32


@inner
def arrives_at(s: int, wire: int, now: int) -> int:
    """Decides what becomes of a frame that is sent now. Returns: when it arrives; -1: the wire loses it."""
    if drawn(s, wire) < wires[wire, WIRE_LOSS]:
        wires[wire, WIRE_LOST] += 1
        return -1
    wires[wire, WIRE_CARRIED] += 1
    due = now + wires[wire, WIRE_DELAY_US]
    if wires[wire, WIRE_JITTER_US] > 0:
        due = max(due + drawn_below(s, wire, wires[wire, WIRE_JITTER_US] + 1), wires[wire, WIRE_LAST_US])
        wires[wire, WIRE_LAST_US] = due
    if drawn(s, wire) < wires[wire, WIRE_REORDER]:
        wires[wire, WIRE_REORDERED] += 1
        due += 1 + drawn_below(s, wire, REORDER_BY_US)
    return i64(due)


@inner
def again_at(s: int, wire: int, due: int) -> int:
    """Decides whether a wire duplicates a frame that arrives at `due`. Returns: when the copy arrives; -1: no copy."""
    if drawn(s, wire) >= wires[wire, WIRE_DUPLICATE]:
        return -1
    wires[wire, WIRE_DUPLICATED] += 1
    return due + 1 + drawn_below(s, wire, REORDER_BY_US)


@inner
def comes_before(s: int, i: int, k: int) -> bool:
    """Whether the frame in row i of HELD is due before the one in row k."""
    if held[i, HELD_DUE] != held[k, HELD_DUE]:
        return bool(held[i, HELD_DUE] < held[k, HELD_DUE])
    return bool(held[i, HELD_ORDER] < held[k, HELD_ORDER])


@inner
def swap(s: int, i: int, k: int) -> None:
    """Exchanges two rows of HELD."""
    for item in range(HELD_ITEMS):
        kept = held[i, item]
        held[i, item] = held[k, item]
        held[k, item] = kept


@inner
def hold(s: int, wire: int, length: int, due: int) -> int:
    """Makes room for a frame until it is due. Returns: where in HELD_BYTES; -1: too many frames are on their way."""
    at = totals[HELD_COUNT]
    if at >= len(held) or length > FRAME_BYTES:
        wires[wire, WIRE_FULL] += 1
        return -1
    totals[HELD_COUNT] += 1
    totals[HELD_ORDER_NEXT] += 1
    held[at, HELD_DUE] = due
    held[at, HELD_ORDER] = totals[HELD_ORDER_NEXT]
    held[at, HELD_WIRE] = wire
    held[at, HELD_LENGTH] = length
    place = held[at, HELD_PLACE] * FRAME_BYTES
    while at > 0 and comes_before(s, at, (at - 1) // 2):
        swap(s, at, (at - 1) // 2)
        at = (at - 1) // 2
    return i64(place)


@inner
def let_go(s: int) -> int:
    """Takes the frame that is due first out of the heap.

    Returns: the row of HELD that describes it, until the next `hold`.
    """
    last = totals[HELD_COUNT] - 1
    swap(s, 0, last)
    totals[HELD_COUNT] = last
    at = 0
    while 2 * at + 1 < last:
        first = 2 * at + 1
        if first + 1 < last and comes_before(s, first + 1, first):
            first += 1
        if not comes_before(s, first, at):
            break
        swap(s, at, first)
        at = first
    return i64(last)


@inner
def hold_arriving(s: int, count: int, now: int) -> int:
    """Sends the listed frames of impaired ports over their wires. Returns: how many other frames the list keeps."""
    kept = 0
    for i in range(count):
        wire = 2 * port_slots[in_ports[i]]
        if wires[wire, WIRE_USED] == 0:
            in_starts[kept] = in_starts[i]
            in_lengths[kept] = in_lengths[i]
            in_ports[kept] = in_ports[i]
            in_head_of[kept] = in_head_of[i]
            kept += 1
            continue
        due = arrives_at(s, wire, now)
        if due < 0:
            continue
        head = 0 if in_head_of[i] < 0 else HEAD_BYTES
        copy_due = again_at(s, wire, due)
        while due >= 0:
            at = hold(s, wire, in_lengths[i], due)
            if at >= 0:
                if head > 0:
                    copy_bytes(held_bytes, at, in_heads, in_head_of[i], head)
                copy_bytes(held_bytes, at + head, in_rows, in_starts[i] + head, in_lengths[i] - head)
            due, copy_due = copy_due, -1
    return kept


@inner
def hold_leaving(s: int, slot: int, k: int, now: int) -> None:
    """Sends a packet that leaves by an impaired port over its wire."""
    wire = 2 * slot + 1
    due = arrives_at(s, wire, now)
    if due < 0:
        return
    head = min(out_lengths[k], HEAD_BYTES)
    copy_due = again_at(s, wire, due)
    while due >= 0:
        at = hold(s, wire, out_lengths[k], due)
        if at >= 0:
            copy_bytes(held_bytes, at, out_heads, k * HEAD_ROW + HEAD_AT, head)
            copy_bytes(held_bytes, at + head, out_bytes, out_starts[k], out_lengths[k] - head)
        due, copy_due = copy_due, -1


@inner
def list_crossed(s: int, now: int) -> tuple[int, int]:
    """Lists frames that have crossed their wires: as frames in rows that arrive, or as a program's output.

    It ends early where there is no room for more; rows and output must not be in use. Returns: how many of each.
    """
    arrived, read, left, written = 0, 0, 0, 0
    while totals[HELD_COUNT] > 0 and held[0, HELD_DUE] <= now:
        if max(arrived, left) == min(len(in_starts), len(out_starts)):
            break
        if max(read, written) + FRAME_BYTES > min(len(in_rows), totals[OUT_ROOM], len(out_bytes)):
            break
        row = let_go(s)
        length = held[row, HELD_LENGTH]
        place = held[row, HELD_PLACE] * FRAME_BYTES
        number = port_numbers[held[row, HELD_WIRE] // 2]
        if held[row, HELD_WIRE] % 2 == 0:
            copy_bytes(in_rows, read, held_bytes, place, length)
            in_starts[arrived] = read
            in_lengths[arrived] = length
            in_ports[arrived] = number
            in_head_of[arrived] = -1
            arrived += 1
            read += length
        else:
            head = min(length, HEAD_BYTES)
            copy_bytes(out_heads, left * HEAD_ROW + HEAD_AT, held_bytes, place, head)
            copy_bytes(out_bytes, written, held_bytes, place + head, length - head)
            out_starts[left] = written
            out_lengths[left] = length
            out_ports[left] = number
            left += 1
            written += length - head
    return arrived, left
