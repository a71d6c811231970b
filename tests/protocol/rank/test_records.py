"""State that is declared once: an ordinary object and a record have the same fields, and rules do the same to both."""

import random

import numpy as np

from sa_atp.net.loop import compiled
from sa_atp.protocol.rank.pace import timing, window
from sa_atp.protocol.rank.pace.timing import RoundTrip
from sa_atp.protocol.rank.pace.window import Window
from sa_atp.protocol.rank.records import dtype_of, set_values, table, values_of
from sa_atp.protocol.rank.sums.under_way import UnderWay


class Both:
    path: RoundTrip
    under_way: UnderWay
    share: float
    is_new: bool

    def __init__(self) -> None:
        self.path, self.under_way = RoundTrip(), UnderWay(1, 2, 3, 4)
        self.share, self.is_new = 0.25, True


def test_an_object_goes_into_a_record_and_back() -> None:
    records = table(Both, 2)
    records[1] = values_of(Both, Both())
    assert records[1]["under_way"].item() == (1, 2, 3, 4)
    records[1]["path"]["smoothed_us"] = 77
    other = Both()
    path = other.path
    other.is_new = False
    set_values(Both, other, records[1].item())
    assert other.path is path, "parts stay the objects that they are"
    assert (path.smoothed_us, other.share) == (77, 0.25)
    assert other.is_new is True
    assert type(path.smoothed_us) is int


def test_numbers_are_as_wide_as_kernels_expect() -> None:
    found = dtype_of(Both)
    assert found.isalignedstruct
    assert (found["share"], found["is_new"], found["path"]["samples"]) == (np.float64, np.bool_, np.int64)


def test_compiled_rules_do_to_records_what_plain_ones_do_to_objects() -> None:
    known = compiled.rules()
    on_results, on_loss, answer = known[window.on_results], known[window.on_loss], known[timing.answer]
    plain, path = Window(256), RoundTrip()
    records, paths = table(Window, 1), table(RoundTrip, 1)
    records[0], paths[0] = values_of(Window, plain), values_of(RoundTrip, path)
    rng, now_us = random.Random(1), 0
    for _ in range(2000):
        now_us += rng.randrange(400)
        results = rng.randrange(30)
        given = results, rng.choice((0, 0, results)), rng.choice((0, 0, 0, 1)), now_us, path.smoothed_us, results // 2
        plain.on_results(*given)
        on_results(records[0], *given)
        if rng.random() < 0.05:
            lost = rng.randrange(1, 9), rng.random(), now_us, path.smoothed_us
            plain.on_loss(*lost)
            on_loss(records[0], *lost)
        elapsed_us = rng.randrange(1, 5_000)
        path.answer(elapsed_us)
        answer(paths[0], elapsed_us)
        assert records[0].item() == values_of(Window, plain)
        assert paths[0].item() == values_of(RoundTrip, path)
