"""A ring all-reduce: each link carries 2(n-1)/n of the tensor, in 2(n-1) rounds."""

import pytest

from sa_atp.lab.flow.fabric import Fabric, FabricSettings, stream_bytes
from sa_atp.lab.flow.ring import Ring, ring_steps_us
from sa_atp.lab.simulator.network import Clock


@pytest.mark.parametrize(("workers", "racks"), [(2, 0), (8, 0), (8, 2)])
def test_a_link_carries_its_share(workers: int, racks: int) -> None:
    fabric = Fabric(Clock(), FabricSettings(workers=workers, racks=racks, link_mbps=1000, delay_us=0))
    (end,) = ring_steps_us(fabric, 8e6, [500])
    rounds = 2 * (workers - 1)
    assert Ring(fabric).rounds == rounds
    assert end == pytest.approx(500 + rounds * stream_bytes(8e6 / workers) / 125, rel=0.01)
    for link in (*fabric.up, *fabric.down, *fabric.rack_up):  # a rack has one neighbour in the next
        assert fabric.network.carried_bytes(link) == pytest.approx(rounds * stream_bytes(8e6 / workers))


def test_each_round_waits_for_the_one_before() -> None:
    fabric = Fabric(Clock(), FabricSettings(workers=16, link_mbps=100_000, delay_us=1000))
    ends = ring_steps_us(fabric, 1000, [0, 0])
    assert ends[0] == pytest.approx(30 * 2000, rel=0.01)
    assert ends[1] == pytest.approx(2 * ends[0], rel=0.01)
