"""Results that come before their operation is begun. (protocol section 5.7)"""

from collections.abc import Sequence

import numpy as np
import pytest
from helpers.answers import member_of

from sa_atp.basics.arrays import ByteRows, Values
from sa_atp.protocol.job.errors import NonFiniteError
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.header import first_byte, headers
from sa_atp.protocol.packets.spec import Kind
from sa_atp.protocol.rank.events import OperationDone
from sa_atp.protocol.rank.pace import early
from sa_atp.protocol.rank.pace.early import ROW_BYTES, EarlyResults
from sa_atp.protocol.rank.worker import Worker

MEMBER = member_of(slot_count=1024)
SWITCH = MEMBER.data_address
OURS = MEMBER.fan_in


def results(tensors: Sequence[Values], *, key: str | None) -> ByteRows:
    """Results of sums to which one rank contributes everything, one after the other."""
    worker, found, now = Worker(MEMBER, 0, first_request=1), [], 0
    for tensor in tensors:
        worker.collectives.contribute(worker.collectives.begin(len(tensor), key, now), (tensor,), OURS, now)
        for _ in range(4):
            now += 1_000
            for burst in worker.transmit(now):
                rows = burst.data[headers(burst.data)["first"] == first_byte(Kind.DATA)].copy()
                if burst.address == SWITCH and len(rows):
                    headers(rows)["first"] = first_byte(Kind.RESULT)
                    worker.receive([Burst(SWITCH, rows)], now)
                    found.append(rows)
    return np.concatenate(found)


def begun(rows: ByteRows, sums: int, *, values: int, key: str | None) -> tuple[Worker, list[object]]:
    """A worker that begins sums when their results are there. Returns: also its events."""
    worker = Worker(MEMBER, 0, first_request=1)
    worker.receive([Burst(SWITCH, rows)], 1_000)
    for _ in range(sums):
        worker.collectives.begin(values, key, 2_000)
    events: list[object] = []
    for _ in range(sums):
        worker.transmit(2_000)
        while (event := worker.next_event()) is not None:
            events.append(event)
            if isinstance(event, OperationDone):
                worker.collectives.take(event.operation, np.zeros(values, np.float32))
    return worker, events


def test_a_sum_that_waits_for_its_key_has_its_results_when_it_opens() -> None:
    rows = results([np.full(640, 2.0, np.float32)] * 3, key="k")
    worker, events = begun(rows, 3, values=640, key="k")
    assert events == [OperationDone(0), OperationDone(1), OperationDone(2)]
    assert worker.stats.results == len(rows)
    assert worker.stats.duplicates == 0


def test_what_is_wrong_with_them_is_told_at_once() -> None:
    tensor = np.ones(640, np.float32)
    tensor[5] = np.nan
    worker, events = begun(results([tensor], key=None), 1, values=640, key=None)
    assert events == []
    assert isinstance(worker.server.giving_up, NonFiniteError)


def test_each_is_kept_once_and_only_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "EARLY_BYTES", 3 * (10 + ROW_BYTES))
    kept, rows = EarlyResults(), np.arange(40, dtype=np.uint8).reshape(4, 10)
    assert kept.keep(7, rows[2:3]) == 1
    assert kept.keep(5, rows) == 2, "the third is there, and for the fourth there is no room"
    assert [each.tolist() for each in kept.take(6)] == [rows[:1].tolist()]
    assert kept.keep(9, rows[3:, :4]) == 1
    assert [each.tolist() for each in kept.take(100)] == [rows[1:3].tolist(), rows[3:, :4].tolist()]
    assert list(kept.take(100)) == []
