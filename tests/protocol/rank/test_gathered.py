"""A rank's connection in an all-gather: kernels beside the rules, and what its packets say. (protocol section 5.10)"""

import random

import numpy as np
import pytest
from helpers.twins import SERVER, SWITCH, Counted, Twins, damaged, member
from msgspec.structs import replace

from sa_atp.basics.arrays import ByteRows, Integers
from sa_atp.net.loop.compiled import worker_kernels
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.header import bitmaps, first_byte, headers, lanes_of, number_of, size_of, words_of
from sa_atp.protocol.packets.spec import Flag, Kind
from sa_atp.protocol.rank.events import OperationDone
from sa_atp.protocol.rank.sums.gathered_operation import gather_plan_of
from sa_atp.protocol.rank.worker import Worker
from sa_atp.protocol.server.sums import ADDED, COMPLETED, SumStore

RANKS, OWN = 3, 1


def member_of(rng: random.Random, seed: int) -> Membership:
    return replace(member(rng, seed), world_size=RANKS, rank=OWN, micro_batches=1)


def parts_of(rng: random.Random, words: int) -> list[Integers]:
    """Words of all ranks; some are those that no sum can have."""
    drawn = np.random.default_rng(rng.randrange(1 << 30))
    parts = [drawn.integers(-(2**31), 2**31, words).astype(np.int32) for _ in range(RANKS)]
    for part in parts:
        part[drawn.integers(words)] = -(2**31)
    return parts


def results_for(of: Membership, worker: Worker, parts: list[Integers]) -> ByteRows:
    """What a switch multicasts of an all-gather, in the order of its fragments."""
    operation = worker._operations[worker.collectives.begun - 1]
    plan, width = operation.plan, of.contribution_bits
    lanes = np.zeros((RANKS, plan.data_fragments // RANKS * of.lanes), np.int32)
    for row, part in zip(lanes, parts, strict=True):
        row[: part.size] = part
    packets = np.zeros((1 + plan.data_fragments, size_of(Kind.RESULT, of.lanes, width)), np.uint8)
    places = np.array([0, *range(plan.data_start(0), plan.data_start(0) + plan.data_fragments)])
    head = headers(packets)
    head["first"], head["job"], head["epoch"], head["tag"] = first_byte(Kind.RESULT), of.job, of.epoch, operation.tag
    head["seq"] = (operation.first_seq + places) % 2**32
    bitmaps(packets, width)[:] = words_of(of.fan_in, width)
    lanes_of(packets, width)[1:] = lanes.reshape(-1, of.lanes)
    return packets


@pytest.mark.parametrize("seed", range(24))
def test_kernels_do_what_the_rules_say(seed: int) -> None:
    rng = random.Random(seed)
    of = member_of(rng, seed)
    twins = Twins(of)
    words = rng.choice((1, 64, 1000, 6000))
    parts = parts_of(rng, words)
    for worker in twins.both:
        worker.collectives.contribute_part(worker.collectives.begin_gather(words, "name", 1), parts[OWN], 1)
    results = results_for(of, twins.plain, parts)
    now = 1000
    for _ in range(100):
        now += rng.choice((1, 100, 700, 3_000, 120_000))
        while twins.transmit(now, 100_000):
            pass
        first = rng.randrange(len(results)) if rng.random() < 0.5 else 0
        for packets in damaged(rng, results[first : first + rng.randrange(1, rng.choice((3, 20, 200)))]):
            twins.receive(packets, SERVER if rng.random() < 0.1 else SWITCH, now)
            twins.check_same()
        twins.handle_timer(now)
        if twins.plain._operations.oldest is None:
            break
    else:
        twins.receive(results, SWITCH, now)
    events = []
    while (event := twins.next_event()) is not None:
        events.append(event)
    assert OperationDone(0) in events
    twins.take(0, np.zeros((RANKS, 4 * words), np.uint8))  # a damaged number has put values elsewhere


def test_all_of_an_undisturbed_all_gather_is_common(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    rng = random.Random(1)
    of = replace(member_of(rng, 0), lanes=64, slot_count=1024)
    worker = Worker(of, 1, first_request=7, kernels=worker_kernels())
    parts = parts_of(rng, 20 * of.lanes)
    worker.collectives.contribute_part(worker.collectives.begin_gather(20 * of.lanes, "name", 1), parts[OWN], 1)
    results = results_for(of, worker, parts)
    worker.transmit(1000)
    worker.receive([Burst(SWITCH, results[:1].copy())], 1000)
    worker.transmit(1100)
    worker.receive([Burst(SWITCH, results[1:].copy())], 1200)
    assert worker.next_event() == OperationDone(0)
    assert (counted.written, counted.taken) == (20, 60)


def test_what_a_rank_sends() -> None:
    """To the first fragment zeros under its own bits; then its part under all bits; and of others' only resends."""
    rng = random.Random(2)
    of = replace(member_of(rng, 0), lanes=64, slot_count=1024)
    worker = Worker(of, 1, first_request=7)
    parts = parts_of(rng, 150)
    worker.collectives.contribute_part(worker.collectives.begin_gather(150, "name", 1), parts[OWN], 1)
    results = results_for(of, worker, parts)
    data = size_of(Kind.DATA, of.lanes, of.contribution_bits)

    def sent(now: int) -> list[tuple[int, int, int]]:
        """Of each packet with lanes: its place, bits and flags."""
        found = []
        for packets in (burst.data for burst in worker.transmit(now) if burst.data.shape[1] == data):
            for row in range(len(packets)):
                head = headers(packets)[row]
                place = (int(head["seq"]) - of.first_seq) % 2**32
                bits = number_of(bitmaps(packets, of.contribution_bits)[row])
                found.append((place, bits, int(head["flags"])))
                if bits != of.fan_in:
                    assert not lanes_of(packets, of.contribution_bits)[row].any()
        return found

    start = gather_plan_of(150, of).data_start(0)
    own = of.bits_of(OWN)
    assert sent(1000) == [(0, own, 0)]
    worker.receive([Burst(SWITCH, results[:1])], 1100)
    assert sent(1100) == [(start + n, of.fan_in, 0) for n in (3, 4, 5)]
    worker.receive([Burst(SWITCH, results[[1, 3, 4, 5, 6]])], 1200)  # the second of rank 0's is lost
    sent(2_000)
    worker.receive([Burst(SWITCH, results[[7, 8]])], 60_000)
    asked: list[ByteRows] = []
    for now in range(60_000, 90_000, 1000):
        asked += [b.data for b in worker.transmit(now) if headers(b.data)["first"][0] == first_byte(Kind.PROBE)]
    answers = np.concatenate(asked)
    missing = answers[headers(answers)["seq"] == (of.first_seq + start + 1) % 2**32][-1:].copy()
    headers(missing)["first"] = first_byte(Kind.PROBE_REPLY)
    bitmaps(missing, of.contribution_bits)[:] = words_of(of.fan_in, of.contribution_bits)
    worker.receive([Burst(SWITCH, missing)], 90_100)
    assert sent(90_100) == [(start + 1, own, Flag.RESEND)]


def test_the_server_takes_a_whole_sum_where_it_has_a_part() -> None:
    """Zeros of a rank that has missed a result may be there before."""
    store = SumStore(64, 0b111, 5)
    packets = np.zeros((1, size_of(Kind.DATA, 64)), np.uint8)
    head, lanes = headers(packets), lanes_of(packets)
    head["seq"] = 5
    assert store.add(head, np.array([[0b010]], np.uint64), lanes).tolist() == [ADDED]
    lanes[:] = -(2**31)
    assert store.add(head, np.array([[0b111]], np.uint64), lanes).tolist() == [COMPLETED]
    assert (store.complete(np.array([5])).lanes == -(2**31)).all()
