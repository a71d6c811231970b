"""How long a worker spends at each station of a packet's way: for `sa-atp bench packet`.

A worker's driver, socket and kernels are replaced by some that look at the clock before and after. What is left of a turn
between them is the rules: which packets leave, and what follows from those that came.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sa_atp.net.communicator import Communicator

STATIONS = ("fill", "transmit", "send", "receive", "sort", "take", "rules", "dequantise")
"""Quantise and write; decide what leaves; to the kernel; from it; see what it is; check and keep; decide what follows; to
float32."""

StationTimes = dict[str, dict[str, int]]
"""Nanoseconds by station: `cpu_ns` of the thread, `wall_ns`."""


def total(found: Sequence[StationTimes]) -> StationTimes:
    """Of several sums."""
    return {
        kind: {name: sum(each[kind][name] for each in found) for name in STATIONS} for kind in ("cpu_ns", "wall_ns")
    }


@dataclass(slots=True)
class Watch:
    """Nanoseconds of this thread's CPU time, and of the wall's, at each station since the last `reset`."""

    cpu_ns: dict[str, int] = field(default_factory=dict)
    wall_ns: dict[str, int] = field(default_factory=dict)

    def reset(self) -> None:
        self.cpu_ns = dict.fromkeys(STATIONS, 0)
        self.wall_ns = dict.fromkeys(STATIONS, 0)

    def found(self) -> StationTimes:
        """What each station itself took: a turn's calls contain those of kernels."""
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
    """An object some of whose functions are timed; everything else is its own."""

    def __init__(self, of: Any, watch: Watch, stations: dict[str, str]) -> None:
        self._of = of
        for function, station in stations.items():
            setattr(self, function, watch.timed(station, getattr(of, function)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def watch(communicator: Communicator) -> Watch:
    """Looks at the clock in everything that this connection does from now on; call it between sums."""
    found = Watch()
    found.reset()
    driver, worker = communicator._driver, communicator._worker  # nobody else wants to know: no way in is made for this
    driver.steady = None  # its turns are one call, in which nobody can look at the clock
    common = worker._common
    if common is not None:
        kernels = {"fill": "fill", "streams": "sort", "take": "take", "dequantise": "dequantise"}
        common._kernels = common.results._kernels = _Timed(common._kernels, found, kernels)
    driver.connection = _Timed(worker, found, {"transmit": "transmit", "receive": "rules"})
    driver.socket = _Timed(driver.socket, found, {"send": "send", "receive": "receive"})  # type: ignore[assignment]
    return found
