"""Thousands of sums at once, as of a program that sums each parameter by itself: what only waits costs nothing.

Work is counted in calls of Python functions, so that the numbers do not depend on the machine.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import product
from types import FrameType

import numpy as np
import pytest
from helpers.answers import SERVER, member_of, results_of
from helpers.cluster import Cluster, Reduction

from sa_atp import protocol
from sa_atp.protocol.packets.control import Recall, encode
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.header import first_byte, headers, lanes_of
from sa_atp.protocol.packets.spec import HEADER_BYTES, Kind
from sa_atp.protocol.rank.recovery.fetching import FETCH_FRAGMENTS
from sa_atp.protocol.rank.recovery.probing import MAX_QUESTIONS
from sa_atp.protocol.rank.sums.operation import Operation
from sa_atp.protocol.rank.worker import Worker
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.switches.embedded.pipeline import Pipeline

SLOTS = 256
SECOND_US = 1_000_000
CONNECTIONS = tuple(f"{protocol.__path__[0]}/{folder}/" for folder in ("job", "rank", "server"))


def calls_of(action: Callable[[], object]) -> int:
    """How many calls the functions of connections make and get in an action."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call") and frame.f_code.co_filename.startswith(CONNECTIONS)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def worker_of(world_size: int, first_seq: int = 2**32 - 100) -> Worker:
    return Worker(member_of(world_size=world_size, slot_count=SLOTS, first_seq=first_seq), 0, first_request=1)


def begin(worker: Worker, operations: int, *, given: bool = True) -> None:
    for n in range(operations):
        operation = worker.collectives.begin(10, None, 0)
        if given:
            worker.collectives.contribute(operation, [np.full(10, 1.0 + n, np.float32)], 1, 0)


def turn(worker: Worker, now_us: int) -> list[Burst]:
    """What a driver does, whenever something happens and at any rate once a second."""
    worker.receive([], now_us)
    worker.handle_timer(now_us)
    sent = []
    while out := worker.transmit(now_us):
        sent += out
    worker.next_timer_us()
    worker.may_gather()
    worker.describe()
    return sent


def data_in(bursts: list[Burst]) -> list[np.ndarray]:
    return [burst.data for burst in bursts if burst.data[0, 0] == first_byte(Kind.DATA)]


def test_a_turn_costs_the_same_however_many_operations_wait() -> None:
    def cost(operations: int) -> list[int]:
        worker = worker_of(world_size=2)  # nothing is ever complete
        begin(worker, operations)
        turn(worker, 1)
        return [calls_of(lambda now_us=now_us: turn(worker, now_us)) for now_us in (2, 200_000, 400_000, SECOND_US)]  # type: ignore[misc]

    few, many = cost(SLOTS), cost(20 * SLOTS)
    assert many == few


@pytest.mark.parametrize("given", [True, False])
def test_a_silence_brings_on_a_bounded_number_of_questions(given: bool) -> None:
    """Args: given: this worker has contributed; if not, nothing of it can be lost."""
    worker = worker_of(world_size=2)
    worker.window.network = float(SLOTS)
    begin(worker, 5 * SLOTS, given=given)
    turn(worker, 1)
    assert worker._operations.waiting() == 5 * SLOTS - SLOTS // 4, "the next one's slot is that of the oldest fragment"
    asked = [
        int(headers(burst.data)["seq"][0])
        for now_us in (SECOND_US, 2 * SECOND_US)
        for burst in turn(worker, now_us)
        if burst.data[0, 0] == first_byte(Kind.PROBE)
    ]
    first = [(worker.membership.first_seq + n * 4) % 2**32 for n in range(SLOTS // 4)]
    assert asked == (2 * first[:MAX_QUESTIONS] if given else 2 * first[:1])


def test_the_work_for_many_sums_grows_with_their_number(pipeline: Pipeline) -> None:
    """Begun together, and summed by the switch program."""

    def cost(operations: int) -> tuple[int, Cluster]:
        cluster = Cluster([pipeline], settings=ServerSettings(slots=32, slots_per_job=32))
        workers = cluster.joined_job(2)
        reductions = [Reduction([[np.full(10, 1.0 + r, np.float32)] for r in range(2)]) for _ in range(operations)]

        def run() -> None:
            for reduction, worker in product(reductions, workers):
                reduction.start(worker)
            unfinished = reductions[::-1]

            def over() -> bool:
                while unfinished and unfinished[-1].over:
                    unfinished.pop()
                return not unfinished

            cluster.run(over, 10.0)

        calls = calls_of(run)
        for reduction in reductions:
            reduction.check()
        return calls, cluster

    cost(10)  # what is only done the first time
    few, _ = cost(100)
    many, cluster = cost(400)
    assert many < 4.2 * few
    assert not any(worker.worker.stats.retransmitted for worker in cluster.jobs[0])


# --- a worker that others are ahead of --------------------------------------------------------------------------------


def finished(worker: Worker) -> Iterator[Operation]:
    while (event := worker.next_event()) is not None:
        yield worker.collectives.take(event.operation, np.empty(10, np.float32))  # type: ignore[union-attr]


def test_results_of_operations_whose_turn_has_not_come_are_taken() -> None:
    """Helpers have done what this worker has not even contributed to."""
    fast, slow = worker_of(1), worker_of(1)
    begin(fast, 500)
    begin(slow, 500, given=False)
    sums: list[Burst] = []
    now_us = 0
    while len([o for burst in sums for o in burst.data]) < 1000:
        now_us += 1000
        for packets in data_in(turn(fast, now_us)):
            sums.append(results_of(packets, fast.membership.fan_in))
            fast.receive(sums[-1:], now_us)
        list(finished(fast))
    slow.receive(sums[::-1], now_us)  # the last ones first
    assert sorted(operation.index for operation in finished(slow)) == list(range(500))


def test_what_others_missed_is_found_among_thousands_that_are_kept() -> None:
    worker = worker_of(1)
    begin(worker, 2000)
    now_us = over = 0
    while over < 2000:
        now_us += 1000
        for packets in data_in(turn(worker, now_us)):
            worker.receive([results_of(packets, worker.membership.fan_in)], now_us)
        over += len(list(finished(worker)))

    def recalled(operation: int) -> list[Burst]:
        first = (worker.membership.first_seq + 4 * operation) % 2**32
        packet = encode(Recall(first=first, count=FETCH_FRAGMENTS), request=0, job=1, epoch=1, reply=True)
        worker.receive([Burst.of(SERVER, packet)], now_us)
        return [b for b in worker.transmit(now_us) if b.data.shape[1] > HEADER_BYTES and not b.urgent]

    for operation in (0, 1, 999, 1999):
        (burst,) = recalled(operation)
        seqs = headers(burst.data)["seq"].astype(np.int64)
        first = (worker.membership.first_seq + 4 * operation) % 2**32
        count = min(FETCH_FRAGMENTS // 4, 2000 - operation)
        assert seqs.tolist() == [(first + 4 * n + k) % 2**32 for n in range(count) for k in (0, 1)]
        assert lanes_of(burst.data)[1][:10].tolist() == [lanes_of(burst.data)[1][0]] * 10
    assert calls_of(lambda: recalled(5)) < 5_000
