"""When silence has lasted long enough to ask, and too long to go on: sections 5.4 and 11 as tables."""

from collections.abc import Callable

import pytest
from helpers.answers import member_of

from sa_atp.protocol.rank.connection import Connection
from sa_atp.protocol.rank.pace.probe_timer import ProbeTimer
from sa_atp.protocol.rank.pace.timing import MAX_TIMEOUT_US, RoundTrip

LONGEST_US = 1_000_000
START_US = 5_000_000
FIRST_US = 6_000  # of a path that nothing is known of: 2 ms, and four times the half of it


def probe_timer(*answers_us: int) -> ProbeTimer:
    """On a path whose probes have been answered after these times."""
    path = RoundTrip()
    for elapsed_us in answers_us:
        path.time_answer(elapsed_us)
    return ProbeTimer(path, LONGEST_US, START_US)


def waits_us(found: ProbeTimer, in_flight: int, now_us: int, times: int) -> list[int]:
    """How long each of the next silences lasts, when each is noticed at once."""
    waits = []
    for _ in range(times):
        until_us = found.until_us(in_flight)
        assert not found.is_over(in_flight, until_us - 1), "too early"
        assert found.is_over(in_flight, until_us)
        waits.append(until_us - now_us)
        now_us = until_us
    return waits


# --- how long ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers_us", "in_flight", "waits"),
    [
        ((), 1, [FIRST_US, 12_000, 24_000, 48_000, 96_000, 100_000, 100_000]),
        ((), 0, [100_000] * 7),  # all that can be missing is others' work
        ((100,), 500, [2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 100_000]),  # the path is fast, hosts are not always
        ((10_000,), 1, [30_000, 60_000, 100_000, 100_000, 100_000, 100_000, 100_000]),
        ((1_000_000,), 1, [100_000] * 7),
    ],
)
def test_each_silence_in_a_row_is_twice_as_long_up_to_the_longest(
    answers_us: tuple[int, ...], in_flight: int, waits: list[int]
) -> None:
    found = probe_timer(*answers_us)
    assert waits_us(found, in_flight, START_US, len(waits)) == waits
    assert found.timeouts == len(waits)


def test_however_many_there_were_the_next_one_is_no_longer() -> None:
    found = probe_timer(100)
    assert set(waits_us(found, 1, START_US, 300)[10:]) == {MAX_TIMEOUT_US}


@pytest.mark.parametrize("in_flight", [0, 1])
def test_ranks_that_wait_alike_do_not_ask_together_again_and_again(in_flight: int) -> None:
    """A queue that is shorter than their questions would lose the same ones each time."""
    members = [member_of(rank=rank, world_size=60) for rank in range(60)]
    timers = [Connection(member, START_US).probe_timer for member in members]
    asked = [sum(waits_us(timer, in_flight, START_US, 10)) for timer in timers]
    assert max(sum(at <= other < at + 10_000 for other in asked) for at in asked) < 10
    assert max(asked) <= 10 * 1.25 * MAX_TIMEOUT_US


def test_what_is_noticed_late_is_asked_for_once() -> None:
    """A thread that did not run for a second has missed many silences, of which nobody could have heard more."""
    found = probe_timer()
    late_us = START_US + 1_000_000
    assert found.is_over(1, late_us)
    assert not found.is_over(1, late_us)
    assert found.timeouts == 1
    assert found.until_us(1) == late_us + 2 * FIRST_US


def test_the_time_out_is_that_of_the_path_as_it_is_now() -> None:
    path = RoundTrip()
    found = ProbeTimer(path, LONGEST_US, START_US)
    assert found.until_us(1) == START_US + FIRST_US
    path.time_answer(10_000)
    assert found.until_us(1) == START_US + 30_000


# --- what begins anew -------------------------------------------------------------------------------------------------

SECOND_US = FIRST_US + 1_000  # after the first questions


@pytest.mark.parametrize(
    ("happens", "silence_begins", "urgent_again", "progress"),
    [
        (lambda s: s.on_values(START_US + SECOND_US), True, False, False),
        (lambda s: s.on_values(START_US - 1), False, False, False),  # contributed in the past: nothing that counts
        (lambda s: s.on_sent(START_US + SECOND_US), True, False, False),
        (lambda s: s.on_news(START_US + SECOND_US), True, True, True),
        (lambda s: s.on_loss(), False, True, False),
        (lambda s: s.on_progress(START_US + SECOND_US), False, False, True),
        (lambda s: s.stuck_us(START_US + SECOND_US), False, False, False),
        (lambda s: s.until_us(1), False, False, False),
        (lambda s: s.is_over(1, START_US + SECOND_US), False, False, False),  # it is not
    ],
    ids=[
        "values",
        "values of the past",
        "sent",
        "news",
        "loss",
        "progress",
        "looked",
        "looked ahead",
        "asked too early",
    ],
)
def test_what_begins_anew_after_the_first_questions(
    happens: Callable[[ProbeTimer], object], silence_begins: bool, urgent_again: bool, progress: bool
) -> None:
    found = probe_timer()
    asked_us = START_US + FIRST_US
    assert found.is_over(1, asked_us)
    happens(found)
    since_us = START_US + SECOND_US if silence_begins else asked_us
    assert found.until_us(1) == since_us + (FIRST_US if urgent_again else 2 * FIRST_US)
    assert found.until_us(0) == since_us + MAX_TIMEOUT_US
    assert found.timeouts == (0 if urgent_again else 1)
    moved_us = START_US + SECOND_US if progress else START_US
    assert found.stuck_us(moved_us + LONGEST_US) is None, "not longer than it may be"
    assert found.stuck_us(moved_us + LONGEST_US + 1) == LONGEST_US + 1


def test_questions_and_contributions_are_no_progress() -> None:
    """Whoever sends and asks for ever, and hears nothing, gives up in the end."""
    found = probe_timer()
    now_us = START_US
    while found.stuck_us(now_us) is None:
        now_us = found.until_us(1)
        assert found.is_over(1, now_us)
        found.on_sent(now_us)
        found.on_loss()
    assert LONGEST_US < now_us - START_US <= LONGEST_US + MAX_TIMEOUT_US
