"""When workers will be done, where their links are slow. (protocol section 10.3)"""

import pytest

from sa_atp.straggler.progress import Step, Worker
from sa_atp.straggler.projection import LEAST_SENDING_US, Projection

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
    now, state = Projection(workers(SEND_US, LEAST_SENDING_US - 1)), idle(Step.begin(2, 4, 0), 0)
    assert now.link_free_us(state, 0, 0) == NOW_US + SEND_US
    assert now.link_free_us(state, 1, NOW_US) == 0, "it is not slow"


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
