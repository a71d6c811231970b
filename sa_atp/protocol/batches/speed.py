"""How long a worker takes for a batch of b samples: t(b) = alpha b + beta, fitted to measurements.

The fit is by medians (H. Theil 1950, P. K. Sen 1968: the slope is the median of the slopes of all pairs; of two in the
middle the lower one), so that transient slowness does not move it, even in half of all steps. A lasting change moves it
at once: when the newest measurements all lie on one side of the fit, older ones are forgotten.
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass

from sa_atp.basics.errors import UserError

WINDOW = 16  # measurements that are kept
PERSISTENT = 5  # so many in a row on one side are a new speed; with half a window, medians would have moved already
DRIFTED, DRIFTED_SIGMAS = 0.1, 3.0  # least distance from the fit: relative, and in deviations of the noise
SPREAD = 0.05  # batch sizes that differ by less, relatively, do not determine a slope
FEW = 8  # with so few measurements the median deviation may be small by chance: the upper quartile is used
TO_SIGMA, QUARTILE_TO_SIGMA = 1.4826, 0.869  # from those to a standard deviation, for normal noise
OF_MEDIAN = 1.2533  # standard error of a median over that of a mean: sqrt(pi / 2)


@dataclass(frozen=True, slots=True)
class Speed:
    """A worker's time for a batch. Without samples there is no pass, and no fixed cost."""

    alpha_s: float
    """Seconds a sample; more than 0."""
    beta_s: float = 0.0
    """Fixed cost of a batch, seconds."""
    error: float = 0.0
    """Relative standard error of the times."""

    def seconds(self, samples: int) -> float:
        return self.alpha_s * samples + self.beta_s if samples else 0.0


class SpeedModel:
    """Fits one worker's speed online; a function of the measurements alone."""

    def __init__(self, *, prior_beta_s: float = 0.0, window: int = WINDOW) -> None:
        """Args:
        prior_beta_s: the fixed cost in seconds, used while all batches had one size.
        window: measurements that are kept.
        """
        if window < 2 * PERSISTENT + 1:
            raise UserError(f"window = {window}: expected {2 * PERSISTENT + 1} or more")
        self.prior_beta_s = prior_beta_s
        self._points: deque[tuple[int, float]] = deque(maxlen=window)
        self._speed: Speed | None = None
        self._sigma = 0.0

    def __copy__(self) -> "SpeedModel":
        """An independent copy."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other._points = self._points.copy()
        return other

    def add(self, samples: int, seconds: float) -> None:
        """Adds a measurement. Args: samples: 1 or more; seconds: more than 0. Others are ignored."""
        if samples < 1 or not 0.0 < seconds < math.inf:
            return
        self._points.append((samples, seconds))
        self._fit()
        if self._has_drifted():
            for _ in range(len(self._points) - PERSISTENT):
                self._points.popleft()
            self._fit()

    @property
    def measurements(self) -> int:
        """How many measurements the fit rests on."""
        return len(self._points)

    @property
    def speed(self) -> Speed | None:
        """The fit; None before anything was measured."""
        return self._speed

    def _residual(self, samples: int, seconds: float) -> float:
        """Relative difference of a measurement from the model; more than 0: it took longer."""
        assert self._speed is not None
        return seconds / self._speed.seconds(samples) - 1.0

    def _limit(self, least: float, sigmas: float) -> float:
        return max(least, sigmas * self._sigma)

    def _has_drifted(self) -> bool:
        if len(self._points) <= 2 * PERSISTENT:
            return False  # the medians follow by themselves
        newest = [self._residual(b, t) for b, t in list(self._points)[-PERSISTENT:]]
        limit = self._limit(DRIFTED, DRIFTED_SIGMAS)
        return min(newest) > limit or max(newest) < -limit

    def _fit(self) -> None:
        alpha, beta = self._line()
        count = len(self._points)
        self._speed = Speed(alpha, beta, 1.0)
        self._sigma = self._noise()
        self._speed = Speed(alpha, beta, OF_MEDIAN * self._sigma / math.sqrt(count) if count > 1 else 1.0)

    def _noise(self) -> float:
        """Standard deviation of the residuals, robust against outliers."""
        residuals = [self._residual(b, t) for b, t in self._points]
        deviations = sorted(abs(r) for r in residuals)
        if len(residuals) <= FEW:
            return QUARTILE_TO_SIGMA * deviations[math.ceil(0.75 * len(deviations)) - 1]
        # workers are often slow, seldom fast: residuals below the line are noise, even if half of the steps are slow
        below = [-r for r in residuals if r <= 0.0] or deviations
        return TO_SIGMA * min(statistics.median(deviations), statistics.median(below))

    def _line(self) -> tuple[float, float]:
        points = list(self._points)
        slopes = [
            (t - other_t) / (b - other_b)
            for n, (b, t) in enumerate(points)
            for other_b, other_t in points[:n]
            if abs(b - other_b) > SPREAD * max(b, other_b)
        ]
        if slopes:
            alpha = statistics.median_low(slopes)
            beta = statistics.median_low([t - alpha * b for b, t in points])
            if alpha > 0.0 and beta >= 0.0:
                return alpha, beta
            if alpha > 0.0:  # a negative fixed cost is noise: the line goes through 0
                return statistics.median_low([t / b for b, t in points]), 0.0
        # one size only, or noise that hides the slope
        beta = min(self.prior_beta_s, 0.5 * min(t for _, t in points))
        return statistics.median_low([(t - beta) / b for b, t in points]), beta


class MovingSpeed(SpeedModel):
    """Follows one worker's speed at once: samples a second are an exponentially weighted moving average; no fixed cost.

    So it predicts slowness that lasts for some steps, and is misled by slowness of one step.
    """

    def __init__(self, weight: float) -> None:
        """Args: weight: of the newest measurement, above 0 and at most 1."""
        super().__init__()
        self._weight = weight

    def _fit(self) -> None:
        samples, seconds = self._points[-1]
        newest = samples / seconds
        before = newest if self._speed is None else 1 / self._speed.alpha_s
        self._speed = Speed(1 / (before + self._weight * (newest - before)))

    def _has_drifted(self) -> bool:
        return False  # the average follows by itself
