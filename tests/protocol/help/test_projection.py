"""When workers will be done, where their links are slow. (protocol section 10.3)"""

import pytest

from sa_atp.protocol.help.progress import Step, Told, Worker
from sa_atp.protocol.help.projection import LEAST_SENDING_US, WRITTEN_AHEAD_US, Projection

EACH_US, SEND_US, NOW_US = 6_000, 90_000, 100_000


def workers(*send_us: int) -> list[Worker]:
    return [Worker(unit_us=EACH_US, send_us=each_us) for each_us in send_us]


def idle(state: Step, *ranks: int) -> Step:
    """They have computed their own just now."""
    for rank in ranks:
        state.courses[rank].idle_us = NOW_US
        state.courses[rank].began_us = 0
    return state


def test_what_is_added_for_others_leaves_behind_ones_own() -> None:
    now, state = Projection(workers(SEND_US, SEND_US)), idle(Step.begin(2, 4, 0), 0)
    assert now.link_free_us(state, 0, 0) == NOW_US + SEND_US
    assert now.link_free_us(state, 1, 2 * NOW_US) == 2 * NOW_US + SEND_US, "when that is computed"


@pytest.mark.parametrize(
    ("took_us", "counts_us"),
    [
        ((LEAST_SENDING_US - 2_000,) * 2, LEAST_SENDING_US - 2_000),
        ((30_000, 40_000), 30_000),
        ((WRITTEN_AHEAD_US, 40_000), 0),
    ],
)
def test_a_link_that_is_just_not_slow_is_busy_for_as_long_as_it_took_at_least(
    took_us: tuple[int, ...], counts_us: int
) -> None:
    worker = Worker()
    for each_us in took_us:
        worker.learn(0, Told(sent_us=each_us))
    now, state = Projection([worker]), idle(Step.begin(1, 4, 0), 0)
    assert not now.has_slow_link(0)
    assert now.link_us(0) == counts_us
    assert now.link_free_us(state, 0, 0) == (NOW_US + counts_us if counts_us else 0)


@pytest.mark.parametrize(("answer_us", "waits_us"), [(SEND_US // 2, SEND_US // 2), (2 * SEND_US, 0)])
def test_what_is_done_for_others_waits_for_an_answer_that_takes_less_than_sending(
    answer_us: int, waits_us: int
) -> None:
    now, state = Projection([Worker(unit_us=EACH_US, send_us=SEND_US, answer_us=answer_us)]), Step.begin(1, 4, 0)
    state.owner[0] = [-1] * 4  # it has nothing of its own to send
    state.ended.add(0)
    state.courses[0].idle_us = NOW_US
    (other,) = now.others(state, -1, -1, range(1), NOW_US)
    done_us = other.free_us + EACH_US
    assert other.finish_us(done_us) == max(done_us, other.free_us + waits_us) + SEND_US


def learnt(*took_us: int) -> Worker:
    """A worker that said once in each step how long a micro-batch took."""
    worker = Worker()
    for step, each_us in enumerate(took_us):
        worker.learn(step, Told(each_us, each_us))
    return worker


@pytest.mark.parametrize(
    ("took_us", "is_slow"),
    [((50_000,) * 3, True), ((EACH_US, EACH_US, 50_000), False), ((EACH_US, 50_000, EACH_US), False)],
)
def test_who_was_slow_in_one_step_only_may_not_be_so_in_the_next(took_us: tuple[int, ...], is_slow: bool) -> None:
    now = Projection([learnt(EACH_US), learnt(EACH_US), learnt(*took_us)])
    assert now.sure_us(2) == (50_000 if is_slow else EACH_US)


def test_who_stays_slow_is_so_for_sure_after_some_steps() -> None:
    now = Projection([learnt(EACH_US), learnt(EACH_US), learnt(EACH_US, *[50_000] * 8)])
    assert now.sure_us(2) > 49_000


def test_a_speed_that_changed_within_a_step_is_as_unsure_as_one_measurement_makes_it() -> None:
    worker = learnt(EACH_US)
    for _ in range(8):
        worker.learn(1, Told(50_000, 50_000))
    assert worker.unsure_us == 50_000 - EACH_US
    assert worker.unit_us is not None
    assert worker.unit_us > 49_000
    # it says in the next step how long the last one of this one took
    worker.learn(2, Told(50_000, 1))
    assert worker.unsure_us == 50_000 - EACH_US


def test_what_was_sent_for_others_keeps_the_link_busy_as_long_again_once() -> None:
    now, state = Projection(workers(SEND_US, SEND_US)), idle(Step.begin(2, 4, 0), 0, 1)
    state.courses[0].gathers = True
    state.courses[0].lot_until_us = NOW_US + EACH_US
    state.courses[1].lot_until_us = NOW_US + EACH_US  # and has nothing to send
    for _ in range(2):
        now.sends(state, 0, 0)
        now.sends(state, 1, 0)
        assert now.link_free_us(state, 0, 0) == NOW_US + 2 * SEND_US
        assert now.link_free_us(state, 1, 0) == NOW_US + SEND_US
    state.courses[0].gathers = True
    state.courses[0].lot_until_us = NOW_US + 3 * SEND_US
    now.sends(state, 0, 0)
    assert now.link_free_us(state, 0, 0) == NOW_US + 4 * SEND_US, "computed when the link was free"


def test_who_sends_its_own_with_what_it_did_for_others_has_nothing_before_it() -> None:
    now, state = Projection(workers(SEND_US)), idle(Step.begin(1, 4, 0), 0)
    state.courses[0].joins = state.courses[0].gathers = True
    state.courses[0].lot_until_us = NOW_US + EACH_US
    assert now.link_free_us(state, 0, 0) == 0
    now.sends(state, 0, 0)
    assert now.link_free_us(state, 0, 0) == NOW_US + EACH_US + SEND_US


@pytest.mark.parametrize("held", [0, 1])
def test_who_was_told_to_stop_before_it_began_has_nothing_of_its_own_to_send(held: int) -> None:
    now, state = Projection(workers(SEND_US)), idle(Step.begin(1, 4, 0), 0)
    state.owner[0][held:] = [-1] * (4 - held)
    state.ended.add(0)
    assert now.link_free_us(state, 0, 0) == (NOW_US + SEND_US if held else 0)


def test_an_owner_sends_its_shard_at_once_others_what_they_add_behind_their_own() -> None:
    now, state = Projection(workers(SEND_US, SEND_US)), Step.begin(2, 4, NOW_US)
    for course in state.courses:
        course.began_us = NOW_US
    state.owner[0][2:] = [-1, -1]
    owner, other = now.others(state, -1, 0, range(2), NOW_US)
    assert owner.finish_us(owner.free_us + 2 * EACH_US) == NOW_US + 4 * EACH_US + SEND_US
    assert other.finish_us(other.free_us + 2 * EACH_US) == NOW_US + 4 * EACH_US + 2 * SEND_US
