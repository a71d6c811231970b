"""Hosts on flows: paths, and messages."""

from sa_atp.lab.flow.fabric import SERVER, Fabric, FabricSettings, stream_bytes
from sa_atp.lab.simulator.network import Clock


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


def test_travel_times_on_idle_links() -> None:
    """1250 bytes on the wire take 10 us: on the worker's own link, beyond it, and on all links on the way down."""
    for fabric, expected in ((star(delay_us=50), (60, 0, 60)), (tree(delay_us=50), (60, 60, 120))):
        assert [times.tolist() for times in fabric.path_times_us(1250)] == [[us] * 4 for us in expected]


def test_messages_queue_behind_messages_and_written_data() -> None:
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


def test_bytes_of_a_stream_on_the_wire() -> None:
    assert stream_bytes(1448) == 1538
    assert stream_bytes(1449) == 1449 + 2 * 90
