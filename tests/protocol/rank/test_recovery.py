"""What a worker asks of the switch, and when it stops asking."""

import numpy as np
import pytest
from helpers.answers import answers_to, member_of
from helpers.cluster import Cluster, Reduction

from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.protocol.packets.header import first_byte
from sa_atp.protocol.packets.spec import Kind
from sa_atp.protocol.rank.worker import Worker
from sa_atp.switches.embedded.pipeline import Pipeline

HELD = 0b0000_0001  # one of our four contributions: someone else has sent it
ROUND_TRIP_US = 3_000


def test_answers_that_say_nothing_new_bring_on_no_further_questions() -> None:
    """Somebody else has added a part of what we send, to every fragment, and the rest of it does not arrive.

    Nothing is asked for but what has been sent since it was last asked for.
    """
    now_us = 1_000_000
    worker = Worker(member_of(micro_batches=4, alive_every_us=1_000_000), now_us, first_request=1)
    values = 64 * 16_384
    operation = worker.collectives.begin(values, None, now_us)
    parts = [np.ones(values, np.float32) for _ in range(4)]
    worker.collectives.contribute(operation, parts, 0b1111, now_us)
    probes, resent = [], []
    for turn in range(200):
        now_us += ROUND_TRIP_US
        asked = []
        if turn:
            worker.window.network = 2.0  # losses: most of what is to be sent again has to wait
        while bursts := worker.transmit(now_us):
            for burst in bursts:
                first = burst.data[0, 0]
                if first == first_byte(Kind.PROBE):
                    asked.append(burst.data)
                elif first == first_byte(Kind.DATA) and turn:
                    resent.append(len(burst))
        probes.append(sum(map(len, asked)))
        for each in asked:
            worker.receive([answers_to(each, HELD)], now_us)
        if turn == 0:
            worker.transmit(now_us)  # what it asks now does not arrive
            now_us += 200_000
            worker.handle_timer(now_us)  # silence: it begins to ask
    assert sum(probes) > 1
    assert sum(resent)
    assert sum(probes[20:]) <= sum(resent)
    assert max(probes[20:]) <= 2


def test_questions_without_an_answer_are_forgotten_with_their_operation(pipeline: Pipeline) -> None:
    """The answer was lost, or the result came instead of it."""
    cluster = Cluster([pipeline], links=LinkSettings(loss=0.1))
    workers = cluster.joined_job(2)
    for _ in range(100):
        reduction = Reduction([[np.ones(300, np.float32)] for _ in workers])
        for worker in workers:
            reduction.start(worker)
            worker.probe(reduction.sums[worker.membership.rank])
        cluster.run(lambda r=reduction: r.over, 5.0)  # type: ignore[misc]
    for worker in workers:
        stats = worker.worker.stats
        assert stats.probe_replies < stats.probes
        assert not len(worker.worker._prober.questions)


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("racks", [1, 2])
def test_each_of_several_questions_about_a_fragment_gets_its_own_answer(
    pipelines: list[Pipeline], holds: bool, racks: int
) -> None:
    """From the switch, where it holds the fragment, else from the parameter server; both say which one it is to."""
    cluster = Cluster(pipelines[:1] if racks == 1 else pipelines, links=LinkSettings(delay_us=1_000))
    workers = cluster.joined_job(2 * racks)
    reduction = Reduction([[np.ones(300, np.float32)] for _ in workers])
    for worker in workers:
        reduction.begin(worker)
    asker, other = workers[0], workers[racks]  # below one leaf, where there are two
    if holds:
        reduction.contribute(other)
        cluster.run_for(0.01)
    before = asker.worker.stats.probe_replies
    for _ in range(5):
        asker.probe(reduction.sums[asker.membership.rank])
        cluster.run_for(0.000_1)
    questions, path = asker.worker._prober.questions, asker.worker.round_trip
    assert len(questions._open) == 5
    cluster.run_for(0.02)
    assert asker.worker.stats.probe_replies == before + 5
    assert not questions._open
    timed = path if holds else path.of_server
    assert timed is not None
    assert timed.samples == 5
    assert 0 < timed.deviation_us < timed.smoothed_us // 2, "all have taken the same time"
    for worker in workers:
        if worker is not other or not holds:
            reduction.contribute(worker)
    cluster.finish_collectives([reduction], 5.0)
