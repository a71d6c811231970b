"""The simulated backend, in this process."""

import numpy as np
import pytest

from sa_atp.lab.backends import simulated
from sa_atp.lab.plans import plan_files
from sa_atp.lab.report import stats
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun

PLAN = """
[run]
steps = 2
backend = "sim"
policies = ["atp"]
[topology]
workers = 3
link_mbps = 1000
[switch]
lanes = 64
[job]
model = "resnet-50"
model_scale = 0.001
batch_size = 4
micro_batches = 4
compute_us_per_sample = 1
[straggler]
pattern = "none"
"""


def simulate(*overrides: str) -> PolicyRun:
    (found,) = simulated.run(plan_files.parse(PLAN, "here", overrides), Progress())
    return found


def longest_step_s(*overrides: str) -> float:
    return max(iteration.iteration_s for iteration in simulate(*overrides).iterations)


SLOW = (
    "job.compute_us_per_sample=10000", "straggler.pattern=constant", "straggler.workers=[2]", "straggler.slowdown=6",
    "run.steps=4",
)  # fmt: skip


@pytest.mark.parametrize(
    "overrides",
    [
        ("network.loss=0.03",),  # the window is small: most fragments cannot leave before the straggler has sent
        ("switch.slots=16",),  # so are the slots
        (),
    ],
)
def test_waiting_for_a_straggler_is_not_sending(overrides: tuple[str, ...]) -> None:
    """The others compute for 40 ms, and wait for 200."""
    found = simulate(*SLOW, *overrides)
    for each in found.iterations:
        if each.worker != 2:
            assert each.wait_s > 0.75 * each.iteration_s
            assert each.send_s < 0.05 * each.iteration_s


def test_each_sum_is_finished_once_whatever_is_lost() -> None:
    """Copies of results that the parameter server has missed are sums that the switch has finished."""
    fragments = simulate("network.loss=0.1").fragments
    assert fragments["in_switch"] + fragments["at_ps"] == fragments["sent"] / 3
    assert fragments["retransmitted"] > 0


def test_a_pause_with_help_does_not_lengthen_the_jobs_steps() -> None:
    """The paused worker is late for several sums; the job continues, and its steps add up to the run's time."""
    paused = (
        "job.compute_us_per_sample=10000", "straggler.pattern=pause", "straggler.workers=[2]", "straggler.pause_s=0.3",
        "straggler.every=4", "run.steps=8",
    )  # fmt: skip
    times = {}
    for policy in ("atp", "sa-atp"):
        found = simulate(*paused, f'run.policies=["{policy}"]')
        times[policy] = np.diff([0.0, *stats.step_ends_s(found).values()])
        assert times[policy].sum() == pytest.approx(max(i.end_s for i in found.iterations if i.step == 7))
        assert max(i.iteration_s for i in found.iterations) > 0.3
    assert times["atp"].max() > 0.3
    assert times["sa-atp"].max() < 0.15
    assert times["sa-atp"].min() > 0.03


@pytest.mark.parametrize(
    "rates",
    [
        ("topology.worker_mbps=[1000,1000,100]",),
        ("topology.kind=two-level", "topology.racks=2", "topology.trunk_mbps=100"),
    ],
)
def test_links_may_have_rates_of_their_own(rates: tuple[str, ...]) -> None:
    """All workers wait for the slowest link: ten times as long, with little else to wait for."""
    assert longest_step_s(*rates) > 4 * longest_step_s(*rates[:-1])
