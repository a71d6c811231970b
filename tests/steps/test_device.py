"""An emulated device keeps its own time, however late the machine is that pretends to be it."""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.steps import device as devices
from sa_atp.steps.device import QUEUE_US, Device

US_PER_SAMPLE, SAMPLES = 1_000, 10
PIECE_US = US_PER_SAMPLE * SAMPLES


class Machine:
    """A clock that advances only during computing and sleeping."""

    def __init__(self) -> None:
        self.now_us = 1_000_000

    def sleep(self, seconds: float) -> None:
        self.now_us += round(seconds * 1e6)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    found = Machine()
    with monkeypatch.context() as patch:
        patch.setattr(devices, "now_us", lambda: found.now_us)
        patch.setattr(devices, "time", SimpleNamespace(sleep=found.sleep, thread_time=lambda: found.now_us / 1e6))
        yield found


def ends(machine: Machine, pieces: list[tuple[int, int]]) -> list[int]:
    """When each piece's result is returned.

    Args: pieces: host's time before each piece, and time of really computing it.
    """
    device, found = Device(US_PER_SAMPLE), []
    for other_us, work_us in pieces:
        machine.now_us += other_us
        device.run(SAMPLES, partial(machine.sleep, work_us / 1e6))
        found.append(machine.now_us)
    return found


@given(st.lists(st.tuples(st.integers(0, QUEUE_US - 1), st.integers(0, 3 * PIECE_US)), min_size=1, max_size=20))
def test_work_that_is_fed_ahead_is_done_when_the_device_would_have_done_it(pieces: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine()
        patch.setattr(devices, "now_us", lambda: machine.now_us)
        patch.setattr(devices, "time", SimpleNamespace(sleep=machine.sleep, thread_time=lambda: machine.now_us / 1e6))
        at_us = free_us = machine.now_us + pieces[0][0]
        for n, (end_us, (other_us, work_us)) in enumerate(zip(ends(machine, pieces), pieces, strict=True)):
            computed_us = at_us + (other_us if n else 0) + work_us
            free_us += PIECE_US
            assert end_us == max(free_us, computed_us)  # no sooner than it is computed
            at_us = end_us
            free_us = max(free_us, end_us - PIECE_US)  # a piece is made up for, not more


def test_a_device_catches_up_with_late_work_and_not_with_idle_time(machine: Machine) -> None:
    assert ends(machine, [(0, 5_000), (0, 17_000), (500, 1_000), (QUEUE_US, 1_000)]) == [
        1_010_000,
        1_027_000,  # the host was late by 7 ms,
        1_030_000,  # ... and the device was not
        1_030_000 + QUEUE_US + PIECE_US,
    ]


def test_a_long_hiccup_makes_no_device_fast(machine: Machine) -> None:
    """As the first piece is where code is compiled: one piece follows at once, and then the device takes its time."""
    assert ends(machine, [(0, 300_000), (0, 0), (0, 0), (0, 0)]) == [1_300_000, 1_300_000, 1_310_000, 1_320_000]


def test_a_device_says_what_share_of_a_core_it_takes(machine: Machine) -> None:
    device = Device(US_PER_SAMPLE)
    assert device.cores == 0.0
    for work_us in (2_000, 4_000):
        device.run(SAMPLES, partial(machine.sleep, work_us / 1e6))
    assert device.cores == pytest.approx(6_000 / (2 * PIECE_US))
    device.slowdown = 4.0
    device.run(SAMPLES, partial(machine.sleep, 3_000 / 1e6))
    assert device.cores == pytest.approx(9_000 / (6 * PIECE_US)), "a slow one computes as much, in more time"
