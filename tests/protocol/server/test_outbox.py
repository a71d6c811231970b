"""Results wait at the parameter server, each once for each rank, and leave in order."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.basics.arrays import ByteRows, Seqs
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.server.outbox import EVERYBODY, Key, Outbox

ADDRESS: Address = ("10.0.0.1", 5000)
SIZE = 10
KEYS: list[Key] = [(1, 0, 0), (1, 0, 1), (1, 0, EVERYBODY), (2, 5, 0)]


def rows(seqs: list[int]) -> tuple[Seqs, ByteRows]:
    """Sequence numbers, and packets that have theirs in each byte."""
    return np.array(seqs, np.int64), np.repeat(np.array(seqs, np.uint8)[:, None], SIZE, 1)


def seqs_of(bursts: list[Burst]) -> list[int]:
    return [int(row[0]) for burst in bursts for row in burst.data]


adds = st.tuples(st.just("add"), st.sampled_from(KEYS), st.lists(st.integers(0, 20), max_size=12))
takes = st.tuples(st.just("take"), st.integers(0, 100) | st.none())
forgets = st.tuples(st.just("forget"), st.sampled_from([(1, 0), (2, 5)]))


@given(st.lists(adds | takes | forgets, max_size=40))
def test_nothing_is_lost_and_nothing_waits_twice(steps: list[tuple[Any, ...]]) -> None:
    """Compared with a list of (receiver, sequence number)."""
    outbox, waiting = Outbox(), list[tuple[Key, int]]()
    for step in steps:
        match step:
            case ("add", key, seqs):
                outbox.add_results(key, ADDRESS, *rows(seqs))
                for seq in seqs:
                    if (key, seq) not in waiting:
                        waiting.append((key, seq))
            case ("take", budget):
                found = seqs_of(outbox.take(budget))
                assert found == [seq for _, seq in waiting[: len(found)]]
                del waiting[: len(found)]
                assert not waiting or (budget is not None and len(found) * SIZE >= budget)
            case ("forget", (job, epoch)):
                outbox.forget(job, epoch)
                waiting = [each for each in waiting if each[0][:2] != (job, epoch)]
        assert outbox.has_results == bool(waiting)
        for key in KEYS:
            known = {seq for k, seq in waiting if k in (key, (*key[:2], EVERYBODY))}
            assert outbox.waits_for(key, np.arange(21)).tolist() == [seq in known for seq in range(21)]


def test_results_of_an_epoch_are_forgotten_and_those_of_the_next_are_not() -> None:
    outbox = Outbox()
    for epoch in range(2):
        outbox.add_results((1, epoch, 0), ADDRESS, *rows([epoch]))
    outbox.forget(1, 0)
    assert seqs_of(outbox.take(None)) == [1]


def test_messages_leave_before_results_whatever_the_budget() -> None:
    outbox = Outbox()
    outbox.add_results(KEYS[0], ADDRESS, *rows([1, 2, 3]))
    outbox.append(Burst.of(ADDRESS, b"message"))
    assert [burst.data.shape for burst in outbox.take(0)] == [(1, 7)]
    assert seqs_of(outbox.take(1)) == [1]
    assert seqs_of(outbox.take(None)) == [2, 3]
