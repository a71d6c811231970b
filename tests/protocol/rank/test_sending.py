"""When a contribution counts as leaving: first transmissions, and gaps no longer than the network explains."""

import numpy as np

from sa_atp.protocol.numbers.fragments import Plan
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.under_way import UnderWay

ANSWER_US = 2_000


def group(fragments: int) -> ContributionGroup:
    plan = Plan(64 * fragments, 64)
    made = ContributionGroup(plan, 1, [np.ones(64 * fragments, np.float32)], 2, on_behalf=False, under_way=UnderWay())
    made.sending.append((0, 0))
    return made


def test_bursts_that_the_network_explains_are_one_stretch() -> None:
    found = group(10)
    for first, now_us in enumerate((100, 300, 300, 2_300)):
        found.on_sent(first, first + 1, now_us, ANSWER_US)
    assert found.sending == [(0, 2_300)]


def test_a_window_full_of_what_waits_for_others_is_not_sending() -> None:
    found = group(10)
    found.on_sent(0, 4, 100, ANSWER_US)
    found.on_sent(4, 8, 500_000, ANSWER_US)
    found.on_sent(8, 10, 501_000, ANSWER_US)
    assert found.sending == [(0, 100), (500_000, 501_000)]


def test_what_is_sent_again_is_not_sending() -> None:
    found = group(4)
    found.on_sent(0, 4, 100, ANSWER_US)
    for now_us in (1_000, 2_000, 400_000):
        found.mark_lost(np.arange(4))
        found.on_sent(0, 4, now_us, ANSWER_US)
    assert found.sending == [(0, 100)]
