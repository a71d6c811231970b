"""What cannot finish ends in an error on every rank, within a bound, and the error says who or what is missing.

(design, invariants 2 and 3)
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from helpers.cluster import SECOND_US, Cluster, ones, wake

from sa_atp.protocol.job.errors import (
    JobRestartedError,
    MismatchError,
    NonFiniteError,
    OperationTimeoutError,
    ParameterServerLostError,
    RefusedError,
    WorkerLostError,
)
from sa_atp.protocol.job.serial import SEQ_MASK
from sa_atp.protocol.packets.control import Failure
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.rank.events import WorkerLimits
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.protocol.server.sums import SumStore

DEAD_AFTER_US = 2 * SECOND_US
NOTICED_S = 1.0  # signs of life are 0.2 s apart, and may be lost
REPORTED_S = 5.0  # a worker that gives up waits so long for the parameter server to tell everybody


@pytest.fixture
def make(make: Callable[..., Cluster]) -> Callable[..., Cluster]:
    return partial(make, settings=ServerSettings(dead_after_us=DEAD_AFTER_US))


# --- workers that are gone --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_the_death_of_a_worker_is_told_to_every_other_with_its_rank(make: Callable[..., Cluster], loss: float) -> None:
    cluster = make(loss=loss)
    workers = cluster.joined_job(4)
    reduction = ones(500, 4)
    for worker in (workers[0], workers[1], workers[3]):
        reduction.start(worker)
    workers[2].host.paused = True
    errors = cluster.run_until_failed([workers[0], workers[1], workers[3]], DEAD_AFTER_US / 1e6 + NOTICED_S)
    for error in errors:
        assert isinstance(error, WorkerLostError)
        assert error.ranks == (2,)
        assert "rank 2" in str(error)
    for rank in (0, 1, 3):
        with pytest.raises(WorkerLostError, match="lost rank 2"):
            reduction.sums[rank].future.result(timeout=0)


def test_a_sum_begun_after_the_failure_fails_with_it(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.joined_job(2)
    ones(10, 2).start(workers[0])
    workers[1].host.paused = True
    cluster.run_until_failed(workers[:1], DEAD_AFTER_US / 1e6 + NOTICED_S)
    with pytest.raises(WorkerLostError):
        ones(10, 2).start(workers[0]).future.result(timeout=0)
    with pytest.raises(WorkerLostError):
        workers[0].job_stats().result(timeout=0)


def test_a_worker_that_comes_back_to_a_failed_job_is_told(make: Callable[..., Cluster]) -> None:
    """It was only slow; the others have given it up."""
    cluster = make()
    workers = cluster.joined_job(2)
    workers[1].host.paused = True
    cluster.run_until_failed(workers[:1], DEAD_AFTER_US / 1e6 + NOTICED_S)
    wake(workers[1])
    assert isinstance(cluster.run_until_failed(workers[1:], NOTICED_S)[0], WorkerLostError)


def test_a_worker_that_pauses_for_less_than_the_bound_costs_time_only(make: Callable[..., Cluster]) -> None:
    cluster = make(loss=0.01)
    workers = cluster.joined_job(3)
    reduction = ones(3000, 3)
    for worker in workers:
        reduction.start(worker)
    cluster.run_for(0.0003)
    workers[1].host.paused = True
    cluster.run_for(DEAD_AFTER_US / 1e6 - 0.5)
    assert not reduction.over
    wake(workers[1])
    cluster.finish_collectives([reduction], 2.0)


# --- workers that come back -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_a_restarted_worker_starts_the_next_epoch(make: Callable[..., Cluster], loss: float) -> None:
    cluster = make(loss=loss)
    workers = cluster.joined_job(3)
    before = workers[0].membership
    reduction = ones(500, 3)
    reduction.start(workers[0])
    reduction.start(workers[2])
    again = [cluster.new_worker("job", 1, 3)]  # rank 1 has lost its state, and joins like a new one
    errors = cluster.run_until_failed([workers[0], workers[2]], NOTICED_S)
    for error in errors:
        assert isinstance(error, JobRestartedError)
        assert "rank 1 joined again" in str(error) or "connect again" in str(error)
    again += [cluster.new_worker("job", rank, 3) for rank in (0, 2)]
    again.sort(key=lambda w: w.host.endpoint.address)
    assert {w.membership.epoch for w in cluster.rejoined(again)} == {(before.epoch + 1) % 256}
    cluster.run_collectives([ones(500, 3)], again, 5.0)


def test_epochs_wrap_around(make: Callable[..., Cluster]) -> None:
    cluster = make()
    epochs = []
    for _ in range(3):
        workers = cluster.joined_job(1, name=f"job {len(cluster.jobs)}")
        job = cluster.world.server.jobs[workers[0].membership.job]
        job.epoch = 254  # before it is used for anything
        for _ in range(3):
            worker = cluster.new_worker(job.name, 0, 1, len(cluster.jobs) - 1)
            cluster.run_until_joined([worker])
            cluster.run_collectives([ones(70, 1)], [worker], 5.0)
            epochs.append(worker.membership.epoch)
    assert epochs == [255, 0, 1] * 3


@pytest.mark.parametrize("epochs", [1, 3, 9])
def test_why_a_job_failed_is_told_to_a_rank_that_was_away_when_others_have_joined_again(
    make: Callable[..., Cluster], epochs: int
) -> None:
    cluster = make()
    workers = cluster.joined_job(3)
    cluster.run_for(0.01)  # all have spoken
    for rank, worker in enumerate(workers):
        ones(100 + rank // 2, 3).start(worker)
    workers[0].host.paused = True  # what would have told it is lost
    cluster.run_until_failed(workers[1:], NOTICED_S)
    for _ in range(epochs):
        again = cluster.new_worker("job", 1, 3)
        cluster.run_for(0.1)
        (job,) = cluster.world.server.jobs.values()
        if epochs > 1:
            job.fail(Failure(reason="lost", ranks=[1]))
    assert again.error is None
    wake(workers[0])
    (error,) = cluster.run_until_failed(workers[:1], NOTICED_S)
    if epochs < 9:
        assert isinstance(error, MismatchError)
        assert "rank 2" in str(error)
    else:  # it is not known any more
        assert isinstance(error, JobRestartedError)


def test_a_worker_of_an_epoch_that_is_over_is_told_to_connect_again(make: Callable[..., Cluster]) -> None:
    """It was paused during the restart, and missed the message about it."""
    cluster = make()
    workers = cluster.joined_job(2)
    ones(10, 2).start(workers[0])
    workers[0].host.paused = True
    new = cluster.new_worker("job", 1, 2)
    cluster.run_for(0.5)
    wake(workers[0])
    (error,) = cluster.run_until_failed(workers[:1], NOTICED_S)
    assert isinstance(error, JobRestartedError)
    assert "rank 1 joined again: connect anew" in str(error)
    assert new.error is None


def test_a_restarted_parameter_server_has_no_members(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.joined_job(2)
    ones(10, 2).start(workers[0])
    cluster.world.server.jobs.clear()
    for error in cluster.run_until_failed(workers, NOTICED_S):
        assert isinstance(error, JobRestartedError)
        assert "parameter server" in str(error)


def test_a_parameter_server_may_be_restarted_at_the_same_epoch(make: Callable[..., Cluster]) -> None:
    """Its job has the ranks that asked it to join, and numbers that begin elsewhere."""
    cluster = make()
    workers = cluster.joined_job(2)
    (job,) = cluster.world.server.jobs.values()
    job.sums = SumStore(job.lanes, job.fan_in, (job.sums.oldest_seq + (1 << 30)) & SEQ_MASK, job.contribution_bits)
    ones(10, 2).start(workers[0])
    for error in cluster.run_until_failed(workers, NOTICED_S):
        assert isinstance(error, JobRestartedError)
        assert "parameter server" in str(error)


def test_a_worker_that_restarts_while_the_job_is_admitted_costs_an_epoch(make: Callable[..., Cluster]) -> None:
    """The job is being installed on the switch when a dead rank is started again."""
    cluster = make()
    workers = cluster.start_job(3)
    cluster.run_until_admitting()
    survivors = cluster.rejoined([workers[0], cluster.new_worker("job", 1, 3), workers[2]])
    cluster.run_collectives([ones(130, 3)], survivors, 5.0)


# --- workers that leave -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_a_rank_that_waits_for_a_worker_that_left_is_told(make: Callable[..., Cluster], loss: float) -> None:
    cluster = make(loss=loss)
    workers = cluster.joined_job(3)
    second = ones(70, 3)
    cluster.run_collectives([ones(70, 3)], workers, 5.0)
    workers[1].leave()
    second.start(workers[0])
    second.start(workers[2])
    for error in cluster.run_until_failed([workers[0], workers[2]], NOTICED_S):
        assert isinstance(error, WorkerLostError)
        assert error.ranks == (1,)
        assert "left the job" in str(error)


# --- the parameter server is gone
# ---------------------------------------------------------------------------------------


def test_a_silent_parameter_server_is_named(make: Callable[..., Cluster]) -> None:
    cluster = make(limits=WorkerLimits(server_timeout_us=1 * SECOND_US))
    workers = cluster.joined_job(2)
    cluster.world.server_host.paused = True
    for error in cluster.run_until_failed(workers, 1.0 + NOTICED_S):
        assert isinstance(error, ParameterServerLostError)
        assert "10.0.255.1:21313 has not answered for 1." in str(error)


def test_sums_go_on_while_the_parameter_server_is_silent(make: Callable[..., Cluster]) -> None:
    """The switch alone is enough as long as nothing is lost."""
    cluster = make(limits=WorkerLimits(server_timeout_us=10 * SECOND_US))
    workers = cluster.joined_job(3)
    cluster.world.server_host.paused = True
    reductions = [ones(500, 3) for _ in range(3)]
    cluster.run_collectives(reductions, workers, 1.0)


def test_joining_without_a_parameter_server_fails_with_its_address(make: Callable[..., Cluster]) -> None:
    cluster = make()
    cluster.world.server_host.paused = True
    workers = cluster.start_job(2)
    for error in cluster.run_until_failed(workers, 31.0):
        assert isinstance(error, ParameterServerLostError)
        assert "no parameter server answers at 10.0.255.1:21313 after 30.0 s" in str(error)


def test_why_a_job_is_refused_is_told_to_all(make: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make()
    monkeypatch.setattr(
        cluster.world, "_install", lambda job: cluster.world.server.on_refused(job, "its tables are full")
    )
    workers = cluster.start_job(3)
    for error in cluster.run_until_failed(workers, 31.0):
        assert isinstance(error, RefusedError)
        assert str(error) == "job 'job': after 30.0 s: the switch cannot take the job: its tables are full"


def test_a_control_plane_that_does_not_answer_is_named(
    make: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make()
    monkeypatch.setattr(cluster.world, "_install", lambda job: None)
    for error in cluster.run_until_failed(cluster.start_job(2), 31.0):
        assert str(error) == "job 'job': all ranks are here, but after 30.0 s no switch knows the job"


def test_a_job_that_is_refused_is_tried_again(make: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make()
    monkeypatch.setattr(cluster.world, "_install", lambda job: cluster.world.server.on_refused(job, "é" * 5000))
    workers = cluster.start_job(3)
    cluster.run_for(2.0)
    monkeypatch.undo()
    cluster.run_until_joined(workers)
    cluster.run_collectives([ones(100, 3)], workers, 1.0)


# --- ranks that disagree ----------------------------------------------------------------------------------------------

SIZES = [
    (100, 200, 0.0), (64, 65, 0.1), (65, 66, 0.0), (1, 2, 0.1), (1024, 2048, 0.0), (16_384, 16_385, 0.1), (5, 5000, 0.1),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "loss"), SIZES)
def test_ranks_with_different_sizes_are_told(make: Callable[..., Cluster], one: int, other: int, loss: float) -> None:
    cluster = make(loss=loss)
    workers = cluster.joined_job(3)
    for worker, values in zip(workers, (one, other, one), strict=True):
        ones(values, 3).start(worker)
    for error in cluster.run_until_failed(workers, NOTICED_S):
        assert isinstance(error, MismatchError)
        assert f"{one} values for rank" in str(error) or f"and {one} for rank" in str(error)
        assert f"{other} values for rank 1" in str(error) or f"and {other} for rank 1" in str(error)
        assert str(error).startswith(("ranks 0, 1 disagree", "ranks 1, 2 disagree"))


def test_ranks_that_sum_in_another_order_are_told(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.joined_job(2)
    for worker, sizes in zip(workers, ((100, 300), (300, 100)), strict=True):
        for values in sizes:
            ones(values, 2).start(worker)
    for error in cluster.run_until_failed(workers, NOTICED_S):
        assert isinstance(error, MismatchError)


def test_a_size_that_happens_to_look_right_is_found_out_one_operation_later(make: Callable[..., Cluster]) -> None:
    """Tags have eight bits: of sizes that need different fragments, one pair of 256 has the same."""
    from sa_atp.protocol.rank.sums.progress import tag_of

    values = next(v for v in range(200, 1_000_000, 64) if tag_of(0, v) == tag_of(0, 100))
    cluster = make()
    workers = cluster.joined_job(2)
    for worker, size in zip(workers, (100, values), strict=True):
        ones(size, 2).start(worker)
        ones(50, 2).start(worker)
    for error in cluster.run_until_failed(workers, NOTICED_S):
        assert isinstance(error, MismatchError)


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_ranks_that_give_a_tensor_another_key_are_told(make: Callable[..., Cluster], loss: float) -> None:
    """One predicts the scale, the other one waits for it: both waited, until their time was up."""
    cluster = make(loss=loss)
    workers = cluster.joined_job(3)
    cluster.run_collectives([ones(100, 3, key="tensor")], workers, 5.0)
    for worker, key in zip(workers, ("tensor", "tensor", None), strict=True):
        ones(100, 3, key=key).start(worker)
    for error in cluster.run_until_failed(workers, 5.0 if loss else NOTICED_S):
        assert isinstance(error, MismatchError)
        assert "for rank 2 it has none, or a new one" in str(error)
        assert "with the same sizes, keys and scales, in the same order" in str(error)


@pytest.mark.parametrize("levels", [1, 2])
def test_ranks_that_exchange_two_tensors_of_one_size_are_told(make: Callable[..., Cluster], levels: int) -> None:
    """Each has predicted the same scale for both: the sums looked right, and were those of different tensors."""
    cluster = make(levels=levels)
    workers = cluster.joined_job(2)
    weight, bias = ("layer", 1, "weight"), ("layer", 1, "bias")
    cluster.run_collectives([ones(100, 2, key=key) for key in (weight, bias)], workers, 5.0)
    for worker, keys in zip(workers, ((weight, bias), (bias, weight)), strict=True):
        for key in keys:
            ones(100, 2, key=key).start(worker)
    for error in cluster.run_until_failed(workers, NOTICED_S):
        assert isinstance(error, MismatchError)
        assert "operation 2 has another key or scale for rank" in str(error)


@pytest.mark.parametrize("key", [None, "tensor"])
def test_ranks_that_multiply_a_sum_by_different_numbers_are_told(make: Callable[..., Cluster], key: str | None) -> None:
    """One would have the mean, and the other one the sum."""
    cluster = make()
    workers = cluster.joined_job(2)
    for worker, scale in zip(workers, (0.5, 1.0), strict=True):
        worker.contribute(worker.begin(100, key, scale=scale), [np.ones(100, np.float32)], 1 << worker.membership.rank)
    for error in cluster.run_until_failed(workers, NOTICED_S):
        assert isinstance(error, MismatchError)


def test_a_tensors_name_is_the_same_in_every_process() -> None:
    from sa_atp.protocol.rank.sums.progress import name_of

    assert name_of(None, 1.0) == 0
    assert name_of(("ddp", 3, 100), 0.5) == name_of(("ddp", np.int64(3), 100.0), np.float64(0.5))
    assert name_of(object(), 1.0) == name_of(object(), 1.0), "its address differs from process to process"
    assert len({name_of(key, scale) for key in (None, 0, "0", b"0", ("0",), ("0", None)) for scale in (0.5, 1.0)}) == 12


# --- what cannot be summed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "loss", "key"),
    [(np.nan, 0.0, None), (np.nan, 0.1, "tensor"), (np.inf, 0.1, None), (-np.inf, 0.0, "tensor")],
)
def test_ranks_that_contributed_nan_or_infinity_are_named_on_every_rank(
    make: Callable[..., Cluster], value: float, loss: float, key: str | None
) -> None:
    cluster = make(loss=loss)
    workers = cluster.joined_job(4)
    good, bad = ones(20_000, 4, key=key), ones(20_000, 4, key=key)
    bad.parts[1][0][17_000] = value
    bad.parts[3][0][19_999] = value
    cluster.run_collectives([good], workers, 5.0)
    for worker in workers:
        bad.start(worker)
        ones(3000, 4).start(worker)  # is under way when the connection fails
    for error in cluster.run_until_failed(workers, 5.0):
        assert isinstance(error, NonFiniteError)
        assert error.ranks == (1, 3)
        assert "operation 1: ranks 1, 3 contributed NaN or infinity between values 16384 and 19999" in str(error)
    cluster.run_for(1.0)  # what arrives later has no effect


def test_nan_in_a_helpers_packets_is_blamed_on_the_shards_rank(make: Callable[..., Cluster]) -> None:
    """A helper sends several contributions together; those that are sound are not blamed."""
    cluster = make()
    workers = cluster.joined_job(3, micro_batches=4, help_grade=HelpGrade.STEAL)
    reduction = ones(300, 3, micro_batches=4)
    reduction.parts[2][3][7] = np.nan
    for worker in workers:
        reduction.begin(worker)
    reduction.contribute(workers[0])
    reduction.contribute(workers[1], [0, 1])
    reduction.contribute(workers[2], [0, 1])
    member = workers[0].membership
    workers[0].contribute(
        reduction.sums[0],
        [reduction.parts[rank][m] for rank, m in ((1, 2), (1, 3), (2, 2), (2, 3))],
        sum(member.bit(rank, m) for rank, m in ((1, 2), (1, 3), (2, 2), (2, 3))),
        on_behalf=True,
    )
    for error in cluster.run_until_failed(workers, 1.0):
        assert isinstance(error, NonFiniteError)
        assert error.ranks == (2,)


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_a_switch_that_stays_away_ends_in_a_time_out(make: Callable[..., Cluster]) -> None:
    """Nothing comes back at all, from the parameter server either: it is behind the switch."""
    cluster = make(limits=WorkerLimits(operation_timeout_us=3 * SECOND_US, server_timeout_us=60 * SECOND_US))
    workers = cluster.joined_job(2)
    reduction = ones(200, 2)
    cluster.world.root.switch.up = False
    for worker in workers:
        reduction.start(worker)
    for error in cluster.run_until_failed(workers, 3.0 + REPORTED_S + NOTICED_S):
        assert isinstance(error, OperationTimeoutError)
        assert error.ranks is None
        assert "waiting for unknown contributions" in str(error)


def test_a_request_without_an_answer_ends(make: Callable[..., Cluster]) -> None:
    cluster = make(limits=WorkerLimits(server_timeout_us=60 * SECOND_US))
    (worker,) = cluster.joined_job(1)
    cluster.world.server_host.paused = True
    answer = worker.job_stats()
    cluster.run(answer.done, 6.0)
    assert answer.result(timeout=0) is None
