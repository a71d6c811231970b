"""Transfers that queue on links: throughput, order, and changes of rate."""

import random

import pytest

from sa_atp.lab.flow.fabric import SERVER, Fabric, FabricSettings, stream_bytes
from sa_atp.lab.flow.queues import Queues
from sa_atp.lab.simulator.network import Clock

MESSAGE = 153_128  # 13.0 ms on 100 Mbit/s


def fabric_of(**settings: float) -> Fabric:
    return Fabric(Clock(), FabricSettings(workers=4, **settings))  # type: ignore[arg-type]


def arrival_us(fabric: Fabric, *transfers: tuple[int, int, float], at_us: tuple[int, ...] = ()) -> list[int]:
    """Arrival of each of several transfers, which begin together or at given times."""
    clock, found, queues = fabric.clock, [0] * len(transfers), Queues(fabric)

    def begin(n: int) -> None:
        def arrived(_: object) -> None:
            assert not found[n]
            found[n] = clock.now_us

        queues.transfer(*transfers[n]).add_done_callback(arrived)

    for n in range(len(transfers)):
        clock.at(at_us[n] if at_us else 0, lambda n=n: begin(n))  # type: ignore[misc]
    assert clock.run(lambda: all(found), 10**9)
    return found


def test_the_time_of_one_transfer() -> None:
    (alone,) = arrival_us(fabric_of(link_mbps=1000, delay_us=100), (0, SERVER, 1_000_000))
    assert alone == pytest.approx(stream_bytes(1_000_000) / 125 + 200, abs=40)  # a piece over the second link
    (far,) = arrival_us(fabric_of(racks=2, link_mbps=1000, delay_us=100), (0, SERVER, 1_000_000))
    assert far - alone == pytest.approx(100 + 33, abs=5)


def test_pieces_shorter_than_a_microsecond_take_no_longer() -> None:
    (alone,) = arrival_us(fabric_of(link_mbps=100_000, delay_us=0), (0, SERVER, 300_000))
    assert alone == pytest.approx(stream_bytes(300_000) / 12_500, abs=2)


def test_an_empty_transfer_takes_time() -> None:
    """An empty transfer is a packet of 91 bytes on the wire, over two links with a delay of 7 us."""
    assert arrival_us(fabric_of(link_mbps=100, delay_us=7), (0, SERVER, 1), (1, 2, 0)) == pytest.approx([28, 14], abs=1)


def test_transfers_arrive_in_order() -> None:
    fabric = fabric_of(link_mbps=100, delay_us=0)
    found = arrival_us(fabric, *[(SERVER, rank, MESSAGE) for rank in range(3)])
    alone = stream_bytes(MESSAGE) / 12.5
    assert found == pytest.approx([alone, 2 * alone, 3 * alone], rel=0.01)


def test_senders_that_begin_together_share_the_receivers_link() -> None:
    """Senders with links as fast as the receiver's are served in turn."""
    found = arrival_us(fabric_of(link_mbps=100, delay_us=0), *[(rank, SERVER, MESSAGE) for rank in range(4)])
    assert found == pytest.approx([4 * stream_bytes(MESSAGE) / 12.5] * 4, rel=0.03)
    both_ways = arrival_us(fabric_of(link_mbps=100, delay_us=0), (0, SERVER, MESSAGE), (SERVER, 0, MESSAGE))
    assert both_ways == pytest.approx([stream_bytes(MESSAGE) / 12.5] * 2, rel=0.01)


def test_an_earlier_transfer_ends_before_its_fair_share() -> None:
    """Three transfers begin at 0, 0.3 and 7.8 ms; in Mininet they ended after 31.4, 32.4 and 40.6.

    With fair shares the first would end only after 36 ms.
    """
    found = arrival_us(
        fabric_of(link_mbps=100, delay_us=0), *[(rank, SERVER, MESSAGE) for rank in range(3)], at_us=(0, 300, 7800)
    )
    assert [us / 1000 for us in found] == pytest.approx([31.4, 32.4, 40.6], abs=1.5)


def test_a_trunk_delays_only_its_rack() -> None:
    def tree() -> Fabric:
        return fabric_of(racks=2, link_mbps=1000, delay_us=0, trunk_mbps=500)

    apart = arrival_us(tree(), (0, 1, 1e6), (2, 3, 1e6))
    within = arrival_us(tree(), (0, 2, 1e6), (1, 3, 1e6))
    assert apart == pytest.approx([4 * t for t in within], rel=0.02)


def test_a_new_rate_applies_to_later_pieces() -> None:
    fabric = fabric_of(link_mbps=100, delay_us=0)
    fabric.clock.at(6_500, lambda: fabric.network.set_rate(fabric.up[0], 50))
    (found,) = arrival_us(fabric, (0, SERVER, MESSAGE))
    assert found == pytest.approx(6_500 + 2 * (stream_bytes(MESSAGE) / 12.5 - 6_500), abs=300)


@pytest.mark.parametrize("seed", range(5))
def test_queues_are_work_conserving(seed: int) -> None:
    """With senders faster than the server's link, the last byte arrives when the link has carried all."""
    rng = random.Random(seed)
    sizes = [rng.randrange(1, 400_000) for _ in range(30)]
    fabric = fabric_of(link_mbps=1000, server_mbps=10, delay_us=0)
    found = arrival_us(fabric, *[(rng.randrange(4), SERVER, size) for size in sizes])
    total_us = sum(stream_bytes(size) for size in sizes) / 1.25
    first_piece_us = stream_bytes(max(sizes)) / 125
    assert total_us <= max(found) + 1 <= total_us + first_piece_us
