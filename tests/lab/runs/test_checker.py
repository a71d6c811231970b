"""The thread that hashes contributions and sums of a worker."""

import numpy as np
import pytest

from sa_atp.lab.backends.worker_process import Checker
from sa_atp.steps.step_record import StepRecord


def test_what_it_cannot_hash_is_told_at_the_end() -> None:
    """A sum without its hash would count as not checked, which nobody reads."""
    checker = Checker(values=8, contributions=2)
    record = StepRecord(0, 0)
    record.computed.append((0, 0, np.ones(9, np.float32)))  # a value too many stands for memory that is not there
    checker.add(record, np.zeros(8, np.int32), np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="broadcast"):
        checker.finish()
