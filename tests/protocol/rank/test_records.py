"""State that is declared once: an ordinary object and a record have the same fields, and rules do the same to both."""

import random
import struct

import numpy as np
import pytest

from sa_atp.net.loop import compiled
from sa_atp.protocol.rank.pace import timing, window
from sa_atp.protocol.rank.pace.timing import RoundTrip
from sa_atp.protocol.rank.pace.window import Window
from sa_atp.protocol.rank.sums.under_way import UnderWay
from sa_atp.protocol.records import Record, dtype_of


class Both:
    path: RoundTrip
    under_way: UnderWay
    share: float
    is_new: bool

    def __init__(self) -> None:
        self.path, self.under_way = RoundTrip(), UnderWay(1, 2, 3, 4)
        self.share, self.is_new = 0.25, False


def test_an_object_goes_into_a_record_and_back() -> None:
    record = Record(Both)
    record.write(Both())
    assert record.array["under_way"].item() == (1, 2, 3, 4)
    assert record.array[["share", "is_new"]].item() == (0.25, False)
    record.array["path"]["smoothed_us"], record.array["is_new"] = 77, True
    other = Both()
    path = other.path
    other.share = 0.5
    record.read(other)
    assert other.path is path, "parts stay the objects that they are"
    assert [path.smoothed_us, other.share, other.is_new] == [77, 0.25, True]
    assert [type(path.smoothed_us), type(other.is_new)] == [int, bool]


def test_a_number_of_another_type_is_refused() -> None:
    made = Both()
    made.under_way.sent = 0.5  # type: ignore[assignment]
    with pytest.raises(struct.error):
        Record(Both).write(made)


def test_numbers_are_as_wide_as_kernels_expect() -> None:
    found = dtype_of(Both)
    assert found.isalignedstruct
    numbers = [found["share"], found["is_new"], found["path"]["samples"]]
    assert numbers == [np.dtype(each) for each in (np.float64, np.bool_, np.int64)]


def test_compiled_rules_do_to_records_what_plain_ones_do_to_objects() -> None:
    known = compiled.rules()
    on_results, on_loss, answer = known[window.on_results], known[window.on_loss], known[timing.time_answer]
    plain, path = Window(256), RoundTrip()
    record, path_record = Record(Window), Record(RoundTrip)
    record.write(plain)
    path_record.write(path)
    rng, now_us = random.Random(1), 0
    for _ in range(2000):
        now_us += rng.randrange(400)
        results = rng.randrange(30)
        given = results, rng.choice((0, 0, results)), rng.choice((0, 0, 0, 1)), now_us, path.smoothed_us, results // 2
        plain.on_results(*given)
        on_results(record.array[0], *given)
        if rng.random() < 0.05:
            lost = rng.randrange(1, 9), rng.random(), now_us, path.smoothed_us
            plain.on_loss(*lost)
            on_loss(record.array[0], *lost)
        elapsed_us = rng.randrange(1, 5_000)
        path.time_answer(elapsed_us)
        answer(path_record.array[0], elapsed_us)
        for ours, array in ((plain, record.array), (path, path_record.array)):
            assert array.item() == tuple(getattr(ours, name) for name in array.dtype.names or ())
