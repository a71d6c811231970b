"""SwitchML's program and transport: sums are those of a reference, bit for bit, whatever the network does."""

import numpy as np
import pytest
from helpers.peers import LANES, summed, world_of
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import UserError
from sa_atp.basics.folders import cache_folder
from sa_atp.lab.peers.switchml import HEADER_BYTES, PEER, SLOTS, reference
from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.protocol.packets.frames import Endpoint, headers_for
from sa_atp.switches.control import routes
from sa_atp.switches.control.writer import LocalWriter
from sa_atp.switches.embedded.pipeline import Pipeline


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    program = PEER.program(LANES)
    return Pipeline.from_file(program.json_path, cache=cache_folder())


def parts_of(rng: np.random.Generator, workers: int, size: int) -> list[Values]:
    """Tensors whose blocks have exponents far apart, on each worker others."""
    scales = np.exp2(rng.integers(-100, 100, (workers, size)) * (rng.random((workers, 1)) < 0.5))
    return [(rng.standard_normal(size) * scale).astype(np.float32) for scale in scales]


@given(
    seed=st.integers(0, 2**32), workers=st.integers(1, 8), sizes=st.lists(st.integers(0, 4000), min_size=1, max_size=4)
)
def test_sums_are_those_of_the_reference(pipeline: Pipeline, seed: int, workers: int, sizes: list[int]) -> None:
    world = world_of(PEER, pipeline, workers, seed)
    for size in sizes:
        parts = parts_of(np.random.default_rng(seed), workers, size)
        right = reference(parts, LANES)
        assert all(np.array_equal(found.view(np.uint32), right.view(np.uint32)) for found in summed(world, parts))
    assert np.allclose(
        right, np.sum(parts, axis=0, dtype=np.float64), atol=workers * 2.0**-27 * float(np.abs(right).max(initial=0))
    )


def test_a_lost_result_comes_from_the_shadow_copy(pipeline: Pipeline) -> None:
    """The others go on with the other version of the slots meanwhile."""
    world = world_of(PEER, pipeline, 3, links=LinkSettings())
    parts = parts_of(np.random.default_rng(1), 3, 40 * LANES)
    down = world.links_of[world.job.seats[1].ip][1]
    world.clock.at(100, lambda: setattr(down, "up", False))
    world.clock.at(5_000, lambda: setattr(down, "up", True))
    right = reference(parts, LANES)
    assert all(np.array_equal(found, right) for found in summed(world, parts))
    assert world.workers[1].transport.retransmitted > 0


def test_a_packet_that_was_delayed_for_two_rounds_is_not_added(pipeline: Pipeline) -> None:
    world = world_of(PEER, pipeline, 2, slots=1, links=LinkSettings())
    parts = parts_of(np.random.default_rng(2), 2, 20 * LANES)
    uplink = world.links_of[world.job.seats[0].ip][0]
    sent: list[bytes] = []

    def again(fate: str, frame: bytes) -> None:
        """The packet before the last arrives once more, where the other worker has sent the next for the slot already."""
        sent.append(frame)
        for old in sent[-3:-1]:
            world.clock.at(world.clock.now_us + 1, lambda old=old: uplink.deliver(old))  # type: ignore[misc]

    uplink.watch = again
    assert all(np.array_equal(found, reference(parts, LANES)) for found in summed(world, parts))


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, 2), (1, 2), (1, 255), (2, SLOTS >> 8), (2, 255)],
    ids=["job", "worker", "no worker", "slot", "no slot"],
)
def test_packets_of_nobody_change_nothing(pipeline: Pipeline, at: int, value: int) -> None:
    world = world_of(PEER, pipeline, 2, links=LinkSettings())
    seat = world.job.seats[0]
    uplink = world.links_of[seat.ip][0]
    parts = parts_of(np.random.default_rng(3), 2, 8 * LANES)

    def forged(fate: str, frame: bytes) -> None:
        start = len(frame) - HEADER_BYTES - 4 * LANES
        uplink.deliver(frame[: start + at] + bytes([value]) + frame[start + at + 1 :])

    uplink.watch = forged
    assert all(np.array_equal(found, reference(parts, LANES)) for found in summed(world, parts))


def test_other_packets_are_forwarded_by_address(pipeline: Pipeline) -> None:
    """So that hosts behind such a switch reach one another."""
    one, other = world_of(PEER, pipeline, 2).job.seats
    routes.add(LocalWriter(pipeline), other.ip, other.switch_port)
    ends = [Endpoint(seat.mac, (seat.ip, 5000)) for seat in (one, other)]
    frame = np.concatenate([headers_for(*ends, 4), np.arange(4, dtype=np.uint8)]).tobytes()
    assert pipeline.process_one(frame, one.switch_port, 0) == [(other.switch_port, frame)]


def test_values_that_cannot_be_summed(pipeline: Pipeline) -> None:
    world = world_of(PEER, pipeline, 2)
    with pytest.raises(UserError, match=r"^rank 0: a value is not finite, which SwitchML cannot sum$"):
        world.workers[0].all_reduce(np.array([1, np.inf], np.float32))


@pytest.mark.parametrize(("workers", "slots", "said"), [(33, 1, "33 workers: "), (2, 513, "513 slots: ")])
def test_jobs_that_do_not_fit(pipeline: Pipeline, workers: int, slots: int, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}SwitchML's program has"):
        world_of(PEER, pipeline, workers, slots=slots)


def test_a_silent_worker_ends_the_sum(pipeline: Pipeline) -> None:
    world = world_of(PEER, pipeline, 2, links=LinkSettings())
    future = world.workers[0].all_reduce(np.ones(10, np.float32))
    world.clock.run(future.done, 100_000_000)
    assert str(future.exception()) == "rank 0: no result in 60 s"
