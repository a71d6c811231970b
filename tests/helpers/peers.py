"""Worlds with another protocol's switch program, and sums in them."""

from concurrent.futures import Future

from sa_atp.basics.arrays import Values
from sa_atp.lab.peers.peer import Peer
from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.lab.simulator.peer_world import PeerWorld
from sa_atp.switches.embedded.pipeline import Pipeline

LANES = 64
FAULTS = LinkSettings(rate_mbps=1000.0, loss=0.01, duplicate=0.02, reorder=0.05)


def world_of(
    peer: Peer, pipeline: Pipeline, workers: int, seed: int = 1, *, slots: int = 16, links: LinkSettings = FAULTS
) -> PeerWorld:
    return PeerWorld(peer, pipeline, seed=seed, lanes=LANES, slots=slots, timeout_us=1000, links=[links] * workers)


def summed(world: PeerWorld, parts: list[Values]) -> list[Values]:
    """What each worker gets."""
    futures: list[Future[Values]] = [worker.all_reduce(part) for worker, part in zip(world.workers, parts, strict=True)]
    assert world.clock.run(lambda: all(f.done() for f in futures), world.clock.now_us + 50_000_000)
    return [future.result() for future in futures]
