"""The common case by kernels beside the rules, datagram for datagram: the same bytes out, the same state after.

Two connections of one rank live through the same things; one has kernels, the other has not. What comes back is what a
switch would make of it, some of it lost, twice, late, marked, from elsewhere, or broken.
"""

import random
from collections import deque

import numpy as np
import pytest
from helpers.twins import SERVER, SWITCH, Counted, Twins, damaged, integers, member, results_of, values
from msgspec.structs import replace

from sa_atp.basics.arrays import Addends, AnyIntegers, ByteRows, Mask, Seqs, Values
from sa_atp.net.loop.compiled import worker_kernels
from sa_atp.protocol.job.errors import NonFiniteError, ValuesChangedError
from sa_atp.protocol.numbers.fragments import CHUNK_VALUES
from sa_atp.protocol.numbers.scaling import SUM_LIMIT
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.header import first_byte, headers, lanes_of, size_of
from sa_atp.protocol.packets.spec import Kind
from sa_atp.protocol.rank.events import OperationDone
from sa_atp.protocol.rank.worker import Worker
from sa_atp.protocol.server.sums import PAGE, SumStore


@pytest.mark.parametrize("seed", range(60))
def test_the_common_case_is_what_the_rules_say(seed: int) -> None:
    rng = random.Random(seed)
    of = member(rng, seed)
    twins = Twins(of)
    if rng.random() < 0.5:
        twins.fast.write_over()
    now, magnitude = 1000, 1.0
    begun: dict[int, Addends] = {}
    under_way: deque[ByteRows] = deque()
    for step in range(rng.randrange(10, 60)):
        now += rng.choice((1, 100, 700, 3_000, 120_000))
        magnitude *= rng.choice((1.0, 1.0, 1.0, 0.01, 300.0))
        if step == 0 or rng.random() < 0.15:
            count = rng.choice((1, 63, 1000, 16_384, 16_385, 50_000))
            key = rng.choice((None, "a", "b"))
            number = rng.choice((1, of.micro_batches))
            whole = rng.random() < 0.2
            parts: list[Addends] = [values(rng, count, magnitude) for _ in range(number)]
            if whole:
                parts = [integers(rng, count, number) for _ in range(number)]
            index, same_index = (
                worker.collectives.begin(count, (key, count), now, whole=whole) for worker in twins.both
            )
            assert index == same_index
            for worker in twins.both:
                worker.collectives.contribute(index, parts, of.fan_in, now, on_behalf=seed % 7 == 0)
            begun[index] = parts[0]
        while sent := twins.transmit(now, rng.choice((None, 5_000, 100_000))):
            size = size_of(Kind.DATA, of.lanes, of.contribution_bits)
            under_way.extend(results_of(rng, burst.data) for burst in sent if burst.data.shape[1] == size)
        while under_way and rng.random() < 0.8:
            for packets in damaged(rng, under_way.popleft()):
                twins.receive(packets, SERVER if rng.random() < 0.1 else SWITCH, now)
                twins.check_same()
        twins.handle_timer(now)
        while (event := twins.next_event()) is not None:
            if isinstance(event, OperationDone):
                twins.take(event.operation, begun.pop(event.operation))
        twins.check_same()


@pytest.mark.parametrize("bits", [64, 512])
def test_most_of_an_undisturbed_sum_is_common(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would compare the rules with themselves."""
    counted = Counted(monkeypatch)
    of = replace(member(random.Random(1)), lanes=256, contribution_bits=bits)
    worker = Worker(of, 1, first_request=7, kernels=worker_kernels())
    count = 60 * of.lanes
    worker.collectives.contribute(worker.collectives.begin(count, "key", 1), [np.ones(count, np.float32)], of.fan_in, 1)
    for now in range(1000, 100_000, 1000):
        for burst in worker.transmit(now):
            if burst.data.shape[1] == size_of(Kind.DATA, of.lanes, bits):
                results = burst.data.copy()
                headers(results)["first"] = first_byte(Kind.RESULT)
                worker.receive([Burst(SWITCH, results)], now)
    assert worker.next_event() == OperationDone(0)
    assert (counted.written, counted.taken) == (60, 60)


def stored(sums: SumStore, seqs: Seqs) -> list[AnyIntegers | Mask]:
    found = sums.complete(seqs)
    return [found.seqs, found.exponents, found.tags, found.collided, found.lanes]


@pytest.mark.parametrize("seed", range(20))
def test_copies_of_results_are_kept_as_the_rules_keep_them(seed: int) -> None:
    rng = random.Random(seed)
    first_seq = rng.choice((3, 2**32 - 300))
    plain, fast = SumStore(64, 3, first_seq), SumStore(64, 3, first_seq)
    place = 0
    for _ in range(30):
        count = rng.randrange(1, 400)
        start = place + rng.choice((0, 0, 0, 0, -20, 500))
        place = max(place, start + count)
        packets = np.random.default_rng(rng.randrange(1 << 30)).integers(
            0, 256, (count, size_of(Kind.RESULT, 64)), np.uint8
        )
        head = headers(packets)
        head["seq"] = (first_seq + start + np.arange(count)) % 2**32
        head["exponent"], head["tag"], head["bits"], head["flags"] = -3, 9, 3, 0
        known = (plain.keep(head, lanes_of(packets)) != 1).any()
        if fast.keep_stream(int(head["seq"][0]), -3, 9, lanes_of(packets)):
            assert not known
        else:
            assert known or start < 0
            fast.keep(head, lanes_of(packets))
        if rng.random() < 0.2:
            for store in (plain, fast):
                store.release((first_seq + max(0, place - 300)) % 2**32)
        seqs = (first_seq + np.arange(max(0, place - 2 * PAGE), place + 2)) % 2**32
        for a, b in zip(stored(plain, seqs), stored(fast, seqs), strict=True):
            assert a.tolist() == b.tolist()
    assert plain.pages == fast.pages


class Alone:
    """A worker that is all of its job, whose sums are what its contributions are, unless a test says otherwise."""

    def __init__(self, *, fast: bool) -> None:
        of = replace(member(random.Random(1)), world_size=1, micro_batches=1, lanes=64, slot_count=1024)
        self.worker = Worker(of, 1, first_request=7, kernels=worker_kernels() if fast else None)
        self.size, self.now = size_of(Kind.DATA, of.lanes, of.contribution_bits), 1000
        self.number = -1

    def begin(self, values: Values) -> None:
        self.number = self.worker.collectives.begin(len(values), ("key", len(values)), self.now)
        self.worker.collectives.contribute(self.number, [values], self.worker.membership.fan_in, self.now)

    def results(self) -> ByteRows:
        """What comes back for what leaves now."""
        self.now += 100
        bursts = [b.data for b in self.worker.transmit(self.now) if b.data.shape[1] == self.size]
        made = np.concatenate([np.zeros((0, self.size), np.uint8), *bursts])
        headers(made)["first"], headers(made)["flags"] = first_byte(Kind.RESULT), 0
        return made

    def take(self, results: ByteRows) -> None:
        if len(results):
            self.worker.receive([Burst(SWITCH, results)], self.now)

    def places(self, results: ByteRows) -> Seqs:
        """Of each in its operation."""
        operation = self.worker._operations.get(self.number)
        assert operation is not None
        places: Seqs = headers(results)["seq"].astype(np.uint32) - np.uint32(operation.first_seq)
        return places


@pytest.mark.parametrize("fast", [False, True])
def test_nan_of_which_the_magnitudes_of_another_chunk_have_told(fast: bool) -> None:
    """When the second chunk of a sum is complete, what was asked for because of the first says already that it has NaN."""
    alone = Alone(fast=fast)
    values = np.ones(2 * CHUNK_VALUES, np.float32)
    alone.begin(values)
    while not isinstance(alone.worker.next_event(), OperationDone):
        alone.take(alone.results())
    values = values.copy()
    values[0], values[-1] = 1e30, np.nan
    alone.begin(values)
    held_back = np.zeros((0, alone.size), np.uint8)
    operation = alone.worker._operations.get(alone.number)
    assert operation is not None
    last = operation.plan.data_start(0) + operation.plan.data_fragments - 1
    for _ in range(100):
        results = alone.results()
        is_last = alone.places(results) == last
        held_back = np.concatenate([held_back, results[is_last]])
        alone.take(results[~is_last])
    assert len(held_back) == 1
    assert operation.attempt.tolist() == [1, 0]
    alone.take(held_back)
    problem = alone.worker._receiver.problem
    assert isinstance(problem, NonFiniteError)
    assert (problem.ranks, problem.first_value, problem.last_value) == ((0,), CHUNK_VALUES, 2 * CHUNK_VALUES - 1)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("lane", [2**31 - 1, SUM_LIMIT])
def test_a_sum_that_none_can_be_ends_the_operation(fast: bool, lane: int) -> None:
    """No contributions add up to that, so nobody can be named."""
    alone = Alone(fast=fast)
    alone.begin(np.ones(CHUNK_VALUES, np.float32))
    for _ in range(100):
        results = alone.results()
        operation = alone.worker._operations.get(alone.number)
        assert operation is not None
        is_data = alone.places(results) % operation.plan.attempt_fragments >= operation.plan.scale_fragments
        lanes_of(results)[is_data] = lane
        alone.take(results)
        if alone.worker._receiver.problem is not None:
            break
    problem = alone.worker._receiver.problem
    assert isinstance(problem, ValuesChangedError)
    assert (problem.ranks, problem.first_value, problem.last_value) == ((), 0, CHUNK_VALUES - 1)
    assert "contributions of unknown ranks are larger" in str(problem)
