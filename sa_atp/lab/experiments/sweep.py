"""The result of a sweep, for programs: a mean and its interval for each value and policy, and their figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import one_of
from sa_atp.lab import report
from sa_atp.lab.experiments.frames import frame
from sa_atp.lab.experiments.result import Result
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import FIGURES, Plan
from sa_atp.lab.report import sweep
from sa_atp.lab.report.drawing.style import PAPER, SCREEN, NothingToDrawError, Style
from sa_atp.lab.report.text import policy_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL = "all"


@dataclass(frozen=True, slots=True)
class Mean:
    """One quantity of one policy at one value of the key."""

    value: Any
    """The key's value; "all" for the mean over all seeds, which a sweep over run.seed has as well."""
    policy: str
    quantity: str
    """Description of the quantity. Times are in seconds."""
    mean: float | None
    """The mean over repetitions; None: not all of them have this quantity."""
    low: float | None
    """Lower end of the 95 % confidence interval of the mean; None if there is only one repetition."""
    high: float | None
    repetitions: int
    """Number of repetitions that have it; for "all", number of seeds."""


class Sweep:
    """A finished sweep: one plan, run at several values of one key."""

    def __init__(self, plan: Plan, points: Sequence[tuple[Any, Result]], folder: Path) -> None:
        """Args: plan: the plan, with its sweep; points: (value, result), in order."""
        self.plan = plan
        self.points = points
        """(value of the key, result of the run at that value), in order."""
        self.folder = folder
        """The folder with sweep.json, sweep.png, and a folder for each point."""

    @property
    def key(self) -> str:
        """The key of the plan whose values the sweep compares, for example "straggler.slowdown"."""
        return self.plan.sweep.key

    @property
    def problems(self) -> list[str]:
        """A sentence for each problem. Usually empty."""
        return [f"{self.key} = {value}: {problem}" for value, result in self.points for problem in result.problems]

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """The contents of sweep.json."""
        return self._numbers(self.plan)

    def means(self, figure: str = "") -> list[Mean]:
        """A mean for each value, policy and quantity.

        Args: figure: the figure whose quantities are wanted; default: the sweep's.
        """
        numbers = self._numbers(self._shown(figure or self.plan.sweep.figure))
        found = []
        for point in [*numbers["points"], *([{"value": ALL, "policies": numbers["all"]}] if "all" in numbers else [])]:
            for policy, each in point["policies"].items():
                for quantity, of in each["quantities"].items():
                    low, high = of["ci95"] or (None, None)
                    count = of["seeds"] if point["value"] == ALL else of["repetitions"]
                    found.append(Mean(point["value"], policy, quantity, of["mean"], low, high, count))
        return found

    def to_pandas(self, figure: str = "") -> Any:
        """The means as a DataFrame, with a row each. Args: figure: see `means`. Raises: MissingPartError."""
        return frame(Mean, self.means(figure))

    @property
    def figures(self) -> Mapping[str, str]:
        """The figures that a sweep may have: name and description."""
        about = {name: " and ".join(quantity.title for quantity in sweep.QUANTITIES[name]) for name in FIGURES}
        return {name: f"{text[0].upper()}{text[1:]} over {sweep.name_of(self.key)}." for name, text in about.items()}

    def figure(self, name: str = "", *, paper: bool = False) -> "Figure":
        """Draws a figure over the values, as a matplotlib figure.

        Args: name: one of `figures`; default: the sweep's; paper: for a column of a paper, as for a Result.

        Raises: UserError: there is no such figure, or nothing to draw in it; MissingPartError: without matplotlib.
        """
        name = name or self.plan.sweep.figure
        try:
            return self.drawn(name, PAPER if paper else SCREEN)
        except NothingToDrawError as reason:
            raise UserError(f"figure {name!r}: {reason}") from None

    def drawn(self, name: str, look: Style) -> "Figure":
        """Draws a figure in any style. Raises: NothingToDrawError: no point has its values; else as `figure`."""
        plan = self._shown(name)
        if all(mean.mean is None for mean in self.means(name)):
            raise NothingToDrawError("no point of the sweep has its values")
        return sweep.figure(plan, self._numbers(plan), look)

    def selected(self, policies: Sequence[str]) -> "Sweep":
        """The sweep with only some of its policies; the first one is the baseline. Raises: UserError: it lacks one."""
        points = [
            (value, Result(report.selected(result.records, policies), result.folder)) for value, result in self.points
        ]
        return Sweep(replace(self.plan, run=replace(self.plan.run, policies=tuple(policies))), points, self.folder)

    def _shown(self, figure: str) -> Plan:
        """The plan with another figure."""
        if figure == self.plan.sweep.figure:
            return self.plan
        if figure not in FIGURES:
            raise UserError(f"figure {figure!r}: {one_of(figure, FIGURES)}")
        return plan_files.changed(self.plan, {"sweep.figure": figure}, "the sweep")

    def _numbers(self, plan: Plan) -> dict[str, Any]:
        return sweep.table(plan, [(value, result.records) for value, result in self.points])

    def __repr__(self) -> str:
        values = ", ".join(sweep.label(value, self.key) for value, _ in self.points)
        names = ", ".join(policy_name(policy) for policy in self.plan.run.policies)
        return f"Sweep({str(self.folder)!r}: {self.key} = {values}; {names})"
