"""Emulated compute devices.

Workers of a local run share a few cores, so their real speed says nothing. Each micro-batch is really computed, and then
the worker waits until the time has passed that its device would have taken. Helpers wait as long as their own devices
take. Reports say that this is emulated.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from sa_atp.net.clock import now_us

Wait = Callable[[float], bool]


class Cancelled(Exception):
    """The result is no longer wanted."""


# Work that is handed over this soon after the last was returned finds the device still busy: real devices are fed ahead, so
# what the host takes between two pieces of work does not show. Nor does the time by which really computing a piece took
# longer than the device: the cores are not the device's, and the next piece is done when the device would have done it.
QUEUE_US = 2_000


class Device:
    def __init__(self, compute_us_per_sample: int, compute_us_per_pass: int = 0) -> None:
        """Args: compute_us_per_pass: what a piece of work takes however few samples it has."""
        self.compute_us_per_sample = compute_us_per_sample
        self.compute_us_per_pass = compute_us_per_pass
        self.slowdown = 1.0
        self._emulated_us = 0.0  # what all pieces of work take on the device
        self._worked_s = 0.0  # CPU time that they really took
        self._free_us = 0  # when the device was done with the last piece of work
        self._returned_us = 0  # when its result was there, later where cores are busy

    def microseconds(self, samples: int) -> float:
        """What so many samples take."""
        return (samples * self.compute_us_per_sample + self.compute_us_per_pass) * self.slowdown

    @property
    def cores(self) -> float:
        """Of this machine, that pretending to be the device takes while it computes; 0: it has not, or is no emulation."""
        return 1e6 * self._worked_s / self._emulated_us if self._emulated_us else 0.0

    def run(self, samples: int, work: Callable[[], Any], stop: "Future[Any] | None" = None) -> Any:
        """Does `work`, and takes the time that this device takes for so many samples, or longer, if the work does.

        What it takes longer, pieces that follow at once take less, if the work allows.

        Args: stop: once this is done, the rest of the time is not waited for.
        Raises: Cancelled.
        """
        start_us = now_us()
        if start_us - self._returned_us < QUEUE_US:
            start_us = self._free_us
        end_us = start_us + int(self.microseconds(samples))
        began_s = time.thread_time()
        result = work()
        self._worked_s += time.thread_time() - began_s
        self._emulated_us += self.microseconds(samples)
        self.sleep_until(end_us, stop)
        self._returned_us = now_us()
        # what a piece took longer than the device is made up for by as much as one piece: a device is never much faster
        self._free_us = max(end_us, self._returned_us - int(self.microseconds(samples)))
        return result

    def sleep_until(self, end_us: int, stop: "Future[Any] | None" = None) -> None:
        """Raises: Cancelled."""
        while (left_us := end_us - now_us()) > 0:
            if stop is None:
                time.sleep(left_us / 1e6)
                continue
            try:
                stop.result(timeout=left_us / 1e6)
            except TimeoutError:
                continue
            raise Cancelled


class CpuDevice(Device):
    """A device whose work costs CPU time of its host, so that a CPU quota, or other processes there, slow it down.

    After a piece of work is really computed, the thread computes on until it has used the CPU time that the device takes.
    """

    def run(self, samples: int, work: Callable[[], Any], stop: "Future[Any] | None" = None) -> Any:
        end_s = time.thread_time() + self.microseconds(samples) / 1e6
        result = work()
        while time.thread_time() < end_s:
            if stop is not None and stop.done():
                raise Cancelled
            self._burn @ self._burn  # about 0.1 ms, and other threads may run meanwhile
        return result

    _burn = np.ones((96, 96), np.float32)
