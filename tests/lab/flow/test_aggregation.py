"""The transfer of a sum as flows, with slow links, late workers and windows."""

import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.lab.flow.aggregation import Aggregation
from sa_atp.lab.flow.fabric import Fabric, FabricSettings
from sa_atp.lab.simulator.network import Clock

FRAGMENT = 1000.0
SIZE = 200 * FRAGMENT  # 1.6 ms at a gigabit a second


class Case:
    """One sum of some workers with one contribution bit each, and when each worker has it."""

    def __init__(
        self, workers: int = 4, *, window: float = 1000, racks: int = 0, at_server: bool = False, **links: object
    ):
        self.clock = Clock()
        settings = {"link_mbps": 1000, "delay_us": 10, **links}
        self.fabric = Fabric(self.clock, FabricSettings(workers=workers, racks=racks, **settings))  # type: ignore[arg-type]
        self.arrived: dict[int, int] = {}
        self.completed_us = 0
        self.sum = Aggregation(
            self.fabric,
            size=SIZE,
            fragment_bytes=FRAGMENT,
            fan_in=(1 << workers) - 1,
            window_bytes=np.full(workers, window * FRAGMENT),
            most_bytes=window * FRAGMENT,
            gathers=False,
            at_server=at_server,
            arrived=self._arrived,
            complete=self._complete,
        )
        self.workers = workers

    def _arrived(self, rank: int) -> None:
        assert rank not in self.arrived
        self.arrived[rank] = self.clock.now_us

    def _complete(self) -> float:
        self.completed_us = self.clock.now_us
        return 0.0

    def run(self, starts_us: Sequence[int], helped: dict[int, int] | None = None) -> dict[int, int]:
        """Args: starts_us: when each worker contributes; helped: by rank: when it contributes for the last worker."""
        for rank in range(self.workers):
            self.sum.begin(rank)
        for rank, start in enumerate(starts_us):
            self.clock.at(start, lambda rank=rank: self._contribute(rank, rank))  # type: ignore[misc]
        for rank, start in (helped or {}).items():
            self.clock.at(start, lambda rank=rank: self._contribute(rank, self.workers - 1))  # type: ignore[misc]
        assert self.clock.run(lambda: len(self.arrived) == self.workers, 10**8)
        return self.arrived

    def _contribute(self, rank: int, bit: int) -> None:
        self.sum.contribute(rank, 1 << bit, past_leaf=self.fabric.levels > 1 and bit != rank)


def test_a_sum_of_simultaneous_contributions() -> None:
    found = Case().run([0, 0, 0, 0])
    # 1600 us on the link, two delays, and the last packet once more on the way down
    assert found == dict.fromkeys(range(4), 1628)


def test_the_last_contribution_decides() -> None:
    assert Case().run([0, 0, 0, 5000])[0] == 5000 + 1628


def test_a_slow_link_holds_everybody_up() -> None:
    found = Case(worker_mbps=[1000, 1000, 1000, 100]).run([0, 0, 0, 0])
    assert found[0] == pytest.approx(16_000, rel=0.01)


def test_only_the_slow_link_gets_results_late() -> None:
    """Another worker contributes for it, so the others wait for its link only when they are a window ahead."""
    found = Case(worker_mbps=[1000, 1000, 1000, 100]).run([0, 0, 0], helped={0: 0})
    assert found[1] == pytest.approx(3200, rel=0.02)  # worker 0 sends two contributions
    assert found[3] == pytest.approx(1600 + 16_000, rel=0.02)


def test_contributions_for_others_share_the_senders_link() -> None:
    found = Case().run([0, 0, 0], helped={1: 0})
    assert found[0] == pytest.approx(2 * 1600, rel=0.02)
    found = Case().run([0, 0, 0], helped={1: 8000})
    assert found[0] == 8000 + 1628


def test_a_window_moves_once_in_a_round_trip() -> None:
    found = Case(window=20, delay_us=1000).run([0, 0, 0, 0])
    # ten windows, each back after 2 ms and two packets; the last one's 20 fragments take their time as well
    assert found[0] == pytest.approx(10 * 2016 + 160, rel=0.02)


def test_leaders_wait_at_the_end_of_their_window() -> None:
    case = Case(window=20)
    case.run([0, 0, 0, 50_000])
    leader = case.sum.streams.each[0]
    assert leader.sending[0] == (0, 160)
    assert leader.sending[1][0] == 50_000


def test_two_levels_carry_one_stream_a_rack() -> None:
    """A trunk as slow as a link suffices, since leaves sum; contributions past the leaf need more."""
    alone = Case(racks=2).run([0, 0, 0, 0])[0]
    assert alone == pytest.approx(1600, rel=0.05)
    helped = Case(racks=2).run([0, 0, 0], helped={0: 0, 1: 0, 2: 0})[0]
    assert helped > 1.9 * alone


def test_the_parameter_servers_link_carries_all_contributions() -> None:
    found = Case(at_server=True).run([0, 0, 0, 0])
    assert found[0] == pytest.approx(4 * 1600, rel=0.02)


def test_a_late_worker_gets_missed_results() -> None:
    case = Case(workers=2)
    case.sum.begin(0)
    case.sum.contribute(0, 0b11, past_leaf=False)
    case.clock.at(10_000, lambda: case.sum.begin(1))
    assert case.clock.run(lambda: len(case.arrived) == 2, 10**8)
    assert case.arrived[0] == 1628
    assert case.arrived[1] == pytest.approx(11_600, rel=0.01)


@given(
    st.lists(st.integers(0, 20_000), min_size=2, max_size=6),
    st.lists(st.sampled_from([10.0, 100.0, 1000.0]), min_size=6, max_size=6),
    st.sampled_from([4, 30, 1000]),
    st.sampled_from([0, 2]),
)
def test_sums_respect_link_rates_and_end(starts: list[int], rates: list[float], window: int, racks: int) -> None:
    """With any starts, rates and windows all workers get the sum, not before the slowest can, and in bounded time."""
    workers = len(starts)
    case = Case(workers, window=window, racks=racks if racks <= workers else 0, worker_mbps=rates[:workers])
    found = case.run(starts)
    needs = [start + 8 * SIZE / rate for start, rate in zip(starts, rates, strict=False)]
    assert min(found.values()) >= max(needs) - 8 * FRAGMENT / min(rates)  # a fragment more or less
    rounds = SIZE / FRAGMENT / window
    slowest_us = 8 * SIZE / min(rates[:workers])
    assert max(found.values()) <= max(starts) + 1.1 * slowest_us + rounds * (100 + 6 * 8 * FRAGMENT / min(rates)) + 5000


def calls_of(work: Callable[[], object]) -> int:
    """Number of calls of Python and C functions."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_the_cost_of_an_update_does_not_grow_with_contributions() -> None:
    """`missing_for` and an update make the same number of calls for 8 workers and for 256."""

    def work(workers: int) -> tuple[int, int]:
        case = Case(workers=workers)
        for rank in range(workers):
            case.sum.begin(rank)
            case.clock.at(3 * (rank % 2), lambda rank=rank: case._contribute(rank, rank))  # type: ignore[misc]
        case.clock.at(400, lambda: None)
        case.clock.run(lambda: False, 400)
        assert case.sum.progress.is_covered
        assert case.sum.progress.received_by(0) > 0
        assert not case.arrived
        missing = calls_of(lambda: case.sum.progress.missing_for(0))
        return missing, calls_of(case.sum._update)

    few, many = work(8), work(256)
    assert many[0] <= few[0] + 2
    assert many[1] <= 2 * few[1]
