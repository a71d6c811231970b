"""Stragglers from one step until another (straggler.from_step, until_step)."""

import dataclasses
import itertools
from collections import defaultdict
from typing import Any

import pytest

from sa_atp.lab.backends import simulated
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import PATTERNS, Plan
from sa_atp.lab.report.drawing.gantt import slow_spans
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import RunResult
from sa_atp.lab.runs.tasks import straggler_pattern

FIRST, END, STEPS = 3, 7, 10
BASE = (
    f"run.steps={STEPS}", "run.warm_up=0", "run.backend=sim", 'run.policies=["atp"]', "topology.link_mbps=100",
    "job.model=resnet-50", "job.model_scale=0.0004", "job.batch_size=8", "job.micro_batches=4",
    "job.compute_us_per_sample=2000",
)  # fmt: skip
SLOW: dict[str, tuple[str, ...]] = {
    "constant": (),
    "random": (),
    "pause": ("straggler.every=1", "straggler.pause_s=0.05"),
    "random-pause": ("straggler.probability=1.0",),
    "tail": ("straggler.tail=20",),
    "contention": ("straggler.spell_s=[100, 100]", "straggler.calm_s=[0.001, 0.001]", "straggler.share=0.05"),
    "trace": (f"straggler.rows={[[step, 3, 4] for step in range(STEPS)]}",),
    "constant, a link": ("straggler.by=congestion", "straggler.slowdown=8"),
}
"""By pattern, and what else there is to say: a straggler in every step."""
WINDOW = (f"straggler.from_step={FIRST}", f"straggler.until_step={END}")


def step_times(plan: Plan) -> tuple[RunResult, list[float]]:
    """The longest time of a worker in each step, without waiting: with a server it waits for slow ones in the next step."""
    result = RunResult(plan, "here", "sim", "embedded", {}, simulated.run(plan, Progress()))
    found: dict[int, float] = defaultdict(float)
    for each in result.runs[0].iterations:
        waits_for_others = each.wait_s if plan.run.policies == ("ssp",) else 0.0
        pauses = [
            i for i in result.runs[0].intervals if (i.worker, i.step, i.kind) == (each.worker, each.step, "pause")
        ]
        paused_s = sum(i.end_us - i.start_us for i in pauses) / 1e6
        found[each.step] = max(found[each.step], each.iteration_s - waits_for_others + paused_s)
    return result, [found[step] for step in range(STEPS)]


@pytest.mark.parametrize(
    ("pattern", "network"),
    [
        *itertools.product([each for each in PATTERNS if each != "none"], ["packets", "flows", "a server"]),
        ("constant, a link", "packets"),
    ],
)
def test_slow_from_a_step_until_another(pattern: str, network: str) -> None:
    where = ('run.policies=["ssp"]', "ssp.bound=0") if network == "a server" else (f"sim.network={network}",)
    said = [*BASE, *where, f"straggler.pattern={pattern.split(',', maxsplit=1)[0]}", *SLOW[pattern]]
    _, normal = step_times(plan_files.parse("", "here", [*BASE, *where, "straggler.pattern=none"]))
    result, times = step_times(plan_files.parse("", "here", [*said, *WINDOW]))
    is_slow = [time > 1.1 * usual for time, usual in zip(times, normal, strict=True)]
    slow_steps = [step for step, slow in enumerate(is_slow) if slow]
    if pattern == "tail":  # which may be hardly slow in a step
        assert 1 <= len(slow_steps) == len(set(slow_steps) & set(range(FIRST, END)))
    else:
        assert slow_steps == list(range(FIRST, END))
    if pattern in ("contention", "constant, a link"):
        assert marked(result) == range(FIRST, END)


def marked(result: RunResult) -> range:
    """The steps in which the timeline marks worker 3, whose spells have no gap between them, and no other worker."""
    ((worker, spans),) = [each for each in slow_spans(result, result.runs[0]).items() if each[1]]
    starts, ends = [round(1e6 * at) for at, _ in spans], [round(1e6 * (at + length)) for at, length in spans]
    assert starts[1:] == ends[:-1]
    in_it = [i for i in result.runs[0].intervals if i.worker == worker == 3 and starts[0] <= i.start_us < ends[-1]]
    return range(min(i.step for i in in_it), max(i.step for i in in_it) + 1)


@pytest.mark.parametrize("pattern", [each for each in PATTERNS if each not in ("none", "contention")])
def test_what_is_drawn_does_not_depend_on_the_steps(pattern: str) -> None:
    plan = plan_files.parse("", "here", [*BASE, f"straggler.pattern={pattern}", *SLOW[pattern]])
    always = straggler_pattern(plan)
    for first, end in ((0, 0), (FIRST, END), (FIRST, 0), (0, END)):
        straggler = dataclasses.replace(plan.straggler, from_step=first, until_step=end)
        found = straggler_pattern(dataclasses.replace(plan, straggler=straggler))
        for step in range(STEPS):
            is_on = first <= step and (step < end or not end)
            for worker in range(4):
                drawn: Any = (always.slowdown_of(step, worker), always.pause_us_of(step, worker))
                assert (found.slowdown_of(step, worker), found.pause_us_of(step, worker)) == (
                    drawn if is_on else (1.0, 0)
                )


def test_seeds_draw_what_they_drew() -> None:
    """Of the release before there were steps."""
    drawn = {
        name: [
            (round(pattern.slowdown_of(step, worker), 9), pattern.pause_us_of(step, worker))
            for step in range(3) for worker in range(4)
        ]
        for name in ("random", "random-pause", "tail")
        for pattern in [straggler_pattern(plan_files.parse("", "", [*BASE, f"straggler.pattern={name}", *SLOW[name]]))]
    }  # fmt: skip
    assert drawn == DRAWN


DRAWN: dict[str, Any] = {
    "random": [
        (1.0, 0),
        (1.0, 0),
        (6.306018433, 0),
        (1.0, 0),
        (1.0, 0),
        (1.0, 0),
        (1.0, 0),
        (2.510779043, 0),
        (1.0, 0),
        (1.0, 0),
        (1.0, 0),
        (2.669940047, 0),
    ],
    "random-pause": [
        (1.0, 22312),
        (1.0, 18217),
        (1.0, 19991),
        (1.0, 17966),
        (1.0, 19572),
        (1.0, 8770),
        (1.0, 21194),
        (1.0, 22641),
        (1.0, 25122),
        (1.0, 19963),
        (1.0, 18054),
        (1.0, 19342),
    ],
    "tail": [
        (0.63308949, 0),
        (0.461452547, 0),
        (8.89844817, 0),
        (1.576747188, 0),
        (1.017325784, 0),
        (0.282810237, 0),
        (0.272335817, 0),
        (0.936434889, 0),
        (0.872699132, 0),
        (0.234932638, 0),
        (0.617466519, 0),
        (1.48544956, 0),
    ],
}
