"""Hosts on flows: paths, transfers and messages."""

import pytest

from sa_atp.flow.fabric import SERVER, Fabric, FabricSettings, stream_bytes
from sa_atp.sim.network import Clock


def arrival_us(fabric: Fabric, *transfers: tuple[int, int, float]) -> list[int]:
    """When each of several transfers that begin together has arrived."""
    clock, found = fabric.clock, [0] * len(transfers)
    left = len(transfers)

    def arrived(n: int) -> None:
        nonlocal left
        found[n] = clock.now_us
        left -= 1

    for n, transfer in enumerate(transfers):
        fabric.transfer(*transfer).add_done_callback(lambda _, n=n: arrived(n))  # type: ignore[misc]
    assert clock.run(lambda: left == 0, 10**9)
    return found


def star(**settings: float) -> Fabric:
    return Fabric(Clock(), FabricSettings(workers=4, link_mbps=1000, **settings))  # type: ignore[arg-type]


def tree(**settings: float) -> Fabric:
    return Fabric(Clock(), FabricSettings(workers=4, racks=2, link_mbps=1000, **settings))  # type: ignore[arg-type]


def test_paths() -> None:
    one, two = star(), tree()
    assert one.path(0, SERVER) == [one.up[0], one.server_down]
    assert one.path(2, 3) == [one.up[2], one.down[3]]
    assert two.path(0, 2) == [two.up[0], two.down[2]]  # both below leaf 0
    assert two.path(0, 3) == [two.up[0], two.rack_up[0], two.rack_down[1], two.down[3]]
    assert two.path(1, SERVER) == [two.up[1], two.rack_up[1], two.server_down]
    assert two.path(SERVER, 1) == [two.server_up, two.rack_down[1], two.down[1]]
    assert (one.levels, two.levels) == (1, 2)


def test_a_transfer_takes_its_bytes_and_the_way() -> None:
    (alone,) = arrival_us(star(delay_us=100), (0, SERVER, 1_000_000))
    assert alone == pytest.approx(stream_bytes(1_000_000) / 125 + 200, abs=15)
    (far,) = arrival_us(tree(delay_us=100), (0, SERVER, 1_000_000))
    assert far - alone == pytest.approx(100, abs=15)


def test_the_parameter_server_s_link_is_shared() -> None:
    alone, *_ = arrival_us(star(delay_us=0), (0, SERVER, 1e6))
    found = arrival_us(star(delay_us=0), *[(rank, SERVER, 1e6) for rank in range(4)])
    assert found == pytest.approx([4 * alone] * 4, rel=0.01)
    both_ways = arrival_us(star(delay_us=0), (0, SERVER, 1e6), (SERVER, 0, 1e6))
    assert both_ways == pytest.approx([alone] * 2, rel=0.01)


def test_a_trunk_is_shared_by_its_rack_only() -> None:
    found = arrival_us(tree(delay_us=0, trunk_mbps=500), (0, 1, 1e6), (2, 3, 1e6))
    within = arrival_us(tree(delay_us=0, trunk_mbps=500), (0, 2, 1e6), (1, 3, 1e6))
    assert found == pytest.approx([4 * t for t in within], rel=0.01)


def test_messages_wait_for_one_another_and_for_what_their_sender_has_written() -> None:
    fabric = star(delay_us=50)
    clock = fabric.clock
    found: list[int] = []
    for rank in (0, 1, 2):
        fabric.message(
            fabric.path(rank, SERVER), 1184, lambda: found.append(clock.now_us)
        )  # 1250 bytes on the wire: 10 us
    fabric.message(fabric.path(3, SERVER), 1184, lambda: found.append(clock.now_us), behind_us=1000)
    clock.run(lambda: len(found) == 4, 10**9)
    assert found == [120, 130, 140, 1120]


def test_what_a_stream_costs_on_the_wire() -> None:
    assert stream_bytes(1448) == 1538
    assert stream_bytes(1449) == 1449 + 2 * 90
