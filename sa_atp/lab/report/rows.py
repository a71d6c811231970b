"""The rows of iterations.csv: every step of every worker in every run, one record each."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from sa_atp.lab.report import stats
from sa_atp.lab.runs.records import RunResult


@dataclass(frozen=True, slots=True)
class Row:
    """One step as one worker experienced it. `lab.runs.records.Iteration` says what its numbers are. Times in seconds."""

    policy: str
    repetition: int
    step: int
    worker: int
    compute_s: float
    help_s: float
    send_s: float
    wait_s: float
    iteration_s: float
    loss: float
    slowdown: float
    micro_batches: int
    helped: int
    job: int
    end_s: float
    samples: int
    unused: int
    counted: bool
    """Whether the row is in means and percentiles: steps of the warm-up, and unfinished steps, are not."""


COLUMNS = tuple(field.name for field in fields(Row))
_OF_RUN = ("policy", "repetition", "job")
_OF_ITERATION = tuple(name for name in COLUMNS if name not in (*_OF_RUN, "counted"))


def rows(result: RunResult) -> Iterator[Row]:
    """A row per policy, repetition, job, step and worker."""
    for run in result.runs:
        counted = {(i.step, i.worker) for i in stats.counted_iterations(run, result.plan.run.warm_up)}
        of_run = {name: getattr(run, name) for name in _OF_RUN}
        for each in sorted(run.iterations, key=lambda i: (i.step, i.worker)):
            of_iteration = {name: getattr(each, name) for name in _OF_ITERATION}
            yield Row(**of_run, **of_iteration, counted=(each.step, each.worker) in counted)
