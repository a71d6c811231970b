"""The bound of `sa-atp bench help`: a step time that no assignment of work can beat, with devices and links included.

A worker cannot compute while the step's sum comes down to it, nor while its last contribution goes up. These two overlap,
because a fragment's sum comes down while later fragments go up. Let T be the step's time, u and d the times that the
worker's link is busy with one contribution up and with the sum down, and l the delay there and back:

    it computes for at most  T - l - max(u, d),   all together must compute the whole step's work

The bound is the smallest such T. A worker without work still needs the sum, and the parameter server gets a copy: T >=
max(d) and T >= a copy's time. With loss everything is sent 1 / (1 - loss) times. Without links it is the fluid bound, total
work over total speed.

A pausing worker cannot compute. A pause may span several steps of the others, but ends before the run, whose last step ends
when the last worker has its sum; so each step counts the average share of a pause.
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
    """Time that a link is busy with one contribution, or with the sum, retransmissions included."""
    fragments = Fragments(make_workload(plan, 0).values, plan.lanes).data_fragments
    frame = FRAME_BYTES + size_of(Kind.DATA, plan.lanes, plan.contribution_bits) + WIRE_OVERHEAD_BYTES
    return fragments * frame * 8 / (mbps * BITS_PER_MBIT) * 1e6 / (1 - plan.network.loss)


def step_us(work_us: float, slowdowns: Sequence[float], unable_us: Sequence[float]) -> float:
    """The smallest T in which all workers together can compute the work.

    Args:
        work_us: the step's work, as compute time of a normal device.
        slowdowns: slowdown of each worker.
        unable_us: part of T in which each worker cannot compute.
    """
    speed = lost = 0.0
    found = float("inf")
    for unable, slowdown in sorted(zip(unable_us, slowdowns, strict=True)):
        if found <= unable:
            break  # the step ends before this worker could begin
        speed += 1 / slowdown
        lost += unable / slowdown
        found = (work_us + lost) / speed
    return found


def bound_us(plan: Plan, steps: Sequence[int]) -> float:
    """The bound for a plan, as the mean over these steps."""
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
