"""Reduce-scatter: the part of a connection's interface that is for jobs whose results are scattered."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import UserError
from sa_atp.net.flat_values import flat_float32
from sa_atp.net.session import Sum, future_of
from sa_atp.protocol.job.membership import Membership


class Scattering(ABC):
    membership: Membership

    @abstractmethod
    def _wait_for(self, start: Callable[[], Sum | None]) -> Sum | None:
        """Starts a sum, and waits for it."""

    @abstractmethod
    def _start(self, values: Values, scale: float, *, measured: bool) -> Sum:
        """Starts a sum without a key, to which this rank contributes these values."""

    def reduce_scatter(self, array: Any, *, scale: float = 1.0) -> Values:
        """Sums an array over all ranks, of which each gets a part: of N ranks, rank r the r-th of N equal parts.

        It works in a job whose results are scattered (see `connect`). The array must not change meanwhile, and keeps
        its values.

        Args: array, scale: as for `all_reduce`; the array's size must be a multiple of the number of ranks.
        Returns: float32[size / N], in the array's flat order.
        Raises: as `all_reduce`.
        """
        sum_ = self._wait_for(lambda: self._part_of(array, scale, measured=True))
        return np.empty(0, np.float32) if sum_ is None else sum_.out

    def reduce_scatter_async(self, array: Any, *, scale: float = 1.0, measured: bool = True) -> "Future[Values]":
        """Like `reduce_scatter`, in the background. The array must not be touched until the future is done."""
        return future_of(self._part_of(array, scale, measured=measured), np.empty(0, np.float32))

    def _part_of(self, array: Any, scale: float, *, measured: bool) -> Sum | None:
        """Starts a sum of which this rank gets a part; None: the array is empty."""
        if not self.membership.scatters:
            raise UserError('reduce_scatter is for jobs that were joined with results="scattered"')
        values, _ = flat_float32(array)
        if not values.size:
            return None
        return self._start(values, scale, measured=measured)
