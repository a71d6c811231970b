"""How far ahead of a slow link a sender writes."""

import random

import pytest

from sa_atp.net.loop.send_pacer import AHEAD_US, LEAST_BYTES, SendPacer

LUMP = 67_000  # a super-packet leaves as a whole, as soon as the one before it has had its time


class SlowLink:
    """A socket's queue whose packets leave at a rate, in lumps."""

    def __init__(self, pace: float) -> None:
        self.pace = pace  # bytes in a microsecond
        self.lumps: list[int] = []
        self._credit = 0.0

    @property
    def held(self) -> int:
        return sum(self.lumps)

    def write(self, bytes_: int) -> None:
        while bytes_ > 0:
            self.lumps.append(min(bytes_, LUMP))
            bytes_ -= self.lumps[-1]

    def go_on(self, us: int) -> int:
        """Returns: bytes that could have left, but were not in the queue."""
        self._credit += us * self.pace
        while self.lumps and self._credit >= 0:
            self._credit -= self.lumps.pop(0)
        if self.lumps or self._credit < 0:
            return 0
        idle, self._credit = int(self._credit), 0.0
        return idle


@pytest.mark.parametrize("mbps", [5, 20, 100, 1000])
@pytest.mark.parametrize("most", [64, 256])
def test_the_queue_stays_short_and_the_link_busy(mbps: int, most: int) -> None:
    rng = random.Random(mbps)
    link, pacer, now_us, could, wasted, longest = SlowLink(mbps / 8), SendPacer(), 1_000_000, 0.0, 0, 0
    for turn in range(3000):
        while True:
            budget = pacer.budget_bytes(link.held, now_us)
            count = most if budget is None else min(most, budget // 1044)
            if count == 0:
                break
            link.write(1044 * count)
            pacer.wrote(1044 * count, link.held, now_us)
            if turn > 300:
                longest = max(longest, link.held)
        due = pacer.resume_us()
        assert due is not None
        assert due > now_us
        late = due - now_us + rng.randrange(1000)  # the host comes back a little late
        now_us += late
        idle = link.go_on(late)
        if turn > 300:
            could += late * link.pace
            wasted += idle
    limit = max(LEAST_BYTES, link.pace * AHEAD_US)
    assert longest <= 3 * limit
    assert wasted < 0.02 * could


def test_a_fast_link_is_not_paced() -> None:
    pacer = SendPacer()
    for now_us in range(0, 100_000, 100):
        assert pacer.budget_bytes(0, now_us) is None
        pacer.wrote(267_264, 0, now_us)
    assert pacer.resume_us() is None


def test_a_link_that_was_slow_once_is_not_taken_to_be_so_for_ever() -> None:
    pacer = SendPacer()
    pacer.wrote(267_264, 267_264, 0)
    budget = pacer.budget_bytes(200_000, 30_000)
    assert budget is not None
    budget = pacer.budget_bytes(0, 10_000_000)
    assert budget is not None
    assert budget >= LEAST_BYTES
    pacer.wrote(budget, 0, 10_000_001)
    assert pacer.budget_bytes(0, 10_000_002) is None


def test_a_few_bytes_say_nothing_of_the_pace() -> None:
    """The sender sees that they have left only when it looks, whatever the link's rate is."""
    pacer = SendPacer()
    pacer.budget_bytes(0, 0)
    pacer.wrote(100, 100, 0)
    assert pacer.budget_bytes(0, 400_000) is None  # it had left long before
    pacer.wrote(267_264, 267_264, 400_000)
    due = pacer.resume_us()
    assert due is not None
    assert due <= 400_000 + AHEAD_US


def test_small_queues_that_empty_for_hours() -> None:
    pacer = SendPacer()
    pacer.wrote(267_264, 267_264, 0)
    pacer.budget_bytes(0, 20_000)
    budgets = set()
    for now_us in range(30_000, 10_000_000, 200):
        budgets.add(pacer.budget_bytes(0, now_us))
        pacer.wrote(2_000, 2_000, now_us)
        pacer.budget_bytes(0, now_us + 100)
    assert len(budgets) == 1


def test_however_slow_a_link_seemed_its_queue_is_looked_at_again_soon() -> None:
    pacer = SendPacer()
    pacer.wrote(267_264, 267_264, 0)
    pacer.budget_bytes(267_000, 50_000)  # 40 kbit/s, or a host that stood still
    due = pacer.resume_us()
    assert due is not None
    assert due <= 50_000 + AHEAD_US
    now_us, held = 50_000, 0
    for _ in range(40):  # but now it has 1 Gbit/s
        held = max(0, held - 125 * 5_000)
        now_us += 5_000
        budget = pacer.budget_bytes(held, now_us)
        assert budget is not None
        held += budget
        pacer.wrote(budget, held, now_us)
    assert budget is not None
    assert budget >= 125 * AHEAD_US // 2
