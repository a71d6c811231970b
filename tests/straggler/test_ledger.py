"""The ledger: who may compute what. (protocol sections 10.2 and 10.3)"""

import heapq
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_atp.straggler.assignment import Capacity, makespan
from sa_atp.straggler.ledger import STEPS_KEPT, Ledger, SendProgress
from sa_atp.wire.control import HelpMode

FAST_US = 1_000
POLL_US = 300
ALL = (1 << 64) - 1


@dataclass
class Course:
    """A step as a list of what was computed, by whom, until when."""

    end_us: int = 0
    done: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # (shard, micro-batch): who computed it
    helped: int = 0


def run_step(
    ledger: Ledger, step: int, times_us: list[int], start_us: int, stops: frozenset[int] = frozenset()
) -> Course:
    """Workers that claim, compute and help as train/step.py does, with messages that take no time.

    Args: times_us: of a micro-batch, for each worker. stops: those that never get done with what they begin first.
    """
    course = Course(start_us)
    turns = [(start_us, rank, 0, 0) for rank in range(ledger.world_size)]  # (when, who, next of its own, took)
    heapq.heapify(turns)
    total = ledger.world_size * ledger.micro_batches
    while len(course.done) < total:
        now_us, rank, m, took_us = heapq.heappop(turns)
        assert now_us < start_us + 1000 * max(times_us), "it does not end"
        if m < ledger.micro_batches and ledger.claim(step, rank, m, took_us, now_us):
            if rank not in stops:
                end_us = now_us + times_us[rank]
                course.done.setdefault((rank, m), []).append(rank)
                course.end_us = max(course.end_us, end_us)
                heapq.heappush(turns, (end_us, rank, m + 1, times_us[rank]))
            continue
        if m <= ledger.micro_batches:  # not yet said
            ledger.idle(step, rank, took_us if m == ledger.micro_batches else 0, now_us)
            took_us = 0
        missing = sum(1 << (s * ledger.micro_batches + i) for s in range(ledger.world_size)
                      for i in range(ledger.micro_batches) if (s, i) not in course.done)  # fmt: skip
        work = ledger.ask(step, rank, missing, took_us, 0, now_us)
        after = ledger.micro_batches + 1
        if work is None:
            heapq.heappush(turns, (now_us + POLL_US, rank, after, 0))
            continue
        assert work.step == step
        end_us = now_us + len(work.micro_batches) * times_us[rank]
        for i in work.micro_batches:
            course.done.setdefault((work.shard, i), []).append(rank)
        course.helped += len(work.micro_batches) * (work.shard != rank)
        course.end_us = max(course.end_us, end_us)
        heapq.heappush(turns, (end_us, rank, after, times_us[rank]))
    return course


def fluid_us(total: int, times_us: list[int]) -> float:
    return total / sum(1 / t for t in times_us)


# --- steal ------------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.integers(500, 8_000), min_size=2, max_size=6), st.integers(2, 10))
def test_steal_computes_everything_once_and_nearly_as_fast_as_can_be(times_us: list[int], micro_batches: int) -> None:
    """From the second step on, when speeds are known: at most one of the slowest worker's micro-batches over the best."""
    ledger = Ledger(len(times_us), micro_batches, HelpMode.STEAL)
    start_us = 0
    best = makespan(len(times_us) * micro_batches, [Capacity(0, t) for t in times_us])
    assert best is not None
    for step in range(3):
        course = run_step(ledger, step, times_us, start_us)
        assert all(len(who) == 1 for who in course.done.values())
        if step:
            assert course.end_us - start_us <= best + max(times_us)
        start_us = course.end_us + 10
    assert ledger.backups == 0


@pytest.mark.parametrize("slowdown", [2, 3, 4, 8])
def test_one_straggler_among_four_with_sixteen_micro_batches(slowdown: int) -> None:
    ledger = Ledger(4, 16, HelpMode.STEAL)
    times_us = [FAST_US, FAST_US, FAST_US, slowdown * FAST_US]
    for step in range(4):
        course = run_step(ledger, step, times_us, start := step * 1_000_000)
        if step:
            assert course.end_us - start <= 1.15 * fluid_us(64, times_us)
            assert course.helped > 0
    assert ledger.backups == 0


@settings(max_examples=20)
@given(st.integers(2, 6), st.integers(1, 10))
def test_workers_that_are_equally_fast_do_not_help(workers: int, micro_batches: int) -> None:
    ledger = Ledger(workers, micro_batches, HelpMode.STEAL)
    for step in range(3):
        assert run_step(ledger, step, [FAST_US] * workers, step * 1_000_000).helped == 0
    assert ledger.shared(2) == []


def test_one_fast_worker_does_not_take_on_more_than_it_can_do() -> None:
    """Each of the others would end later than it would, but not if it does the last micro-batch of all of them."""
    ledger = Ledger(6, 4, HelpMode.STEAL)
    times_us = [500, 926, 926, 951, 1157, 926]
    run_step(ledger, 0, times_us, 0)
    course = run_step(ledger, 1, times_us, 1_000_000)
    assert course.end_us - 1_000_000 < 4 * max(times_us), "what the slowest takes without help"


def test_a_claim_is_refused_where_the_rest_is_done_sooner_without() -> None:
    """A worker four times slower than the three others, 8 micro-batches each: the last of its own that ends before the
    others could have done it is its second.
    """
    ledger = Ledger(4, 8, HelpMode.STEAL)
    run_step(ledger, 0, [FAST_US] * 3 + [4 * FAST_US], 0)
    now = 1_000_000
    for rank in range(3):
        assert ledger.claim(1, rank, 0, 0, now)
    assert ledger.claim(1, 3, 0, 0, now)
    for m in range(1, 8):
        for rank in range(3):
            assert ledger.claim(1, rank, m, FAST_US, now + m * FAST_US)
        if m == 4:
            assert ledger.claim(1, 3, 1, 4 * FAST_US, now + m * FAST_US)
    # at 8000 the others are free; of its shard 6 are left, which they do by 10,000, and it would end at 12,000
    assert not ledger.claim(1, 3, 2, 4 * FAST_US, now + 8 * FAST_US)
    assert not ledger.claim(1, 3, 2, 0, now + 8 * FAST_US), "told once, told always"
    assert ledger.shared(1) == []
    work = ledger.ask(1, 0, ALL, FAST_US, 0, now + 8 * FAST_US)
    assert work is not None
    assert (work.shard, work.micro_batches, work.backup) == (3, (7,), False), "helpers take from the end"
    assert ledger.shared(1) == [3]


def test_a_claim_of_what_another_one_has_is_refused_and_a_repeated_one_is_granted() -> None:
    ledger = Ledger(2, 4, HelpMode.STEAL)
    for rank, took_us in ((0, FAST_US), (1, 8 * FAST_US)):
        assert ledger.claim(0, rank, 0, 0, 0)
        ledger.idle(0, rank, took_us, took_us)
    assert ledger.claim(1, 1, 0, 0, 100_000)
    assert ledger.claim(1, 1, 0, 0, 100_500)
    for m in range(4):
        assert ledger.claim(1, 0, m, 0, 96_000 + m)
    taken = [ledger.ask(1, 0, ALL, 0, 0, 100_600 + i) for i in range(3)]
    assert [w.micro_batches for w in taken if w is not None] == [(3,), (2,), (1,)]
    assert not ledger.claim(1, 1, 1, 0, 110_000)


def test_without_measurements_everything_is_granted() -> None:
    ledger = Ledger(3, 4, HelpMode.STEAL)
    for m in range(4):
        assert ledger.claim(0, 1, m, 0, 50_000 * m)


# --- who has stopped ----------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(st.lists(st.integers(800, 1_500), min_size=2, max_size=5), st.integers(2, 8), st.data())
def test_what_a_worker_holds_that_has_stopped_is_computed_once_more_and_once_only(
    times_us: list[int], micro_batches: int, data: st.DataObject
) -> None:
    stopped = data.draw(st.integers(0, len(times_us) - 1))
    ledger = Ledger(len(times_us), micro_batches, HelpMode.STEAL)
    run_step(ledger, 0, times_us, 0)
    course = run_step(ledger, 1, times_us, 1_000_000, frozenset([stopped]))
    assert all(len(who) == 1 for who in course.done.values())
    assert stopped not in [rank for who in course.done.values() for rank in who]
    assert ledger.backups == 1, "what it holds; the rest of its shard nobody had claimed"
    assert stopped in ledger.shared(1)


def test_nothing_is_backed_up_before_it_is_three_times_overdue() -> None:
    ledger = Ledger(2, 1, HelpMode.STEAL)
    run_step(ledger, 0, [FAST_US, FAST_US], 0)
    start = 1_000_000
    assert ledger.claim(1, 0, 0, 0, start)
    assert ledger.claim(1, 1, 0, 0, start)
    ledger.idle(1, 0, FAST_US, start + FAST_US)
    assert ledger.ask(1, 0, 0b10, 0, 0, start + 3 * FAST_US - 1) is None
    assert ledger.ask(1, 0, 0b01, 0, 0, start + 3 * FAST_US) is None, "it is not missing"
    work = ledger.ask(1, 0, 0b10, 0, 0, start + 3 * FAST_US)
    assert work is not None
    assert (work.shard, work.micro_batches, work.backup) == (1, (0,), True)
    assert ledger.ask(1, 0, 0b10, 0, 0, start + 30 * FAST_US) is None, "once"


# --- slow links ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("send_us", [1_000, 100_000])
def test_where_sending_is_what_takes_long_nothing_is_given_away_for_a_few_milliseconds(send_us: int) -> None:
    """What is given away is sent as a contribution more, behind the helper's own; its owner would send nothing more."""
    ledger = Ledger(3, 4, HelpMode.STEAL)
    run_step(ledger, 0, [FAST_US] * 3, 0)
    assert ledger.ask(0, 0, 0, 0, 0, 900_000, SendProgress(0.5, send_us)) is None
    start = 1_000_000
    for rank in (0, 1, 2):
        for m in (0, 1):
            assert ledger.claim(1, rank, m, FAST_US, start + m * FAST_US)
    for rank in (0, 1):
        for m in (2, 3):
            assert ledger.claim(1, rank, m, FAST_US, start + m * FAST_US)
        ledger.idle(1, rank, FAST_US, start + 4 * FAST_US)
    # rank 2 has been held up for a while
    work = ledger.ask(1, 0, 0xF00, 0, 0, start + 4 * FAST_US)
    if send_us == 1_000:
        assert work is not None
        assert (work.shard, work.micro_batches) == (2, (3,))
        return
    assert work is None
    for m in (2, 3):
        assert ledger.claim(1, 2, m, FAST_US, start + (m + 2) * FAST_US)
    assert ledger.ask(1, 1, 0xF00, 0, 0, start + 9 * FAST_US) is None, "it may be behind its own data: no backup yet"


# --- late data ----------------------------------------------------------------------------------------------------------


def test_data_that_is_late_is_computed_anew_by_one_helper() -> None:
    ledger = Ledger(3, 2, HelpMode.STEAL)
    run_step(ledger, 0, [FAST_US] * 3, 0)
    start = 1_000_000
    for rank in range(3):
        for m in (0, 1):
            assert ledger.claim(1, rank, m, FAST_US * m, start + m * FAST_US)
        ledger.idle(1, rank, FAST_US, start + 2 * FAST_US)
    late = 0b110000  # of rank 2
    idle = start + 2 * FAST_US
    ours = 60_000  # that long it took to send our own data
    far = SendProgress(0.9, ours)
    assert ledger.ask(1, 0, late, 0, 0, idle + 80_000, far) is None, "not yet one and a half times as long"
    assert ledger.ask(1, 0, late, 0, 0, idle + 120_000, SendProgress(0.05, ours)) is None, "it will be there soon"
    assert ledger.ask(1, 0, late, 0, 0, idle + 120_000, None) is None, "nothing is known about it"
    work = ledger.ask(1, 0, late, 0, 0, idle + 120_000, far)
    assert work is not None
    assert (work.shard, work.micro_batches, work.backup) == (2, (0, 1), True)
    assert ledger.ask(1, 1, late, 0, 0, idle + 300_000, far) is None, "another helper would send as much again"
    assert ledger.shared(1) == [2]


# --- clone and none -----------------------------------------------------------------------------------------------------


def test_clone_gives_a_shard_to_one_helper_and_never_refuses_its_owner() -> None:
    ledger = Ledger(4, 4, HelpMode.CLONE)
    start, late = 1_000_000, 0xFF00  # the shards of ranks 2 and 3
    for rank, each in enumerate((FAST_US, FAST_US, 5 * FAST_US, 6 * FAST_US)):
        assert ledger.claim(0, rank, 0, 0, 0)
        ledger.idle(0, rank, each, each)
    for rank in range(4):
        assert ledger.claim(1, rank, 0, 0, start)
    ledger.idle(1, 0, 0, start + 4 * FAST_US)
    first = ledger.ask(1, 0, late, 0, 0, start + 4 * FAST_US)
    assert first is not None
    assert (first.shard, first.micro_batches, first.backup) == (3, (0, 1, 2, 3), True), "the one that would be last"
    assert ledger.ask(1, 0, late, 0, 4 * FAST_US, start + 5 * FAST_US) is None, "it is busy"
    ledger.idle(1, 1, 0, start + 5 * FAST_US)
    second = ledger.ask(1, 1, late, 0, 0, start + 5 * FAST_US)
    assert second is not None
    assert second.shard == 2
    assert ledger.ask(1, 1, late, 0, 0, start + 9 * FAST_US) is None, "both have a helper"
    for m in range(1, 4):
        assert ledger.claim(1, 3, m, 6 * FAST_US, start + m * 6 * FAST_US)
    assert ledger.shared(1) == [2, 3]


def test_a_clone_that_would_not_be_faster_is_not_made() -> None:
    ledger = Ledger(2, 4, HelpMode.CLONE)
    for rank, each in ((0, FAST_US), (1, 2 * FAST_US)):
        assert ledger.claim(0, rank, 0, 0, 0)
        ledger.idle(0, rank, each, each)
    assert ledger.claim(1, 1, 0, 0, 1_000_000)
    # at 4000 it has 2 of its 4 left, which take 4000: as long as the whole shard takes the helper
    for m in (1, 2):
        assert ledger.claim(1, 1, m, 2 * FAST_US, 1_000_000 + 2 * m * FAST_US)
    assert ledger.ask(1, 0, ALL, 0, 0, 1_000_000 + 4 * FAST_US) is None


def test_without_help_claims_are_granted_and_offers_are_not_taken() -> None:
    ledger = Ledger(2, 4, HelpMode.NONE)
    assert ledger.claim(0, 1, 0, 0, 0)
    assert ledger.ask(0, 0, ALL, FAST_US, 0, 1_000_000) is None
    assert ledger.helped_micro_batches == ledger.backups == 0


def test_a_ledger_forgets_old_steps() -> None:
    ledger = Ledger(2, 4, HelpMode.STEAL)
    for step in range(3 * STEPS_KEPT):
        run_step(ledger, step, [FAST_US, 3 * FAST_US], 100_000 * step)
        assert len(ledger._steps) <= STEPS_KEPT


def test_work_is_scaled_by_the_weights_of_shards() -> None:
    """A worker five times as slow has micro-batches of a fifth: all take the same time on their own device."""
    ledger = Ledger(2, 4, HelpMode.STEAL)
    for rank, weight in ((0, 50), (1, 10)):
        assert ledger.claim(0, rank, 0, 0, 0, weight=weight)
    now = 0
    for m in (1, 2, 3):
        now += 100
        assert ledger.claim(0, 0, m, 100, now, weight=50)
        if m == 1:
            assert ledger.claim(0, 1, m, 100, now, weight=10)  # and then it is slow
    now += 100
    work = ledger.ask(0, 0, 0xF0, 100, 0, now)
    assert work is not None
    assert (work.shard, work.micro_batches) == (1, (3,))  # a fifth of its own, so worth it
    slow = Ledger(2, 4, HelpMode.STEAL)
    for rank, weight in ((0, 50), (1, 10)):
        assert slow.claim(0, rank, 0, 0, 0, weight=weight)
    for m in (1, 2, 3):
        assert slow.claim(0, 1, m, 100, 100 * m, weight=10)
        if m == 1:
            assert slow.claim(0, 0, m, 100, 100, weight=50)
    assert slow.ask(0, 1, 0x0F, 100, 0, 390) is None  # five times as long as its own: the owner is done before


def test_what_comes_before_the_first_claim_is_the_owners() -> None:
    ledger = Ledger(2, 4, HelpMode.STEAL)
    assert ledger.claim(0, 0, 0, 0, 0)
    assert ledger.claim(0, 1, 3, 0, 0)  # the others have no work in them
    for m in (1, 2, 3):
        assert ledger.claim(0, 0, m, 100, 100 * m)
    assert ledger.ask(0, 0, 0xF0, 100, 0, 150) is None
