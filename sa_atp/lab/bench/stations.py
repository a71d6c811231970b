"""Measures a worker's time at each station of a packet's path, for `sa-atp bench packet`.

Functions of a worker's driver, socket and kernels are wrapped to measure their time. The rest of a turn is the protocol's
rules: which packets leave, and how arriving ones change the state.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sa_atp.net.communicator import Communicator

STATIONS = ("fill", "transmit", "send", "receive", "sort", "take", "rules", "dequantise")
"""Quantise and write; select fragments; send to the kernel; receive from it; classify; check and store; update state;
convert to float32."""

StationTimes = dict[str, dict[str, int]]
"""Nanoseconds by station: `cpu_ns` of the thread, `wall_ns`."""


def total(found: Sequence[StationTimes]) -> StationTimes:
    """The total over several sums."""
    return {
        kind: {name: sum(each[kind][name] for each in found) for name in STATIONS} for kind in ("cpu_ns", "wall_ns")
    }


@dataclass(slots=True)
class Watch:
    """Nanoseconds of this thread's CPU time and of wall time at each station, since the last `reset`."""

    cpu_ns: dict[str, int] = field(default_factory=dict)
    wall_ns: dict[str, int] = field(default_factory=dict)

    def reset(self) -> None:
        self.cpu_ns = dict.fromkeys(STATIONS, 0)
        self.wall_ns = dict.fromkeys(STATIONS, 0)

    def found(self) -> StationTimes:
        """The time of each station alone: calls of a turn contain those of kernels."""
        return {"cpu_ns": _without_kernels(self.cpu_ns), "wall_ns": _without_kernels(self.wall_ns)}

    def timed(self, station: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            try:
                return function(*arguments)
            finally:
                self.cpu_ns[station] += time.thread_time_ns() - cpu
                self.wall_ns[station] += time.perf_counter_ns() - wall

        return call


def _without_kernels(ns: dict[str, int]) -> dict[str, int]:
    inside = {"transmit": ("fill",), "rules": ("sort", "take")}
    return {name: ns[name] - sum(ns[each] for each in inside.get(name, ())) for name in STATIONS}


class _Timed:
    """A proxy of an object that times some of its functions."""

    def __init__(self, of: Any, watch: Watch, stations: dict[str, str]) -> None:
        self._of = of
        for function, station in stations.items():
            setattr(self, function, watch.timed(station, getattr(of, function)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def watch(communicator: Communicator) -> Watch:
    """Starts to measure a connection. Call it between sums."""
    found = Watch()
    found.reset()
    driver, worker = communicator._driver, communicator._worker  # private: only this benchmark needs them
    driver.steady = None  # the compiled turn is a single call, which cannot be measured in parts
    common = worker.collectives._common
    if common is not None:
        kernels = {"fill": "fill", "streams": "sort", "take": "take", "dequantise": "dequantise"}
        common._kernels = common.results._kernels = _Timed(common._kernels, found, kernels)
    driver.connection = _Timed(worker, found, {"transmit": "transmit", "receive": "rules"})
    driver.socket = _Timed(driver.socket, found, {"send": "send", "receive": "receive"})  # type: ignore[assignment]
    return found
