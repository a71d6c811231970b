"""Sequence numbers have 32 bits and wrap: what is summed, asked and kept must not care where a job begins. (section 2.4)"""

import numpy as np
import pytest
from helpers.answers import member_of
from helpers.cluster import Cluster, Reduction
from helpers.messages import body_of
from hypothesis import example, given
from hypothesis import settings as effort
from hypothesis import strategies as st

from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.protocol.numbers.fragments import Plan
from sa_atp.protocol.packets.header import first_byte
from sa_atp.protocol.packets.spec import Kind
from sa_atp.protocol.rank.worker import Worker
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.switches.embedded.pipeline import Pipeline

END, MIDDLE = 2**32, 2**31  # where numbers begin anew, and where the distance from the first one changes its sign
LANES = 64


def cluster_from(
    pipeline: Pipeline, first_seq: int, *, seed: int, loss: float, duplicate: float, reorder: float = 0.02
) -> Cluster:
    """A cluster whose jobs begin at a number; 16 slots, so that a fragment's slot is taken again and again."""
    links = LinkSettings(loss=loss, duplicate=duplicate, reorder=reorder, jitter_us=20)
    cluster = Cluster([pipeline], seed=seed, links=links, settings=ServerSettings(slots=16, slots_per_job=16))
    bits = cluster.world.random.getrandbits
    registry = cluster.world.server._admission._registry
    registry._random_bits = lambda count: first_seq if count == 32 else bits(count)
    return cluster


@effort(max_examples=30)
@given(
    first_seq=st.sampled_from((END, MIDDLE)).flatmap(lambda at: st.integers(at - 120, at)),
    ranks=st.integers(1, 4),
    lengths=st.lists(st.sampled_from((1, 64, 65, 200, 500, 1000)), min_size=4, max_size=7),
    loss=st.sampled_from((0.0, 0.01, 0.1)),
    duplicate=st.sampled_from((0.0, 0.05)),
    at_once=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@example(first_seq=END - 100, ranks=3, lengths=[700, 64, 1000, 1, 500], loss=0.1, duplicate=0.05, at_once=True, seed=1)
@example(
    first_seq=MIDDLE - 50, ranks=3, lengths=[700, 64, 1000, 1, 500], loss=0.1, duplicate=0.05, at_once=False, seed=2
)
def test_sums_are_right_where_numbers_wrap(
    pipeline: Pipeline, first_seq: int, ranks: int, lengths: list[int], loss: float, duplicate: float, at_once: bool,
    seed: int,
) -> None:  # fmt: skip
    first_seq %= END
    lengths = [*lengths, 2000, 2000]
    span = sum(Plan(values, LANES).span for values in lengths)
    assert span > 120, "every job passes the place"
    cluster = cluster_from(pipeline, first_seq, seed=seed, loss=loss, duplicate=duplicate)
    workers = cluster.joined_job(ranks)
    assert workers[0].membership.first_seq == first_seq
    rng = np.random.default_rng(seed)
    reductions = [
        Reduction([[rng.standard_normal(values).astype(np.float32)] for _ in range(ranks)]) for values in lengths
    ]
    for reduction in reductions:
        for worker in workers:
            reduction.start(worker)
        if not at_once:
            cluster.run(lambda r=reduction: r.over, 20.0)  # type: ignore[misc]
    cluster.finish_collectives(reductions, 20.0)
    # signs of life: everyone learns that all have passed all of it
    cluster.run(lambda: not any(worker.worker._fetching._kept for worker in workers), 5.0)
    (job,) = cluster.world.server.jobs.values()
    assert job.sums.oldest_seq == (first_seq + span) % END
    assert job.sums.pages <= 1
    # sums that come right all the same, because everything is tried again, must not hide what the server did not take
    assert (cluster.world.server.malformed, job.stats.malformed, job.stats.beyond) == (0, 0, 0)
    if not loss:
        fragments = sum(Plan(values, LANES).attempt_fragments for values in lengths)
        assert job.stats.results_kept + job.stats.finished_here >= fragments
    assert not any(len(worker.worker._prober.questions) for worker in workers)


@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_what_follows_a_tensor_as_long_as_the_horizon_is_not_too_far_away(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, loss: float
) -> None:
    """Half of a tensor's numbers are skipped: from its end to the next one's first is as far as it is long.

    As with 2^20 numbers and 256 MB, but shorter. What the workers say of that leaves ahead of what they send, and is not
    overtaken.
    """
    monkeypatch.setattr("sa_atp.protocol.job.horizon.HORIZON", 128)
    cluster = cluster_from(pipeline, END - 500, seed=1, loss=loss, duplicate=0.0, reorder=0.0)
    workers = cluster.joined_job(3)
    rng = np.random.default_rng(1)
    reductions = [
        Reduction([[rng.standard_normal(130 * LANES).astype(np.float32)] for _ in range(3)]) for _ in range(4)
    ]
    for reduction in reductions:
        for worker in workers:
            reduction.start(worker)
    cluster.run(lambda: all(r.over for r in reductions), 20.0)
    cluster.run_for(0.001)  # the server's copy of the last one
    for reduction in reductions:
        reduction.check()
    (job,) = cluster.world.server.jobs.values()
    if not loss:
        assert job.stats.beyond == 0
        assert job.stats.results_kept == 4 * Plan(130 * LANES, LANES).attempt_fragments


@pytest.mark.parametrize("first_seq", [0, END - 100, MIDDLE - 50])
def test_a_worker_that_has_begun_half_of_all_numbers_does_not_think_that_others_are_ahead(first_seq: int) -> None:
    """No result has come of what it has not begun: there is nothing to ask for."""
    worker = Worker(member_of(first_seq=first_seq), 0, first_request=1)
    worker.collectives.begin(64, "key", 0)
    begun = 0
    while begun < 2 * END:
        # those with the key in use wait, and take numbers but no memory
        begun += Plan(LANES << 29, LANES).span
        worker.collectives.begin(LANES << 29, "key", 0)
    control = [b for b in worker.transmit(0) if b.data[0, 0] == first_byte(Kind.CONTROL)]
    assert [body_of(b.data[0].tobytes()) for b in control] == []
