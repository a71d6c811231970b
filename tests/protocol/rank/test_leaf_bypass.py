"""Which contributions pass a leaf, and what a leaf's answer tells. (protocol section 10.5)"""

import numpy as np
import pytest
from helpers.answers import member_of
from helpers.cluster import Cluster, Reduction
from msgspec.structs import replace

from sa_atp.protocol.numbers.fragments import Plan
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.rank.recovery.leaf_bypass import LeafBypass
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.under_way import UnderWay
from sa_atp.switches.embedded.pipeline import Pipeline

MEMBER = member_of(world_size=4, micro_batches=2, help_grade=HelpGrade.STEAL, levels=2, leaf_ranks=0b0101)
OWN, NEIGHBOURS, ELSEWHERE = 0b11, 0b11_0000, 0b1100


@pytest.mark.parametrize(
    ("bits", "passes"),
    [(OWN, False), (0b01, False), (NEIGHBOURS, False), (ELSEWHERE, True), (NEIGHBOURS | ELSEWHERE, True)],
)
def test_what_is_below_the_leaf_is_summed_there_whoever_computes_it(bits: int, passes: bool) -> None:
    leaf = LeafBypass(MEMBER)
    assert leaf.applies_to(bits, on_behalf=bits != OWN) == passes
    leaf.set_begun(True)
    assert leaf.applies_to(bits, on_behalf=bits != OWN)
    leaf.set_begun(False)
    assert leaf.applies_to(bits, on_behalf=bits != OWN) == passes


def test_with_one_switch_the_flag_says_whose_it_is_and_with_seats_nothing_is_the_leafs() -> None:
    one = LeafBypass(replace(MEMBER, levels=1, leaf_ranks=0))
    assert one.applies_to(NEIGHBOURS, on_behalf=True)
    assert not one.applies_to(OWN, on_behalf=False)
    assert LeafBypass(replace(MEMBER, seats=3, micro_batches=1)).applies_to(0b1, on_behalf=False)


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        (OWN, NEIGHBOURS),  # the leaf: it knows nothing of other racks
        (OWN | NEIGHBOURS, 0b1100_1100),  # the root: the leaf's are all there
        (OWN | ELSEWHERE, 0b1111_0000),
        (0, 0b1111_1111),
    ],
)
def test_a_leaf_tells_of_its_own_workers_only(held: int, missing: int) -> None:
    assert LeafBypass(MEMBER).missing_of(held) == missing


def test_a_leaf_hides_what_passed_it_while_it_is_the_one_that_answers() -> None:
    """Else what went past a leaf that has given everything up was sent again for each answer of the root, until the third
    copy made that hand over its sums.
    """
    leaf = LeafBypass(MEMBER)
    plan = Plan(64 * 4, 64)
    past, own = (
        ContributionGroup(plan, bits, [np.ones(64 * 4, np.float32)], MEMBER.contributions, on_behalf=on_behalf,
                          under_way=UnderWay())
        for bits, on_behalf in ((ELSEWHERE, True), (OWN, False))
    )  # fmt: skip
    assert not leaf.hides(past)
    for is_leaf in (True, False, True):
        leaf.on_answer(is_leaf)
        assert (leaf.hides(past), leaf.hides(own)) == (is_leaf, False)


def test_a_leaf_that_answers_for_what_passed_it_passes_on_what_it_holds(pipelines: list[Pipeline]) -> None:
    """A worker was told of help from elsewhere in between: a part of its contributions is in the leaf, a part went past
    it. As long as the leaf answered for both, what had passed was taken for lost, again and again, and nothing ended.
    """
    cluster = Cluster(pipelines)
    workers = cluster.joined_job(4, micro_batches=2, help_grade=HelpGrade.STEAL)
    rng = np.random.default_rng(1)
    sums = Reduction([[rng.standard_normal(64 * 40).astype(np.float32) for _ in range(2)] for _ in range(4)], key="g")
    for worker in workers:
        sums.begin(worker)
    workers[0].worker.collectives._leaf.set_begun(True)
    for piece in range(2):
        for worker in workers:
            sums.contribute(worker, [piece])
        cluster.run_for(0.02)
        workers[0].worker.collectives._leaf.set_begun(False)
    cluster.finish_collectives([sums], 0.2)
