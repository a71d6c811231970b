"""Impaired links: their decisions depend on the seed alone."""

import random

import numpy as np
import pytest

from sa_atp.basics.errors import UserError
from sa_atp.net.switch_process.datapath import state
from sa_atp.net.switch_process.datapath.state import REORDER_BY_US
from sa_atp.net.switch_process.impair import Impairment, OneWayLink

COUNT = 4000


def carry(
    impairment: Impairment, seed: int = 1, batch: int = 50, every_us: int = 100
) -> tuple[OneWayLink, list[tuple[int, int]]]:
    """Sends numbered frames through a link. Returns: the link, and (when, number) of arriving frames."""
    line = OneWayLink(impairment, random.Random(seed))
    out: list[tuple[int, int]] = []

    def take(now: int) -> None:
        found = line.take(now)
        if found is not None:
            frames, lengths = found
            out.extend((now, int.from_bytes(row[:4].tobytes(), "big")) for row in frames)
            assert (lengths == 60).all()

    for first in range(0, COUNT, batch):
        now = first // batch * every_us
        frames = np.zeros((batch, 64), np.uint8)
        frames[:, :4] = np.arange(first, first + batch).astype(">u4")[:, None].view(np.uint8)
        line.put(frames, np.full(batch, 60), now)
        frames[:] = 255  # it must have copied them
        take(now)
    while (due := line.due_us) is not None:
        take(due)
    return line, out


def test_delay_keeps_order_and_moves_everything_by_as_much() -> None:
    line, out = carry(Impairment(delay_us=1_000))
    assert [number for _, number in out] == list(range(COUNT))
    assert all(when >= number // 50 * 100 + 1_000 for when, number in out)
    assert line.wire[state.WIRE_CARRIED] == COUNT


def test_jitter_delays_more_and_overtakes_nothing() -> None:
    _, out = carry(Impairment(delay_us=200, jitter_us=500))
    assert [number for _, number in out] == list(range(COUNT))
    late = [when - number // 50 * 100 for when, number in out]
    assert min(late) >= 200
    assert max(late) > 400


def test_losses_duplicates_and_reordering_are_as_many_as_asked_for() -> None:
    line, out = carry(Impairment(loss=0.1, duplicate=0.05, reorder=0.2))
    numbers = [number for _, number in out]
    assert 0.07 * COUNT < line.wire[state.WIRE_LOST] < 0.13 * COUNT
    assert len(set(numbers)) == line.wire[state.WIRE_CARRIED] == COUNT - line.wire[state.WIRE_LOST]
    assert len(numbers) == line.wire[state.WIRE_CARRIED] + line.wire[state.WIRE_DUPLICATED]
    assert 0.03 * COUNT < line.wire[state.WIRE_DUPLICATED] < 0.07 * COUNT
    assert 0.14 * COUNT < line.wire[state.WIRE_REORDERED] < 0.24 * COUNT
    assert numbers != sorted(numbers)
    assert max(when - number // 50 * 100 for when, number in out) <= 2 * REORDER_BY_US + 100


def test_the_same_seed_gives_the_same_decisions() -> None:
    bad = Impairment(delay_us=100, jitter_us=50, loss=0.1, duplicate=0.05, reorder=0.2)
    assert carry(bad, seed=4)[1] == carry(bad, seed=4)[1] != carry(bad, seed=5)[1]


def test_text_is_understood_or_refused_by_name() -> None:
    assert Impairment.parse("delay_us=1000,loss=0.01") == Impairment(delay_us=1000, loss=0.01)
    for text in ("loss=2", "delay_us=-1", "los=0.1", "loss", "delay_us=0.5", ""):
        with pytest.raises(UserError, match="expected KEY=VALUE"):
            Impairment.parse(text)
