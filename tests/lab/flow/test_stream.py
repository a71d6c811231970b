"""Operations on all streams at once agree with operations on single streams."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.lab.flow.stream import Streams, numbers_of
from sa_atp.protocol.rank.pace.timing import MIN_TIMEOUT_US

WIDTH = 12
FAN_IN = (1 << WIDTH) - 1
positions = st.integers(0, 5).map(float)


@st.composite
def contributions(draw: st.DrawFn) -> list[int]:
    """Bitmaps that together are all bits; some of them overlap, some are empty."""
    cuts = sorted(draw(st.sets(st.integers(1, WIDTH - 1), max_size=5)))
    parts = [(1 << end) - (1 << start) for start, end in zip([0, *cuts], [*cuts, WIDTH], strict=True)]
    return draw(st.permutations(parts + draw(st.lists(st.integers(0, FAN_IN), max_size=3))))


def streams_of(bits: list[int]) -> Streams:
    streams = Streams(FAN_IN, 100.0)
    for rank, own in enumerate(bits):
        streams.add(rank, own, past_leaf=False, now_us=0)
    return streams


@given(st.data(), contributions())
def test_the_position_of_a_sum(data: st.DataObject, bits: list[int]) -> None:
    streams = streams_of(bits)
    assert streams.covered == FAN_IN
    sent = data.draw(st.lists(positions, min_size=len(bits), max_size=len(bits)))
    held, far = 0, 0.0
    for place, own in sorted(zip(sent, bits, strict=True), reverse=True):
        held |= own
        if held == FAN_IN:
            far = place
            break
    assert streams.all_have(np.array(sent)) == far


@given(st.data(), contributions())
def test_bits_of_some_streams(data: st.DataObject, bits: list[int]) -> None:
    streams = streams_of(bits)
    chosen = data.draw(st.lists(st.booleans(), min_size=len(bits), max_size=len(bits)))
    held = 0
    for own, is_chosen in zip(bits, chosen, strict=True):
        held |= own if is_chosen else 0
    assert streams.bits_of(np.array(chosen)) == held


@given(st.integers(0, 1 << 300))
def test_numbers_of_bits(bits: int) -> None:
    assert numbers_of(bits).tolist() == [n for n in range(301) if bits >> n & 1]


@given(
    st.lists(st.tuples(st.sets(st.integers(0, 3), min_size=1), st.integers(0, 2 * MIN_TIMEOUT_US), st.integers(0, 99)))
)
def test_intervals_of_movement(moves: list[tuple[set[int], int, int]]) -> None:
    """Gaps shorter than a response of the network do not count."""
    streams = streams_of([1, 2, 4, FAN_IN])
    plain: dict[int, list[tuple[int, int]]] = {n: [] for n in range(4)}
    now_us = 0
    for who, after_us, length_us in moves:
        since_us = now_us + after_us
        now_us = since_us + length_us
        streams.note_moved(np.array(sorted(who)), since_us, now_us)
        for n in who:
            if plain[n] and since_us - plain[n][-1][1] <= MIN_TIMEOUT_US:
                plain[n][-1] = plain[n][-1][0], now_us
            else:
                plain[n].append((since_us, now_us))
    assert {n: streams.each[n].sending for n in range(4)} == plain
