"""What a step's time went into: activities cover it without a gap, whatever happened in it."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from helpers.work import Crew
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.help.progress import SendProgress
from sa_atp.steps.step_record import Activity, StepRecord, account

Sending = tuple[tuple[int, int], ...]


def filled(record: StepRecord, contributed_us: int, sending: Sending) -> list[tuple[str, int, int]]:
    account(record, contributed_us, sending)
    return [(a.kind, a.start_us, a.end_us) for a in record.activities]


def test_gaps_between_own_work_are_waiting() -> None:
    record = StepRecord(0, 100, 500, [Activity("compute", 110, 200), Activity("compute", 230, 300)])
    assert filled(record, 310, ((310, 350),)) == [
        ("wait", 100, 110), ("compute", 110, 200), ("wait", 200, 230), ("compute", 230, 300), ("wait", 300, 310),
        ("send", 310, 350), ("wait", 350, 500),
    ]  # fmt: skip


def test_help_interrupts_sending_and_waiting() -> None:
    record = StepRecord(0, 0, 100, [Activity("compute", 0, 40), Activity("help", 50, 60), Activity("help", 70, 90)])
    assert filled(record, 40, ((40, 65),)) == [
        ("compute", 0, 40), ("send", 40, 50), ("help", 50, 60), ("send", 60, 65), ("wait", 65, 70), ("help", 70, 90),
        ("wait", 90, 100),
    ]  # fmt: skip


def test_time_without_room_in_the_window_counts_as_waiting() -> None:
    record = StepRecord(0, 0, 100, [Activity("compute", 0, 40), Activity("help", 70, 80)])
    assert filled(record, 40, ((40, 43), (75, 84), (90, 95))) == [
        ("compute", 0, 40), ("send", 40, 43), ("wait", 43, 70), ("help", 70, 80), ("send", 80, 84), ("wait", 84, 90),
        ("send", 90, 95), ("wait", 95, 100),
    ]  # fmt: skip


@pytest.mark.parametrize("sending", [(), ((40, 40),), ((10, 30),)])
def test_others_did_all_of_it(sending: Sending) -> None:
    record = StepRecord(0, 0, 100, [Activity("compute", 0, 40)])
    assert filled(record, 40, sending) == [("compute", 0, 40), ("wait", 40, 100)]


@pytest.mark.parametrize(("share", "told_us"), [(1.0, 30_000), (0.5, 60_000), (0.125, 240_000), (0.1, 0), (0.0, 0)])
def test_the_time_to_send_covers_the_part_that_had_not_left(
    share: float, told_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others did the rest. Else the ledger would take a slow link for a fast one."""
    monkeypatch.setattr("helpers.work._Sum.sending", ((0, 10_000), (40_000, 60_000)))
    monkeypatch.setattr("helpers.work._Sum.sent_share", share)
    crew = Crew(2, 4)
    crew.run([1_000, 1_000])
    assert [host.helping.report(1)["sent_us"] for host in crew.hosts] == [told_us, told_us]


@pytest.mark.parametrize(("send_us", "told_us"), [(1_000, 5_000), (7_000, 6_000), (90_000, 30_000)])
def test_what_was_written_ahead_leaves_later(send_us: int, told_us: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch's answer says when; it may be late for other reasons as well."""
    monkeypatch.setattr("helpers.work._Sum.sending", ((0, 5_000),))
    monkeypatch.setattr("helpers.work._Sum.progress", SendProgress(pending=1.0, send_us=send_us))
    crew = Crew(2, 4)
    for host in crew.hosts:
        host._answer_us = 1_000
    crew.run([1_000, 1_000])
    assert [host.helping.report(1)["sent_us"] for host in crew.hosts] == [told_us, told_us]


def test_an_offer_made_ahead_is_repeated_when_the_answer_says() -> None:
    """Answered during its last piece, it begins to help when that is done, as all the others do."""
    crew = Crew(8, 8)
    for times_us in ([24_000] * 8, [8 * 24_000, *[24_000] * 7], [24_000, 8 * 24_000, *[24_000] * 6]):
        course = crew.run(times_us)
    assert course.helped == 7
    assert course.end_us <= 9 * 24_000 + 0.05 * 8 * 24_000, "one piece more for seven of them"


@pytest.mark.parametrize(("sent_us", "groups"), [(60_000, 1), (40_000, 2)])
def test_on_a_slow_link_the_lot_leaves_with_ones_own_contribution(
    sent_us: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two contributions would keep the link busy twice as long, and the sum waits for the second."""
    monkeypatch.setattr("helpers.work._Sum.sending", ((0, sent_us),))
    crew = Crew(4, 8)
    sent: dict[tuple[int, int], list[int]] = {}
    there = type(crew.hosts[0]).contribute

    def contribute(host: Any, sum_: Any, parts: Sequence[Any], bits: int, *, on_behalf: bool) -> None:
        sent.setdefault((sum_.step, host.membership.rank), []).append(bits)
        there(host, sum_, parts, bits, on_behalf=on_behalf)

    monkeypatch.setattr("helpers.work._Host.contribute", contribute)
    for _ in range(5):
        crew.run([10_000, 10_000, 10_000, 40_000])
    own = [host.membership.bits_of(rank) for rank, host in enumerate(crew.hosts)]
    helpers = [rank for rank in range(3) if any(bits & ~own[rank] for bits in sent[4, rank])]
    assert len(helpers) == 3
    assert [len(sent[4, rank]) for rank in helpers] == [groups] * 3
    assert all(own[rank] & ~sent[4, rank][0] == 0 for rank in helpers), "its own is in the first"
    assert crew.courses[4].more_than_once == []


@given(
    st.lists(st.integers(0, 1000), min_size=4, max_size=14, unique=True),
    st.integers(0, 1000),
    st.lists(st.integers(0, 1200), max_size=8),
)
def test_activities_cover_the_step(times: list[int], contributed_us: int, at_us: list[int]) -> None:
    start, *inner, end = sorted(times)
    pairs = zip(inner[::2], inner[1::2], strict=False)
    known = [Activity("compute" if b <= contributed_us else "help", a, b) for a, b in pairs]
    record = StepRecord(0, start, end, list(known))
    sending = tuple(zip(sorted(at_us)[::2], sorted(at_us)[1::2], strict=False))
    found = filled(record, min(max(start, contributed_us), end), sending)
    assert found[0][1] == start
    assert found[-1][2] == end
    assert all(before[2] == after[1] for before, after in itertools.pairwise(found))
    assert [f for f in found if f[0] in ("compute", "help")] == [(a.kind, a.start_us, a.end_us) for a in known]
