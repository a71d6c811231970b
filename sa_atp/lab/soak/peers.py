"""A job of a soak's world once more, under SwitchML's protocol: its sums are those of a reference, bit for bit."""

from dataclasses import replace

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.basics.words import join
from sa_atp.lab.peers import switchml
from sa_atp.lab.simulator.peer_world import PeerWorld
from sa_atp.lab.soak.invariants import Broken
from sa_atp.lab.soak.scene import Scene
from sa_atp.switches.embedded.pipeline import Pipeline

LANES = 64
LONGEST_US = 3_000_000_000  # for a sum: with much loss, and links to another continent


def run(scene: Scene, pipeline: Pipeline) -> int:
    """Sums the tensors of the scene's first job on links like its own, without its other faults.

    Args: pipeline: a switch with SwitchML's program for `LANES` lanes. Returns: the number of sums. Raises: Broken.
    """
    job = scene.jobs[0]
    workers = min(job.ranks, switchml.PEER.most_workers)
    slots = min(scene.slots, switchml.SLOTS)
    links = replace(scene.links, corrupt=0.0)  # frames that Ethernet drops
    timeout_us = switchml.PEER.timeout_us(slots, LANES, links.rate_mbps, links.delay_us)
    world = PeerWorld(
        switchml.PEER,
        pipeline,
        seed=scene.seed,
        lanes=LANES,
        slots=slots,
        timeout_us=timeout_us,
        links=[links] * workers,
    )
    rng = np.random.default_rng(scene.seed)
    for step, (length, magnitude) in enumerate(zip(job.lengths, job.magnitudes, strict=True)):
        parts: list[Values] = [
            np.ldexp(rng.standard_normal(length), magnitude).astype(np.float32) for _ in range(workers)
        ]
        futures = [worker.all_reduce(part) for worker, part in zip(world.workers, parts, strict=True)]
        if not world.clock.run(lambda: all(future.done() for future in futures), world.clock.now_us + LONGEST_US):  # noqa: B023
            raise Broken("switchml hang", f"sum {step} is not complete after {LONGEST_US / 1e6:.0f} s")
        if errors := [str(error) for future in futures if (error := future.exception()) is not None]:
            raise Broken("switchml error", f"sum {step}: {join(errors)}")
        right = switchml.reference(parts, LANES)
        wrong = [rank for rank, future in enumerate(futures) if not np.array_equal(future.result(), right)]
        if wrong:
            raise Broken("switchml sum", f"sum {step}: wrong at rank {join(map(str, wrong))}")
    return len(job.lengths) * workers
