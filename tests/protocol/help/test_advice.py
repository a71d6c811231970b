"""Advice for the steps to come: what may be told, whatever was measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.help.advice import Advice
from sa_atp.protocol.help.progress import Worker
from sa_atp.protocol.help.projection import Projection
from sa_atp.protocol.help.racks import Racks

TIMES = st.tuples(st.floats(1.0, 1e6), st.integers(1, 1_000_000))


@given(st.lists(TIMES, min_size=1, max_size=6), st.integers(1, 512))
def test_nobody_is_told_to_hold_more_than_it_has(measured: list[tuple[float, int]], micro_batches: int) -> None:
    """Args: measured: of each worker, what a micro-batch takes, and an answer of the server's."""
    workers = [Worker(unit_us=unit_us, answer_us=answer_us) for unit_us, answer_us in measured]
    now = Projection(workers)
    advice = Advice(workers, micro_batches, now, Racks(workers, now))
    for rank in range(len(workers)):
        holds, _ = advice.of(rank)
        assert 0 <= holds <= micro_batches


def test_a_slow_worker_whose_answers_take_long_holds_all() -> None:
    workers = [*(Worker(unit_us=100.0, answer_us=1000) for _ in range(3)), Worker(unit_us=1000.0, answer_us=600_000)]
    now = Projection(workers)
    assert Advice(workers, 8, now, Racks(workers, now)).of(3)[0] == 8


@pytest.mark.parametrize("is_sure", [True, False])
def test_who_may_be_as_fast_as_others_holds_what_it_would_do_until_an_answer_is_there(is_sure: bool) -> None:
    """Who was slow in the last step only would have nothing to do for the rest of that time, and its work is others'."""
    workers = [Worker(unit_us=100.0, answer_us=600) for _ in range(4)]
    workers[3].unit_us, workers[3].unsure_us = 1000.0, 0.0 if is_sure else 900.0
    now = Projection(workers)
    assert Advice(workers, 8, now, Racks(workers, now)).of(3)[0] == (0 if is_sure else 6)
