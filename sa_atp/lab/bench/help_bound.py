"""The bound of `sa-atp bench help`: a step time that no assignment of work can beat, with devices and links included.

A worker cannot compute while the step's sum comes down to it, nor while its last contribution goes up. These two overlap,
because a fragment's sum comes down while later fragments go up. Let T be the step's time, u and d the times that the
worker's link is busy with one contribution up and with the sum down, and l the delay there and back:

    it computes for at most  T - l - max(u, d),   all together must compute the whole step's work

The bound is the smallest such T. A worker without work still needs the sum, and the parameter server gets a copy: T >=
max(d) and T >= a copy's time. With loss everything is sent 1 / (1 - loss) times. Without links it is the fluid bound, total
work over total speed.

With the age of knowledge: nobody can act on a slowness that nobody can have heard of. Where slowdowns are not those of
the step before, others begin to help when the straggler's first micro-batch is over and the word of it has gone to the
parameter server and back; until then a worker that is done with its own shard waits.

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


def heard_step_us(
    work_us: float, slowdowns: Sequence[float], unable_us: Sequence[float], heard_us: float, shard_us: float
) -> float:
    """Returns the bound of `step_us` where workers that are done with their own shards can help only from `heard_us` on.

    Args: shard_us: compute time of a shard on a normal device.
    """

    def done_us(end_us: float) -> float:
        """How much work can be done in a step that ends then."""
        total = 0.0
        for slowdown, unable in zip(slowdowns, unable_us, strict=True):
            can_us, own_us = max(0.0, end_us - unable), shard_us * slowdown
            total += (min(can_us, own_us) + max(0.0, can_us - max(own_us, heard_us))) / slowdown
        return total

    low, high = 0.0, max(unable + shard_us * s for unable, s in zip(unable_us, slowdowns, strict=True))
    while high - low > 1.0:
        middle = (low + high) / 2
        low, high = (middle, high) if done_us(middle) < work_us else (low, middle)
    return high


def bound_us(plan: Plan, steps: Sequence[int], *, with_age: bool = False) -> float:
    """The bound for a plan, as the mean over these steps. Args: with_age: counts the age of knowledge."""
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
    unable = [latency_us + link + pause for link, pause in zip(busy, paused, strict=True)]
    found = []
    for step in steps:
        slowdowns, before = (
            [pattern.slowdown_of(each, worker) for worker in range(topology.workers)]
            for each in (step, max(0, step - 1))
        )
        least_us = step_us(work_us, slowdowns, unable)
        if with_age and slowdowns != before:
            answer_us = 2 * topology.delay_us * (3 if two_levels else 2)  # to the parameter server and back
            heard_us = max(slowdowns) * plan.job.shard_us / plan.job.micro_batches + answer_us
            least_us = max(least_us, heard_step_us(work_us, slowdowns, unable, heard_us, plan.job.shard_us))
        found.append(max(least_us, *busy, copy_us))
    return sum(found) / len(found)
