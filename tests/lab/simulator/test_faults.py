"""The faults of a simulated network, one by one."""

import random

import numpy as np
import pytest
from helpers.cluster import Cluster, Reduction

from sa_atp.lab.simulator.damage import PLACES, damage_frame
from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.frames import HEADERS_BYTES, Endpoint, headers_for, mac_for
from sa_atp.protocol.packets.header import pack
from sa_atp.protocol.packets.spec import HEADER_BYTES, Kind
from sa_atp.switches.embedded.pipeline import Pipeline

HERE: Address = ("10.0.0.1", 40_000)
THERE: Address = ("10.0.255.1", 21313)


def frame(kind: Kind, *, urgent: bool = False) -> bytes:
    lanes = kind in (Kind.DATA, Kind.RESULT)
    payload = pack(kind, seq=77, job=3, epoch=9, bits=5) + bytes(256 * lanes)
    ends = (Endpoint(mac_for(address[0]), address) for address in (HERE, THERE))
    return headers_for(*ends, len(payload), urgent=urgent).tobytes() + payload


@pytest.mark.parametrize("kind", [Kind.DATA, Kind.RESULT, Kind.PROBE, Kind.PROBE_REPLY])
def test_damage_spares_bits_that_no_receiver_could_check(kind: Kind) -> None:
    """A flip in lanes, numbers, exponents, tags or contributions would make another valid packet."""
    whole, rng = frame(kind), random.Random(1)
    begin = min(PLACES[name].start for name in ("exponent", "tag", "seq", "bits_hi", "bits_lo")) // 8
    seen = set()
    for _ in range(2000):
        found = damage_frame(whole, rng)
        assert found is not None
        assert found != whole
        seen.add(found)
        if len(found) == len(whole):
            assert found[begin:] == whole[begin:]
            if kind is not Kind.DATA:
                assert found[HEADERS_BYTES + 1] == whole[HEADERS_BYTES + 1]  # flags
        else:
            assert whole.startswith(found)
    assert len(seen) > 60


def test_a_truncated_frame_is_not_damaged_again() -> None:
    """The second link on its way would look for fields that it has no more."""
    whole = frame(Kind.DATA)
    for length in range(34, HEADERS_BYTES + HEADER_BYTES):
        assert {damage_frame(whole[:length], random.Random(seed)) for seed in range(20)} == {None}


def test_damage_to_a_message_is_a_loss() -> None:
    assert damage_frame(frame(Kind.CONTROL, urgent=True), random.Random(1)) is None


def ones(values: int, ranks: int) -> Reduction:
    return Reduction([[np.ones(values, np.float32)] for _ in range(ranks)])


def running(pipelines: list[Pipeline], links: LinkSettings | None = None) -> tuple[Cluster, Reduction]:
    """Three ranks in the middle of a sum."""
    cluster = Cluster(pipelines, links=links or LinkSettings(rate_mbps=100.0))
    workers = cluster.start_job(3)
    cluster.run_until_joined(workers)
    reduction = ones(5000, 3)
    for worker in workers:
        reduction.start(worker)
    cluster.run_for(0.001)
    assert not reduction.over
    return cluster, reduction


def test_nothing_passes_a_link_that_is_cut(pipelines: list[Pipeline]) -> None:
    cluster, reduction = running(pipelines)
    world = cluster.world
    trunk = world.trunk_of(world.leaves[0])
    seen: list[str] = []
    for link in trunk:
        link.watch = lambda fate, frame: seen.append(fate)
    world.cut(trunk, 300_000)
    cluster.run_for(0.29)
    assert set(seen) == {"lost"}
    assert not reduction.over
    cluster.run(lambda: reduction.over, 1.0)
    assert "sent" in seen
    reduction.check()


def test_switches_and_hosts_pause_and_go_on(pipelines: list[Pipeline]) -> None:
    cluster, reduction = running(pipelines)
    world = cluster.world
    world.cut([world.leaves[1].switch], 200_000)
    world.pause_host(world.hosts["10.0.0.1"], 300_000)
    cluster.run_for(0.29)
    assert not reduction.over
    cluster.run(lambda: reduction.over, 1.0)
    reduction.check()


def test_switch_updates_of_a_stopped_server_are_dropped(pipelines: list[Pipeline]) -> None:
    """The server stops just after it asked the control plane to install the job."""
    cluster = Cluster(pipelines)
    workers = cluster.start_job(2)
    server = cluster.world.server
    cluster.run(lambda: bool(server.jobs) and not next(iter(server.jobs.values())).missing)
    cluster.world.restart_server(50_000)
    cluster.run_until_joined(workers)
    assert len(cluster.world.server.jobs) == 1


def test_a_workers_link_loses_as_much_each_way_as_is_said(pipelines: list[Pipeline]) -> None:
    world = Cluster(pipelines).world
    before = set(world.links_of)
    world.add_worker(0, loss=(0.1, 0.2))
    (address,) = world.links_of.keys() - before
    assert [way.settings.loss for way in world.links_of[address]] == [0.1, 0.2]
