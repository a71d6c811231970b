"""A stream that flows, in one pass over memory: what a connection does with results, and what leaves then, where all is as
it should be. Functions that are compiled where speed counts, see kernels.py, whose conventions these share.

What they do the rules do as well, for every case (`Worker.receive`, `Worker.transmit` and what those ask: windows, round
trip, losses by order, questions); test_steady.py holds the two together. Whoever calls them waits, sends
and takes for as long as they say that this is theirs, and the rules see one summary of it all. (steady.py)
"""

from typing import Any

import numpy as np

from sa_atp.protocol.rank.compiled.kernels import fill, streams, swapped, take

# --- what a connection knows, as items of int64[N_ITEMS] ----------------------------------------------------------------
# of its network window (Window.counted), round trip (RoundTrip.counted), and of all that is under way (UnderWay)
(N_ROUND_ENDS, N_HEARD, N_MARKED, N_COLLIDED, N_LEFT, N_LOST, N_SHRUNK) = range(7)
(N_SMOOTHED, N_DEVIATION, N_SAMPLES, N_LEAST, N_LEAST_BEFORE) = range(7, 12)
(N_IN_FLIGHT, N_MISSING, N_SENT, N_OUT) = range(12, 16)
# of its only operation, and of that one's only group; fresh: what may be sent for the first time; place, said: where the
# operation begins, and how far the parameter server has been told that we are, and after how many more it is told again
(N_LOW, N_RESOLVED, N_HIGH, N_NEWEST_DONE, N_ASKED_BEFORE, N_LATE_UP_TO, N_ASKED_UP_TO, N_FRESH_FIRST, N_FRESH_END,
 N_SENDING_LAST, N_FIRST_SEQ, N_TAG, N_PLACE, N_SAID_PLACE, N_TELL) = range(16, 31)  # fmt: skip
# of silence, and of questions
(N_SINCE, N_PROGRESS, N_RESULTS_US, N_ASKED_US, N_BEHIND, N_QUESTIONS) = range(31, 37)
# when somebody else's timer is due; what does not change; what the functions here say: see `receive` and `transmit`
(N_DUE, N_SLOT_COUNT, N_SIZE, N_RESULTS, N_CONGESTED, N_HAS_MORE, N_PART, N_PART_ROW) = range(37, 45)
# of what was asked lately: how many questions, of these not answered: the first, how many were answered here; the last
# fragment that has ever been asked for, and whether other questions wait for an answer; whether one leaves behind
# what was written; how an answer begins
(N_ASKED, N_FIRST_OPEN, N_ANSWERED, N_LAST_ASKED, N_OTHERS_WAIT, N_ASKS, N_REPLY) = range(45, 52)
# gaps between first transmissions, see ContributionGroup.on_sent; contributions of a member that has no leaf between
N_GAPS, N_IS_FLAT = range(52, 54)
N_ITEMS = 54
# ... and of float64[R_ITEMS]: of its windows
R_NETWORK, R_SLOTS, R_THRESHOLD, R_MARKED_SHARE, R_LOST_SHARE, R_ITEMS = range(6)

# which of the arrays of a state have: the streams that `receive` has found; what of a chunk is the rules'; the questions;
# the words of one
A_ROWS, A_FOUND, A_DONE, A_ASKED, A_QUESTION = 7, 21, 22, 25, 27
# Questions that wait for an answer, or were asked meanwhile, in order, as int64[MOST_ASKED, Q_ITEMS]: of which fragment,
# when, the newest transmission then, and whether it is answered. int64[MOST_GAPS, 2]: when the last transmission before a
# gap left, and the first after it.
MOST_ASKED, MOST_GAPS = 256, 256
Q_LOCAL, Q_ASKED_US, Q_BEHIND, Q_IS_ANSWERED, Q_ITEMS = range(5)

# As in window.py, timing.py, recovery.py, probe_timer.py and kernels.py, which a test compares: compiled code has them as
# constants
MARK_GAIN, MIN_WINDOW, MIN_SLOTS = 1 / 16, 4.0, 2.0
MIN_TIMEOUT_US, MAX_TIMEOUT_US, LEAST_OF_SAMPLES, LONGEST_US, LEAST_REORDERING_US = 2_000, 100_000, 1024, 1 << 40, 250
LEAST_QUESTIONS, MEASURE_EVERY_US = 32, 10_000
QUESTION_FLAGS, FLAG_FROM_PS, FLAG_CONGESTION = 0x6A, 0x01, 0x10
F_DATA_START, F_CHUNK_FRAGMENTS = 8, 9
S_JOB, S_EPOCH = 1, 2
T_LOCAL, T_DATA_START, T_DATA_FRAGMENTS, T_CHUNK_FRAGMENTS, T_EXPONENT, T_HIGH = 0, 1, 2, 3, 5, 6
ROW_START, ROW_END, ROW_SEQ, ROW_EXPONENT, ROW_TAG, ROW_MARKED, ROW_COLLIDED, ROW_RARE = range(8)
OUT_FRESH, OUT_NEWEST, OUT_FLOWN, OUT_DONE, OUT_ACCEPTED, OUT_LAST_ACCEPTED = range(6)


def answer_us(numbers: Any) -> int:
    """RoundTrip.answer_us"""
    return int(max(MIN_TIMEOUT_US, numbers[N_SMOOTHED] + 4 * numbers[N_DEVIATION]))


def lowest(low: int, pending: Any) -> int:
    """Operation.oldest_pending"""
    while low < pending.size - 1 and not pending[low]:
        low += 1
    return low


def timed(numbers: Any, elapsed_us: int) -> None:
    """RoundTrip.result"""
    if elapsed_us < numbers[N_SMOOTHED]:
        sampled(numbers, elapsed_us)


def sampled(numbers: Any, elapsed_us: int) -> None:
    """RoundTrip.answer, but for how many there were"""
    if numbers[N_SAMPLES] == 0:
        numbers[N_SMOOTHED] = elapsed_us
        numbers[N_DEVIATION] = elapsed_us // 2
    else:
        error = elapsed_us - numbers[N_SMOOTHED]
        numbers[N_SMOOTHED] += error // 8
        numbers[N_DEVIATION] += (abs(error) - numbers[N_DEVIATION]) // 4
    numbers[N_SAMPLES] += 1
    if numbers[N_SAMPLES] % LEAST_OF_SAMPLES == 0:
        numbers[N_LEAST_BEFORE] = numbers[N_LEAST]
        numbers[N_LEAST] = LONGEST_US
    numbers[N_LEAST] = min(numbers[N_LEAST], elapsed_us)


def end_round(numbers: Any, reals: Any, next_end_us: int) -> None:
    """Window._end_round"""
    if numbers[N_HEARD]:
        share = numbers[N_MARKED] / numbers[N_HEARD]
        reals[R_MARKED_SHARE] += MARK_GAIN * (share - reals[R_MARKED_SHARE])
    if numbers[N_LEFT] + numbers[N_LOST]:
        share = min(1.0, numbers[N_LOST] / max(1, numbers[N_LEFT]))
        reals[R_LOST_SHARE] += MARK_GAIN * (share - reals[R_LOST_SHARE])
    if numbers[N_MARKED] and not numbers[N_SHRUNK]:
        reals[R_NETWORK] = max(reals[R_NETWORK] * (1 - reals[R_MARKED_SHARE] / 2), MIN_WINDOW)
        reals[R_THRESHOLD] = reals[R_NETWORK]
    if numbers[N_COLLIDED]:
        reals[R_SLOTS] = max(reals[R_SLOTS] / 2, MIN_SLOTS)
    numbers[N_HEARD] = numbers[N_MARKED] = numbers[N_COLLIDED] = numbers[N_LEFT] = numbers[N_LOST] = 0
    numbers[N_SHRUNK] = 0
    numbers[N_ROUND_ENDS] = next_end_us


def counted(numbers: Any, reals: Any, results: int, marked: int, collided: int, left: int, now_us: int) -> None:
    """Receiver._count_news, and Window.on_results"""
    numbers[N_RESULTS] += results
    numbers[N_CONGESTED] += marked
    numbers[N_SINCE] = numbers[N_PROGRESS] = numbers[N_RESULTS_US] = now_us
    numbers[N_COLLIDED] += collided
    if collided == 0:
        reals[R_SLOTS] = min(reals[R_SLOTS] + results / reals[R_SLOTS], np.float64(numbers[N_SLOT_COUNT]))
    on_left(numbers, reals, left, results, marked, now_us)


def on_left(numbers: Any, reals: Any, left: int, heard: int, marked: int, now_us: int) -> None:
    """Window.on_left"""
    numbers[N_HEARD] += heard
    numbers[N_MARKED] += marked
    numbers[N_LEFT] += left
    if marked == 0:
        if reals[R_NETWORK] < reals[R_THRESHOLD]:
            reals[R_NETWORK] += left
        else:
            reals[R_NETWORK] += left / reals[R_NETWORK]
    elif reals[R_NETWORK] < reals[R_THRESHOLD]:
        reals[R_THRESHOLD] = reals[R_NETWORK]
    reals[R_NETWORK] = min(reals[R_NETWORK], np.float64(numbers[N_SLOT_COUNT]))
    if now_us >= numbers[N_ROUND_ENDS]:
        end_round(numbers, reals, now_us + numbers[N_SMOOTHED])


def receive(words: Any, now_us: int, state: Any) -> int:
    """Takes packets from the switch or the parameter server, as far as they are results that our only operation waits for.

    Args:
        words: uint32[packets, 3 + words of the bitmap + lanes].
        state: see Steady.state.

    Returns: how many were taken, from the first on; the next one is for the rules. N_PART: of these the last so many are in
        the sums, and nothing else has followed from that yet: the rules have to look at a chunk. N_PART_ROW: their stream.
    """
    (
        numbers, reals, _, stream_what, take_what, _, fan_in, rows, pending, waiting, exponents, attempts, accepted, sums,
        predicted, histories, sent_us, order, tries, lost, _, found, done, _, _, _, _, _,
    ) = state  # fmt: skip
    numbers[N_PART] = 0
    if words.shape[0] > rows.shape[0]:
        return 0
    count = streams(words, stream_what, fan_in, rows)
    data_start = take_what[T_DATA_START]
    data_end = data_start + take_what[T_DATA_FRAGMENTS]
    for i in range(count):
        start = rows[i, ROW_START]
        fragments = rows[i, ROW_END] - start
        local = (rows[i, ROW_SEQ] - numbers[N_FIRST_SEQ]) & 0xFFFFFFFF
        if (
            rows[i, ROW_RARE] != 0
            or rows[i, ROW_TAG] != numbers[N_TAG]
            or local < data_start
            or local + fragments > data_end
            or fragments >= numbers[N_MISSING]  # all is there: the sum is done
        ):
            return int(start)
        take_what[T_LOCAL] = local
        take_what[T_EXPONENT] = rows[i, ROW_EXPONENT]
        take_what[T_HIGH] = numbers[N_HIGH]
        if not take(
            words, start, rows[i, ROW_END], take_what, pending, waiting, exponents, attempts, accepted, sums, predicted,
            histories, sent_us, tries, lost, found, done,
        ):  # fmt: skip
            return int(start)
        end = data_start + min(
            (found[OUT_LAST_ACCEPTED] + 1) * take_what[T_CHUNK_FRAGMENTS], take_what[T_DATA_FRAGMENTS]
        )
        is_unsent = numbers[N_FRESH_FIRST] < numbers[N_FRESH_END] and numbers[N_FRESH_FIRST] < end
        if found[OUT_DONE] != 0 or (found[OUT_ACCEPTED] != 0 and is_unsent):
            numbers[N_PART] = fragments
            numbers[N_PART_ROW] = i
            return int(start + fragments)
        numbers[N_MISSING] -= fragments
        numbers[N_IN_FLIGHT] -= found[OUT_FLOWN]
        last = local + fragments - 1
        left = np.int64(0)
        if tries[last] == 1:
            left = max(left, order[last] - numbers[N_OUT])
        numbers[N_OUT] += left
        numbers[N_NEWEST_DONE] = max(numbers[N_NEWEST_DONE], found[OUT_NEWEST])
        numbers[N_RESOLVED] += found[OUT_ACCEPTED]
        if found[OUT_NEWEST] != 0:
            timed(numbers, now_us - found[OUT_NEWEST])
        counted(numbers, reals, fragments, rows[i, ROW_MARKED], rows[i, ROW_COLLIDED], int(left), now_us)
    return int(words.shape[0]) if count >= 0 else 0


def answer(words: Any, now_us: int, state: Any) -> bool:
    """Takes an answer to the first question of those that wait for one, where it shows no more than what has left the
    network: the fragment is complete meanwhile, or the switch holds it. (Recovery.on_answer)

    Args: words: uint32[3 + words of the bitmap or more]. Returns: whether it did; else nothing has changed.
    """
    (
        numbers, reals, _, stream_what, _, bits, fan_in, _, pending, _, _, _, _, _, _, _, _, order, _, _, _, _, _,
        ask_again_us, held, asked, _, _,
    ) = state  # fmt: skip
    n = numbers[N_FIRST_OPEN]
    if n >= numbers[N_ASKED] or numbers[N_OTHERS_WAIT] != 0 or words.size < 3 + bits.size:
        return False
    top, names = np.int64(swapped(words[0])), np.int64(swapped(words[1]))
    flags = top >> 16 & 0xFF
    local = (np.int64(swapped(words[2])) - numbers[N_FIRST_SEQ]) & 0xFFFFFFFF
    if (
        top >> 24 != numbers[N_REPLY]
        or names >> 24 != stream_what[S_JOB]
        or names >> 16 & 0xFF != stream_what[S_EPOCH]
        or flags & (QUESTION_FLAGS | FLAG_FROM_PS) != 0
        or local != asked[n, Q_LOCAL]  # answers come in the order of the questions, unless something was lost
    ):
        return False
    behind = asked[n, Q_BEHIND]
    if pending[local]:
        is_whole = True
        for i in range(bits.size):
            if words[3 + i] & bits[i] != bits[i]:
                return False
            is_whole = is_whole and words[3 + i] == fan_in[i]
        if is_whole or numbers[N_IS_FLAT] == 0 or order[local] > behind or order[local] <= 0:
            return False
    sampled(numbers, now_us - asked[n, Q_ASKED_US])
    left = max(np.int64(0), behind - numbers[N_OUT])
    numbers[N_OUT] += left
    heard = max(left, np.int64(1))
    marked = heard if flags & FLAG_CONGESTION != 0 else 0 * heard
    on_left(numbers, reals, left, heard, marked, now_us)
    if pending[local]:
        numbers[N_LOW] = lowest(numbers[N_LOW], pending)
        held[local] = True
        ask_again_us[local] = now_us + 2 * answer_us(numbers)
    asked[n, Q_IS_ANSWERED] = 1
    numbers[N_FIRST_OPEN] = n + 1
    numbers[N_ANSWERED] += 1
    numbers[N_QUESTIONS] -= 1
    return True


def transmit(words: Any, budget_bytes: int, now_us: int, values: Any, state: Any) -> int:
    """Writes what may leave now, if there is nothing but contributions that are sent for the first time.

    Args:
        words: uint32[most of a burst, 3 + words of the bitmap + lanes], filled from the first row on.
        budget_bytes: bytes that may be sent; negative: any number. values: float32[values], what is contributed.

    Returns: how many packets; -1: there is something else to do, which is for the rules. N_HAS_MORE: there may be more to
        send at once. N_ASKS: behind these, the question has to leave that the last array of the state is.
    """
    (
        numbers, reals, fill_what, _, _, bits, _, _, pending, _, exponents, _, _, _, _, _, sent_us, order, tries, _, fits,
        _, _, ask_again_us, _, asked, gaps, probe,
    ) = state  # fmt: skip
    numbers[N_HAS_MORE] = numbers[N_ASKS] = 0
    low = numbers[N_LOW] = lowest(numbers[N_LOW], pending)
    if now_us >= numbers[N_DUE] or numbers[N_PLACE] + low - numbers[N_SAID_PLACE] > numbers[N_TELL]:
        return -1
    at_most = np.int64(words.shape[0])
    if budget_bytes >= 0:
        at_most = min(at_most, budget_bytes // numbers[N_SIZE])
    if at_most == 0:
        return 0
    # Recovery.find_losses
    before_us = max(
        numbers[N_NEWEST_DONE] - max(numbers[N_SMOOTHED] // 4, LEAST_REORDERING_US), numbers[N_ASKED_BEFORE]
    )
    is_news = before_us > numbers[N_ASKED_BEFORE] or numbers[N_LATE_UP_TO] > numbers[N_ASKED_UP_TO]
    network = np.int64(reals[R_NETWORK])
    slots = np.int64(reals[R_SLOTS])
    if numbers[N_IN_FLIGHT] != 0 and is_news and max(network, LEAST_QUESTIONS) > numbers[N_QUESTIONS]:
        if sent_us[low] < before_us or order[low] <= max(numbers[N_LATE_UP_TO], 0):
            return -1
        numbers[N_ASKED_BEFORE] = before_us
        numbers[N_ASKED_UP_TO] = numbers[N_LATE_UP_TO]
    # Sender.contributions, ContributionGroup.take
    in_window = network - min(numbers[N_SENT] - numbers[N_OUT], numbers[N_IN_FLIGHT])
    if in_window <= 0:
        return 0 if now_us - numbers[N_ASKED_US] <= answer_us(numbers) else -1
    at_most = min(at_most, in_window)
    first = numbers[N_FRESH_FIRST]
    if first >= numbers[N_FRESH_END]:
        return 0
    if first < numbers[N_HIGH]:
        return -1
    room = min(at_most, slots - numbers[N_IN_FLIGHT])
    end = min(numbers[N_FRESH_END], first + room, numbers[N_SLOT_COUNT] + low)
    if end <= first:
        return 0
    if now_us - numbers[N_RESULTS_US] > max(numbers[N_SMOOTHED] // 2, MIN_TIMEOUT_US):
        return -1  # questions say what arrives
    is_gap = now_us - numbers[N_SENDING_LAST] > answer_us(numbers)
    if is_gap and numbers[N_GAPS] >= gaps.shape[0]:
        return -1
    for local in range(first, end):
        if not pending[local]:
            return -1
    count = end - first
    # Recovery.on_sent
    in_flight = numbers[N_IN_FLIGHT] + count
    in_network = min(numbers[N_SENT] + count - numbers[N_OUT], in_flight)
    if numbers[N_BEHIND] <= numbers[N_OUT] and in_network >= network:
        is_full = in_flight >= max(slots, LEAST_QUESTIONS)
        if not is_full or now_us - numbers[N_ASKED_US] >= MEASURE_EVERY_US:
            # Recovery._ask_behind; which question about a fragment it is the rules know, if it is not the first
            if numbers[N_ASKED] >= asked.shape[0] or end - 1 <= numbers[N_LAST_ASKED] or probe.size < 4:
                return -1
            numbers[N_ASKS] = 1
    if fill(words, 0, first, end, fill_what, bits, exponents, fits, values) < count:
        numbers[N_ASKS] = 0
        return -1
    # ContributionGroup.on_sent
    for n in range(count):
        sent_us[first + n] = now_us
        order[first + n] = numbers[N_SENT] + 1 + n
        tries[first + n] = 1
    numbers[N_SENT] += count
    numbers[N_IN_FLIGHT] = in_flight
    numbers[N_HIGH] = end
    numbers[N_FRESH_FIRST] = end
    if is_gap:
        gaps[numbers[N_GAPS], 0], gaps[numbers[N_GAPS], 1] = numbers[N_SENDING_LAST], now_us
        numbers[N_GAPS] += 1
    numbers[N_SENDING_LAST] = now_us
    numbers[N_SINCE] = now_us
    numbers[N_HAS_MORE] = 1 if at_most < in_window and count >= at_most else 0
    if numbers[N_ASKS] != 0:
        # the header of the last fragment, as a question
        probe[0] = np.uint32((words[count - 1, 0] & np.uint32(0xFFFF0000)) | (probe[0] & np.uint32(0xFF)))
        probe[1] = words[count - 1, 1]
        probe[2] = words[count - 1, 2]
        n = numbers[N_ASKED]
        asked[n, Q_LOCAL], asked[n, Q_ASKED_US] = end - 1, now_us
        asked[n, Q_BEHIND], asked[n, Q_IS_ANSWERED] = numbers[N_SENT], 0
        numbers[N_ASKED] = n + 1
        numbers[N_LAST_ASKED] = end - 1
        ask_again_us[end - 1] = now_us + answer_us(numbers)
        numbers[N_ASKED_US] = now_us
        numbers[N_BEHIND] = max(numbers[N_BEHIND], numbers[N_SENT])
        numbers[N_QUESTIONS] += 1
    return int(count)


def due_us(numbers: Any, data_fragments: int) -> int:
    """When a timer is due. (Worker.next_timer_us)"""
    wait_us = MAX_TIMEOUT_US
    if numbers[N_IN_FLIGHT] != 0 or numbers[N_MISSING] < data_fragments:
        wait_us = min(MAX_TIMEOUT_US, answer_us(numbers))
    return int(min(numbers[N_DUE], numbers[N_SINCE] + wait_us))


def may_gather(numbers: Any) -> int:
    """Worker.may_gather"""
    if numbers[N_ASKED_US] > numbers[N_RESULTS_US] and numbers[N_QUESTIONS] != 0:
        return 0
    return int(min(numbers[N_IN_FLIGHT] // 2, numbers[N_MISSING] // 8))
