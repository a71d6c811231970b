"""Two helpers whose contributions overlap partly: what a slot refuses, and what that says of slots. (section 5.6)"""

import numpy as np
import pytest
from helpers.cluster import Cluster, Reduction

from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.protocol.packets.header import HEADER
from sa_atp.protocol.packets.spec import Flag
from sa_atp.protocol.server.sums import SumStore
from sa_atp.switches.embedded.pipeline import Pipeline

VALUES = 64 * 200
STRAGGLER = 2


def test_what_overlaps_partly_is_handed_over_at_once_and_says_nothing_of_slots(pipeline: Pipeline) -> None:
    cluster = Cluster([pipeline], links=LinkSettings(rate_mbps=100.0))
    workers = cluster.joined_job(3, micro_batches=2)
    rng = np.random.default_rng(1)
    parts = [[rng.standard_normal(VALUES).astype(np.float32) for _ in range(2)] for _ in workers]

    first = Reduction(parts, "key")  # so that exponents are known
    cluster.run_collectives([first], workers)

    second = Reduction(parts, "key")
    for worker in workers:
        second.begin(worker)
    both, one, straggler = workers
    second.contribute(both)
    second.contribute(one)
    second.contribute(one, [0], STRAGGLER)
    cluster.run_for(0.05)
    second.contribute(both, [0, 1], STRAGGLER)  # refused: a part of it is in. The rest will be refused as well
    cluster.run_for(0.05)
    second.contribute(one, [1], STRAGGLER)  # what passes a slot that was given up would look like a collision
    cluster.finish_collectives([second])

    fragments = VALUES // both.membership.lanes
    for worker in workers:
        assert worker.worker.window.slots == worker.membership.slot_count
    # one makes the slot hand over, and one passes by itself
    assert both.worker.stats.resends <= 2 * fragments
    assert both.worker.stats.retransmitted <= 2 * fragments
    assert straggler.worker.stats.retransmitted == 0


@pytest.mark.parametrize("is_given_up", [True, False])
def test_a_sum_that_its_slot_has_handed_over_did_not_collide(is_given_up: bool) -> None:
    store = SumStore(64, 0b111, 5)
    first, then = (Flag.PARTIAL, Flag.COLLISION) if is_given_up else (Flag.COLLISION, Flag.PARTIAL)
    for bits, flags in ((0b011, first), (0b100, then)):
        head = np.zeros(1, HEADER)
        head["seq"], head["flags"] = 5, flags
        store.add(head, np.array([[bits]], np.uint64), np.ones((1, 64), ">i4"))
    found = store.complete(np.array([5]))
    assert len(found.seqs) == 1
    assert bool(found.collided[0]) is not is_given_up
