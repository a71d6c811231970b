"""Several tasks at a time on one device."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.lab.simulator.network import Clock
from sa_atp.lab.simulator.virtual_time import VirtualDevice
from sa_atp.steps.parallel import MOST_TASKS, NO_GAIN, POINTS, TaskTime, gains, is_curve, most_gain

CURVE = (1.0, 1.5, 2.0, 2.5)
tasks = st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 5000)), min_size=1, max_size=MOST_TASKS)


def ends_of(begun: list[tuple[int, int]], curve: tuple[float, ...]) -> dict[int, int]:
    """When each task ends. Args: begun: (when it begins, its time alone)."""
    clock = Clock()
    device = VirtualDevice(clock, curve)
    ends: dict[int, int] = {}

    def begin(number: int, work_us: int) -> None:
        device.begin(work_us, lambda: ends.__setitem__(number, clock.now_us))

    for number, (at_us, work_us) in enumerate(begun):
        clock.at(at_us, lambda number=number, work_us=work_us: begin(number, work_us))  # type: ignore[misc]
    assert clock.run(lambda: len(ends) == len(begun), 10**9)
    return ends


@given(tasks, st.sampled_from([CURVE, NO_GAIN]))
def test_a_device_does_as_much_work_as_its_gain_allows(begun: list[tuple[int, int]], curve: tuple[float, ...]) -> None:
    """Between any two events, n tasks under way advance by gain(n) times the time, shared equally."""
    ends = ends_of(begun, curve)
    times = sorted({*(at for at, _ in begun), *ends.values()})
    for number, (at_us, work_us) in enumerate(begun):
        done = 0.0
        for start, end in pairwise(times):
            under_way = sum(b <= start and ends[other] > start for other, (b, _) in enumerate(begun))
            if at_us <= start and ends[number] > start:
                done += (end - start) * float(gains(curve)[under_way]) / under_way
        assert done == pytest.approx(work_us, abs=len(begun) * 2)


@given(tasks)
def test_alone_a_task_takes_its_own_time_exactly(begun: list[tuple[int, int]]) -> None:
    at = 0
    one_by_one = []
    for gap, work_us in begun:
        one_by_one.append((at + gap, work_us))
        at += gap + work_us
    ends = ends_of(one_by_one, CURVE)
    assert [ends[n] for n in range(len(begun))] == [at_us + work_us for at_us, work_us in one_by_one]


def test_a_task_that_is_stopped_leaves_the_device_to_the_others() -> None:
    clock = Clock()
    ends: list[int] = []
    device = VirtualDevice(clock, NO_GAIN)
    first = device.begin(1000, lambda: ends.append(-1))
    device.begin(1000, lambda: ends.append(clock.now_us))
    clock.at(500, lambda: device.stop(first))
    clock.run(lambda: bool(ends), 10**6)
    assert ends == [1250]  # half of 500 microseconds, and then all of it


def test_time_alone_does_not_depend_on_the_company() -> None:
    time_ = TaskTime(CURVE)
    began = time_.begin(0)
    time_.begin(100)
    time_.end(250)
    assert time_.end(300) - began == pytest.approx(100 + 150 * 1.5 / 2 + 50)


@pytest.mark.parametrize(
    "curve", [(1.0, 1.0, 1.0), (2.0, 2.0, 2.0, 2.0), (1.0, 2.5, 3.0, 3.0), (1.0, 1.5, 3.5, 4.0), (1.0, 0.0, 1.0, 1.0)]
)
def test_a_gain_is_at_most_linear(curve: tuple[float, ...]) -> None:
    assert not is_curve(curve)


def test_a_gain_is_linear_between_its_points() -> None:
    assert is_curve(CURVE)
    assert list(gains(CURVE)) == [1.0, 1.0, 1.5, 1.75, 2.0, 2.125, 2.25, 2.375, 2.5]
    assert [most_gain((1.0, 1.8, 1.7, 1.2), n) for n in POINTS] == [1.0, 1.8, 1.8, 1.8]
