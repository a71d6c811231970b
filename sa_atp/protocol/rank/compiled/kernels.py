"""The common case of packets, in one pass over memory: functions that net/loop compiles where speed counts.

What they do, the rules beside them do as well, for every case (`ContributionGroup.write_lanes`, `Stamp`,
`Receiver.take`, `Operation.on_results`); tests/protocol/rank/test_common_case.py holds the two together. Each stops at
what is not common and says where, so nothing of that is decided here.

They are written for numba: they call nothing but `swapped`, all arrays are C-contiguous, and signed numbers do not meet
unsigned ones.
numba's arithmetic on 32-bit numbers gives 64-bit ones: what is used further is cut to 32 bits where it is made.
A *word* is 32 bits of a packet as they lie in memory, big-endian, read by a little-endian machine. Nothing that a packet
says is used as an index before it has been compared with what bounds it.
"""

import math
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Values

HEADER_WORDS = 3  # of a header, before its bitmap

# --- what packets of an operation are, as items of int64[...] -------------------------------------------------------------
# fill
(F_FIRST, F_FLAGS, F_JOB, F_EPOCH, F_TAG, F_SEQ, F_SLOT_BASE, F_SLOT_COUNT, F_DATA_START, F_CHUNK_FRAGMENTS, F_ATTEMPT,
 F_LIMIT, F_ADD, F_ITEMS) = range(14)  # fmt: skip
# streams
S_FIRST, S_JOB, S_EPOCH, S_CONGESTION, S_COLLISION, S_RARE, S_ITEMS = range(7)
# a row that streams finds
(ROW_START, ROW_END, ROW_SEQ, ROW_EXPONENT, ROW_TAG, ROW_MARKED, ROW_COLLIDED, ROW_RARE, ROW_ITEMS) = range(9)
# take
(T_LOCAL, T_DATA_START, T_DATA_FRAGMENTS, T_CHUNK_FRAGMENTS, T_ATTEMPT, T_EXPONENT, T_HIGH, T_SUM_LIMIT, T_TARGET, T_COARSE,
 T_HEADROOM, T_LEAST, T_MOST, T_BITS_WORDS, T_ITEMS) = range(15)  # fmt: skip
# what take finds
OUT_FRESH, OUT_NEWEST, OUT_FLOWN, OUT_DONE, OUT_ACCEPTED, OUT_LAST_ACCEPTED, OUT_ITEMS = range(7)
# of a chunk's history, see numbers.scaling.ChunkHistory
H_EXPONENT, H_FINEST, H_PATIENCE, H_CHANGED, H_ITEMS = range(5)


def swapped(word: Any) -> Any:
    """A word with its bytes the other way round."""
    high = ((word >> np.uint32(8)) & np.uint32(0xFF00)) | (word >> np.uint32(24))
    return np.uint32(high | ((word << np.uint32(8)) & np.uint32(0xFF0000)) | (word << np.uint32(24)))


def fill(
    words: Any, at: int, first: int, end: int, what: Any, bits: Any, exponents: Any, fits: Any, values: Values
) -> int:
    """Writes data fragments first to end - 1 of one attempt: header, and lanes quantised from one contribution.

    Args:
        words: uint32[packets, 3 + words of the bitmap + lanes]. at: the row of the first.
        what: int64[F_ITEMS]. F_ADD: to add the lanes to those that are there, instead of writing both.
        bits: uint32[words of the bitmap], as they travel.
        exponents: int16[chunks].
        fits: int8[chunks]: attempt + 1 where a chunk's values are known to fit their exponent; filled in here.
        values: float32[values].

    Returns: how many were written: up to the first chunk that has a value which does not fit.
    """
    header = 3 + bits.size
    lanes = words.shape[1] - header
    total = values.size
    chunk_fragments = what[9]
    attempt = what[10]
    limit = np.float32(what[11])
    add = what[12] != 0
    top = np.uint32((what[0] << 24) | (what[1] << 16))
    names = np.uint32((what[2] << 24) | (what[3] << 16) | what[4])
    checked = -1
    scale = np.float32(1.0)
    begin = first - what[8]
    if (
        lanes < 1
        or at < 0
        or at + end - first > words.shape[0]
        or chunk_fragments < 1
        or begin < 0
        or (end - 1 - what[8]) * lanes >= total
        or (end - 1 - what[8]) // chunk_fragments >= exponents.size
        or fits.size < exponents.size
    ):
        return 0
    for local in range(first, end):
        fragment = local - what[8]
        chunk = fragment // chunk_fragments
        if chunk != checked:
            exponent = exponents[chunk]
            scale = np.float32(math.ldexp(1.0, exponent))
            if fits[chunk] != attempt + 1:
                start = chunk * chunk_fragments * lanes
                stop = min(start + chunk_fragments * lanes, total)
                beyond = 0
                part = values[start:stop]
                for i in range(part.size):
                    beyond += not (abs(part[i] * scale) < limit)
                if beyond:
                    return local - first
                fits[chunk] = np.int8(attempt + 1)
            checked = chunk
        row = words[at + local - first]
        if not add:
            seq = (what[5] + local) & 0xFFFFFFFF
            word = np.uint32(top | np.uint32(what[6] + seq % what[7]))
            row[0] = swapped(word)
            word = names | np.uint32((exponents[chunk] & 0xFF) << 8)
            row[1] = swapped(word)
            word = np.uint32(seq)
            row[2] = swapped(word)
            for i in range(bits.size):
                row[3 + i] = bits[i]
        place = fragment * lanes
        count = min(lanes, total - place)
        source = values[place : place + count]
        lane = row[header:]
        if add:
            for i in range(count):
                word = lane[i]
                held = swapped(word)
                word = np.uint32(held + np.uint32(np.int32(np.rint(source[i] * scale))))
                lane[i] = swapped(word)
        else:
            for i in range(count):
                word = np.uint32(np.int32(np.rint(source[i] * scale)))
                lane[i] = swapped(word)
            for i in range(count, lanes):
                lane[i] = np.uint32(0)
    return end - first


def streams(words: Any, what: Any, bits: Any, found: Any) -> int:
    """Divides results into streams: consecutive fragments with one exponent and tag.

    Args:
        words: uint32[packets, 3 + words of the bitmap + lanes]. what: int64[S_ITEMS].
        bits: uint32[words of the bitmap], of a complete sum, as they travel.
        found: int64[packets or more, ROW_ITEMS]: a row for each stream.

    Returns: how many there are; -1 if a packet is not a complete result of this job and epoch.
    """
    count = -1
    before = np.int64(-2)
    stream = np.int64(-1)
    if words.shape[1] < 3 + bits.size:
        return -1
    for i in range(words.shape[0]):
        row = words[i]
        if (
            np.int64(row[0] & np.uint32(0xFF)) != what[0]
            or np.int64(row[1] & np.uint32(0xFF)) != what[1]
            or np.int64((row[1] >> np.uint32(8)) & np.uint32(0xFF)) != what[2]
        ):
            return -1
        for b in range(bits.size):
            if row[3 + b] != bits[b]:
                return -1
        flags = np.int64((row[0] >> np.uint32(8)) & np.uint32(0xFF))
        word = row[2]
        seq = np.int64(swapped(word))
        kind = np.int64(row[1] >> np.uint32(16))  # tag above, exponent below
        if seq != before + 1 or kind != stream:
            count += 1
            stream = kind
            found[count, 0] = i
            found[count, 2] = seq
            exponent = kind & 0xFF
            found[count, 3] = exponent - 256 if exponent > 127 else exponent
            found[count, 4] = kind >> 8
            found[count, 5] = 0
            found[count, 6] = 0
            found[count, 7] = 0
        found[count, 1] = i + 1
        found[count, 5] += (flags & what[3]) != 0
        found[count, 6] += (flags & what[4]) != 0
        found[count, 7] |= flags & what[5]
        before = seq
    return count + 1


def take(
    words: Any,
    start: int,
    end: int,
    what: Any,
    pending: Any,
    waiting: Any,
    exponents: Any,
    attempts: Any,
    accepted: Any,
    sums: Any,
    predicted: Any,
    histories: Any,
    sent_us: Any,
    tries: Any,
    lost: Any,
    found: Any,
    done: Any,
) -> bool:
    """Takes a stream of results, if all are data fragments that are missing, sent by us, and at the right exponent.

    Args:
        words: uint32[packets, 3 + words of the bitmap + lanes]; start, end: rows of the stream.
        what: int64[T_ITEMS].
        pending, waiting, exponents, attempts, accepted, sums: of the operation; sums: int32[fragments * lanes].
        predicted: bool[chunks]: whose exponent is from a history, in histories: int16[chunks, H_ITEMS].
        sent_us, tries, lost: of its only group. found: int64[OUT_ITEMS].
        done: int64[chunks or more, 2]: chunks whose last fragment this was, and the largest absolute value of each; without
            those whose sum is accepted here, since it is as the history foretold (ChunkHistory.too_coarse, after_sum).

    Returns: whether they were taken; if not, nothing has changed.
    """
    header = 3 + what[13]
    lanes = words.shape[1] - header
    count = end - start
    first = what[0]
    fragment = first - what[1]
    if (
        what[13] < 0
        or lanes < 1
        or start < 0
        or end > words.shape[0]
        or count <= 0
        or fragment < 0
        or fragment + count > what[2]
        or first + count > pending.size
        or first + count > what[6]
        or (fragment + count) * lanes > sums.size
    ):
        return False
    for i in range(count):
        if not pending[first + i]:
            return False
    for chunk in range(fragment // what[3], (fragment + count - 1) // what[3] + 1):
        if accepted[chunk] or attempts[chunk] != what[4] or exponents[chunk] != what[5]:
            return False
    newest = np.int64(0)
    flown = 0
    complete = 0
    taken = 0
    last_taken = -1
    at = fragment
    while at < fragment + count:
        chunk = at // what[3]
        stop = min(fragment + count, (chunk + 1) * what[3])
        for place in range(at, stop):
            source = words[start + place - fragment, header:]
            goal = sums[place * lanes : (place + 1) * lanes]
            for i in range(lanes):
                word = source[i]
                goal[i] = np.int32(swapped(word))
            local = place + what[1]
            pending[local] = False
            if sent_us[local] != 0 and not lost[local]:
                flown += 1
            lost[local] = False
        last = stop - 1 + what[1]
        if tries[last] == 1:
            newest = max(newest, sent_us[last])
        waiting[chunk] -= stop - at
        if waiting[chunk] == 0:
            begin = chunk * what[3] * lanes
            whole = sums[begin : min(begin + what[3] * lanes, what[2] * lanes)]
            high = np.int32(0)
            low = np.int32(0)
            for i in range(whole.size):
                high = max(high, whole[i])
                low = min(low, whole[i])
            top = max(np.int64(high), -np.int64(low))
            bits = 0
            while top >> bits:
                bits += 1
            lost_bits = what[8] - bits
            coarse = lost_bits > what[9] and what[5] < what[12] and histories[chunk, 2] == 0
            if what[4] == 0 and predicted[chunk] and top < what[7] and not coarse:
                histories[chunk, 2] = max(0, histories[chunk, 2] - 1)
                if top:
                    wanted = what[5] + lost_bits
                    histories[chunk, 0] = max(what[11], min(wanted, histories[chunk, 1] - what[10], what[12]))
                histories[chunk, 3] = 1
                accepted[chunk] = True
                taken += 1
                last_taken = chunk
            else:
                done[complete, 0] = chunk
                done[complete, 1] = top
                complete += 1
        at = stop
    found[0] = count
    found[1] = newest
    found[2] = flown
    found[3] = complete
    found[4] = taken
    found[5] = last_taken
    return True


def dequantise(sums: Any, exponents: Any, first: int, end: int, chunk_values: int, unknown: int, out: Any) -> None:
    """Writes the values that integers stand for. (see numbers.quantise.dequantise)

    Args:
        sums: int32[values or more]. exponents: int16[chunks]; unknown: where all are zero.
        first, end: chunks. chunk_values: values of a chunk. out: float32[values].
    """
    for chunk in range(first, end):
        start = chunk * chunk_values
        stop = min(start + chunk_values, out.size)
        goal = out[start:stop]
        if exponents[chunk] == unknown:
            for i in range(goal.size):
                goal[i] = np.float32(0.0)
            continue
        scale = math.ldexp(1.0, -exponents[chunk])
        source = sums[start:stop]
        for i in range(goal.size):
            goal[i] = np.float32(np.float64(source[i]) * scale)
