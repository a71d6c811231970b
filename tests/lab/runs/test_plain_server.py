"""A parameter server that sums alone: workers measure the path to it, and its link limits a step."""

from pathlib import Path

from sa_atp.lab.backends import simulated
from sa_atp.lab.plans import plan_files
from sa_atp.lab.report import stats
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import RunResult
from sa_atp.lab.simulator.network import WIRE_OVERHEAD_BYTES
from sa_atp.protocol.packets.frames import HEADERS_BYTES
from sa_atp.protocol.packets.header import size_of
from sa_atp.protocol.packets.spec import Kind

STAR = Path(__file__).resolve().parents[3] / "topologies" / "star.toml"


def test_the_servers_link_is_always_busy() -> None:
    """With an assumed round trip of 2 ms, where it is 10 to 400, workers sent 20,000 more probes in twelve steps; windows,
    which shrink once per round trip, varied from 4 to 210 fragments, and steps took 1.0 to 1.7 s.
    """
    plan = plan_files.load(STAR, ['run.policies=["ps"]', "run.steps=5", "run.warm_up=2"])
    result = RunResult(plan, "here", "sim", "embedded", {}, simulated.run(plan, Progress()))
    run = result.runs[0]
    fragments = run.fragments["sent"] / plan.run.steps  # of all workers, in a step
    bits = 8 * (size_of(Kind.DATA, plan.lanes, plan.contribution_bits) + HEADERS_BYTES + WIRE_OVERHEAD_BYTES)
    bound_s = (
        plan.job.batch_size * plan.job.compute_us_per_sample / 1e6 + fragments * bits / plan.topology.link_mbps / 1e6
    )
    mean_s = stats.policies(result)[0].mean_s
    assert mean_s is not None
    assert bound_s <= mean_s < 1.05 * bound_s
    # nothing marks here, and the queue in front of the server takes 1,000 packets
    assert run.fragments["retransmitted"] == 0
    assert run.sums_wrong == 0
