"""The thread that hashes contributions and sums of a worker, and the comparison of hashes."""

from typing import Any

import numpy as np
import pytest

from sa_atp.lab.backends.worker_process import Checker
from sa_atp.lab.runs.collect import check_sums
from sa_atp.steps.step_record import StepRecord


def test_what_it_cannot_hash_is_told_at_the_end() -> None:
    """A sum without its hash would count as not checked, which nobody reads."""
    checker = Checker(values=8, contributions=2)
    record = StepRecord(0, 0)
    record.computed.append((0, 0, np.ones(9, np.float32)))  # a value too many stands for memory that is not there
    checker.add(record, np.zeros(8, np.int32), np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="broadcast"):
        checker.finish()


def said(contributed: int, summed: int) -> dict[str, Any]:
    """What a worker says of step 0: the hashes of what rank 0 contributed to it, and of its sum."""
    return {"contributed": [(0, 0, 0, contributed)], "sums": [(0, summed)]}


@pytest.mark.parametrize(
    ("workers", "bits", "wrong"),
    [
        ([said(5, 5), said(5, 5)], range(1, 2), 0),
        ([said(5, 5), said(5, 6)], range(1, 2), 1),  # another sum at one of them
        ([said(5, 5), said(6, 5)], range(1, 2), 2),  # two have contributed different values as the same
        ([said(5, 5)], range(2, 3), 1),  # nobody has contributed what has to be in it
    ],
)
def test_sums_that_are_not_what_was_contributed_are_wrong(
    workers: list[dict[str, Any]], bits: range, wrong: int
) -> None:
    assert check_sums(workers, bits) == (len(workers), wrong)
