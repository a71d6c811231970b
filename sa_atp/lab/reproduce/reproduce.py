"""`sa-atp reproduce`: the papers' main claims beside our results in virtual time, on one page.

The page does not depend on the machine: the same release and seed make the same bytes. docs/reproduce.md is a committed
one.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from sa_atp.basics.checkout import SOURCES, commit_of
from sa_atp.basics.errors import UserError
from sa_atp.basics.words import one_of, plural
from sa_atp.lab.backends import runner
from sa_atp.lab.report.drawing import style
from sa_atp.lab.report.files import write_text
from sa_atp.lab.reproduce import page as reproduce_page
from sa_atp.lab.reproduce import protocols
from sa_atp.lab.reproduce.points import Compute, Found, find, policies_of, settings_of
from sa_atp.lab.reproduce.settings import Headline, headlines
from sa_atp.lab.runs import run_folder
from sa_atp.lab.runs.points import Kept, Point
from sa_atp.lab.runs.progress import Progress

SEED = 1
SEEDS = 3
LEAST_STEPS = 4
MOST_SEEDS = 100
PACKAGES = ("sa_atp", "numpy", "scipy", "torch", "scikit-learn")
SPACE_BYTES = 20_000_000
PAGE, NUMBERS, FIGURE = "reproduce.md", "reproduce.json", "reproduce.png"
POINTS = "points"  # the folder of finished runs


@dataclass(frozen=True, slots=True)
class Wanted:
    headlines: tuple[Headline, ...]
    seed: int = SEED
    """Seed of tuning; the seeds of the runs that count follow it."""
    seeds: int = SEEDS
    steps: int | None = None
    """Steps of each run; None: those of its setting."""
    protocols: bool = True
    """Whether SwitchML's protocol is measured beside ours."""

    @property
    def counted(self) -> list[int]:
        return [self.seed + 1 + n for n in range(self.seeds)]


def wanted(only: str | None, seed: int, seeds: int, steps: int | None) -> Wanted:
    """Raises: UserError."""
    known = headlines()
    names = [*(each.name for each in known), protocols.NAME]
    if only not in (None, *names):
        raise UserError(f"--only {only}: {one_of(only, names, str)}")
    if not 0 <= seed <= 2**30:
        raise UserError(f"--seed {seed}: expected 0 to {2**30}")
    if not 1 <= seeds <= MOST_SEEDS:
        raise UserError(f"--seeds {seeds}: expected 1 to {MOST_SEEDS}")
    if steps is not None and steps < LEAST_STEPS:
        raise UserError(f"--steps {steps}: expected at least {LEAST_STEPS}")
    chosen = tuple(each for each in known if only in (None, each.name))
    return Wanted(chosen, seed, seeds, steps, only in (None, protocols.NAME))


def run(
    asked: Wanted, folder: Path, progress: Progress, *, jobs: int = 1, scheduler: str | None = None
) -> tuple[dict[str, Any], list[Path]]:
    """Runs the points that the folder does not have yet, and writes the page.

    Returns: the numbers, as in reproduce.json, and the files. Raises: UserError, MissingPartError, SaAtpError.
    """
    if jobs < 1:
        raise UserError(f"--jobs {jobs}: expected at least 1")
    style.require_matplotlib()
    for headline in asked.headlines:
        for setting in settings_of(headline):
            runner.check(setting.plan(policies_of(headline, setting), asked.seed, asked.steps), "reproduce")
    names = [*(headline.name for headline in asked.headlines), *[protocols.NAME] * asked.protocols]
    with run_folder.claimed(folder, SPACE_BYTES):
        kept = Kept(folder / POINTS, stamp())

        def computing(name: str) -> Compute:
            at = f"{name} ({names.index(name) + 1} of {len(names)})"
            return lambda points: dict(_computed(kept, points, at, progress, jobs, scheduler))

        found = {
            headline.name: find(headline, asked.counted, asked.seed, asked.steps, computing(headline.name))
            for headline in asked.headlines
        }
        beside = None
        if asked.protocols:
            beside = protocols.find(asked.seed, asked.counted, asked.steps, computing(protocols.NAME))
        return write(asked, found, beside, folder)


def _computed(
    kept: Kept, points: Sequence[Point], at: str, progress: Progress, jobs: int, scheduler: str | None
) -> Iterator[tuple[str, Any]]:
    progress(f"{at}: {plural(len(points), 'run')}")
    for done, (point, result) in enumerate(kept.run(points, jobs=jobs, scheduler=scheduler), 1):
        progress.steps(done, len(points), "runs")
        yield point.name, result


def stamp() -> str:
    """The commit and versions on which results depend: points of other ones are computed again."""
    versions = []
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{package} {metadata.version(package)}")
    return ", ".join([str(commit_of(SOURCES)), *versions])


def write(
    asked: Wanted, found: dict[str, list[list[Found]]], beside: dict[str, Any] | None, folder: Path
) -> tuple[dict[str, Any], list[Path]]:
    """Writes page, numbers, and the figure of the headlines. Raises: UserError, MissingPartError."""
    from sa_atp.lab.reproduce import figure as reproduce_figure

    numbers = reproduce_page.numbers(asked.headlines, found, asked.seed, asked.counted, asked.steps)
    parts = []
    if asked.headlines:
        parts.append(reproduce_page.page(asked.headlines, found, asked.seed, asked.counted, asked.steps, FIGURE))
    if beside:
        numbers["protocols"] = beside
        numbers["sums_wrong"] += protocols.sums_wrong(beside)
        parts.append(protocols.section(beside))
    written = [
        write_text(folder / PAGE, "\n".join(parts)),
        write_text(folder / NUMBERS, reproduce_page.as_text(numbers)),
    ]
    if asked.headlines:
        written.append(reproduce_figure.draw(asked.headlines, found, folder / FIGURE))
    return numbers, written
