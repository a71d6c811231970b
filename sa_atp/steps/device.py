"""Emulated compute devices.

Workers of a local run share a few cores, so their real speed says nothing. Each micro-batch is really computed, and
then the worker waits for the rest of the time that its device would have taken; a helper, for that of its own device.
Reports say that this is emulated.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np

from sa_atp.net.clock import now_us
from sa_atp.steps.parallel import Curve, TaskTime

T = TypeVar("T")


class Cancelled(Exception):
    """The result is no longer wanted."""


# Work that follows the last result this soon counts as handed over in time: real devices have a queue, so the host's
# time between two pieces of work does not show. Nor does time by which really computing a piece exceeded the device's
# time: the next piece is done when the device would have done it.
QUEUE_US = 2_000


class Device:
    def __init__(self, compute_us_per_sample: int, compute_us_per_pass: int = 0) -> None:
        """Args: compute_us_per_pass: fixed time of a piece of work, besides that of its samples."""
        self.compute_us_per_sample = compute_us_per_sample
        self.compute_us_per_pass = compute_us_per_pass
        self.slowdown = 1.0
        self._emulated_us = 0.0  # time of all pieces of work on the device
        self._worked_s = 0.0  # CPU time that they really took
        self._free_us = 0  # when the device was done with the last piece of work
        self._returned_us = 0  # when its result was returned, which is later if cores are busy

    def microseconds(self, samples: int) -> float:
        """Time of a piece of work with so many samples."""
        return (samples * self.compute_us_per_sample + self.compute_us_per_pass) * self.slowdown

    @property
    def cores(self) -> float:
        """Cores of this machine that the emulation uses while the device computes; 0: no work yet, or no emulation."""
        return 1e6 * self._worked_s / self._emulated_us if self._emulated_us else 0.0

    def run(self, samples: int, work: Callable[[], T], stop: "Future[Any] | None" = None) -> T:
        """Does `work`, and takes as long as this device would for so many samples, or longer if the work takes longer.

        Pieces that follow at once make up for the excess, if they can.

        Args: stop: ends the waiting once it is done.
        Raises: Cancelled: `stop` was done first.
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
        # the excess counts up to the time of one piece, so that the device is never much faster than it should be
        self._free_us = max(end_us, self._returned_us - int(self.microseconds(samples)))
        return result

    def sleep_until(self, end_us: int, stop: "Future[Any] | None" = None) -> None:
        """Sleeps until a time of the host's clock. Raises: Cancelled: `stop` was done first."""
        while (left_us := end_us - now_us()) > 0:
            if stop is None:
                time.sleep(left_us / 1e6)
                continue
            try:
                stop.result(timeout=left_us / 1e6)
            except TimeoutError:
                continue
            raise Cancelled


class SharedDevice(Device):
    """A device that computes several pieces of work at a time, each called from a thread of its own.

    The pieces are really computed one by one (a model has one set of gradients), and then wait together until the device
    would have computed them: with n at a time each takes n / gain(n) times as long as alone (steps/parallel.py).
    """

    def __init__(self, compute_us_per_sample: int, compute_us_per_pass: int = 0, *, curve: Curve) -> None:
        """Args: curve: the throughput with several pieces at a time."""
        super().__init__(compute_us_per_sample, compute_us_per_pass)
        self._time = TaskTime(curve)
        self._changed = threading.Condition()
        self._working = threading.Lock()
        self._before = threading.local()  # by thread: `ended`, where its last piece ended; `returned_us`, when

    def run(self, samples: int, work: Callable[[], T], stop: "Future[Any] | None" = None) -> T:
        with self._changed:
            began, took_us = self._time.begin(now_us()), self.microseconds(samples)
            if now_us() - getattr(self._before, "returned_us", 0) < QUEUE_US:
                began = max(self._before.ended, began - took_us)
            end = began + took_us
            self._changed.notify_all()
        try:
            with self._working:
                began_s = time.thread_time()
                result = work()
                self._worked_s += time.thread_time() - began_s
                self._emulated_us += self.microseconds(samples)
            if stop is not None:
                stop.add_done_callback(lambda _: self._wake())
            with self._changed:
                while (left_us := self._time.when_us(end) - now_us()) > 0:
                    if stop is not None and stop.done():
                        raise Cancelled
                    self._changed.wait(left_us / 1e6)
                self._before.ended, self._before.returned_us = end, now_us()
        finally:
            with self._changed:
                self._time.end(now_us())
                self._changed.notify_all()
        return result

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class CpuDevice(Device):
    """A device that uses CPU time of its host, so that a CPU quota, or other processes there, slow it down.

    After a piece of work, the thread computes on until it has used as much CPU time as the device would take.
    """

    def run(self, samples: int, work: Callable[[], T], stop: "Future[Any] | None" = None) -> T:
        end_s = time.thread_time() + self.microseconds(samples) / 1e6
        result = work()
        while time.thread_time() < end_s:
            if stop is not None and stop.done():
                raise Cancelled
            self._burn @ self._burn  # about 0.1 ms, without the interpreter's lock
        return result

    _burn = np.ones((96, 96), np.float32)
