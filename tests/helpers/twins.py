"""Two connections of one rank that live through the same things, and all that decides what each does next."""

import random
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from sa_atp.basics.arrays import Addends, ByteRows, Integers, Values
from sa_atp.net.loop.compiled import worker_kernels
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.header import HEADER, first_byte, headers
from sa_atp.protocol.packets.spec import Flag, Kind
from sa_atp.protocol.rank.compiled.common_case import CommonCase, Taken
from sa_atp.protocol.rank.events import Event
from sa_atp.protocol.rank.recovery.questions import Question
from sa_atp.protocol.rank.worker import Worker

SWITCH, SERVER = ("10.0.0.1", 9), ("10.0.0.2", 9)
CACHES = {
    "rounded",
    "fits",
    "is_aligned",
    "plan",
    "parts",
    "read_by_kernels",
    "_under_way",
    "sent",
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
    for round_trip in (worker.round_trip, worker.round_trip.of_server):
        yield {} if round_trip is None else {k: v for k, v in vars(round_trip).items() if k != "of_server"}
    prober = worker._prober
    asked = prober.questions
    yield vars(prober.asking), asked._counts, asked._last
    for questions in (asked._latest, asked._open):
        yield [(key, {k: v for k, v in asdict_of(q).items() if k != "operation"}) for key, q in questions.items()]
    yield {k: v for k, v in vars(worker._probe_timer).items() if k != "_round_trip"}
    yield worker.stats
    yield worker._operations.under_way
    yield str(worker.error)
    for operation in worker._operations._open.values():
        yield operation.describe()
        yield operation._history.tolist()
        for name in (
            "pending",
            "missing",
            "resolved",
            "attempt",
            "exponent",
            "_accepted",
            "_waiting",
        ):
            value = getattr(operation, name)
            yield name, value.tolist() if isinstance(value, np.ndarray) else value
        yield operation.oldest_pending()
        for local in range(operation.plan.span):
            known = operation.recall(local)
            yield None if known is None else (known[0], known[1].tolist())
        for group in operation.groups:
            yield group.rounded.poisoned_chunks
            for name, value in vars(group).items():
                if name not in CACHES:
                    yield name, value.tolist() if isinstance(value, np.ndarray) else value


def asdict_of(question: Question) -> dict[str, object]:
    return {field.name: getattr(question, field.name) for field in fields(question)}


def values(rng: random.Random, count: int, magnitude: float) -> Values:
    made = np.random.default_rng(rng.randrange(1 << 30)).standard_normal(count) * magnitude
    if rng.random() < 0.2:
        made[:] = 0
    if rng.random() < 0.1:
        made[rng.randrange(count)] *= 2.0 ** rng.choice((8, 20, 40))
    return made.astype(np.float32)


def integers(rng: random.Random, count: int, parts: int) -> Integers:
    """Whole numbers, of which so many parts can be summed."""
    most = -(-(2 ** rng.choice((1, 10, 25, 30))) // parts)
    return np.random.default_rng(rng.randrange(1 << 30)).integers(1 - most, most, count, np.int32)


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


class Twins:
    """Two connections of one rank that live through the same things: `plain` has only the rules, `fast` kernels as well."""

    def __init__(self, of: Membership) -> None:
        self.of = of
        self.plain = Worker(of, 1, first_request=7)
        self.fast = Worker(of, 1, first_request=7, kernels=worker_kernels())
        self.both = (self.plain, self.fast)

    def transmit(self, now: int, budget: int | None = None) -> list[Burst]:
        """Returns what leaves, which is the same for both."""
        return same_bursts(self.plain.transmit(now, budget), self.fast.transmit(now, budget))

    def receive(self, packets: ByteRows, address: Address, now: int) -> None:
        for worker in self.both:
            worker.receive([Burst(address, packets.copy())], now)

    def handle_timer(self, now: int) -> None:
        for worker in self.both:
            worker.handle_timer(now)

    def next_event(self) -> Event | None:
        """Returns an event, which is the same for both."""
        event, same = (worker.next_event() for worker in self.both)
        assert repr(event) == repr(same)
        return event

    def take(self, operation: int, like: Addends, factor: float = 1.0) -> Addends:
        """Returns the result of an operation, which is the same for both. Args: like: an array of its shape and type."""
        out, same = np.zeros_like(like), np.zeros_like(like)
        self.plain.collectives.take(operation, out, factor)
        self.fast.collectives.take(operation, same, factor)
        assert out.tobytes() == same.tobytes()
        return out

    def check_same(self) -> None:
        assert list(state(self.plain)) == list(state(self.fast))


def same_bursts(wanted: list[Burst], found: list[Burst]) -> list[Burst]:
    assert [(b.address, b.data.shape) for b in wanted] == [(b.address, b.data.shape) for b in found]
    for ours, theirs in zip(wanted, found, strict=True):
        assert np.argwhere(ours.data != theirs.data).tolist() == []
    return wanted


class Counted:
    """Counts fragments that kernels write, and results that they take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written = self.taken = 0
        write, take = CommonCase.write, CommonCase.take

        def counted_write(common: CommonCase, *of: Any) -> int:
            count = write(common, *of)
            self.written += count
            return count

        def counted_take(common: CommonCase, *of: Any) -> Taken | None:
            found = take(common, *of)
            self.taken += 0 if found is None else found.fresh
            return found

        monkeypatch.setattr(CommonCase, "write", counted_write)
        monkeypatch.setattr(CommonCase, "take", counted_take)
