"""The simulated backend, in this process."""

import pytest

from sa_atp.testbed import plan as plans
from sa_atp.testbed import simulated
from sa_atp.testbed.progress import Progress

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


def longest_step_s(*overrides: str) -> float:
    (found,) = simulated.run(plans.parse(PLAN, "here", overrides), Progress())
    return max(iteration.iteration_s for iteration in found.iterations)


@pytest.mark.parametrize(
    "rates",
    [
        ("topology.worker_mbps=[1000,1000,100]",),
        ("topology.kind=two-level", "topology.racks=2", "topology.trunk_mbps=100"),
    ],
)
def test_links_may_have_rates_of_their_own(rates: tuple[str, ...]) -> None:
    """All wait for the slowest: ten times as long, where there is little else to wait for."""
    assert longest_step_s(*rates) > 4 * longest_step_s(*rates[:-1])
