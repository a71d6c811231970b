"""Decides the batch sizes of the next step from all workers' measured times.

Every rank has an orchestrator, and gives it the same measurements in the same order, so all ranks decide alike without
messages. Where many ranks share a process, as in a simulation, they share the computation as well.
"""

import copy
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sa_atp.basics.errors import UserError
from sa_atp.protocol.batches.program import Share, makespan_s, solve
from sa_atp.protocol.batches.speed import MovingSpeed, Speed, SpeedModel

LEAST_MEASUREMENTS = 3  # of each worker, before sizes change: one may be an outlier
LEAST_GAIN = 0.02  # share of the makespan; new sizes cost something, if only caches
ERRORS = 3.0  # standard errors that a gain must exceed


@dataclass(frozen=True, slots=True)
class Measured:
    """A worker's measurement in a step."""

    samples: int
    seconds: float


class _Known:
    """Models and sizes after a step, immutable. Remembers its successor, so that ranks of one process can share that."""

    def __init__(self, models: Sequence[SpeedModel], sizes: tuple[int, ...]) -> None:
        self.models = models
        self.sizes = sizes
        self._name: Hashable = None
        self._after: weakref.ref[_Known] | None = None

    def after(self, name: Hashable) -> "_Known | None":
        return self._after() if self._after is not None and self._name == name else None

    def keep(self, name: Hashable, after: "_Known") -> "_Known":
        self._name, self._after = name, weakref.ref(after)
        return after


@lru_cache(maxsize=8)
def _equal(bounds: tuple[tuple[int, int], ...], batch: int, granularity: int) -> tuple[int, ...]:
    """Sizes that are as equal as the bounds allow. Raises: UserError: no sizes fit the bounds."""
    return solve([Share(Speed(1.0), low, high) for low, high in bounds], batch, granularity)


@lru_cache(maxsize=8)
def _at_first(sizes: tuple[int, ...], prior_beta_s: float, weight: float, settings: Hashable) -> _Known:
    """The knowledge before the first step. Args: settings: all else on which decisions depend."""
    return _Known([MovingSpeed(weight) if weight else SpeedModel(prior_beta_s=prior_beta_s) for _ in sizes], sizes)


class Orchestrator:
    """Decides each step's batch sizes from measured speeds. The first sizes are as equal as the bounds allow."""

    def __init__(
        self,
        workers: int,
        batch: int,
        *,
        bounds: Sequence[tuple[int, int]] | None = None,
        granularity: int = 1,
        offsets_s: Sequence[float] | None = None,
        prior_beta_s: float = 0.0,
        least_measurements: int = LEAST_MEASUREMENTS,
        least_gain: float = LEAST_GAIN,
        weight: float = 0.0,
    ) -> None:
        """Args:
        batch: samples of a step, of all workers together.
        bounds: least and most samples of each worker; default: 1 or more.
        granularity: sizes are multiples of this.
        offsets_s: c_i, seconds of each worker's step besides computing; default: 0.
        prior_beta_s: see SpeedModel.
        least_measurements: of each worker before sizes change for the first time.
        least_gain: share of the makespan that a change must be expected to save, besides the error of the models.
        weight: of the newest measurement, for speeds as moving averages; 0: lines that are fitted by medians.

        Raises: UserError: no sizes fit the bounds.
        """
        if workers < 1:
            raise UserError(f"workers = {workers}: expected 1 or more")
        self.workers = workers
        self.batch = batch
        self.changes = 0
        """How often sizes have changed."""
        self._bounds = list(bounds) if bounds is not None else [(1, batch)] * workers
        self._offsets_s = list(offsets_s) if offsets_s is not None else [0.0] * workers
        if len(self._bounds) != workers or len(self._offsets_s) != workers:
            raise UserError(f"bounds and offsets of batch sizes: expected one for each of {workers} workers")
        self._least_measurements = least_measurements
        self._least_gain = least_gain
        self.granularity = granularity
        limits = tuple(self._bounds)
        settings = (batch, limits, granularity, tuple(self._offsets_s), least_measurements, least_gain)
        self._known = _at_first(_equal(limits, batch, granularity), prior_beta_s, weight, settings)

    def decide(self, step: Sequence[Measured | None]) -> tuple[int, ...]:
        """Takes each worker's measurement of a step (None: not measured), and decides the sizes of the next step.

        Returns: samples of each worker. Sizes stay unless the models say that others are clearly better.
        """
        if len(step) != self.workers:
            raise UserError(f"measurements of {len(step)} workers: expected {self.workers}")
        return self.decide_once(tuple(step), lambda: step)

    def decide_once(self, name: Hashable, measurements: Callable[[], Sequence[Measured | None]]) -> tuple[int, ...]:
        """Decides as `decide` does, computed once for all orchestrators of this process.

        Args: name: identifies the measurements; measurements: returns them, called if no other rank has decided yet.
        """
        before = self._known
        after = before.after(name)
        if after is None:
            after = before.keep(name, self._next(before, measurements()))
        self.changes += after.sizes != before.sizes
        self._known = after
        return after.sizes

    def _next(self, before: "_Known", step: Sequence[Measured | None]) -> "_Known":
        models = []
        for model, found in zip(before.models, step, strict=True):
            if found is not None:
                model = copy.copy(model)
                model.add(found.samples, found.seconds)
            models.append(model)
        sizes = before.sizes
        if all(m.measurements >= self._least_measurements for m in models):
            known = [model.speed for model in models if model.speed is not None]
            best = self._best(known)
            now_s, then_s = self._makespan_s(known, sizes), self._makespan_s(known, best)
            error = max(speed.error for speed in known)
            if best != sizes and now_s - then_s > now_s * max(self._least_gain, ERRORS * error):
                sizes = best
        return _Known(models, sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each worker in the next step."""
        return self._known.sizes

    @property
    def _models(self) -> Sequence[SpeedModel]:
        return self._known.models

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def speeds(self) -> list[Speed | None]:
        """Speed of each worker; None: not measured."""
        return [model.speed for model in self._models]

    # --- the program --------------------------------------------------------------------------------------------------

    def _shares(self, speeds: Sequence[Speed]) -> list[Share]:
        return [
            Share(speed, low, high, offset_s)
            for speed, (low, high), offset_s in zip(speeds, self._bounds, self._offsets_s, strict=True)
        ]

    def _best(self, speeds: Sequence[Speed]) -> tuple[int, ...]:
        return solve(self._shares(speeds), self.batch, self.granularity)

    def _makespan_s(self, speeds: Sequence[Speed], sizes: Sequence[int]) -> float:
        return makespan_s(self._shares(speeds), sizes)
