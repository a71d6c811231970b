"""Projected finish times: exhaustive search says what the greedy rule must find. (protocol section 10.3)"""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from sa_atp.protocol.help.assignment import Capacity, makespan, should_do, worth_helping

free_us, each_us, link_free_us, link_us = (
    st.integers(0, 50),
    st.integers(1, 30),
    st.integers(0, 120),
    st.integers(0, 60),
)
capacities = st.lists(st.builds(Capacity, free_us, each_us, link_free_us, link_us), min_size=1, max_size=3)


def finish_of(tasks: tuple[int, ...], workers: list[Capacity]) -> int:
    """When all tasks are done, if worker i does tasks[i] of them."""
    return max(c.finish_us(c.free_us + n * c.micro_batch_us) if n else 0 for n, c in zip(tasks, workers, strict=True))


@settings(max_examples=50)
@given(st.integers(0, 5), capacities)
def test_giving_each_task_to_the_first_to_finish_is_optimal(tasks: int, workers: list[Capacity]) -> None:
    shares = [s for s in itertools.product(range(tasks + 1), repeat=len(workers)) if sum(s) == tasks]
    assert makespan(tasks, workers) == min(finish_of(share, workers) for share in shares)


def test_results_computed_while_a_link_is_busy_leave_together() -> None:
    worker = Capacity(0, 10, link_free_us=45, link_us=40)
    assert [makespan(n, [worker]) for n in (1, 4, 5, 6)] == [85, 85, 90, 100]
    assert makespan(4, [worker, Capacity(60, 20)]) == 85, "the other one is not needed"
    assert makespan(6, [worker, Capacity(60, 20)]) == 90


def test_without_workers_tasks_are_never_done() -> None:
    assert makespan(3, []) is None


@given(st.integers(0, 200), st.integers(1, 6), capacities)
def test_a_worker_should_take_a_task_unless_the_others_finish_sooner_without_it(
    finish_us: int, left: int, others: list[Capacity]
) -> None:
    without = makespan(left, others)
    assert without is not None
    assert should_do(finish_us, left, others) == (finish_us <= without)
    assert should_do(finish_us, left, [])


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 20))
def test_help_must_be_clearly_faster(helper_us: int, owner_us: int, margin_us: int) -> None:
    assert worth_helping(helper_us, owner_us, margin_us) == (owner_us - helper_us > margin_us)
