"""Help that does not shorten steps pauses, and is tried again. (protocol section 10.3)"""

import itertools

from sa_atp.protocol.help.effect import FIRST_PAUSE, LONGEST_PAUSE, STRIKES, Effect


def test_help_that_shortens_steps_goes_on() -> None:
    effect = Effect()
    for step in range(100):
        assert effect.is_on(step)
        effect.note_step_with_help(step, 1000, 900)


def test_one_bad_step_is_not_enough() -> None:
    effect = Effect()
    for step in range(0, 100, 2):
        assert effect.is_on(step)
        effect.note_step_with_help(step, 1000, 1200)
        effect.note_step_with_help(step + 1, 1000, 900)


def test_after_a_pause_help_is_tried_once_and_pauses_twice_as_long() -> None:
    effect = Effect()
    tried = []
    for step in range(2000):
        if effect.is_on(step):
            tried.append(step)
            effect.note_step_with_help(step, 1000, 1000)
    assert tried[:STRIKES] == [0, 1]
    pauses = [later - earlier - 1 for earlier, later in itertools.pairwise(tried[1:])]
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert max(pauses) == LONGEST_PAUSE


def test_what_the_network_adds_is_learned_from_steps_without_help() -> None:
    for took_us, strikes in ((1400, 0), (1490, 1)):  # it would have taken 1500
        effect = Effect()
        for _ in range(30):
            effect.note_step_without_help(1000, 1500)
        effect.note_step_with_help(0, 1000, took_us)
        assert effect.strikes == strikes


def test_steps_without_a_straggler_do_not_outweigh_one_with_a_straggler() -> None:
    effect = Effect()
    for step in range(100):
        assert effect.is_on(step), "a pause of half a step in each fourth one"
        effect.note_step_with_help(step, 1000 if step % 4 else 1500, 1000 if step % 4 else 1200)


def test_old_savings_do_not_count() -> None:
    effect = Effect()
    for step in range(20):
        effect.note_step_with_help(step, 1000, 500)
    first_left = 20
    while effect.is_on(first_left):
        effect.note_step_with_help(first_left, 1000, 1100)
        first_left += 1
    assert 20 + STRIKES <= first_left < 20 + FIRST_PAUSE + 4, "after a few steps"
