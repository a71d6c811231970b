"""Decides the batch sizes of the next step from what everybody's last steps took.

Every rank has one, and gives it the same measurements in the same order: so all have the same sizes without asking.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sa_atp.batching.program import Share, check, makespan_s, solve
from sa_atp.batching.speed import Speed, SpeedModel
from sa_atp.errors import UserError

LEAST_MEASUREMENTS = 3  # of each worker, before its speed is believed: one may be out of the ordinary
LEAST_GAIN = 0.02  # of the makespan; new sizes cost something, if only caches
ERRORS = 3.0  # standard errors that a gain must exceed
SLOW = 1.2  # times the median worker's time: a static straggler


@dataclass(frozen=True, slots=True)
class Measured:
    """What a worker computed in a step."""

    samples: int
    seconds: float


class Orchestrator:
    """Begins with sizes that are as equal as the bounds allow."""

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
    ) -> None:
        """Args:
        batch: samples of a step, of all workers together.
        bounds: least and most samples of each worker; default: 1 or more.
        granularity: sizes are multiples of this.
        offsets_s: c_i, what each worker's step takes besides computing; default: nothing.
        prior_beta_s: see SpeedModel.
        least_measurements: of each worker before sizes change for the first time.
        least_gain: share of the makespan that a change must be expected to save, besides the error of the models.

        Raises: UserError: no sizes fit the bounds.
        """
        if workers < 1:
            raise UserError(f"workers = {workers}: expected 1 or more")
        self.workers = workers
        self.batch = batch
        self.changes = 0
        """How often sizes have changed."""
        self._bounds = list(bounds) if bounds is not None else [(1, batch)] * workers
        self._offsets_s = [0.0] * workers
        offsets_s = list(offsets_s) if offsets_s is not None else self._offsets_s
        if len(self._bounds) != workers or len(offsets_s) != workers:
            raise UserError(f"bounds and offsets of batch sizes: expected one for each of {workers} workers")
        self._least_measurements = least_measurements
        self._least_gain = least_gain
        self._models = [SpeedModel(prior_beta_s=prior_beta_s) for _ in range(workers)]
        self.granularity = granularity
        check(self._bounds, batch, granularity)
        self.sizes = self._best([Speed(1.0)] * workers)
        self._offsets_s = offsets_s

    def measured(self, step: Sequence[Measured | None]) -> tuple[int, ...]:
        """Takes what each worker did in a step (None: it was not measured), and decides the sizes of the next one.

        Returns: samples of each worker. Sizes stay what they are unless the models say that others are clearly better.
        """
        if len(step) != self.workers:
            raise UserError(f"measurements of {len(step)} workers: expected {self.workers}")
        for model, found in zip(self._models, step, strict=True):
            if found is not None:
                model.add(found.samples, found.seconds)
        speeds = self.speeds
        if all(m.measurements >= self._least_measurements for m in self._models):
            known = [speed for speed in speeds if speed is not None]
            sizes = self._best(known)
            now_s, then_s = self._makespan_s(known, self.sizes), self._makespan_s(known, sizes)
            error = max(speed.error for speed in known)
            if sizes != self.sizes and now_s - then_s > now_s * max(self._least_gain, ERRORS * error):
                self.sizes = sizes
                self.changes += 1
        return self.sizes

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def speeds(self) -> list[Speed | None]:
        """Of each worker, as far as it was measured."""
        return [model.speed for model in self._models]

    @property
    def expected_s(self) -> float | None:
        """When the last worker should be done with the current sizes; None: not all speeds are known."""
        speeds = self.speeds
        return None if None in speeds else self._makespan_s([s for s in speeds if s is not None], self.sizes)

    @property
    def static_stragglers(self) -> list[int]:
        """Workers whose own speed is clearly below the median's: smaller batches are made for them."""
        speeds = self.speeds
        if None in speeds:
            return []
        equal = max(1, self.batch // self.workers)
        times = [speed.seconds(equal) for speed in speeds if speed is not None]
        median = sorted(times)[(self.workers - 1) // 2]
        return [worker for worker, seconds in enumerate(times) if seconds > SLOW * median]

    @property
    def dynamic_stragglers(self) -> list[int]:
        """Workers that were slow by their own measure when they were last measured: batch sizes do not follow them."""
        return [worker for worker, model in enumerate(self._models) if model.is_slow_now]

    @property
    def slow_shares(self) -> list[float]:
        """How often each worker was slow by its own measure, of the steps that are remembered."""
        return [model.slow_share for model in self._models]

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
