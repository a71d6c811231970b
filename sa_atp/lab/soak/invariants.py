"""Invariants of every world, checked at every step and at its end; a violation raises `Broken`.

The checks read the internal state of connections and switches: a mistake there may reach a sum much later, or never.
"""

import re
from collections.abc import Iterable

import numpy as np

from sa_atp.basics.words import plural
from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.lab.simulator.world import Rack, World
from sa_atp.lab.soak.scene import FaultKind, Scene
from sa_atp.protocol.job.errors import (
    JobRestartedError,
    NonFiniteError,
    OperationTimeoutError,
    ParameterServerLostError,
    RefusedError,
    TransportError,
    WorkerLostError,
    describe_ranks,
)
from sa_atp.protocol.job.horizon import horizon
from sa_atp.protocol.server.job import Job
from sa_atp.protocol.server.registry import OVER
from sa_atp.protocol.server.sums import PAGE
from sa_atp.switches.control import jobs
from sa_atp.switches.embedded.pipeline import Pipeline

TIME_OUT_US = 50_000_000  # sums may time out if hosts are apart for longer (protocol section 11: 60 s without progress)
NOT_JOINED = re.compile(r"these ranks have not joined: ([\d, ]+)$")
OCCUPIED = re.compile(r"is there already, from ")


class Broken(Exception):
    """The protocol broke a promise. Args: what: the kind of violation, one word; detail: an explanation for people."""

    def __init__(self, what: str, detail: str) -> None:
        super().__init__(f"{what}: {detail}")
        self.what = what
        self.detail = detail


# --- at every step ------------------------------------------------------------------------------------------------------


def check_worker(worker: SimWorker) -> None:
    """Checks that a connection's counters agree with the state of its operations. Raises: Broken: they do not."""
    connection = worker.worker
    under_way = connection._operations.under_way
    who = f"rank {worker.membership.rank} of job {worker.membership.job}"
    if min(under_way.in_flight, under_way.missing, under_way.sent - under_way.out) < 0:
        raise Broken("books", f"a counter of {who} is negative: {under_way}")
    if under_way.in_network > under_way.in_flight:
        raise Broken("books", f"{who} counts more fragments in the network than in flight: {under_way}")
    if connection.window.limit < 1:
        raise Broken("window", f"{who} has a window of {connection.window.limit}: nothing can be sent")


def check_switch(rack: Rack) -> None:
    """A slot's bitmap of summed contributions is a subset of its bitmap of offered ones, so none is added twice.

    Raises: Broken.
    """
    pipeline = rack.switch.pipeline
    if not isinstance(pipeline, Pipeline):
        return
    names = [
        name.rpartition("offered_")[2].partition(".")[0]
        for name in pipeline.translation.layout.registers
        if "offered_" in name
    ]
    for word in names:
        offered, summed = (pipeline.register(f"{name}_{word}.{name}") for name in ("offered", "summed"))
        wrong = np.flatnonzero(summed & ~offered)
        if len(wrong):
            slot = int(wrong[0])
            raise Broken(
                "slot", f"slot {slot} summed contributions {summed[slot]:#x}, but was offered {offered[slot]:#x}"
            )


def check_server(world: World) -> None:
    """The parameter server's sums have only the job's contributions, are complete if marked so, and take bounded memory.

    Raises: Broken.
    """
    for job in world.server.jobs.values():
        fan_in = job.sums.fan_in
        for page in job.sums._pages.values():
            if (page.bits & ~fan_in).any():
                raise Broken("server", f"{job.name}: a sum has contributions that the job does not have")
            if (page.bits[page.complete] != fan_in).any():
                raise Broken("server", f"{job.name}: an incomplete sum is marked complete")
        if job.sums.pages > horizon(job.lanes) // PAGE + 2:
            raise Broken("server", f"{job.name}: {job.sums.pages} pages of sums, more than its horizon needs")


# --- errors -------------------------------------------------------------------------------------------------------------


def check_error(
    scene: Scene, number: int, error: TransportError, gone: Iterable[int], left: Iterable[int] = ()
) -> None:
    """A fault of the world explains the error that a rank of a job was given. Raises: Broken.

    Args:
        number: the job's number in the scene.
        gone: the job's ranks that died, were restarted, or finished.
        left: the ranks among `gone` that have all their sums and left the job.
    """
    job = scene.jobs[number]
    not_joined = NOT_JOINED.search(str(error))
    named = (
        error.ranks if isinstance(error, WorkerLostError) else map(int, not_joined[1].split(", ") if not_joined else ())
    )
    concerns = set(named)
    if concerns and scene.may_leave_unheard(number) and set(left).issuperset(concerns):
        return  # a rank that leaves does not wait for a silent server, which finds out by itself (protocol section 11)
    if isinstance(error, NonFiniteError) and job.not_finite is not None:
        step, rank = job.not_finite
        if (error.operation, error.ranks) != (step, (rank,)):
            raise Broken(
                "error", f"rank {rank} contributed the NaN, in operation {step}, but a rank's error says: {error}"
            )
        return
    if not (scene.has_end(number) or scene.is_apart(number)):
        raise Broken("error", f"no fault of this world is long or severe enough for {type(error).__name__}: {error}")
    if not _is_possible(scene, number, error):
        raise Broken("error", f"no fault of this world can cause {type(error).__name__}: {error}")
    known = set(gone)
    if scene.is_apart(number) or scene.has_end(number, (FaultKind.RESTART_SERVER,)):
        return
    if isinstance(error, WorkerLostError) and not known.issuperset(error.ranks):
        raise Broken("error", f"{error}; but the ranks that were away are {describe_ranks(known)}")
    if not_joined is not None and not known & concerns:
        raise Broken("error", f"{error}; but the ranks that were away or finished are {describe_ranks(known)}")


def _is_possible(scene: Scene, number: int, error: TransportError) -> bool:
    is_apart = scene.is_apart(number)
    if isinstance(error, JobRestartedError):
        return is_apart or scene.has_end(number, (FaultKind.RESTART_SERVER, FaultKind.RESTART_WORKER))
    if isinstance(error, WorkerLostError):
        is_sound = bool(error.ranks) and max(error.ranks) < scene.jobs[number].ranks
        return is_sound and "left the job" not in str(error)
    if isinstance(error, ParameterServerLostError):
        return is_apart or scene.may_lose_answers(number)
    if isinstance(error, OperationTimeoutError):
        return scene.apart_us > TIME_OUT_US
    if isinstance(error, RefusedError):
        return OCCUPIED.search(str(error)) is not None
    return type(error) is TransportError and NOT_JOINED.search(str(error)) is not None


# --- at the end ---------------------------------------------------------------------------------------------------------


def check_left(world: World, workers: Iterable[SimWorker], *, orderly: bool) -> None:
    """Connections, server, switches and links hold no state of a job once all ranks have ended. Raises: Broken.

    Args:
        workers: connections that got all their sums and left.
        orderly: the parameter server was never restarted, so it knows which jobs switches hold.
    """
    for worker in workers:
        _check_left_at(worker)
    for job in world.server.jobs.values():
        _check_job(job)
    for rack in world.racks:
        left = jobs.read_jobs(rack.writer)
        if left and orderly:
            raise Broken("left over", f"a switch still holds {plural(len(left), 'job')}: {left[0]}")
    for link in world.all_links:
        if link.queued or link.queued_bytes:
            raise Broken("left over", f"{plural(link.queued, 'packet')} in a queue")


def _check_left_at(worker: SimWorker) -> None:
    operations, session = worker.worker._operations, worker._session
    under_way = operations.under_way
    held = {
        "fragments in flight": under_way.in_flight,
        "fragments whose sum is missing": under_way.missing,
        "open operations": len(operations._open),
        "waiting operations": operations.waiting(),
        "keys in use": len(operations._open_keys),
        "sums": len(session._sums),
    }
    found = ", ".join(f"{count} {name}" for name, count in held.items() if count)
    if found:
        raise Broken("left over", f"rank {worker.membership.rank} has left with all its sums, and still holds {found}")


def _check_job(job: Job) -> None:
    if job.state not in OVER:
        raise Broken("left over", f"all ranks have ended, and the parameter server has {job.name} as {job.state.value}")
    if job.sums.pages or job.recalled:
        raise Broken(
            "left over",
            f"{job.name} is over, and the parameter server still holds {job.sums.pages} pages of sums and "
            f"{len(job.recalled)} recalls",
        )
