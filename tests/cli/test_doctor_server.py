"""`sa-atp doctor --server`: names the ranks that a stuck job waits for."""

import json
import random
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sa_atp.cli import main
from sa_atp.net.communicator import Communicator
from sa_atp.net.connecting import connect
from sa_atp.net.job_status import ask_for_jobs
from sa_atp.net.parameter_server.server import ServerProcess
from sa_atp.net.session import Sum
from sa_atp.protocol.job.errors import OperationTimeoutError
from sa_atp.protocol.server.diagnosis import diagnose as diagnose_job
from sa_atp.protocol.server.job_status import JobStatus
from sa_atp.protocol.server.server_events import ServerSettings

from .conftest import Join

VALUES = 1000


def until(condition: Callable[[JobStatus], bool], server: ServerProcess) -> JobStatus:
    """The job, as soon as the condition holds; workers report their progress five times a second."""
    while True:
        jobs = ask_for_jobs(server.address)
        if jobs and condition(jobs[0]):
            return jobs[0]
        time.sleep(0.05)


def diagnose(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    status = main(["doctor", "--json", *words])
    return status, json.loads(capsys.readouterr().out)


def contribute(comm: Communicator, sum_: Sum, micro_batch: int) -> None:
    comm.contribute(sum_, [np.ones(VALUES, np.float32)], comm.membership.bit(comm.membership.rank, micro_batch))


def test_a_rank_that_owes_a_part_of_its_shard(
    url: str, server: ServerProcess, join: Join, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = join([0, 1, 2], world_size=3, micro_batches=2, operation_timeout_s=120.0)
    sums = [comm.begin(VALUES) for comm in ranks]
    for comm, sum_ in zip(ranks, sums, strict=True):
        contribute(comm, sum_, 0)
    for rank in (0, 2):
        contribute(ranks[rank], sums[rank], 1)
    until(lambda job: [m.given for m in job.members] == [0b11, 0b100, 0b110000], server)
    until(lambda job: job.members[0].still_ms > 2000, server)
    status, found = diagnose(capsys, "--server", url, "--job", "job")
    assert (status, found["stuck"], found["jobs"][0]["waited_for"]) == (1, True, [1])
    assert "rank 1 owes contributions to fragment" in found["jobs"][0]["verdict"]
    assert main(["doctor", "--server", url]) == 1
    assert "has contributed 1 of its 2 parts" in capsys.readouterr().out
    contribute(ranks[1], sums[1], 1)
    for sum_ in sums:
        assert sum_.future.result()[0] == 6.0
    until(lambda job: not any(m.waiting for m in job.members), server)
    status, found = diagnose(capsys, "--server", url)
    assert (status, found["stuck"], found["jobs"][0]["waited_for"]) == (0, False, [])


def test_what_cannot_be_asked(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--server", url]) == 0
    assert "has no jobs" in capsys.readouterr().out
    assert main(["doctor", "--server", url, "--job", "other"]) == 2
    assert "has no such job; it has none" in capsys.readouterr().err
    assert main(["doctor", "--server", "tcp://x"]) == 2
    assert main(["doctor", "--server", url, "--timeout", "0"]) == 2
    assert main(["doctor", "--job", "x"]) == 2
    assert main(["doctor", "--server", "udp://127.0.0.1:9", "--timeout", "0.2"]) == 1
    assert "no parameter server answers at 127.0.0.1:9" in capsys.readouterr().err


def test_a_switch_that_is_not_where_contributions_go_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A silent socket has the port of --switch-address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind(("127.0.0.1", 0))
        where = nobody.getsockname()
        process = ServerProcess(ServerSettings(switch_address=where), ("127.0.0.1", 0), random.Random(1).getrandbits)
        process.start()
        url = "udp://{}:{}".format(*process.address)
        try:
            with connect(url, job="job", rank=0, world_size=1, operation_timeout_s=4.0) as comm:
                done = comm.all_reduce_async(np.ones(VALUES, np.float32))
                until(lambda job: bool(diagnose_job(job).stuck), process)
                status, found = diagnose(capsys, "--server", url)
                with pytest.raises(OperationTimeoutError) as failed:
                    done.result()
        finally:
            process.stop()
    named = f"the switch at {where[0]}:{where[1]} has answered no rank about it"
    assert status == 1
    assert named in found["jobs"][0]["verdict"]
    assert named in str(failed.value)
