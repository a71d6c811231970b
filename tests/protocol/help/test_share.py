"""A worker's hold on its own shard. (protocol section 10.2)"""

from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.help.share import Share


def test_micro_batches_are_begun_in_order_until_the_limit() -> None:
    share = Share(4, 2)
    assert [share.take(), share.take(), share.take()] == [0, 1, None]
    share.grant(3, over=True)
    assert (share.take(), share.take(), share.over) == (2, None, True)


def test_begun_micro_batches_are_not_given_back() -> None:
    share = Share(8, 8)
    for _ in range(3):
        share.take()
    share.give_back(reserve=1)
    assert (share.begun, share.limit, share.left) == (3, 4, 1)
    share.give_back(reserve=5)
    assert share.limit == 4, "nor taken back"


@given(st.lists(st.one_of(st.just("take"), st.integers(0, 5), st.tuples(st.integers(0, 9), st.booleans()))))
def test_only_held_micro_batches_are_begun(actions: list[object]) -> None:
    share = Share(8, 3)
    for action in actions:
        before = share.limit
        match action:
            case "take":
                found = share.take()
                assert found is None or found < before
            case int(reserve):
                share.give_back(reserve)
                assert share.begun <= share.limit <= before
            case (int(until), bool(over)):
                share.grant(until, over)
                assert before <= share.limit <= 8
