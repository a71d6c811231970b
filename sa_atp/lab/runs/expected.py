"""Bounds on the time of a run, beyond which it counts as stuck."""

from sa_atp.lab.plans.plan import Plan
from sa_atp.steps.workloads.comm_models import COMM_MODELS

MOST_VALUES = 200_000  # of a trained model
WIRE_BITS = 48  # of a value, with its share of headers, and of what is sent again


def expected_seconds(plan: Plan) -> float:
    """A generous bound on the time of one policy: every shard at its slowest, one after the other."""
    return plan.run.steps * expected_step_s(plan)


def expected_step_s(plan: Plan) -> float:
    """The same for one step, with every worker's gradient, and every result, one by one over the slowest link."""
    shard_s = plan.job.shard_us / 1e6
    traced = [float(row[2]) for row in plan.straggler.rows]
    slowest = max(plan.straggler.slowdown, *plan.straggler.slowdown_range, *traced)
    tail = plan.straggler.tail * plan.straggler.tail
    slowest = {"none": 1.0, "tail": tail}.get(plan.straggler.pattern, slowest)
    pause_s = max(plan.straggler.pause_s, plan.straggler.points * plan.straggler.pause_range[1] * shard_s)
    return shard_s * slowest / min((1.0, *plan.job.speeds)) + pause_s + _sending_s(plan) + 1.0


def _sending_s(plan: Plan) -> float:
    topology = plan.topology
    slowest = min([topology.link_mbps, topology.trunk_mbps or topology.link_mbps, *topology.worker_mbps])
    if plan.straggler.pattern == "contention":
        slowest *= min(plan.straggler.share, 1 / (plan.straggler.tail * plan.straggler.tail))
    values = COMM_MODELS.get(plan.job.model, MOST_VALUES) * plan.job.model_scale
    return 2 * topology.workers * WIRE_BITS * values / (slowest * 1e6)
