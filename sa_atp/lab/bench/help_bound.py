"""What no assignment of work can beat, counting devices and links: the bound of `sa-atp bench help`.

A worker's gradient does not exist before it is computed, so of a step's time T a worker cannot compute while the sum comes
down to it, nor while its last contribution goes up: these two overlap, because a fragment's sum comes down while later ones
go up. With u, d: how long its link is busy with one contribution up, and with the sum down; l: delay there and back:

    it computes for at most  T - l - max(u, d),   all together must compute the whole step's work

The smallest T that allows that is the bound; a worker for which nothing is left need not compute, but the sum has to reach
it, and the parameter server gets a copy: T >= max(d) and T >= a copy's time. Loss makes everything be sent 1 / (1 - loss)
times. Without links it is the fluid bound, total work over total speed.

Who pauses cannot compute meanwhile. A pause may last for several steps of the others, but it is over before the run is,
as the last step ends when the last worker has its sum; so each step counts as much of it as comes to it on average.
"""

from collections.abc import Sequence

from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.runs.tasks import make_workload, straggler_pattern
from sa_atp.lab.simulator.network import BITS_PER_MBIT, WIRE_OVERHEAD_BYTES
from sa_atp.protocol.numbers.fragments import Plan as Fragments
from sa_atp.protocol.packets.header import size_of
from sa_atp.protocol.packets.spec import Kind

FRAME_BYTES = 14 + 20 + 8  # Ethernet, IPv4, UDP


def contribution_us(plan: Plan, mbps: float) -> float:
    """How long a link is busy with one contribution, or with the sum, loss included."""
    fragments = Fragments(make_workload(plan, 0).values, plan.lanes).data_fragments
    frame = FRAME_BYTES + size_of(Kind.DATA, plan.lanes, plan.contribution_bits) + WIRE_OVERHEAD_BYTES
    return fragments * frame * 8 / (mbps * BITS_PER_MBIT) * 1e6 / (1 - plan.network.loss)


def step_us(work_us: float, slowdowns: Sequence[float], unable_us: Sequence[float]) -> float:
    """The smallest T for which all together can compute the work.

    Args:
        work_us: the step's work, as the time that a normal device would take for it.
        slowdowns: how many times longer each worker takes.
        unable_us: for how much of T each worker cannot compute.
    """
    speed = lost = 0.0
    found = float("inf")
    for unable, slowdown in sorted(zip(unable_us, slowdowns, strict=True)):
        if found <= unable:
            break  # it is over before this one could begin
        speed += 1 / slowdown
        lost += unable / slowdown
        found = (work_us + lost) / speed
    return found


def bound_us(plan: Plan, steps: Sequence[int]) -> float:
    """The bound for a plan's steps, the mean of those that are named."""
    topology, pattern = plan.topology, straggler_pattern(plan)
    trunk_mbps = topology.trunk_mbps or topology.link_mbps
    two_levels = topology.kind == "two-level"
    latency_us = 2 * topology.delay_us * (2 if two_levels else 1)
    rates = topology.worker_mbps or (topology.link_mbps,) * topology.workers
    links = [min(rate, trunk_mbps) if two_levels else rate for rate in rates]
    busy = [contribution_us(plan, rate) for rate in links]
    copy_us = contribution_us(plan, trunk_mbps)
    work_us = topology.workers * plan.job.shard_us
    paused = [
        sum(pattern.pause_us_of(step, worker) for step in steps) / len(steps) for worker in range(topology.workers)
    ]
    found = [
        max(
            step_us(
                work_us,
                [pattern.slowdown_of(step, worker) for worker in range(topology.workers)],
                [latency_us + link + pause for link, pause in zip(busy, paused, strict=True)],
            ),
            *busy,
            copy_us,
        )
        for step in steps
    ]
    return sum(found) / len(found)
