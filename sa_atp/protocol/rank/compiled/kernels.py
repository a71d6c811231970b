"""The common case of packets, in one pass over memory: functions that net/loop compiles where speed counts.

What they do, the rules beside them do as well, for every case (`ContributionGroup.write_lanes`, `Stamp`,
`Receiver.take`, `Operation.on_results`); tests/protocol/rank/test_common_case.py holds the two together. Each stops at
what is not common and says where, so nothing of that is decided here.

They are written for numba: they call nothing but `swapped`, all arrays are C-contiguous, and signed numbers do not meet
unsigned ones. A record comes as an array of one, whose name ends in _: numba takes 30 microseconds for a record by itself.
numba's arithmetic on 32-bit numbers gives 64-bit ones: what is used further is cut to 32 bits where it is made.
A *word* is 32 bits of a packet as they lie in memory, big-endian, read by a little-endian machine. Nothing that a packet
says is used as an index before it has been compared with what bounds it.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sa_atp.basics.arrays import Values

HEADER_WORDS = 3  # of a header, before its bitmap

# --- what kernels are given, as record classes (records.py) -------------------------------------------------------------


@dataclass(slots=True)
class Contribution:
    """Headers that `fill` writes: their fields, and where the data of the operation's attempt begin."""

    first_byte: int = 0
    flags: int = 0
    job: int = 0
    epoch: int = 0
    tag: int = 0
    first_seq: int = 0
    slot_base: int = 0
    slot_count: int = 0
    data_start: int = 0
    chunk_fragments: int = 0
    attempt: int = 0
    limit: int = 0
    """Quantised values are smaller."""
    add: bool = False
    """Whether to add the lanes to those that are there, instead of writing both."""
    whole: bool = False
    """Whether the values are int32, which travel as they are."""


@dataclass(slots=True)
class Expected:
    """The fields that results of a job have, and the flags that `streams` counts."""

    first_byte: int = 0
    job: int = 0
    epoch: int = 0
    congestion: int = 0
    collision: int = 0
    rare: int = 0


class Stream(NamedTuple):
    """Consecutive fragments with one exponent and tag, as `streams` finds them."""

    start: int
    end: int
    """Rows of the packets."""
    seq: int
    exponent: int
    tag: int
    marked: int
    collided: int
    """How many carry the flag."""
    rare: int
    """Flags that are not of the common case."""


@dataclass(slots=True)
class Part:
    """The part of an operation that `take` is given, and the rules of scaling (numbers/scaling.py)."""

    local: int = 0
    """Place of the first fragment."""
    data_start: int = 0
    data_fragments: int = 0
    chunk_fragments: int = 0
    attempt: int = 0
    exponent: int = 0
    high: int = 0
    """Nothing at or above has been sent."""
    sum_limit: int = 0
    target_bits: int = 0
    coarse_bits: int = 0
    headroom_bits: int = 0
    min_exponent: int = 0
    max_exponent: int = 0
    bitmap_words: int = 0
    foretold: bool = False
    """Whether exponents are from a history."""


class Found:
    """Counts of what `take` has done with a stream of results."""

    fresh: int
    newest_us: int
    """When the newest fragment was sent that was sent once."""
    flown: int
    """Fragments that were in flight."""
    complete: int
    """Chunks whose sum the rules have to look at."""
    accepted: int
    """Chunks whose sum was as foretold."""
    last_accepted: int
    """The last of these chunks."""


class Complete(NamedTuple):
    """A chunk whose sum is complete, and its largest absolute value."""

    chunk: int
    top: int


class HistoryRow(NamedTuple):
    """The history of a chunk, see numbers.scaling.ChunkHistory."""

    exponent: int
    finest: int
    patience: int


class Sums(NamedTuple):
    """Arrays of an operation that kernels read and write."""

    pending: Any
    """bool[fragments]."""
    waiting: Any
    """int32[chunks]: data fragments that are missing."""
    exponents: Any
    """int16[chunks]."""
    attempts: Any
    """int8[chunks]."""
    accepted: Any
    """bool[chunks]."""
    lanes: Any
    """int32[data fragments * lanes]."""
    histories: Any
    """HistoryRow[chunks]."""


class Sent(NamedTuple):
    """Arrays of a contribution group that kernels read and write, each with an item for a fragment."""

    sent_us: Any
    order: Any
    tries: Any
    lost: Any
    ask_again_us: Any
    held: Any


def swapped(word: Any) -> Any:
    """A word with its bytes the other way round."""
    high = ((word >> np.uint32(8)) & np.uint32(0xFF00)) | (word >> np.uint32(24))
    return np.uint32(high | ((word << np.uint32(8)) & np.uint32(0xFF0000)) | (word << np.uint32(24)))


def fill(
    words: Any, at: int, first: int, end: int, what_: Any, bits: Any, exponents: Any, fits: Any, values: Values
) -> int:
    """Writes data fragments first to end - 1 of one attempt: header, and lanes quantised from one contribution.

    Args:
        words: uint32[packets, 3 + words of the bitmap + lanes]. at: the row of the first.
        what_: Contribution[1].
        bits: uint32[words of the bitmap], as they travel.
        exponents: int16[chunks].
        fits: int8[chunks]: attempt + 1 where a chunk's values are known to fit their exponent; filled in here.
        values: float32[values]; where the values are whole numbers, these, int32, read as float32.

    Returns: how many were written: up to the first chunk that has a value which does not fit.
    """
    what = what_[0]
    header = 3 + bits.size
    lanes = words.shape[1] - header
    total = values.size
    chunk_fragments = what.chunk_fragments
    attempt = what.attempt
    limit = np.float32(what.limit)
    add = what.add
    whole = what.whole
    integers = values.view(np.int32)
    top = np.uint32((what.first_byte << 24) | (what.flags << 16))
    names = np.uint32((what.job << 24) | (what.epoch << 16) | what.tag)
    checked = -1
    scale = np.float32(1.0)
    begin = first - what.data_start
    if (
        lanes < 1
        or at < 0
        or at + end - first > words.shape[0]
        or chunk_fragments < 1
        or begin < 0
        or (end - 1 - what.data_start) * lanes >= total
        or (end - 1 - what.data_start) // chunk_fragments >= exponents.size
        or fits.size < exponents.size
    ):
        return 0
    for local in range(first, end):
        fragment = local - what.data_start
        chunk = fragment // chunk_fragments
        if chunk != checked:
            exponent = exponents[chunk]
            scale = np.float32(math.ldexp(1.0, exponent))
            if fits[chunk] != attempt + 1:
                start = chunk * chunk_fragments * lanes
                stop = min(start + chunk_fragments * lanes, total)
                beyond = 0
                part = values[start:stop]
                if whole:
                    for i in range(start, stop):
                        beyond += not (abs(np.int64(integers[i])) < what.limit)
                else:
                    for i in range(part.size):
                        beyond += not (abs(part[i] * scale) < limit)
                if beyond:
                    return local - first
                fits[chunk] = np.int8(attempt + 1)
            checked = chunk
        row = words[at + local - first]
        if not add:
            seq = (what.first_seq + local) & 0xFFFFFFFF
            word = np.uint32(top | np.uint32(what.slot_base + seq % what.slot_count))
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
        number = integers[place : place + count]
        if add:
            for i in range(count):
                word = lane[i]
                held = swapped(word)
                mine = number[i] if whole else np.int32(np.rint(source[i] * scale))
                word = np.uint32(held + np.uint32(mine))
                lane[i] = swapped(word)
        else:
            if whole:
                for i in range(count):
                    word = np.uint32(number[i])
                    lane[i] = swapped(word)
            else:
                for i in range(count):
                    word = np.uint32(np.int32(np.rint(source[i] * scale)))
                    lane[i] = swapped(word)
            for i in range(count, lanes):
                lane[i] = np.uint32(0)
    return end - first


def streams(words: Any, what_: Any, bits: Any, found: Any) -> int:
    """Divides results into streams: consecutive fragments with one exponent and tag.

    Args:
        words: uint32[packets, 3 + words of the bitmap + lanes]. what_: Expected[1].
        bits: uint32[words of the bitmap], of a complete sum, as they travel.
        found: Stream[packets or more].

    Returns: how many there are; -1 if a packet is not a complete result of this job and epoch.
    """
    what = what_[0]
    count = -1
    before = np.int64(-2)
    stream = np.int64(-1)
    if words.shape[1] < 3 + bits.size:
        return -1
    for i in range(words.shape[0]):
        row = words[i]
        if (
            np.int64(row[0] & np.uint32(0xFF)) != what.first_byte
            or np.int64(row[1] & np.uint32(0xFF)) != what.job
            or np.int64((row[1] >> np.uint32(8)) & np.uint32(0xFF)) != what.epoch
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
            found[count].start = i
            found[count].seq = seq
            exponent = kind & 0xFF
            found[count].exponent = exponent - 256 if exponent > 127 else exponent
            found[count].tag = kind >> 8
            found[count].marked = 0
            found[count].collided = 0
            found[count].rare = 0
        found[count].end = i + 1
        found[count].marked += (flags & what.congestion) != 0
        found[count].collided += (flags & what.collision) != 0
        found[count].rare |= flags & what.rare
        before = seq
    return count + 1


def take(words: Any, start: int, end: int, part_: Any, sums: Any, sent: Any, found_: Any, done: Any) -> bool:
    """Takes a stream of results, if all are data fragments that are missing, sent by us, and at the right exponent.

    Args:
        words: uint32[packets, 3 + words of the bitmap + lanes]; start, end: rows of the stream.
        part_: Part[1]. sums: Sums of the operation; sent: Sent of its only group. found_: Found[1].
        done: Complete[chunks or more]: chunks whose last fragment this was; without those whose sum is accepted here, since
            it is as the history foretold (ChunkHistory.too_coarse, after_sum).

    Returns: whether they were taken; if not, nothing has changed.
    """
    part, found = part_[0], found_[0]
    header = 3 + part.bitmap_words
    lanes = words.shape[1] - header
    count = end - start
    first = part.local
    fragment = first - part.data_start
    if (
        part.bitmap_words < 0
        or lanes < 1
        or start < 0
        or end > words.shape[0]
        or count <= 0
        or fragment < 0
        or fragment + count > part.data_fragments
        or first + count > sums.pending.size
        or first + count > part.high
        or (fragment + count) * lanes > sums.lanes.size
    ):
        return False
    for i in range(count):
        if not sums.pending[first + i]:
            return False
    for chunk in range(fragment // part.chunk_fragments, (fragment + count - 1) // part.chunk_fragments + 1):
        if sums.accepted[chunk] or sums.attempts[chunk] != part.attempt or sums.exponents[chunk] != part.exponent:
            return False
    newest = np.int64(0)
    flown = 0
    complete = 0
    taken = 0
    last_taken = -1
    at = fragment
    while at < fragment + count:
        chunk = at // part.chunk_fragments
        stop = min(fragment + count, (chunk + 1) * part.chunk_fragments)
        for place in range(at, stop):
            source = words[start + place - fragment, header:]
            goal = sums.lanes[place * lanes : (place + 1) * lanes]
            for i in range(lanes):
                word = source[i]
                goal[i] = np.int32(swapped(word))
            local = place + part.data_start
            sums.pending[local] = False
            if sent.sent_us[local] != 0 and not sent.lost[local]:
                flown += 1
            sent.lost[local] = False
        last = stop - 1 + part.data_start
        if sent.tries[last] == 1:
            newest = max(newest, sent.sent_us[last])
        sums.waiting[chunk] -= stop - at
        if sums.waiting[chunk] == 0:
            begin = chunk * part.chunk_fragments * lanes
            whole = sums.lanes[begin : min(begin + part.chunk_fragments * lanes, part.data_fragments * lanes)]
            high = np.int32(0)
            low = np.int32(0)
            for i in range(whole.size):
                high = max(high, whole[i])
                low = min(low, whole[i])
            top = max(np.int64(high), -np.int64(low))
            bits = 0
            while top >> bits:
                bits += 1
            history = sums.histories[chunk]
            lost_bits = part.target_bits - bits
            coarse = lost_bits > part.coarse_bits and part.exponent < part.max_exponent and history.patience == 0
            if part.foretold and part.attempt == 0 and top < part.sum_limit and not coarse:
                history.patience = max(0, history.patience - 1)
                if top:
                    wanted = part.exponent + lost_bits
                    wanted = min(wanted, history.finest - part.headroom_bits, part.max_exponent)
                    history.exponent = max(part.min_exponent, wanted)
                sums.accepted[chunk] = True
                taken += 1
                last_taken = chunk
            else:
                done[complete].chunk = chunk
                done[complete].top = top
                complete += 1
        at = stop
    found.fresh = count
    found.newest_us = newest
    found.flown = flown
    found.complete = complete
    found.accepted = taken
    found.last_accepted = last_taken
    return True


def dequantise(
    sums: Any, exponents: Any, first: int, end: int, chunk_values: int, unknown: int, factor: Any, out: Any
) -> None:
    """Writes the values that integers stand for, times a factor. (see numbers.quantise.dequantise)

    Args:
        sums: int32[values or more]. exponents: int16[chunks]; unknown: where all are zero.
        first, end: chunks. chunk_values: values of a chunk. factor: float32. out: float32[values].
    """
    for chunk in range(first, end):
        start = chunk * chunk_values
        stop = min(start + chunk_values, out.size)
        goal = out[start:stop]
        if exponents[chunk] == unknown:
            for i in range(goal.size):
                goal[i] = np.float32(0.0) * factor
            continue
        scale = math.ldexp(1.0, -exponents[chunk])
        source = sums[start:stop]
        for i in range(goal.size):
            goal[i] = np.float32(np.float64(source[i]) * scale) * factor
