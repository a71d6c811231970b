"""The ledger's decisions over whole steps of simulated workers. (protocol sections 10.2 and 10.3)"""

import random
from collections.abc import Sequence

import pytest
from helpers.work import About, Books, Crew, between, fluid_us, told
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_atp.protocol.help import plan
from sa_atp.protocol.help.believing import LEAST_POLL_US
from sa_atp.protocol.help.ledger import STEPS_KEPT
from sa_atp.protocol.help.plan import Kernels, Machine, Plan
from sa_atp.protocol.help.projection import FIRST_PATIENCE, HEARD_US, LEAST_SENDING_US
from sa_atp.protocol.packets.help_messages import Assignment, WorkReport
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.server import work_requests

FAST_US = 1_000
ALL = (1 << 64) - 1
NOTHING = About()


# --- steal ------------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.integers(500, 8_000), min_size=2, max_size=6), st.integers(2, 10))
def test_steal_computes_everything_once_and_nearly_as_fast_as_possible(times_us: list[int], micro_batches: int) -> None:
    """From the third step on, when speeds are known: at most one of the slowest worker's micro-batches over the best."""
    crew = Crew(len(times_us), micro_batches)
    best = plan.make([Machine(0, t, held=micro_batches) for t in times_us]).end_us
    for step in range(4):
        course = crew.run(times_us)
        if step > 0:  # in the first step no speed is known
            assert course.more_than_once == []
        if step > 1:
            assert course.end_us <= 1.02 * best + max(times_us) + 100


@settings(max_examples=60)
@given(
    st.integers(2, 6),
    st.integers(1, 10),
    st.integers(0, 2**20),
    st.sampled_from((10, 300, 3_000, 30_000)),
    st.booleans(),
)
def test_no_micro_batch_is_computed_twice_whatever_messages_overtake_each_other(
    size: int, micro_batches: int, seed: int, delay_us: int, is_steady: bool
) -> None:
    """Messages of any delay, in any order; workers whose speed changes from step to step, or does not."""
    rng = random.Random(seed)
    crew = Crew(size, micro_batches, delay_us=between(rng, delay_us // 3, delay_us))
    times_us = [rng.choice((1, 1, 2, 5)) * FAST_US for _ in range(size)]
    for _ in range(5):
        if not is_steady:
            times_us = [rng.choice((1, 1, 2, 5)) * FAST_US for _ in range(size)]
        before = crew.ledger.lots.backups
        course = crew.run(times_us)
        assert len(course.computed) == size * micro_batches
        assert len(course.more_than_once) <= crew.ledger.lots.backups - before, "but for backups"


@pytest.mark.parametrize("slowdown", [2, 3, 4, 8])
def test_one_straggler_among_four_with_sixteen_micro_batches(slowdown: int) -> None:
    crew = Crew(4, 16)
    times_us = [FAST_US, FAST_US, FAST_US, slowdown * FAST_US]
    for step in range(5):
        course = crew.run(times_us)
        assert course.helped > 0
        if step > 1:
            assert course.end_us <= 1.12 * fluid_us(64, times_us)
    assert crew.ledger.lots.backups == 0


@pytest.mark.parametrize("delay_us", [10, 500, 2_000, 8_000])
def test_nobody_waits_for_answers_where_nobody_is_slow(delay_us: int) -> None:
    """However long answers take, each worker asks once in a step, and leaders more often at its end."""
    crew = Crew(4, 16, delay_us=lambda: delay_us)
    for _ in range(5):
        course = crew.run([FAST_US] * 4)
        assert course.helped == 0
        assert course.end_us <= 16 * FAST_US
    assert 4 * 4 <= crew.job.stats.questions <= 5 * 4, "the last ones may be on their way"


@pytest.mark.parametrize("delay_us", [500, 2_000, 4_000, 11_000])
def test_a_steady_straggler_is_helped_however_long_answers_take(delay_us: int) -> None:
    crew = Crew(4, 16, delay_us=lambda: delay_us)
    times_us = [FAST_US] * 3 + [4 * FAST_US]
    for step in range(8):
        course = crew.run(times_us)
        if step > 3:
            assert course.end_us <= 1.15 * fluid_us(64, times_us) + delay_us
    assert crew.ledger.lots.backups == 0


@settings(max_examples=20)
@given(st.integers(2, 6), st.integers(1, 10))
def test_workers_that_are_equally_fast_do_not_help(workers: int, micro_batches: int) -> None:
    crew = Crew(workers, micro_batches)
    for _ in range(3):
        assert crew.run([FAST_US] * workers).helped == 0
    assert crew.ledger.crossed(2) == []


def test_one_fast_worker_does_not_take_on_more_than_it_can_do() -> None:
    """It would be done before each of the others, but not if it did the last micro-batch of all of them."""
    crew = Crew(6, 4)
    times_us = [500, 926, 926, 951, 1157, 926]
    for _ in range(3):
        course = crew.run(times_us)
    assert course.end_us < 4 * max(times_us), "what the slowest takes without help"


def test_messages_grow_with_help_given() -> None:
    crew = Crew(4, 16)
    for _ in range(6):
        before, helped = crew.job.stats.questions, crew.ledger.lots.helped_micro_batches
        crew.run([FAST_US] * 3 + [4 * FAST_US])
        asked = crew.job.stats.questions - before
        assert asked <= 3 * 4 + 2 * (crew.ledger.lots.helped_micro_batches - helped)


# --- claims -----------------------------------------------------------------------------------------------------------


def known(
    size: int, micro_batches: int, times_us: list[int], grade: HelpGrade = HelpGrade.STEAL, *, answer_us: int = 0
) -> Books:
    """A ledger that knows every worker's speed from step 0."""
    ledger = Books(size, micro_batches, grade)
    for rank, each_us in enumerate(times_us):
        ledger.idle(0, rank, About(each_us, micro_batches * each_us, answer_us), micro_batches * each_us)
    return ledger


def test_a_claim_is_refused_where_helpers_would_do_the_rest_sooner() -> None:
    ledger = known(4, 8, [FAST_US] * 3 + [4 * FAST_US])
    now = 1_000_000
    assert ledger.claim(1, 3, 1, 1, 0, NOTHING, now) == (2, False)
    assert ledger.claim(1, 3, 2, 2, 0, About(4 * FAST_US, 4 * FAST_US), now + 4 * FAST_US) == (2, True)
    assert ledger.claim(1, 3, 2, 2, None, NOTHING, now + 8 * FAST_US) == (2, True), "told once, told always"
    assert ledger.crossed(1) == []
    work = ledger.ask(1, 0, ALL, About(FAST_US, 8 * FAST_US), 0, now + 8 * FAST_US)
    assert told(work) == (3, (7,), False), "helpers take from the end"
    assert ledger.crossed(1) == [3]


def test_micro_batches_that_a_helper_gives_up_leave_its_lot() -> None:
    """On a slow link its own contribution leaves with the lot, but not the micro-batches that it has given up."""
    sent_us, now = 2 * LEAST_SENDING_US, 1_000_000
    ledger = known(3, 8, [50 * FAST_US] * 2 + [400 * FAST_US])
    slow = About(spent_us=1, sent_us=sent_us)
    assert ledger.claim(1, 2, 1, 2, 0, slow, now) == (2, True)
    early = ledger.ask(1, 0, ALL, slow, 400 * FAST_US, now)
    assert early is not None
    assert early.shard == 2
    # the helper turns out to be slow itself
    now += 400 * FAST_US
    assert ledger.claim(1, 0, 2, 3, 0, About(400 * FAST_US, 400 * FAST_US, sent_us=sent_us), now) == (3, True)
    now += 10 * FAST_US
    found = set()
    while (work := ledger.ask(1, 1, ALL, About(sent_us=sent_us), 0, now)) is not None:
        found |= {(work.shard, m) for m in work.micro_batches}
    assert {(0, m) for m in range(3, 8)} <= found


def test_an_owner_begins_a_grant_when_it_arrives() -> None:
    """The projection does not count on it before."""
    answer_us, now = 40 * FAST_US, 1_000_000
    ledger = known(2, 8, [FAST_US, 2 * FAST_US], answer_us=answer_us)
    report = About(answer_us=answer_us, spent_us=1)
    until, over = ledger.claim(1, 1, 2, 2, 0, report, now)
    assert (until, over) > (2, False)
    state = ledger._steps[1]
    assert ledger._projection.belief(state, 1).due_us == now + answer_us // 2 + (until - 2) * 2 * FAST_US


def test_an_overdue_owner_becomes_silent_however_often_it_is_granted_more() -> None:
    """In a job's first step, where its speed is not known: each grant would otherwise postpone its silence."""
    ledger, now = Books(3, 8, HelpGrade.STEAL), 100 * FAST_US
    for rank in (0, 1):
        ledger.idle(0, rank, About(FAST_US, 8 * FAST_US), now)
    due_us = []
    for _ in range(4):
        ledger.claim(0, 2, 1, 1, now, About(spent_us=now), now)
        due_us.append(ledger._projection.belief(ledger._steps[0], 2).due_us)
        now += 100 * FAST_US
    assert due_us[1:] == due_us[:-1]
    assert due_us[0] < 100 * FAST_US


def test_micro_batches_that_an_owner_holds_go_to_nobody() -> None:
    ledger = known(2, 8, [FAST_US, 8 * FAST_US])
    now = 1_000_000
    assert ledger.ask(1, 0, ALL, About(FAST_US, 8 * FAST_US), 0, now) is None
    assert ledger.revoked == [(1, 8)], "but its owner is asked"
    ledger.unasked.clear()
    assert ledger.claim(1, 1, 2, 3, 0, About(8 * FAST_US, 8 * FAST_US), now) == (3, True)
    ((rank, called),) = ledger.called
    assert (rank, called.shard, called.micro_batches) == (0, 1, (7,)), "who has offered is called"
    work = ledger.ask(1, 0, ALL, NOTHING, 0, now, given=1 << 15)
    assert told(work)[:2] == (1, (6,))
    assert ledger.claim(1, 1, 3, 3, 0, NOTHING, now) == (3, True)


def test_a_lost_call_is_made_up_for() -> None:
    ledger = known(2, 8, [FAST_US, 8 * FAST_US])
    now, leader = 1_000_000, About(0, 8 * FAST_US, 80)
    assert ledger.ask(1, 0, ALL, leader, 0, now, given=0) is None
    ledger.claim(1, 1, 2, 3, 0, About(8 * FAST_US, 8 * FAST_US), now)
    ((_, called),) = ledger.called
    assert told(ledger.ask(1, 0, ALL, leader, 0, now + 80, given=0)) == told(called), "it has not come"
    bits = sum(1 << 8 + m for m in called.micro_batches)
    again = ledger.ask(1, 0, ALL, leader, 0, now + 80, given=bits)
    assert again is None or not set(again.micro_batches) & set(called.micro_batches)


def test_a_call_says_what_earlier_ones_said_until_its_worker_knows() -> None:
    """A worker that missed the first call, and was told with the second that all others had done their work, offered again
    after 10 s: a step of 0.2 s took that long, with 3 % loss.
    """
    ledger = known(2, 8, [FAST_US, 8 * FAST_US])
    now, leader = 1_000_000, About(0, 8 * FAST_US, 80)
    ledger.ask(1, 0, ALL, leader, 0, now, given=0)
    for held in (7, 6):
        ledger.claim(1, 1, 2, held, 0, About(8 * FAST_US, 8 * FAST_US), now)
    assert [each.micro_batches for _, each in ledger.called] == [(7,), (6, 7)]
    assert ledger.ask(1, 0, ALL, leader, 0, now, given=1 << 15 | 1 << 14) is None
    ledger.claim(1, 1, 2, 5, 0, About(8 * FAST_US, 8 * FAST_US), now)
    assert ledger.called[-1][1].micro_batches == (5,)


def test_a_worker_still_computing_the_last_step_is_helped_at_once() -> None:
    ledger = known(2, 4, [FAST_US, FAST_US])
    ledger.idle(1, 0, About(FAST_US, 4 * FAST_US), 1_000_000)
    assert ledger.claim(2, 1, 0, 0, None, NOTHING, 1_003_000) == (0, False)
    assert ledger.ask(2, 0, ALL, About(FAST_US, 4 * FAST_US), 0, 1_006_000) is not None


@pytest.mark.parametrize("grade", [HelpGrade.STEAL, HelpGrade.CLONE])
def test_a_worker_still_receiving_old_sums_keeps_its_work(grade: HelpGrade) -> None:
    """Its link is busy with those sums, and help would add more. As soon as it is only one step behind it is helped."""
    ledger = known(2, 4, [FAST_US, FAST_US], grade)
    leader, waits = About(FAST_US, 4 * FAST_US), About(FAST_US, 4 * FAST_US)
    now = 2_000_000
    ledger.idle(1, 1, waits, now - 10_000)
    for step in (1, 2, 3):
        ledger.idle(step, 0, leader, now)
    for later_us in range(0, 500_000, 20_000):
        ledger.ask(1, 1, ALL, waits, 0, now + later_us)  # it waits for the sum of step 1
        assert ledger.ask(3, 0, ALL, leader, 0, now + later_us) is None
    assert not ledger.revoked
    ledger.idle(2, 1, waits, now + 500_000)
    assert ledger.ask(3, 0, ALL, leader, 0, now + 500_000) is not None


def test_a_worker_steps_behind_that_is_silent_is_helped() -> None:
    """It is paused, and does not wait for its link."""
    ledger = known(2, 4, [FAST_US, FAST_US])
    leader = About(FAST_US, 4 * FAST_US)
    for step in (1, 2, 3):
        ledger.idle(step, 0, leader, 2_000_000)
    ledger.ask(1, 1, ALL, leader, 0, 2_000_000)
    assert ledger.ask(3, 0, ALL, leader, 0, 2_100_000) is None
    assert ledger.ask(3, 0, ALL, leader, 0, 2_000_000 + HEARD_US + 1) is not None


def test_without_measurements_an_owner_goes_on() -> None:
    ledger = Books(3, 4, HelpGrade.STEAL)
    for m in range(4):
        assert ledger.claim(0, 1, m, m, 0, About(0, 1), 50_000 * m) == (m + 1, False)


def test_an_owner_whose_rest_is_given_away_is_told_so_without_measurements() -> None:
    ledger = Books(2, 4, HelpGrade.STEAL)
    assert ledger.claim(0, 0, 1, 2, 500, About(spent_us=500), 500) == (3, False)
    assert ledger.ask(0, 1, ALL, About(took_us=10, spent_us=600), 0, 600) is not None  # the last one
    assert ledger.claim(0, 0, 3, 3, None, About(spent_us=700), 700) == (3, True)


def test_an_overtaken_question_counts_as_a_measurement_and_its_answer_carries_advice() -> None:
    crew = Crew(2, 8)

    def answer(number: int, took_us: int) -> Assignment:
        claim = WorkReport(step=0, took_us=took_us, spent_us=900, answer_us=10, begun=2, held=2)
        return work_requests.answer(crew.job, crew.job.members[0], number, claim, 1_000, levels=1)

    assert answer(8, 0) == Assignment(step=0, until=3, hold=8), "nobody knows how fast it is: one at a time"
    assert answer(7, 400) == Assignment(step=0, until=2, hold=8, again_us=LEAST_POLL_US), (
        "nothing is given to who has asked anew"
    )
    assert answer(9, 0) == Assignment(step=0, until=5, hold=8), "half of what it would do soonest"


def test_advice_is_for_stragglers_and_their_helpers() -> None:
    ledger = known(4, 16, [FAST_US] * 3 + [4 * FAST_US], answer_us=1)
    assert [ledger.advice(rank) for rank in range(4)] == [(16, True)] * 3 + [(2, False)]
    nobody_slow = known(4, 16, [FAST_US] * 4, answer_us=1)
    assert [nobody_slow.advice(rank) for rank in range(4)] == [(16, False)] * 4
    assert known(4, 16, [FAST_US] * 3 + [4 * FAST_US], HelpGrade.CLONE, answer_us=1).advice(3) == (16, False)


@pytest.mark.parametrize("answer_us", [0, 63 * FAST_US])
def test_nobody_holds_less_where_answers_come_too_late_or_nobody_knows_when(answer_us: int) -> None:
    ledger = known(4, 16, [FAST_US] * 3 + [4 * FAST_US], answer_us=answer_us)
    assert [ledger.advice(rank) for rank in range(4)] == [(16, False)] * 4


def test_nobody_gives_up_work_to_helpers_that_would_cost_more_to_reach_across_racks() -> None:
    ledger = known(4, 4, [FAST_US, 4 * FAST_US, FAST_US, 4 * FAST_US], answer_us=1)
    ledger.racks.leaves = (frozenset({0, 2}), frozenset({1, 3}))
    assert ledger.advice(1)[0] == 4, "what crossing costs is not known"
    for rank in range(4):
        ledger.idle(1, rank, About(0, 4 * FAST_US, 1, 100 * FAST_US), 1_000_000)
    assert [ledger.advice(rank) for rank in range(4)] == [(4, False)] * 4
    ledger.racks.leaves = (frozenset({0, 1}), frozenset({2, 3}))
    assert ledger.advice(1)[0] < 4, "below one leaf it costs nothing"
    assert ledger.advice(0)[1]


def test_nobody_helps_in_a_step_that_is_over() -> None:
    ledger = known(3, 4, [FAST_US] * 3)
    late = About(FAST_US, 90_000)
    assert ledger.claim(1, 2, 1, 1, 80_000, late, 1_000_000) != (1, True)
    ledger.idle(2, 0, About(FAST_US, 4 * FAST_US), 1_200_000)
    assert ledger.ask(1, 1, ALL, late, 0, 1_210_000) is None
    assert ledger.asks_again_us >= 50_000
    assert ledger.claim(1, 2, 1, 1, 300_000, late, 1_220_000) == (1, True)


def test_a_silent_helpers_whole_lot_is_backed_up() -> None:
    """It asks for each piece while computing the one before, then stops, and has sent none of them."""
    ledger = known(3, 4, [FAST_US, FAST_US, 8 * FAST_US])
    now_us = 1_000_000
    ledger.claim(1, 2, 1, 1, 0, About(0, 1), now_us)
    given: list[int] = []
    for busy_us in (0, FAST_US):
        work = ledger.ask(1, 0, ALL, About(FAST_US, 5 * FAST_US), busy_us, now_us)
        assert work is not None
        given += work.micro_batches
    backed_up: list[int] = []
    for _ in range(8):
        now_us += 200_000
        work = ledger.ask(1, 1, ALL, About(FAST_US, 200_000), 0, now_us, 1.0)
        backed_up += work.micro_batches if work is not None and work.backup else ()
    assert set(given) <= set(backed_up)


def silent_after_offers() -> tuple[Books, About, int]:
    """A step in which rank 1 waits for work, and rank 2, which holds its whole shard, has been silent for long.

    Returns: also a leader's report, and a time at which work of rank 2 may be copied.
    """
    ledger, now_us = known(3, 8, [FAST_US] * 3, answer_us=4 * FAST_US), 1_000_000
    leader = About(0, 8 * FAST_US, 4 * FAST_US)
    ledger.claim(1, 2, 8, 8, 7 * FAST_US, About(0, 15 * FAST_US, 4 * FAST_US), now_us)
    assert ledger.ask(1, 1, ALL, leader, 3 * FAST_US, now_us, given=0) is None
    return ledger, leader, now_us + 1_000_000


def test_copies_go_to_all_who_wait_each_to_the_one_that_finishes_it_first() -> None:
    ledger, leader, now_us = silent_after_offers()
    work = ledger.ask(1, 0, 0b1111 << 16, leader, 0, now_us, 1.0, given=0)
    ((rank, called),) = ledger.called
    assert work is not None
    assert rank == 1
    assert work.backup
    assert called.backup
    assert sorted(work.micro_batches + called.micro_batches) == [0, 1, 2, 3], "those that are missing, once each"
    assert ledger.lots.backups == 4


def test_a_lost_call_for_copies_is_repeated_as_one() -> None:
    ledger, leader, now_us = silent_after_offers()
    ledger.ask(1, 0, 0b1111 << 16, leader, 0, now_us, 1.0, given=0)
    ((rank, called),) = ledger.called
    again = ledger.ask(1, rank, ALL, leader, 0, now_us + 4 * FAST_US, 1.0, given=0)
    assert told(again) == told(called)
    bits = sum(1 << 16 + m for m in called.micro_batches)
    assert ledger.ask(1, rank, bits, leader, 0, now_us + 8 * FAST_US, 1.0, given=bits) is None, "each is copied once"


# --- stopped workers
# ----------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(st.lists(st.integers(800, 1_500), min_size=2, max_size=5), st.integers(2, 8), st.data())
def test_the_work_of_a_stopped_worker_is_computed_by_others(
    times_us: list[int], micro_batches: int, data: st.DataObject
) -> None:
    stopped, at = data.draw(st.integers(0, len(times_us) - 1)), data.draw(st.integers(0, micro_batches - 1))
    crew = Crew(len(times_us), micro_batches)
    for _ in range(2):
        crew.run(times_us)
    course = crew.run(times_us, lambda rank, m: (rank, m) == (stopped, at))
    # work for others that it was called for before it stopped is copied as well
    assert all(stopped in (piece[0], *course.computed[piece]) for piece in course.more_than_once)
    assert course.end_us <= 3 * micro_batches * max(times_us) + 80_000
    assert stopped in crew.ledger.crossed(2)


def test_the_work_of_a_silent_owner_is_computed_by_others() -> None:
    crew = Crew(3, 4)
    for _ in range(2):
        crew.run([FAST_US] * 3)
    crew.is_deaf = lambda rank: rank == 1
    course = crew.run([FAST_US] * 3, lambda rank, m: rank == 1)
    assert course.end_us < 100 * FAST_US


@pytest.mark.parametrize("answer_us", [0, 30_000])
@pytest.mark.parametrize(("each_us", "late_us"), [(FAST_US, 50_000), (200_000, 200_000)])
def test_a_backup_begins_when_work_is_overdue_by_a_helpers_time(each_us: int, late_us: int, answer_us: int) -> None:
    ledger = known(2, 1, [each_us, each_us])
    start, due_us = 1_000_000, each_us + late_us + answer_us
    ledger.idle(1, 0, About(each_us, each_us), start + each_us)
    early = About(0, due_us - 1 - answer_us // 2, answer_us)
    assert ledger.ask(1, 0, 0b10, early, 0, start + due_us - 1) is None
    assert ledger.ask(1, 0, 0b01, About(0, due_us), 0, start + due_us) is None, "it is not missing"
    work = ledger.ask(1, 0, 0b10, About(0, due_us), 0, start + due_us)
    assert told(work) == (1, (0,), True)
    assert ledger.ask(1, 0, 0b10, About(0, 30 * each_us), 0, start + 30 * each_us) is None, "once"


def test_a_straggler_with_one_micro_batch_is_advised_to_leave_it_to_others() -> None:
    assert known(4, 1, [FAST_US] * 3 + [4 * FAST_US], answer_us=1).advice(3) == (0, False)
    assert known(4, 1, [FAST_US] * 3 + [2 * FAST_US], answer_us=1).advice(3) == (1, False)


@pytest.mark.parametrize(
    ("step", "each_us", "sent_us", "patience_us"),
    [
        (1, FAST_US, 0, 50_000),
        (1, 60_000, 0, 60_000),
    ],
)
def test_a_helpers_lot_may_be_queued_behind_its_own_contribution(
    step: int, each_us: int, sent_us: int, patience_us: int
) -> None:
    ledger = known(3, 2, [each_us, each_us, 4 * each_us])
    start = 1_000_000
    assert ledger.claim(step, 2, 1, 1, 0, About(0, 1), start) == (1, True)
    for rank in (0, 1):
        ledger.idle(step, rank, About(each_us, 2 * each_us, 0, sent_us), start + 2 * each_us)
    given = ledger.ask(step, 0, ALL, About(0, 2 * each_us), 0, start + 2 * each_us)
    assert told(given) == (2, (1,), False)
    late_us = 3 * each_us + patience_us
    missing = 0b100000  # that one
    assert ledger.ask(step, 1, missing, About(0, late_us - 1), 0, start + late_us - 1) is None
    work = ledger.ask(step, 1, missing, About(0, late_us), 0, start + late_us)
    assert told(work) == (2, (1,), True)


def test_a_worker_silent_in_the_first_step_is_given_longer() -> None:
    """It may have joined late; if others did its part of that step, it would be late for all that follow."""
    ledger, silent_us = Books(2, 1, HelpGrade.STEAL), FAST_US + FIRST_PATIENCE * LEAST_SENDING_US
    ledger.idle(0, 0, About(FAST_US, FAST_US), FAST_US)
    assert ledger.ask(0, 0, 0b10, About(0, silent_us - 1), 0, silent_us - 1) is None
    work = ledger.ask(0, 0, 0b10, About(0, silent_us), 0, silent_us)
    assert told(work) == (1, (0,), True)


def test_a_helpers_own_contribution_that_waits_for_its_lot_is_backed_up_with_it() -> None:
    """On a slow link its own contribution waits for the lot; if it stops in between, neither has been sent."""
    sent_us, start = 60_000, 1_000_000
    ledger = known(3, 2, [FAST_US, FAST_US, 4 * FAST_US])
    for rank in range(3):
        ledger.idle(0, rank, About(0, 1, 0, sent_us), start - 1)
    assert ledger.claim(1, 2, 1, 1, 0, About(100 * sent_us, 1), start) == (1, True)
    asks = About(FAST_US, FAST_US, 0, sent_us)
    given = ledger.ask(1, 0, ALL, asks, FAST_US, start + FAST_US)
    assert told(given) == (2, (1,), False)
    for rank in (0, 1):
        ledger.idle(1, rank, About(FAST_US, 2 * FAST_US, 0, sent_us), start + 2 * FAST_US)
    ledger.idle(1, 2, About(0, 4 * FAST_US, 0, sent_us), start + 4 * FAST_US)
    late_us = 3 * FAST_US + LEAST_SENDING_US + 2 * sent_us
    missing, found = 0b100011, []
    for _ in range(3):
        work = ledger.ask(1, 1, missing, About(0, late_us), 0, start + late_us)
        assert work is not None
        assert work.backup
        found += [(work.shard, m) for m in work.micro_batches]
    assert sorted(found) == [(0, 0), (0, 1), (2, 1)]


def test_leaders_without_work_are_told_when_to_ask_again() -> None:
    ledger = known(3, 8, [FAST_US] * 3)
    now = 1_000_000
    assert ledger.ask(1, 0, ALL, About(FAST_US, 8 * FAST_US, 80), 0, now) is None
    assert ledger.asks_again_us < FAST_US, "their reports should be here"
    for rank in (1, 2):
        assert ledger.claim(1, rank, 8, 8, 0, About(0, 8 * FAST_US, 80), now) == (8, True)
    assert ledger.ask(1, 0, ALL, About(0, 8 * FAST_US, 80), 0, now) is None
    assert ledger.asks_again_us >= 1_000


# --- clone and none
# -----------------------------------------------------------------------------------------------------


def test_clone_gives_a_shard_to_one_helper_and_never_refuses_its_owner() -> None:
    crew = Crew(4, 4, HelpGrade.CLONE)
    times_us = [FAST_US, FAST_US, 5 * FAST_US, 6 * FAST_US]
    for step in range(4):
        course = crew.run(times_us)
        if step > 1:
            clones = {shard: set(who) - {shard} for (shard, _), who in course.computed.items()}
            assert all(len(who) <= 1 for who in clones.values())
            assert course.end_us < 0.6 * 4 * 6 * FAST_US
            assert {0, 1} == clones[2] | clones[3]
    ledger = known(4, 4, times_us, HelpGrade.CLONE)
    assert ledger.claim(1, 3, 1, 2, 0, NOTHING, 1_000_000) == (4, False)


@pytest.mark.parametrize("grade", [HelpGrade.CLONE, HelpGrade.STEAL])
def test_a_worker_that_stopped_in_the_last_step_is_helped_though_its_connection_answers(grade: HelpGrade) -> None:
    """Its connection answers even if its program has stopped: a claim with nothing begun proves nothing."""
    ledger = known(2, 1, [FAST_US, FAST_US], grade)
    leader, now = About(FAST_US, FAST_US), 1_000_000
    for _ in range(20):
        now += FAST_US // 2
        ledger.claim(1, 1, 0, 0, None, NOTHING, now)
        work = ledger.ask(1, 0, ALL, leader, 0, now)
        if work is None and ledger.called:
            _, work = ledger.called[0]
        if work is not None:
            break
    assert told(work)[:2] == (1, (0,))


def test_a_clone_that_would_not_be_faster_is_not_made() -> None:
    crew = Crew(2, 4, HelpGrade.CLONE)
    for _ in range(3):
        assert crew.run([FAST_US, 2 * FAST_US - 200]).helped == 0


def test_without_help_nothing_is_given() -> None:
    ledger = known(2, 4, [FAST_US, 9 * FAST_US], HelpGrade.NONE)
    assert ledger.ask(1, 0, ALL, NOTHING, 0, 1_000_000) is None
    assert ledger.advice(1) == (4, False)


def test_old_steps_are_forgotten() -> None:
    ledger = Books(2, 2, HelpGrade.STEAL)
    for step in range(3 * STEPS_KEPT):
        ledger.idle(step, 0, NOTHING, step)
    assert len(ledger._steps) == STEPS_KEPT


def test_advice_is_computed_anew_only_when_speeds_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer carries advice: with as many questions as workers its cost would grow with their square."""
    made, worked_out = plan.make, []

    def counting(machines: Sequence[Machine], *, kernels: Kernels) -> Plan:
        worked_out.append(len(machines))
        return made(machines, kernels=kernels)

    monkeypatch.setattr(plan, "make", counting)
    ledger = Books(16, 4, HelpGrade.STEAL)
    for rank in range(16):
        ledger.idle(0, rank, About(took_us=FAST_US * (1 + rank // 15), spent_us=9_000, answer_us=1), 10_000)
    advice = [ledger.advice(rank) for rank in range(16)]
    assert advice[15] != advice[0]
    assert len(worked_out) == 1
    ledger.idle(0, 3, About(took_us=5 * FAST_US, spent_us=9_000, answer_us=1), 10_000)
    assert ledger.advice(3) != advice[3]
    assert len(worked_out) == 2
