"""The two windows, rule by rule: section 5.2 as tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.rank.pace.window import INITIAL_WINDOW, LEAST_UNMARKED, MIN_SLOTS, MIN_WINDOW, Window

RTT_US = 1000


@pytest.mark.parametrize(("slots", "limit"), [(1, 1), (2, 2), (64, 64), (1024, INITIAL_WINDOW)])
def test_it_begins_small_and_never_exceeds_the_quota(slots: int, limit: int) -> None:
    window = Window(slots)
    assert window.limit == limit
    for now_us in range(0, 100 * RTT_US, RTT_US):
        window.on_results(window.limit, 0, 0, now_us, RTT_US)
        assert window.limit <= slots
    assert window.limit == slots


@pytest.mark.parametrize(
    ("results", "marked", "collided", "network", "slots"),
    [
        (10, 0, 0, 74.0, 512.0),  # slow start: one a result; the slots are all there
        (64, 0, 0, 128.0, 512.0),
        (1, 1, 0, 32.0, 512.0),  # the first mark: the estimate of the share begins at one, so half of it goes
        (64, 64, 0, 32.0, 512.0),
        (64, 0, 1, 128.0, 256.0),  # others want the same slots
        (64, 64, 64, 32.0, 256.0),
    ],
)
def test_what_a_first_round_does(results: int, marked: int, collided: int, network: float, slots: float) -> None:
    window = Window(512)
    window.on_results(results, marked, collided, 0, RTT_US)
    assert (window.network, window.slots) == (network, slots)


QUEUE, NO_QUEUE = 0.1, 1.0  # the empty path's round trip, as a share of that of now


def test_after_slow_start_it_grows_by_one_a_round_trip() -> None:
    window = Window(512)
    window.on_loss(1, QUEUE, 0, RTT_US)
    assert window.network == INITIAL_WINDOW / 2
    for round_ in range(1, 5):
        before = window.network
        for _ in range(int(before)):
            window.on_results(1, 0, 0, round_ * RTT_US, RTT_US)
        assert before + 0.9 < window.network < before + 1.1


def test_a_queue_ends_slow_start_and_costs_nothing() -> None:
    window = Window(512)
    window.on_queue()
    assert window.network == INITIAL_WINDOW
    window.on_left(32, 32, 0, 0, RTT_US)
    assert window.network == INITIAL_WINDOW + 0.5
    window.on_loss(1, QUEUE, RTT_US, RTT_US)
    shrunk = vars(window).copy()
    window.on_queue()
    assert vars(window) == shrunk, "it is over already"


def test_it_grows_by_what_has_left_the_network_whether_results_come_or_not() -> None:
    window = Window(512)
    window.on_left(10, 10, 0, 0, RTT_US)
    assert window.network == INITIAL_WINDOW + 10
    window.on_results(10, 0, 0, 0, RTT_US, left=0)
    assert window.network == INITIAL_WINDOW + 10, "they are the results of those that had left"


@pytest.mark.parametrize(
    ("before", "empty_share", "after"),
    [
        (64.0, 1.0, 64.0),  # the path is as fast as it ever was
        (64.0, 0.5, 64.0),  # as much queues as is on the way
        (64.0, 0.4, 51.2),  # the path carries no more than this without a queue
        (64.0, 0.1, 32.0),  # by half at most
        (20.0, 0.1, LEAST_UNMARKED),
        (10.0, 0.1, 10.0),
    ],
)
def test_losses_shrink_it_as_far_as_there_is_a_queue(before: float, empty_share: float, after: float) -> None:
    window = Window(512)
    window.network = before
    window.on_loss(1, empty_share, 0, RTT_US)
    assert window.network == pytest.approx(after)


def test_losses_in_a_round_with_marks_halve_it() -> None:
    window = Window(512)
    for round_ in range(20):
        window.network = 64.0
        window.on_left(8, 8, 0, round_ * RTT_US, RTT_US)  # a round ends
        window.network = 64.0
        window.on_left(8, 8, 1, round_ * RTT_US, RTT_US)
        window.on_loss(1, NO_QUEUE, round_ * RTT_US, RTT_US)
        assert window.network == 32.0
    window.on_left(8, 8, 0, 30 * RTT_US, RTT_US)
    window.on_left(8, 8, 1, 30 * RTT_US, RTT_US)
    window.network = 4.5
    window.on_loss(1, NO_QUEUE, 30 * RTT_US, RTT_US)
    assert window.network == MIN_WINDOW


@pytest.mark.parametrize(("lost", "halved"), [(1, False), (2, False), (4, True), (8, True)])
def test_no_link_loses_as_much_as_a_queue_that_is_full(lost: int, halved: bool) -> None:
    """Of ten in a round."""
    window = Window(512)
    for round_ in range(100):
        window.network = 64.0
        window.on_loss(lost, NO_QUEUE, round_ * RTT_US, RTT_US)
        found = window.network
        window.on_left(10, 10, 0, round_ * RTT_US, RTT_US)
    assert found == (32.0 if halved else 64.0)


def test_many_losses_in_a_round_trip_count_once() -> None:
    window = Window(512)
    for _ in range(5):
        window.on_loss(1, QUEUE, 10, RTT_US)
    assert window.network == INITIAL_WINDOW / 2
    window.on_results(100, 0, 0, 10 + RTT_US, RTT_US, left=1)  # the round trip is over
    window.on_loss(1, QUEUE, 20 + RTT_US, RTT_US)
    assert window.network == pytest.approx(INITIAL_WINDOW / 4, rel=0.02)


def test_marks_of_a_round_in_which_something_was_lost_are_not_counted_twice() -> None:
    window = Window(512)
    window.on_loss(1, QUEUE, 0, RTT_US)
    window.on_results(10, 10, 0, RTT_US, RTT_US)
    assert window.network == INITIAL_WINDOW / 2


def test_a_small_share_of_marks_costs_a_small_part() -> None:
    """DCTCP: half of the estimated share, which forgets that it began at one."""
    window = Window(4096)
    window.on_results(1, 1, 0, 0, RTT_US)
    for round_ in range(1, 200):
        window.on_results(100, 1 if round_ % 2 else 0, 0, round_ * RTT_US, RTT_US)
    before = window.network
    window.on_results(100, 1, 0, 200 * RTT_US, RTT_US)
    assert 0.98 < window.network / before < 1.0


@given(
    st.lists(
        st.tuples(
            st.integers(0, 300), st.integers(0, 300), st.integers(0, 300), st.integers(0, 300), st.floats(0.001, 1.0)
        ),
        max_size=40,
    )
)
def test_whatever_happens_it_stays_between_its_bounds(rounds: list[tuple[int, int, int, int, float]]) -> None:
    window = Window(256)
    for n, (results, marked, collided, lost, empty_share) in enumerate(rounds):
        if lost:
            window.on_loss(lost, empty_share, n * RTT_US, RTT_US)
        window.on_results(max(results, marked, collided), marked, collided, n * RTT_US, RTT_US, left=results)
        window.on_left(lost, max(results, marked), marked, n * RTT_US, RTT_US)
        assert MIN_WINDOW <= window.network <= 256
        assert MIN_SLOTS <= window.slots <= 256
        assert window.limit == int(min(window.network, window.slots))
