"""A stream that flows, in one pass over memory: what a connection does with results, and what leaves then, where all is as
it should be. Functions that are compiled where speed counts, see kernels.py, whose conventions these share.

The rules that they call are those of the connection itself, over a record of the same fields (records.py). What remains
here, the rules do for every case (`Worker.receive`, `Worker.transmit` and what those ask); test_steady.py holds the two
together. Whoever calls these waits, sends and takes for as long as they say that this is theirs. (steady.py)
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sa_atp.protocol.packets.question_numbers import QUESTION_FLAGS
from sa_atp.protocol.packets.spec import Flag
from sa_atp.protocol.rank.compiled.kernels import fill, streams, swapped, take
from sa_atp.protocol.rank.pace.probe_timer import ProbeTimer, on_sent, until_us
from sa_atp.protocol.rank.pace.timing import RoundTrip, answer_us, time_answer, time_result, usual_reordering_us
from sa_atp.protocol.rank.pace.window import Window
from sa_atp.protocol.rank.recovery.asking import (
    Asking,
    is_answer_late,
    is_due_while_results_flow,
    is_late_news,
    is_lossy,
    late_before_us,
    on_fresh_results,
    on_left_by_answer,
    question_every,
    results_flow,
    room_for_questions,
    unasked,
    until_question,
    waits_for_answers,
)
from sa_atp.protocol.rank.sums.progress import Progress, Transmissions, fly, on_taken
from sa_atp.protocol.rank.sums.under_way import UnderWay, gather_at_most, in_network

MOST_ASKED, MOST_GAPS = 256, 256
FLAG_FROM_PS, FLAG_CONGESTION = int(Flag.FROM_PS), int(Flag.CONGESTION)


@dataclass(slots=True)
class Flow:
    """The state of a connection while a stream flows: a record class (records.py)."""

    window: Window
    round_trip: RoundTrip
    under_way: UnderWay
    timer: ProbeTimer
    asking: Asking
    progress: Progress
    """Progress of the only operation."""
    group: Transmissions
    """Transmissions of that operation's only contribution group."""
    fresh_first: int = 0
    fresh_end: int = 0
    """The end of the fragments, from `fresh_first` on, that may be sent for the first time."""
    sending_last_us: int = 0
    """When the group's newest transmission left, see ContributionGroup.on_sent."""
    data_fragments: int = 0
    size: int = 0
    """Bytes of a fragment."""
    place: int = 0
    """The place of the operation's first fragment, see Operations."""
    said_place: int = 0
    tell_after: int = 0
    """How far we were when the parameter server was told, and after how many more fragments it is told anew."""
    opens_at: int = 0
    """The place that the oldest fragment has to reach for another operation to open."""
    due_us: int = 0
    """When somebody else's timer is due."""
    reply: int = 0
    """How an answer begins."""
    is_flat: bool = False
    """Whether there is no leaf between us and the switch that sums."""
    results: int = 0
    congested: int = 0
    """Counters (WorkerStats), from zero."""
    unfinished: int = 0
    """So many of the results that `receive` took last are in the sums, and nothing else has followed from that yet, since
    the rules have to look at a chunk."""
    unfinished_row: int = 0
    """Their stream, in State.rows."""
    has_more: bool = False
    """Whether there may be more to send at once than `transmit` has just written."""
    asks: bool = False
    """Whether State.question has to leave behind what `transmit` has just written."""
    asked: int = 0
    """Rows of State.asked."""
    first_open: int = 0
    """The first of these that is not answered."""
    answered: int = 0
    """How many of these questions kernels have seen answered."""
    waiting: int = 0
    """Fragments of which an answer is waited for."""
    last_asked: int = 0
    """The last fragment that has ever been asked for."""
    newest: int = -1
    """The operation's fragment that left last; -1: the connection's last fragment was not one of this operation."""
    asks_when_left: bool = False
    """Whether a question that the rules ask may have to follow the last contribution."""
    others_wait: bool = False
    """Whether questions wait for an answer that are not in State.asked."""
    gaps: int = 0
    """Rows of State.gaps."""


class Gap(NamedTuple):
    """Between first transmissions: when the last before it left, and the first after it."""

    end_us: int
    first_us: int


class State(NamedTuple):
    """The state of a connection whose stream flows, for kernels: records and arrays are read and written."""

    flow: Any
    """Flow[1]."""
    contribution: Any
    expected: Any
    part: Any
    found: Any
    """See kernels.py, as of `sums` and `sent`."""
    bits: Any
    fan_in: Any
    """uint32[words of the bitmap]: our contributions, and all, as they travel."""
    rows: Any
    """Stream[packets of a burst at most]."""
    sums: Any
    sent: Any
    fits: Any
    """int8[chunks], see kernels.fill."""
    done: Any
    """Complete[chunks]."""
    asked: Any
    """Asked[MOST_ASKED], in order."""
    gaps: Any
    """Gap[MOST_GAPS]."""
    question: Any
    """uint32[words of a header]: what leaves behind contributions where `Flow.asks`."""


def lowest(low: int, pending: Any) -> int:
    """Operation.oldest_pending"""
    while low < pending.size - 1 and not pending[low]:
        low += 1
    return low


def receive(words: Any, now_us: int, state: Any) -> int:
    """Takes packets from the switch or the parameter server, as far as they are results that our only operation waits for.

    Args:
        words: uint32[packets, 3 + words of the bitmap + lanes].
        state: a State.

    Returns: how many were taken, from the first on; the next one is for the rules. See `Flow.unfinished`.
    """
    flow, part, rows, found = state.flow[0], state.part[0], state.rows, state.found[0]
    flow.unfinished = 0
    if words.shape[0] > rows.shape[0]:
        return 0
    count = streams(words, state.expected, state.fan_in, rows)
    data_start = part.data_start
    data_end = data_start + part.data_fragments
    for i in range(count):
        start = rows[i].start
        fragments = rows[i].end - start
        local = (rows[i].seq - flow.progress.first_seq) & 0xFFFFFFFF
        if (
            rows[i].rare != 0
            or rows[i].tag != flow.progress.tag
            or local < data_start
            or local + fragments > data_end
            or fragments >= flow.under_way.missing  # all is there: the sum is done
        ):
            return int(start)
        part.local = local
        part.exponent = rows[i].exponent
        part.high = flow.group.high
        if not take(words, start, rows[i].end, state.part, state.sums, state.sent, state.found, state.done):
            return int(start)
        end = data_start + min((found.last_accepted + 1) * part.chunk_fragments, part.data_fragments)
        is_unsent = flow.fresh_first < flow.fresh_end and flow.fresh_first < end
        if found.complete != 0 or (found.accepted != 0 and is_unsent):
            flow.unfinished = fragments
            flow.unfinished_row = i
            return int(start + fragments)
        out = flow.under_way.out
        on_taken(
            flow.progress, flow.group, flow.under_way, state.sent, local + fragments - 1, fragments, found.flown,
            found.accepted, found.newest_us,
        )  # fmt: skip
        if found.newest_us != 0:
            time_result(flow.round_trip, now_us - found.newest_us)
        flow.results += fragments
        flow.congested += rows[i].marked
        on_fresh_results(
            flow.asking, flow.timer, flow.window, flow.round_trip, fragments, rows[i].marked, rows[i].collided,
            flow.under_way.out - out, now_us,
        )  # fmt: skip
    return int(words.shape[0]) if count >= 0 else 0


def answer(words: Any, now_us: int, state: Any) -> bool:
    """Takes an answer to the first question of those that wait for one, where it shows no more than what has left the
    network: the fragment is complete meanwhile, or the switch holds it. (Recovery.on_answer)

    Args: words: uint32[3 + words of the bitmap or more]. Returns: whether it did; else nothing has changed.
    """
    flow, bits, fan_in, asked = state.flow[0], state.bits, state.fan_in, state.asked
    pending, sent = state.sums.pending, state.sent
    n = flow.first_open
    if n >= flow.asked or flow.others_wait or words.size < 3 + bits.size:
        return False
    top, names = np.int64(swapped(words[0])), np.int64(swapped(words[1]))
    flags = top >> 16 & 0xFF
    local = (np.int64(swapped(words[2])) - flow.progress.first_seq) & 0xFFFFFFFF
    if (
        top >> 24 != flow.reply
        or names >> 24 != state.expected[0].job
        or names >> 16 & 0xFF != state.expected[0].epoch
        or flags & (QUESTION_FLAGS | FLAG_FROM_PS) != asked[n].flags
        or local != asked[n].local  # answers come in the order of the questions, unless something was lost
    ):
        return False
    behind = asked[n].behind
    if pending[local]:
        is_whole = True
        for i in range(bits.size):
            if words[3 + i] & bits[i] != bits[i]:
                return False
            is_whole = is_whole and words[3 + i] == fan_in[i]
        if is_whole or not flow.is_flat or sent.order[local] > behind or sent.order[local] <= 0:
            return False
    time_answer(flow.round_trip, now_us - asked[n].asked_us)
    on_left_by_answer(flow.under_way, flow.window, flow.round_trip, behind, flags & FLAG_CONGESTION != 0, now_us)
    if pending[local]:
        flow.progress.low = lowest(flow.progress.low, pending)
        sent.held[local] = True
        sent.ask_again_us[local] = now_us + 2 * answer_us(flow.round_trip)
        results_tell = results_flow(flow.asking, flow.round_trip, now_us) and flow.fresh_first < flow.fresh_end
        if is_lossy(flow.asking, flow.under_way.sent) and not results_tell:
            flow.group.late_up_to = max(flow.group.late_up_to, behind)
    asked[n].is_answered = True
    flow.first_open = n + 1
    flow.answered += 1
    flow.waiting -= 1
    return True


def is_any_late(low: int, before_us: int, now_us: int, group: Any, pending: Any, sent: Any) -> bool:
    """Whether a fragment has to be asked for. (ContributionGroup.unknown)"""
    for local in range(low, group.high):
        if pending[local] and sent.order[local] != 0 and not sent.lost[local] and sent.ask_again_us[local] <= now_us:
            is_suspect = sent.order[local] <= group.late_up_to and not sent.held[local]
            if sent.sent_us[local] < before_us or is_suspect:
                return True
    return False


def is_question_due(now_us: int, flow: Any, pending: Any, sent: Any) -> bool:
    """Whether a question has to follow the fragment that left last, since losses are expected and nothing else leaves.
    (Prober.on_nothing_to_send)
    """
    sent_last, newest = flow.under_way.sent, flow.newest
    if newest < 0 or not is_lossy(flow.asking, sent_last) or unasked(flow.asking, sent_last, flow.under_way.out) <= 0:
        return False
    return bool(pending[newest] and sent.ask_again_us[newest] <= now_us)


def write_parts(words: Any, first: int, end: int, values: Any, state: Any) -> bool:
    """Writes contributions, each the sum of all parts. (CommonCase.write) Returns: whether all were written."""
    for part in range(values.shape[0]):
        state.contribution[0].add = part > 0
        written = fill(
            words, 0, first, end, state.contribution, state.bits, state.sums.exponents, state.fits[part], values[part]
        )  # fmt: skip
        if written < end - first:
            return False
    return True


def transmit(words: Any, budget_bytes: int, now_us: int, values: Any, state: Any) -> int:
    """Writes what may leave now, if there is nothing but contributions that are sent for the first time.

    Args:
        words: uint32[most of a burst, 3 + words of the bitmap + lanes], filled from the first row on.
        budget_bytes: bytes that may be sent; negative: any number. values: float32[parts, values], what is contributed.

    Returns: how many packets; -1: there is something else to do, which is for the rules. See `Flow.has_more` and `asks`.
    """
    flow, sent, asked, gaps, question = state.flow[0], state.sent, state.asked, state.gaps, state.question
    pending = state.sums.pending
    flow.has_more = flow.asks = False
    low = lowest(flow.progress.low, pending)
    flow.progress.low = low
    oldest = flow.place + low
    if now_us >= flow.due_us or oldest - flow.said_place > flow.tell_after or oldest >= flow.opens_at:
        return -1
    at_most = int(words.shape[0])
    if budget_bytes >= 0:
        at_most = min(at_most, budget_bytes // flow.size)
    if at_most == 0:
        return 0
    # Recovery.find_losses
    before_us = late_before_us(flow.group, usual_reordering_us(flow.round_trip))
    if is_late_news(flow.group, before_us) and room_for_questions(flow.window, flow.waiting) > 0:
        if is_any_late(low, before_us, now_us, flow.group, pending, sent):
            return -1
        flow.group.asked_before_us = before_us
        flow.group.asked_up_to = flow.group.late_up_to
    # Sender.contributions, ContributionGroup.take
    in_window = int(flow.window.network) - in_network(flow.under_way)
    if in_window <= 0:
        lossy, in_flight = is_lossy(flow.asking, flow.under_way.sent), flow.under_way.in_flight
        late = is_answer_late(flow.asking, flow.round_trip, flow.window, in_flight, flow.waiting, lossy, now_us)
        return -1 if late else 0
    flows = results_flow(flow.asking, flow.round_trip, now_us)
    if not flows:
        at_most = min(at_most, until_question(flow.asking, flow.window, flow.under_way))
    at_most = min(at_most, in_window)
    first = flow.fresh_first
    if first >= flow.fresh_end:
        return -1 if (flow.asks_when_left and not flows) or is_question_due(now_us, flow, pending, sent) else 0
    if first < flow.group.high:
        return -1
    room = min(at_most, int(flow.window.slots) - flow.under_way.in_flight)
    end = min(flow.fresh_end, first + room, flow.window.slot_count + low)
    if end <= first:
        return -1 if not flows and is_question_due(now_us, flow, pending, sent) else 0
    if end == flow.fresh_end and flow.asks_when_left and not flows:
        return -1
    is_gap = now_us - flow.sending_last_us > answer_us(flow.round_trip)
    if is_gap and flow.gaps >= gaps.shape[0]:
        return -1
    for local in range(first, end):
        if not pending[local]:
            return -1
    count = end - first
    # Prober.on_sent
    in_flight, out = flow.under_way.in_flight + count, flow.under_way.out
    network = min(flow.under_way.sent + count - out, in_flight)
    if flows:
        lossy = is_lossy(flow.asking, flow.under_way.sent + count)
        is_due = is_due_while_results_flow(flow.asking, flow.window, in_flight, network, out, lossy, now_us)
    else:
        is_due = unasked(flow.asking, flow.under_way.sent + count, out) >= question_every(flow.window)
    if is_due:
        # Recovery._ask_behind; which question about a fragment it is the rules know, if it is not the first
        if flow.asked >= asked.shape[0] or end - 1 <= flow.last_asked or question.size < 4:
            return -1
        flow.asks = True
    if not write_parts(words, first, end, values, state):
        flow.asks = False
        return -1
    # ContributionGroup.on_sent
    for n in range(count):
        sent.sent_us[first + n] = now_us
        sent.order[first + n] = flow.under_way.sent + 1 + n
        sent.tries[first + n] = 1
    flow.under_way.sent += count
    fly(flow.group, flow.under_way, count)
    flow.group.high = end
    flow.fresh_first = end
    flow.newest = end - 1
    if is_gap:
        gaps[flow.gaps].end_us, gaps[flow.gaps].first_us = flow.sending_last_us, now_us
        flow.gaps += 1
    flow.sending_last_us = now_us
    on_sent(flow.timer, now_us)
    flow.has_more = at_most < in_window and count >= at_most
    if flow.asks:
        # the header of the last fragment, as a question
        question[0] = np.uint32((words[count - 1, 0] & np.uint32(0xFFFF0000)) | (question[0] & np.uint32(0xFF)))
        question[1] = words[count - 1, 1]
        question[2] = words[count - 1, 2]
        n = flow.asked
        asked[n].local, asked[n].asked_us = end - 1, now_us
        asked[n].behind, asked[n].flags, asked[n].is_answered = flow.under_way.sent, 0, False
        flow.asked = n + 1
        flow.last_asked = end - 1
        sent.ask_again_us[end - 1] = now_us + answer_us(flow.round_trip)
        flow.asking.asked_us = now_us
        flow.asking.behind = max(flow.asking.behind, flow.under_way.sent)
        flow.waiting += 1
    return int(count)


def due_us(state: Any) -> int:
    """When a timer is due. (Worker.next_timer_us)"""
    flow = state.flow[0]
    awaited = flow.under_way.in_flight
    if awaited == 0 and flow.under_way.missing < flow.data_fragments:
        awaited = flow.under_way.missing
    return int(min(flow.due_us, until_us(flow.timer, flow.round_trip, awaited)))


def may_gather(state: Any) -> int:
    """Worker.may_gather"""
    flow = state.flow[0]
    if waits_for_answers(flow.asking, flow.waiting):
        return 0
    return gather_at_most(flow.under_way)
