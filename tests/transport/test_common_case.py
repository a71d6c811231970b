"""The common case by kernels beside the rules, datagram for datagram: the same bytes out, the same state after.

Two connections of one rank live through the same things; one has kernels, the other has not. What comes back is what a
switch would make of it, some of it lost, twice, late, marked, from elsewhere, or broken.
"""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from sa_atp.arrays import AnyIntegers, ByteRows, Mask, Seqs, Values
from sa_atp.net.compiled import worker_kernels
from sa_atp.spec import Flag, Kind
from sa_atp.transport.common_case import CommonCase
from sa_atp.transport.events import OperationDone
from sa_atp.transport.membership import Membership
from sa_atp.transport.sums import PAGE, SumStore
from sa_atp.transport.worker import Worker
from sa_atp.wire.datagrams import Burst
from sa_atp.wire.header import HEADER, first_byte, headers, lanes_of, size_of

SWITCH, SERVER = ("10.0.0.1", 9), ("10.0.0.2", 9)
CACHES = {
    "_rounded",
    "fits",
    "is_aligned",
    "plan",
    "parts",
    "_under_way",
    "_codes",
}  # of a group: they save work, and decide nothing


def member(rng: random.Random, seed: int = 0) -> Membership:
    """Args: seed: every third is of a wide build."""
    bits = 512 if seed % 3 == 2 else 64
    return Membership(
        job=rng.randrange(1, 255),
        epoch=rng.randrange(256),
        rank=0,
        world_size=1,
        micro_batches=rng.choice((1, 1, 2, 3, 33)) * (4 if bits > 64 else 1),
        lanes=256 if bits > 64 else rng.choice((64, 256, 2048)),
        contribution_bits=bits,
        slot_base=rng.randrange(4) * 16,
        slot_count=rng.choice((16, 64, 1024)),
        first_seq=rng.choice((0, 5, 2**32 - 40, rng.randrange(2**32))),
        data_address=SWITCH,
        server_address=SERVER,
        alive_every_us=10**9,
    )


def state(worker: Worker) -> Iterator[object]:
    """All that decides what a connection does next."""
    yield vars(worker.window)
    yield vars(worker.round_trip)
    yield {k: v for k, v in vars(worker._probe_timer).items() if k != "_round_trip"}
    yield worker.stats
    yield worker._operations.under_way
    yield str(worker.error)
    for operation in worker._operations._open.values():
        yield operation.describe()
        yield operation.histories()
        for name in (
            "pending",
            "missing",
            "resolved",
            "attempt",
            "exponent",
            "_accepted",
            "_waiting",
            "_low",
        ):
            value = getattr(operation, name)
            yield name, value.tolist() if isinstance(value, np.ndarray) else value
        for local in range(operation.plan.span):
            known = operation.recall(local)
            yield None if known is None else (known[0], known[1].tolist())
        for group in operation.groups:
            for name, value in vars(group).items():
                if name not in CACHES:
                    yield name, value.tolist() if isinstance(value, np.ndarray) else value


def values(rng: random.Random, count: int, magnitude: float) -> Values:
    made = np.random.default_rng(rng.randrange(1 << 30)).standard_normal(count) * magnitude
    if rng.random() < 0.2:
        made[:] = 0
    if rng.random() < 0.1:
        made[rng.randrange(count)] *= 2.0 ** rng.choice((8, 20, 40))
    return made.astype(np.float32)


def results_of(rng: random.Random, contributions: ByteRows) -> ByteRows:
    """What a switch multicasts for them, with its marks."""
    made = contributions.copy()
    head = headers(made)
    head["first"] = first_byte(Kind.RESULT)
    head["flags"] = 0
    if rng.random() < 0.3:
        head["flags"][rng.randrange(len(made)) :] |= np.uint8(
            rng.choice((Flag.CONGESTION, Flag.COLLISION, Flag.FROM_PS))
        )
    return made


def damaged(rng: random.Random, packets: ByteRows) -> list[ByteRows]:
    """The same after a network; each item is a burst."""
    kind = rng.random()
    if kind < 0.5:
        return [packets]
    if kind < 0.6:
        return [packets[np.sort(np.array(rng.sample(range(len(packets)), rng.randrange(1, len(packets) + 1))))]]
    if kind < 0.7:
        return [packets[np.array([rng.randrange(len(packets)) for _ in packets])]]
    if kind < 0.8:
        cut = rng.randrange(len(packets))
        return [burst for burst in (packets[cut:], packets[:cut]) if len(burst)]
    if kind < 0.9:
        row, field = rng.randrange(len(packets)), rng.choice(HEADER.names or ())
        broken = packets.copy()
        headers(broken)[field][row] ^= headers(broken)[field].dtype.type(1 << rng.randrange(7))
        return [broken]
    return [np.ascontiguousarray(packets[:, : rng.randrange(1, packets.shape[1])]), packets]


@pytest.mark.parametrize("seed", range(60))
def test_the_common_case_is_what_the_rules_say(seed: int) -> None:
    rng = random.Random(seed)
    of = member(rng, seed)
    plain, fast = Worker(of, 1, first_request=7), Worker(of, 1, first_request=7, kernels=worker_kernels())
    both = (plain, fast)
    if rng.random() < 0.5:
        fast.write_over()
    now, magnitude = 1000, 1.0
    outs: dict[int, tuple[Values, Values]] = {}
    under_way: deque[ByteRows] = deque()
    for step in range(rng.randrange(10, 60)):
        now += rng.choice((1, 100, 700, 3_000, 120_000))
        magnitude *= rng.choice((1.0, 1.0, 1.0, 0.01, 300.0))
        if step == 0 or rng.random() < 0.15:
            count = rng.choice((1, 63, 1000, 16_384, 16_385, 50_000))
            key = rng.choice((None, "a", "b"))
            parts = [values(rng, count, magnitude) for _ in range(rng.choice((1, of.micro_batches)))]
            index, same_index = (worker.begin(count, (key, count), now) for worker in both)
            assert index == same_index
            for worker in both:
                worker.contribute(index, parts, of.fan_in, now, on_behalf=seed % 7 == 0)
            outs[index] = (np.zeros(count, np.float32), np.zeros(count, np.float32))
        while True:
            budget = rng.choice((None, 5_000, 100_000))
            sent, same = (worker.transmit(now, budget) for worker in both)
            assert [(b.address, b.data.shape) for b in sent] == [(b.address, b.data.shape) for b in same]
            for ours, theirs in zip(sent, same, strict=True):
                assert np.argwhere(ours.data != theirs.data).tolist() == []
            if not sent:
                break
            size = size_of(Kind.DATA, of.lanes, of.contribution_bits)
            under_way.extend(results_of(rng, burst.data) for burst in sent if burst.data.shape[1] == size)
        while under_way and rng.random() < 0.8:
            for packets in damaged(rng, under_way.popleft()):
                source = SERVER if rng.random() < 0.1 else SWITCH
                for worker in both:
                    worker.receive([Burst(source, packets.copy())], now)
                assert list(state(plain)) == list(state(fast))
        for worker in both:
            worker.handle_timer(now)
        while (event := plain.next_event()) is not None:
            assert repr(event) == repr(fast.next_event())
            if isinstance(event, OperationDone):
                a, b = outs.pop(event.operation)
                plain.result(event.operation, a)
                fast.result(event.operation, b)
                assert a.tobytes() == b.tobytes()
        assert fast.next_event() is None
        assert list(state(plain)) == list(state(fast))


@pytest.mark.parametrize("bits", [64, 512])
def test_most_of_an_undisturbed_sum_is_common(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would compare the rules with themselves."""
    written = taken = 0
    write, take = CommonCase.write, CommonCase.take

    def counted_write(self: CommonCase, *of: object) -> int:
        nonlocal written
        count = write(self, *of)  # type: ignore[arg-type]
        written += count
        return count

    def counted_take(self: CommonCase, *of: object) -> object:
        nonlocal taken
        found = take(self, *of)  # type: ignore[arg-type]
        taken += 0 if found is None else found.fresh
        return found

    monkeypatch.setattr(CommonCase, "write", counted_write)
    monkeypatch.setattr(CommonCase, "take", counted_take)
    of = replace(member(random.Random(1)), lanes=256, contribution_bits=bits)
    worker = Worker(of, 1, first_request=7, kernels=worker_kernels())
    count = 60 * of.lanes
    worker.contribute(worker.begin(count, "key", 1), [np.ones(count, np.float32)], of.fan_in, 1)
    for now in range(1000, 100_000, 1000):
        for burst in worker.transmit(now):
            if burst.data.shape[1] == size_of(Kind.DATA, of.lanes, bits):
                results = burst.data.copy()
                headers(results)["first"] = first_byte(Kind.RESULT)
                worker.receive([Burst(SWITCH, results)], now)
    assert worker.next_event() == OperationDone(0)
    assert (written, taken) == (60, 60)


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
