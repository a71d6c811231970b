"""The switch's end of channels: memory that it shares with ranks on its machine (see shared_memory/layout.py).

A channel belongs to a UDP port: what a rank writes into it arrives at that port as if the rank's socket had sent it, and
what leaves by that port to the rank's address is written into it. Its memory is a part of IN_ROWS, so the pipeline reads
what arrives where the rank has put it.

What leaves the pipeline is written where all ranks can read it, and a channel gets records that say where. Only where a
rank does not take its records, so that there is no room, is it copied into each channel.

A rank may write anything anywhere into its channel, at any time. So nothing of it is an index or a size before it has
been compared with its bounds, and each number is read once. Who writes what cannot be is broken, and heard no more.
"""

from typing import TYPE_CHECKING

from sa_atp.net.shared_memory.layout import (
    DOWN_BYTES,
    DOWN_DATA,
    DOWN_HEAD,
    DOWN_RECORDS,
    DOWN_TAIL,
    FIELD,
    FIELD_BITS,
    GAP,
    MOST_DOWN,
    MOST_UP,
    RANK_SLEEPS,
    RECORDS,
    SPARES,
    SWITCH_SLEEPS,
    UP_BYTES,
    UP_DATA,
    UP_HEAD,
    UP_RECORDS,
    UP_TAIL,
)
from sa_atp.net.switch_process.datapath.state import (
    CHANNEL_AT,
    CHANNEL_BELL,
    CHANNEL_BROKEN,
    CHANNEL_HEAD,
    CHANNEL_KEY,
    CHANNEL_OTHERS_TAIL,
    CHANNEL_RUNG,
    CHANNEL_SLOT,
    CHANNEL_STARTS,
    CHANNEL_TAIL,
    CHANNEL_WRITTEN,
    IN_ROWS,
    MESSAGE_WORDS,
    NAME_ROW,
    OUT_BYTES,
    OUT_ROOM,
    PACKETS_OUT,
    PROGRAM_OUT,
    REFUSED,
    RESULT_STARTS,
    RESULTS_AT,
    RESULTS_KEPT,
    RESULTS_WRITTEN,
    SCRATCH,
    SENT,
)
from sa_atp.switches.embedded.translate.deparsing import HEAD_BYTES

FIRST_BODY = 64 - HEAD_BYTES  # in an output among the results: so that the first body begins at a cache line

if TYPE_CHECKING:
    from sa_atp.net.switch_process.datapath.arrays import (
        channel_names,
        channel_starts,
        channels,
        in_at,
        in_messages,
        in_names,
        in_rows,
        in_sizes,
        in_slots,
        next_packet,
        out_bytes,
        out_lengths,
        out_starts,
        own_out,
        port_counters,
        result_starts,
        results,
        totals,
    )
    from sa_atp.net.switch_process.datapath.operations import (
        address_in,
        array_i64_1,
        array_u8_1,
        copy_bytes,
        fence,
        i64,
        inner,
        load_shared,
        point_at,
        ring_bell,
        store_shared,
    )


@inner
def take_records(s: int, c: int, first: int, most: int) -> int:
    """Takes records of a channel as at most `most` rows, from the `first` on. Returns: how many."""
    base = channels[c, CHANNEL_AT]
    tail = channels[c, CHANNEL_TAIL]
    waiting = load_shared(in_rows, base + UP_HEAD) - tail
    if waiting < 0 or waiting > RECORDS:
        channels[c, CHANNEL_BROKEN] = 1
        return 0
    count = min(waiting, most)
    for i in range(count):
        word = load_shared(in_rows, base + UP_RECORDS + 8 * ((tail + i) % RECORDS))
        size = word & FIELD
        segment = (word >> FIELD_BITS) & FIELD
        start = 4 * (word >> 2 * FIELD_BITS)
        if word < 0 or size == 0 or size > MOST_UP or segment == 0 or start < GAP or start + size > UP_BYTES:
            channels[c, CHANNEL_BROKEN] = 1
            count = i
            break
        row = first + i
        in_at[row] = base + UP_DATA + start
        in_messages[row * MESSAGE_WORDS + SENT] = size
        in_sizes[row] = segment
        in_slots[row] = channels[c, CHANNEL_SLOT]
        copy_bytes(in_names, row * NAME_ROW, channel_names, c * NAME_ROW, NAME_ROW)
    channels[c, CHANNEL_TAIL] = tail + count
    return i64(count)


@inner
def take_shared(s: int, turn: int, most: int) -> int:
    """Takes records of all channels, each first in its turn. Returns: how many rows."""
    count = len(channels)
    waiting = 0
    for c in range(count):
        waiting += has_records(s, c)
    taken = 0
    if waiting > 0:
        each = max(1, most // waiting)
        for i in range(count):
            c = (i + turn) % count
            if has_records(s, c) != 0 and taken < most:
                taken += take_records(s, c, taken, min(each, most - taken))
    return taken


@inner
def has_records(s: int, c: int) -> int:
    """1 if a channel has records that have not been taken; else 0."""
    if channels[c, CHANNEL_SLOT] < 0 or channels[c, CHANNEL_BROKEN] != 0:
        return 0
    head = load_shared(array_u8_1(s, IN_ROWS), channels[c, CHANNEL_AT] + UP_HEAD)
    return 1 if head != channels[c, CHANNEL_TAIL] else 0


@inner
def give_back(s: int) -> None:
    """Tells the ranks that what was taken has been used."""
    for c in range(len(channels)):
        if channels[c, CHANNEL_SLOT] >= 0:
            store_shared(in_rows, channels[c, CHANNEL_AT] + UP_TAIL, channels[c, CHANNEL_TAIL])


@inner
def fall_asleep(s: int) -> int:
    """Asks the ranks to ring. Returns: how many channels have records already: then there is no reason to sleep."""
    say_whether_asleep(s, 1)
    fence()
    waiting = 0
    for c in range(len(channels)):
        waiting += has_records(s, c)
    if waiting > 0:
        say_whether_asleep(s, 0)
    return waiting


@inner
def say_whether_asleep(s: int, sleeps: int) -> None:
    for c in range(len(channels)):
        if channels[c, CHANNEL_SLOT] >= 0:
            store_shared(in_rows, channels[c, CHANNEL_AT] + SWITCH_SLEEPS, sleeps)


@inner
def channel_of(s: int, key: int) -> int:
    """The channel of a flow (see `leaving.sort_out`); -1: it has none."""
    for c in range(len(channels)):
        if channels[c, CHANNEL_KEY] == key and channels[c, CHANNEL_SLOT] >= 0 and channels[c, CHANNEL_BROKEN] == 0:
            return c
    return -1


@inner
def channel_below(s: int, source: int) -> int:
    """The channel of the rank with this address, as in CHANNEL_KEY without the port; -1: it has none."""
    for c in range(len(channels)):
        if channels[c, CHANNEL_KEY] & 0xFFFFFFFFFFFF == source and channels[c, CHANNEL_SLOT] >= 0:
            return c
    return -1


@inner
def oldest_byte(s: int, c: int, place: int, written: int) -> int:
    """How far a rank has taken what was written for it, in bytes ever written; -1: it says what cannot be.

    Args: place: of where each record begins, CHANNEL_STARTS or RESULT_STARTS; written: bytes ever written there.
    """
    starts = array_i64_1(s, place)
    head = channels[c, CHANNEL_HEAD]
    tail = load_shared(array_u8_1(s, IN_ROWS), channels[c, CHANNEL_AT] + DOWN_TAIL)
    if tail < channels[c, CHANNEL_OTHERS_TAIL] or tail > head:
        channels[c, CHANNEL_BROKEN] = 1
        return -1
    channels[c, CHANNEL_OTHERS_TAIL] = tail
    return i64(written if tail == head else starts[c * RECORDS + tail % RECORDS])


@inner
def choose_output(s: int, frame: int) -> None:
    """Has the pipeline write what leaves into the results, where there are ranks, and room for all that may leave."""
    written, room = totals[RESULTS_WRITTEN], totals[OUT_ROOM]
    oldest, ranks = written, 0
    if len(results) > 0:
        for c in range(len(channels)):
            if channels[c, CHANNEL_SLOT] >= 0 and channels[c, CHANNEL_BROKEN] == 0:
                taken = oldest_byte(s, c, RESULT_STARTS, written)
                oldest = min(oldest, taken if taken >= 0 else oldest)
                ranks += 1
    if ranks > 0:
        at = written % len(results)
        if oldest == written or at + room > len(results):  # the beginning is likely to be in the cache
            skipped = -written % len(results)
            oldest += skipped if oldest == written else 0
            written += skipped
            at = 0
        if written + room - oldest <= len(results):
            totals[RESULTS_WRITTEN] = written
            totals[RESULTS_AT] = at + FIRST_BODY
            totals[RESULTS_KEPT] = 0
            point_at(s, OUT_BYTES, results, at + FIRST_BODY, room - FIRST_BODY)
            point_at(frame, PROGRAM_OUT, results, at + FIRST_BODY, room - FIRST_BODY)
            return
    totals[RESULTS_AT] = -1
    point_at(s, OUT_BYTES, own_out, 0, len(own_out))
    point_at(frame, PROGRAM_OUT, own_out, 0, len(own_out))


@inner
def keep_output(s: int, packets: int) -> None:
    """Keeps what has left the pipeline, where records stand for it. Args: packets: that have left."""
    if totals[RESULTS_AT] >= 0 and totals[RESULTS_KEPT] != 0:
        end = FIRST_BODY + out_starts[packets - 1] + max(0, out_lengths[packets - 1] - HEAD_BYTES)
        totals[RESULTS_WRITTEN] += (end + 63) & ~63


@inner
def write_record(s: int, c: int, begun: int, at: int, count: int, size: int) -> None:
    """Completes a record. Args: begun: bytes ever written before it; at: where its data begin."""
    head = channels[c, CHANNEL_HEAD]
    channel_starts[c * RECORDS + head % RECORDS] = begun
    result_starts[c * RECORDS + head % RECORDS] = totals[RESULTS_WRITTEN]
    word = (count * size) | size << FIELD_BITS | at // 4 << 2 * FIELD_BITS
    store_shared(array_u8_1(s, IN_ROWS), channels[c, CHANNEL_AT] + DOWN_RECORDS + 8 * (head % RECORDS), word)
    channels[c, CHANNEL_HEAD] = head + 1


@inner
def is_copy(s: int, k: int, packets: int) -> bool:
    """Whether another packet has the same body as packet k. Args: packets: that leave; copies are neighbours."""
    start = out_starts[k]
    return (k > 0 and out_starts[k - 1] == start) or (k + 1 < packets and out_starts[k + 1] == start)


@inner
def send_shared(s: int, c: int, slot: int, k: int, packets: int) -> None:
    """Writes a flow's packets, from packet k on, into a channel; those for which there is no room are lost.

    Args: slot: of the port. packets: that leave, in all.
    """
    data = channels[c, CHANNEL_AT] + DOWN_DATA
    results_at = totals[RESULTS_AT]
    written = channels[c, CHANNEL_WRITTEN]
    oldest = oldest_byte(s, c, CHANNEL_STARTS, written)
    # The beginning is likely to be in the cache. But records that stand for results began before it, and until they are
    # taken all data from there on count as held.
    if oldest == written and channels[c, CHANNEL_OTHERS_TAIL] == channels[c, CHANNEL_HEAD]:
        written = -(-written // DOWN_BYTES) * DOWN_BYTES
        oldest = written
    spares = load_shared(in_rows, channels[c, CHANNEL_AT] + SPARES) != 0
    begun, at, size, count = written, 0, 0, 0  # of the record that is being written
    before = channels[c, CHANNEL_HEAD]
    while k >= 0:
        payload = out_lengths[k] - HEAD_BYTES
        packet = k
        k = next_packet[k]
        if payload <= 0 or (spares and is_copy(s, packet, packets)):
            continue
        place = DOWN_BYTES + results_at + out_starts[packet]
        is_copied = results_at < 0 or place % 4 != 0
        copied = payload if is_copied else 0
        if count > 0:
            end = at + count * size
            goes_on = end + payload <= DOWN_BYTES if is_copied else end == place
            if not goes_on or payload != size or (count + 1) * size > MOST_DOWN:
                write_record(s, c, begun, at, count, size)
                written = (written + 3) // 4 * 4
                count = 0
        if count == 0:
            begun, size = written, payload
            at = written % DOWN_BYTES if is_copied else place
            if at < DOWN_BYTES and at + payload > DOWN_BYTES:
                written += DOWN_BYTES - at
                at = 0
        if oldest >= 0 and written + copied - oldest > DOWN_BYTES:
            oldest = oldest_byte(s, c, CHANNEL_STARTS, channels[c, CHANNEL_WRITTEN])
        is_full = channels[c, CHANNEL_HEAD] - channels[c, CHANNEL_OTHERS_TAIL] >= RECORDS
        if oldest < 0 or is_full or payload > MOST_DOWN or written + copied - oldest > DOWN_BYTES:
            port_counters[slot, REFUSED] += 1
            if count == 0:
                written = begun
            continue
        if is_copied:
            copy_bytes(in_rows, data + at + count * size, out_bytes, out_starts[packet], payload)
        else:
            totals[RESULTS_KEPT] = 1
        written += copied
        count += 1
        totals[PACKETS_OUT] += 1
    if count > 0:
        write_record(s, c, begun, at, count, size)
        written = (written + 3) // 4 * 4
    if channels[c, CHANNEL_HEAD] == before:
        return  # nobody has to wake up for nothing
    channels[c, CHANNEL_WRITTEN] = written
    store_shared(in_rows, channels[c, CHANNEL_AT] + DOWN_HEAD, channels[c, CHANNEL_HEAD])
    fence()
    sleeps = load_shared(in_rows, channels[c, CHANNEL_AT] + RANK_SLEEPS)
    if sleeps % 2 == 1 and sleeps != channels[c, CHANNEL_RUNG]:  # once for each time that it sleeps
        channels[c, CHANNEL_RUNG] = sleeps
        ring_bell(channels[c, CHANNEL_BELL], address_in(s, SCRATCH))
