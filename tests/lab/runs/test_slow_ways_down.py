"""Workers whose links take longer for a sum than the others take for a step fall behind, but no more than they must."""

import pytest
from helpers.committed import plan

from sa_atp.lab.backends import simulated
from sa_atp.lab.report import stats
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun

STEPS = 12
SUM_S = 0.3553  # that the slowest link, of 5 Mbit/s, is busy with a sum


def ends_s(run: PolicyRun, worker: int) -> list[float]:
    return [i.end_s for i in sorted(run.iterations, key=lambda i: i.step) if i.worker == worker]


@pytest.mark.parametrize(
    "straggler",
    [
        ['straggler.pattern="none"'],
        ['straggler.pattern="constant"', "straggler.workers=[0]"],
        ['straggler.pattern="constant"', "straggler.workers=[3]"],
    ],
    ids=["nobody slow", "one with a fast link slow", "one with a slow link slow"],
)
def test_slow_ways_down_do_not_lengthen_the_run(straggler: list[str]) -> None:
    """Others could do the work of workers with slow links, and complete sums faster than those links carry them. Results
    dropped and fetched again three times each would make the last worker need 51 s, the first 12.
    """
    atp, sa_atp = simulated.run(plan("heterogeneous", [f"run.steps={STEPS}", *straggler]), Progress())
    assert sa_atp.sums_wrong == 0
    first, last = ends_s(sa_atp, 0), ends_s(sa_atp, 3)
    behind = [late - soon for soon, late in zip(first, last, strict=True)]
    assert max(behind) < 3.5 * SUM_S  # two steps, and what is on its way
    assert last[-1] < 1.08 * STEPS * SUM_S + 1.0  # the link is full
    took_s = [list(stats.step_ends_s(run).values())[-1] for run in (atp, sa_atp)]
    assert took_s[1] == last[-1]
    assert took_s[1] < took_s[0]
