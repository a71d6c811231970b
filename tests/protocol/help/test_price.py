"""What help costs is measured in steps with help, beside steps without."""

from sa_atp.protocol.help.price import FORGOTTEN, Price
from sa_atp.protocol.help.progress import Step, Worker

COMPUTED_US = 100_000


def over(*, is_helped: bool, ends: int = 2) -> Step:
    """A step of two workers that is over. Args: ends: how many have said that they were done."""
    state = Step.begin(2, 4, 0)
    state.is_helped = is_helped
    for course in state.courses[:ends]:
        course.idle_us = COMPUTED_US
    return state


def test_help_costs_by_how_much_longer_helped_steps_take_than_their_computing() -> None:
    price, workers = Price(), [Worker(), Worker()]
    for _ in range(20):
        price.note(over(is_helped=False), workers, COMPUTED_US + 3_000)
        assert price.us == 0
    for _ in range(20):
        price.note(over(is_helped=True), workers, COMPUTED_US + 10_000)
    assert 6_900 < price.us <= 7_000
    price.note(over(is_helped=False), workers, COMPUTED_US + 3_000)
    assert 6_900 * FORGOTTEN < price.us <= 7_000 * FORGOTTEN, "so that help is tried again"


def test_a_step_in_which_a_worker_stopped_says_nothing_of_the_price() -> None:
    price = Price()
    assert price.note(over(is_helped=True, ends=1), [Worker(), Worker()], COMPUTED_US + 500_000) == 500_000
    assert price.us == 0
