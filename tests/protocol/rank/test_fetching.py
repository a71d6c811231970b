"""How long results that were asked for are waited for, and how many are asked for again. (protocol section 5.7)"""

from dataclasses import dataclass, field

import numpy as np
import pytest
from helpers.answers import member_of
from helpers.cluster import Cluster, ones

from sa_atp.basics.arrays import Indices, Mask
from sa_atp.protocol.numbers.fragments import Plan, plan_of
from sa_atp.protocol.packets.control import Fetch, decode_request
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.header import first_byte, headers
from sa_atp.protocol.packets.spec import HEADER_BYTES, Kind
from sa_atp.protocol.rank.recovery.fetching import FETCH_FRAGMENTS, QUICK_TRIES, Fetching
from sa_atp.protocol.rank.worker import Worker
from sa_atp.protocol.server.server import ParameterServer
from sa_atp.switches.embedded.pipeline import Pipeline

FRAGMENTS = 200
ANSWER_US = 1_000
MEMBER = member_of(slot_count=1024, first_seq=1000)


@dataclass
class Missing:
    """An operation, of which some fragments are missing."""

    first_seq: int = 1000
    held_bits: int = 0
    pending: Mask = field(default_factory=lambda: np.ones(FRAGMENTS, bool))
    index: int = 0
    plan: Plan = field(default_factory=lambda: plan_of(FRAGMENTS * 64, 64))

    def oldest_pending(self) -> int | None:
        found = np.flatnonzero(self.pending)
        return int(found[0]) if len(found) else None

    def missed(self, most: int, *, by_order: bool) -> Indices:
        found = np.flatnonzero(self.pending)
        return found[found < found[0] + most] if len(found) else found


class Slow:
    """A worker, whose results come so much later than it asks, one after the other."""

    def __init__(self, queue_us: int, each_us: int = 1_000) -> None:
        self.queue_us, self.each_us = queue_us, each_us
        self.fetching = Fetching(MEMBER, lambda: ANSWER_US)
        self.sent = 0  # results

    def take(self, operation: Missing, now_us: int) -> int:
        """Fetches all of an operation, looking every 20 ms whether to ask again. Returns: when it has all."""
        coming: list[tuple[int, int]] = []
        free_us, look_us = 0, now_us
        while operation.pending.any():
            now_us = min([look_us, *(at for at, _ in coming[:1])])
            if coming and coming[0][0] <= now_us:
                _, fragment = coming.pop(0)
                operation.pending[fragment] = False
                self.fetching.note_coming(operation.first_seq + fragment, now_us)
            else:
                look_us += 20_000
            self.fetching.ask([operation], now_us)  # type: ignore[list-item]
            for packet in self.fetching.packets:
                _, asked = decode(packet.data[0].tobytes())
                for seq in range(asked.first, asked.first + asked.count):
                    free_us = max(free_us, now_us + self.queue_us) + self.each_us
                    coming.append((free_us, seq - operation.first_seq))
                    self.sent += 1
            self.fetching.packets.clear()
        return now_us


def decode(packet: bytes) -> tuple[bytes, Fetch]:
    asked = decode_request(packet)
    assert isinstance(asked, Fetch)
    return packet[:HEADER_BYTES], asked


def test_what_waits_in_a_long_queue_is_asked_for_again_by_halves() -> None:
    """It may be lost. So it is asked for again, but all these questions together for no more than one batch."""
    slow = Slow(queue_us=300_000)
    slow.take(Missing(), 0)
    assert FRAGMENTS < slow.sent < 2 * FRAGMENTS + FETCH_FRAGMENTS


@pytest.mark.parametrize("queue_us", [500, 300_000])
def test_a_batch_that_is_lost_is_asked_for_again(queue_us: int) -> None:
    slow = Slow(queue_us)
    now_us = slow.take(Missing(), 0)
    lost = Missing(first_seq=1000 + FRAGMENTS)
    slow.fetching.ask([lost], now_us)  # type: ignore[list-item]
    assert len(slow.fetching.packets) == 1
    slow.fetching.packets.clear()
    assert slow.take(lost, now_us) < now_us + 2 * (queue_us + FRAGMENTS * slow.each_us)


def test_the_rest_of_a_batch_is_asked_for_behind_its_last_result() -> None:
    """They come in order, so what is missing then is lost."""
    slow = Slow(queue_us=300_000)
    now_us = slow.take(Missing(), 0)
    torn = Missing(first_seq=1000 + FRAGMENTS)
    slow.fetching.ask([torn], now_us)  # type: ignore[list-item]
    slow.fetching.packets.clear()
    torn.pending[[0, *range(2, FRAGMENTS)]] = False
    now_us += 400_000
    slow.fetching.note_coming(torn.first_seq + FRAGMENTS - 1, now_us)
    slow.fetching.ask([torn], now_us)  # type: ignore[list-item]
    _, asked = decode(slow.fetching.packets[0].data[0].tobytes())
    assert (asked.first, asked.count) == (torn.first_seq + 1, 1)


def test_a_question_that_is_lost_is_repeated_when_its_answer_is_due_and_then_left_to_silence() -> None:
    """The parameter server may be gone: then it is not asked again and again at the pace of its answers."""
    fetching, now_us = Fetching(MEMBER, lambda: ANSWER_US), 0
    operation = Missing()
    assert fetching.due_us(operation) is None, "nothing was asked for"  # type: ignore[arg-type]
    for tries in range(1, QUICK_TRIES + 2):
        fetching.ask([operation], now_us)  # type: ignore[list-item]
        assert len(fetching.packets) == tries
        due_us = fetching.due_us(operation)  # type: ignore[arg-type]
        if due_us is not None:
            assert 0 < due_us - now_us <= 3 * ANSWER_US
            now_us = due_us
    assert due_us is None
    assert tries == QUICK_TRIES + 1
    fetching.note_coming(operation.first_seq, now_us)
    assert fetching.due_us(operation) is not None, "it is there"  # type: ignore[arg-type]
    assert fetching.due_us(Missing(first_seq=5000)) is None, "of that nothing was asked for"  # type: ignore[arg-type]


def test_where_results_come_the_rest_of_them_is_waited_for_as_long_as_two_answers_take() -> None:
    """The last of what was asked for may be lost, too: then nothing says that it has all come, but its time."""
    fetching, torn, now_us = Fetching(MEMBER, lambda: 40_000), Missing(), 0
    fetching.ask([torn], now_us)  # type: ignore[list-item]
    fetching.packets.clear()
    now_us += 50_000
    for fragment in range(100):
        torn.pending[fragment] = False
        fetching.note_coming(torn.first_seq + fragment, now_us)
    fetching.ask([torn], now_us + 79_999)  # type: ignore[list-item]
    assert not fetching.packets
    fetching.ask([torn], now_us + 80_000)  # type: ignore[list-item]
    _, asked = decode(fetching.packets[0].data[0].tobytes())
    assert (asked.first, asked.count) == (torn.first_seq + 100, FRAGMENTS - 100)


def misses(party: Worker | ParameterServer, seq: int, monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    """Loses the first results of a fragment that are sent to it."""
    receive, lost = party.receive, 0

    def without(bursts: list[Burst], now_us: int) -> None:
        nonlocal lost
        left = []
        for burst in bursts:
            head = headers(burst.data)
            wanted = (head["first"] == first_byte(Kind.RESULT)) & (head["seq"] == seq) & (lost < times)
            lost += int(wanted.sum())
            left.append(Burst(burst.address, burst.data[~wanted]))
        receive([burst for burst in left if len(burst.data)], now_us)

    monkeypatch.setattr(party, "receive", without)


class Helped:
    """A job of three ranks in which rank 0 contributes the part of rank 1 as well."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.cluster = Cluster([pipeline])
        self.ranks = self.cluster.joined_job(3)
        self.cluster.run_for(0.25)
        self.worker = self.ranks[1].worker
        self.lost = self.worker.membership.first_seq + 9
        self.sum = ones(2_000, 3)

    def begin(self, *ranks: int) -> None:
        for rank in ranks:
            self.sum.begin(self.ranks[rank])

    def contribute(self) -> None:
        self.sum.contribute(self.ranks[0])
        self.sum.contribute(self.ranks[0], rank=1)
        self.sum.contribute(self.ranks[2])

    def finish(self, seconds: float) -> None:
        self.cluster.run(lambda: self.sum.over, seconds=seconds)
        self.sum.check()


def test_a_helped_rank_gets_a_result_that_the_server_has_missed_too(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has sent nothing that the switch would answer with the result, and others have not told the server yet that they
    have it: they do so five times a second.
    """
    job = Helped(pipeline)
    for party in (job.worker, job.cluster.world.server):
        misses(party, job.lost, monkeypatch)
    job.begin(0, 1, 2)
    job.contribute()
    job.finish(seconds=0.05)
    assert job.worker.stats.results_fetched == 1


def test_a_helped_rank_asks_again_for_a_result_that_is_complete_before_the_next_silence(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Helped(pipeline)
    misses(job.worker, job.lost, monkeypatch, times=3)
    job.begin(0, 1, 2)
    job.contribute()
    job.finish(seconds=0.01)


@pytest.mark.parametrize(("kept_bytes", "fetched"), [(1 << 20, 1), (0, 33)])
def test_results_that_come_before_their_sum_is_begun_are_kept(
    kept_bytes: int, fetched: int, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what was lost, or has no room, is asked for: else all would come twice, down a link that may be slow."""
    monkeypatch.setattr("sa_atp.protocol.rank.pace.early.EARLY_BYTES", kept_bytes)
    job = Helped(pipeline)
    misses(job.worker, job.lost, monkeypatch)
    job.begin(0, 2)
    job.contribute()
    job.cluster.run_for(0.25)
    job.begin(1)
    job.finish(seconds=0.01)
    assert job.worker.stats.results_fetched == fetched
    assert job.worker.stats.duplicates == (0 if kept_bytes else 32)
