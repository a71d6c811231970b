"""Bounds on the time of a run, beyond which it counts as stuck."""

from sa_atp.lab.plans.plan import Plan


def expected_seconds(plan: Plan) -> float:
    """A generous bound on the time of one policy: every shard at its slowest, one after the other."""
    return plan.run.steps * expected_step_s(plan)


def expected_step_s(plan: Plan) -> float:
    """The same for one step."""
    shard_s = plan.job.shard_us / 1e6
    traced = [row[2] for row in plan.straggler.rows]
    slowest = max(plan.straggler.slowdown, *plan.straggler.slowdown_range, *traced)
    slowest = slowest if plan.straggler.pattern != "none" else 1.0
    pause_s = max(plan.straggler.pause_s, plan.straggler.pause_range[1] * shard_s)
    return shard_s * slowest / min((1.0, *plan.job.speeds)) + pause_s + 1.0
