"""The Mininet backend: runs a plan in an emulated network."""

from pathlib import Path

from sa_atp.testbed.collect import collect
from sa_atp.testbed.local import run_policy
from sa_atp.testbed.mininet import layout as layouts
from sa_atp.testbed.mininet.layout import Layout, LinkQuality
from sa_atp.testbed.mininet.network import READY_TIMEOUT_S, Network
from sa_atp.testbed.plan import Plan
from sa_atp.testbed.progress import Progress
from sa_atp.testbed.records import PolicyRun

# the workers share the cores, and emulate their devices
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def layout_of(plan: Plan) -> Layout:
    """The network that a plan describes."""
    topology, network = plan.topology, plan.network
    quality = LinkQuality(
        rate_mbps=topology.link_mbps,
        delay_us=topology.delay_us,
        jitter_us=network.jitter_us,
        loss=network.loss,
        duplicate=network.duplicate,
        reorder=network.reorder,
    )
    if topology.kind == "two-level":
        return layouts.two_level(topology.workers, topology.racks, quality, quality)
    return layouts.star(topology.workers, quality)


def run(plan: Plan, switch: str, folder: Path, progress: Progress) -> list[PolicyRun]:
    """Runs all policies and repetitions of a plan.

    Args:
        switch: "embedded" or "bmv2".
        folder: for logs.
        progress: is told what is being done.

    Raises: MissingPartError, UserError, ProcessError, TransportError.
    """
    layout = layout_of(plan)
    slots = plan.switch.slots
    progress(f"starting {len(layout.switches)} switch(es), {len(layout.hosts)} hosts")
    with Network(
        layout, switch=switch, lanes=plan.switch.lanes, slots=slots, slots_per_job=slots, logs=folder
    ) as network:
        workers = [
            network.start(place.name, f"worker {place.rank}", ["sa_atp.testbed.worker"], ENVIRONMENT)
            for place in layout.workers()
        ]
        server = network.start_server()
        for worker in workers:
            worker.answer(READY_TIMEOUT_S)
        runs = []
        for repetition in range(plan.run.repetitions):
            for policy in plan.run.policies:
                progress(f"{policy}, repetition {repetition + 1} of {plan.run.repetitions}")
                raw = run_policy(plan, policy, repetition, server, workers, folder, progress)
                runs.append(collect(plan, policy, repetition, raw))
        return runs
