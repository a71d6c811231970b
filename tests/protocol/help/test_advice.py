"""Advice for the steps to come stays within its bounds, whatever was measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.help.advice import Advice
from sa_atp.protocol.help.belief import Forecast
from sa_atp.protocol.help.progress import Worker
from sa_atp.protocol.help.projection import Projection
from sa_atp.protocol.help.racks import Racks

TIMES = st.tuples(st.floats(1.0, 1e6), st.integers(1, 1_000_000))


@given(st.lists(TIMES, min_size=1, max_size=6), st.integers(1, 512))
def test_nobody_is_told_to_hold_more_than_it_has(measured: list[tuple[float, int]], micro_batches: int) -> None:
    """Args: measured: for each worker, how long a micro-batch and an answer of the server take."""
    workers = [Worker(Forecast.of(unit_us), answer_us=answer_us) for unit_us, answer_us in measured]
    projection = Projection(workers)
    advice = Advice(workers, micro_batches, projection, Racks(workers))
    for rank in range(len(workers)):
        holds, _ = advice.of(rank)
        assert 0 <= holds <= micro_batches


def test_a_slow_worker_whose_answers_take_long_holds_all() -> None:
    workers = [
        *(Worker(Forecast.of(100.0), answer_us=1000) for _ in range(3)),
        Worker(Forecast.of(1000.0), answer_us=600_000),
    ]
    projection = Projection(workers)
    assert Advice(workers, 8, projection, Racks(workers)).of(3)[0] == 8


@pytest.mark.parametrize("is_sure", [True, False])
def test_a_worker_of_unsure_speed_holds_enough_until_its_claim_is_answered(is_sure: bool) -> None:
    """If it was slow in the last step only, it would be idle until the answer, with its work given away."""
    workers = [Worker(Forecast.of(100.0), answer_us=600) for _ in range(4)]
    workers[3].forecast = Forecast.of(1000.0, 0.0 if is_sure else 900.0)
    projection = Projection(workers)
    assert Advice(workers, 8, projection, Racks(workers)).of(3)[0] == (0 if is_sure else 6)


@pytest.mark.parametrize("answer_us", [1_000, 20_000])
def test_a_worker_whose_contribution_alone_takes_longer_than_the_step_leaves_all_to_others(answer_us: int) -> None:
    """Also if an answer takes longer than a piece: a single one would take its link as long as all."""
    workers = [Worker(Forecast.of(6_000.0), answer_us=answer_us, send_us=90_000) for _ in range(3)]
    workers[2].send_us = 400_000
    projection = Projection(workers)
    advice = [Advice(workers, 8, projection, Racks(workers)).of(rank) for rank in range(3)]
    assert advice == [(8, True), (8, True), (0, False)]
