"""How long a rank waited: what a sign of life says, and that all ranks choose the same sums."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.packets.control import MAX_BYTES, Alive, decode_request, encode
from sa_atp.protocol.packets.lateness_messages import LONGEST_WAIT_US, MOST_WAITS, Wait
from sa_atp.protocol.packets.message_fields import ALL_BITS
from sa_atp.protocol.rank.waits import Waits


def tell(waits: Waits, first: int, count: int) -> list[int]:
    """So many more sums are done. Returns: those of which the next sign of life tells."""
    for operation in range(first, first + count):
        waits.note_done(operation, [(0, 1)], 1, 2)
    return [wait.operation for wait in waits.take()]


def test_times_follow_from_when_a_contribution_left() -> None:
    waits = Waits()
    waits.note_done(7, [(1000, 1200), (5000, 5300)], 40, 6000)
    waits.note_done(8, [], 40, 7000)  # others have contributed
    waits.note_done(9, [(0, 1 << 50)], 1 << 50, 1 << 50)
    assert waits.take() == [
        Wait(7, 5000, 500, 40), Wait(8, 0, 0, 40), Wait(9, LONGEST_WAIT_US, LONGEST_WAIT_US, LONGEST_WAIT_US),
    ]  # fmt: skip
    assert waits.take() == []


@given(st.lists(st.tuples(*[st.integers(0, 100)] * 3)))
def test_times_only_grow_and_add_up(steps: list[tuple[int, int, int]]) -> None:
    """Steps of a rank that computes, sends and waits, some of them while the sum before is under way."""
    waits, now_us = Waits(50), 50
    seen = [(0, 0, 0)]
    for number, (computing_us, sending_us, waiting_us) in enumerate(steps):
        start_us = now_us + computing_us - (computing_us > 90) * 95
        now_us = max(now_us, start_us + sending_us + waiting_us)
        waits.note_done(number, [(start_us, start_us + sending_us)], 1, now_us)
        seen.append((waits.computed_us, waits.sent_us, waits.waited_us - waits.sent_us))
        assert all(now >= before for now, before in zip(seen[-1], seen[-2], strict=True))
    if all(computing_us <= 90 for computing_us, _, _ in steps):
        assert seen[-1] == tuple(map(sum, zip((0, 0, 0), *steps, strict=True)))


@given(st.lists(st.integers(0, 500), max_size=8))
def test_a_sign_of_life_has_room(counts: list[int]) -> None:
    waits, done = Waits(), 0
    for count in counts:
        told = tell(waits, done, count)
        assert len(told) <= MOST_WAITS
        assert bool(told) or count < 512  # none only where a step is longer
        steps = {b - a for a, b in itertools.pairwise(told)}
        assert len(steps) <= 1
        assert all(n % step == 0 and step.bit_count() == 1 for step in steps for n in told)
        if count <= MOST_WAITS and not done:
            assert told == list(range(count))
        done += count


@given(st.integers(100, 400), st.integers(0, 99))
def test_ranks_choose_the_same_though_they_tell_at_other_times(count: int, shift: int) -> None:
    told = []
    for first in (count, count - shift):
        waits = Waits()
        tell(waits, 0, first)
        told.append(set(tell(waits, first, count)) | set(tell(waits, first + count, count)))
    assert len(told[0] & told[1]) >= min(map(len, told)) // 4


def test_the_longest_sign_of_life_fits() -> None:
    wait = Wait(1 << 40, LONGEST_WAIT_US, LONGEST_WAIT_US, LONGEST_WAIT_US)
    sign = Alive(
        oldest=(1 << 32) - 1, waiting=True, operation=1 << 40, values=1 << 40, first=(1 << 32) - 1, predicted=True,
        tag=255, given=ALL_BITS, held=ALL_BITS, waits=[wait] * MOST_WAITS,
    )  # fmt: skip
    packet = encode(sign, request=(1 << 32) - 1, job=255, epoch=255)
    assert len(packet) <= MAX_BYTES
    assert decode_request(packet) == sign
