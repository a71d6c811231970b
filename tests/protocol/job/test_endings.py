"""What a job leaves behind when it has ended or failed: nothing large, and all that its next epoch needs."""

from collections.abc import Sequence

import pytest
from helpers.cluster import SECOND_US, Cluster, ones, wake

from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.protocol.job.errors import WorkerLostError
from sa_atp.protocol.job.horizon import HORIZON
from sa_atp.protocol.packets.control import Fetch, encode
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.server.job import Job, State
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.switches.embedded.pipeline import Pipeline

DEAD_AFTER_US = 2 * SECOND_US


@pytest.fixture
def cluster(pipeline: Pipeline) -> Cluster:
    return Cluster([pipeline], settings=ServerSettings(dead_after_us=DEAD_AFTER_US))


def job_with_sums(cluster: Cluster) -> tuple[list[SimWorker], Job]:
    """Three ranks have a sum, and have not yet reported it: the parameter server keeps results that they may ask for."""
    workers = cluster.joined_job(3)
    cluster.run_collectives([ones(20_000, 3)], workers, 5.0)
    workers[0].job_stats()
    cluster.run_for(0.01)
    (job,) = cluster.world.server.jobs.values()
    assert job.sums.pages
    return workers, job


def end(cluster: Cluster, workers: list[SimWorker], job: Job) -> None:
    for worker in workers:
        worker.leave()
    cluster.run(lambda: job.state is State.ENDED, 1.0)


def next_epoch_sums(cluster: Cluster, before: int, reached: int) -> None:
    """Begins the job anew, with sequence numbers that were not used."""
    again = cluster.restarted_job(3)
    assert again[0].membership.epoch == (before + 1) % 256
    assert again[0].membership.first_seq == (reached + HORIZON) % 2**32
    cluster.run_collectives([ones(500, 3)], again, 5.0)


def test_a_job_that_has_failed_keeps_no_sums(cluster: Cluster) -> None:
    workers, job = job_with_sums(cluster)
    epoch, kept = job.epoch, job.stats.results_kept
    workers[1].host.paused = True
    workers[2].host.paused = True
    cluster.run_until_failed([workers[0]], DEAD_AFTER_US / 1e6 + 1.0)
    oldest = job.sums.oldest_seq
    assert job.sums.pages == 0
    assert not any(member.replies for member in job.members.values())
    # what is still asked of it: why it failed, and how it went
    wake(*workers[1:])
    cluster.run(lambda: all(w.error is not None for w in workers), 1.0)
    for worker in workers:
        assert isinstance(worker.error, WorkerLostError)
        assert worker.error.ranks == (1, 2)
    assert job.stats.results_kept == kept > 0
    next_epoch_sums(cluster, epoch, oldest)


def test_a_job_that_has_ended_keeps_no_sums(cluster: Cluster) -> None:
    workers, job = job_with_sums(cluster)
    epoch, kept = job.epoch, job.stats.results_kept
    end(cluster, workers, job)
    oldest = job.sums.oldest_seq
    assert job.sums.pages == 0
    assert sum(len(member.replies) for member in job.members.values()) <= 1  # that to who left last
    assert job.stats.results_kept == kept > 0
    next_epoch_sums(cluster, epoch, oldest)


def test_a_question_for_results_that_comes_late_finds_a_job_that_has_ended(cluster: Cluster) -> None:
    """Leaving has overtaken it. No rank has the results any more, and none waits for them."""
    workers, job = job_with_sums(cluster)
    end(cluster, workers, job)
    server, sent = cluster.world.server, job.stats.served
    server.transmit(cluster.clock.now_us)
    late = encode(Fetch(first=job.first_seq, count=5), request=0, job=job.number, epoch=job.epoch)
    server.receive([Burst.of(workers[0].host.endpoint.address, late)], cluster.clock.now_us)
    assert not job.recalled
    assert server.transmit(cluster.clock.now_us) == []
    assert job.stats.served == sent


@pytest.mark.parametrize("restarts", [False, True])
def test_a_question_to_join_that_comes_once_more_when_all_is_over_changes_nothing(
    cluster: Cluster, restarts: bool
) -> None:
    """The network has duplicated it. It used to begin another epoch of an ended job, or to end the next one."""
    asked: list[bytes] = []
    server = cluster.world.server
    receive = server.receive

    def noting(bursts: Sequence[Burst], now_us: int) -> None:
        asked.extend(b.data[0].tobytes() for b in bursts if b'"type":"join"' in b.data[0].tobytes())
        receive(bursts, now_us)

    server.receive = noting  # type: ignore[method-assign]
    workers, job = job_with_sums(cluster)
    questions = dict.fromkeys(asked)
    end(cluster, workers, job)
    if restarts:
        cluster.restarted_job(3)
    before = job.state, job.epoch, dict(job.members)
    for question in questions:
        for worker in workers:
            receive([Burst.of(worker.host.endpoint.address, question)], cluster.clock.now_us)
    assert (job.state, job.epoch, job.members) == before
    assert not restarts or job.state is State.RUNNING


def test_a_job_ends_once_though_leave_is_repeated(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer was lost, so the question comes again, to a job that has forgotten its answers."""
    retired: list[int] = []
    monkeypatch.setattr("sa_atp.lab.simulator.world.jobs.remove", lambda writer, number: retired.append(number))
    workers = cluster.joined_job(2)
    for worker in (*workers, *workers):
        worker.leave()
        cluster.run_for(0.01)
    assert retired == [workers[0].membership.job]
