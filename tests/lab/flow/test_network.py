"""Flows: fair shares, durations, and determinism."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.lab.flow.arrays import Floats, Ints
from sa_atp.lab.flow.network import Flow, FlowNetwork, FlowOwner
from sa_atp.lab.simulator.network import Clock

GBIT = 125.0  # bytes in a microsecond


@pytest.fixture
def network() -> FlowNetwork:
    return FlowNetwork(Clock())


def test_flows_share_links_fairly(network: FlowNetwork) -> None:
    clock = network.clock
    shared, private = network.add_link(1000, 0), network.add_link(250, 0)
    ends: dict[str, int] = {}

    def end(name: str) -> None:
        ends[name] = clock.now_us

    network.start([shared], 125_000, lambda: end("a"))
    network.start([shared, private], 31_250, lambda: end("b"))  # a quarter of the link is all that it can have
    clock.run(lambda: len(ends) == 2, 10**9)
    # b: 31.25 bytes in a microsecond for 1000 us. a: 93.75 until then, which leaves 31,250 at 125
    assert ends == {"a": 1250, "b": 1000}
    assert network.carried_bytes(shared) == pytest.approx(156_250)
    assert network.carried_bytes(private) == pytest.approx(31_250)


def test_a_flow_that_begins_late_slows_the_others_down(network: FlowNetwork) -> None:
    clock = network.clock
    link = network.add_link(1000, 0)
    ends: list[int] = []
    network.start([link], 125_000, lambda: ends.append(clock.now_us))

    def begin() -> None:
        network.start([link], 125_000, lambda: ends.append(clock.now_us))

    clock.at(500, begin)
    clock.run(lambda: len(ends) == 2, 10**9)
    assert ends == [1500, 2000]


def test_a_link_changes_its_rate(network: FlowNetwork) -> None:
    clock = network.clock
    link = network.add_link(1000, 0)
    ends: list[int] = []
    network.start([link], 125_000, lambda: ends.append(clock.now_us))
    clock.at(500, lambda: network.set_rate(link, 0))
    clock.at(700, lambda: network.set_rate(link, 100))
    clock.run(lambda: bool(ends), 10**9)
    assert ends == [700 + 5000]
    assert network.rate_mbps(link) == 100


def test_a_stopped_flow_leaves_the_link_to_the_other(network: FlowNetwork) -> None:
    clock = network.clock
    link = network.add_link(1000, 0)
    ends: list[int] = []
    first = network.start([link], 125_000, lambda: ends.append(1))
    second = network.start([link], 125_000, lambda: ends.append(2))
    clock.at(400, lambda: network.stop(first))
    clock.run(lambda: bool(ends), 10**9)
    assert network.carried(first) == 400 * 62.5
    assert ends == [2]
    assert clock.now_us == 400 + 800
    assert first.is_over
    assert second.is_over
    network.stop(first)  # without effect


def test_a_cap_and_a_weight(network: FlowNetwork) -> None:
    """A flow with weight 5 uses a link five times; its rate is a fifth of its share."""
    clock = network.clock
    link = network.add_link(1000, 0)
    five = network.start([link], 1e9, lambda: None, weights=[5.0])
    capped = network.start([link], 1e9, lambda: None, cap=5.0)
    clock.run(lambda: clock.now_us >= 0 and network.rate(capped) > 0, 0)
    network.settle()
    assert network.rate(capped) == pytest.approx(5)
    assert network.rate(five) == pytest.approx((GBIT - 5) / 5)
    assert network.are_full(np.array([link])).all()


def test_flows_without_bytes_or_links(network: FlowNetwork) -> None:
    clock = network.clock
    link = network.add_link(1000, 0)
    ends: list[str] = []
    network.start([link], 0, lambda: ends.append("empty"))
    network.start([], 1000, lambda: ends.append("nowhere"))
    clock.run(lambda: len(ends) == 2, 10**9)
    assert ends == ["empty", "nowhere"]
    assert clock.now_us <= 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20_000), st.integers(0, 2000)), min_size=1, max_size=30))
def test_all_bytes_arrive_and_none_faster_than_a_link_allows(flows: list[tuple[int, int, int]]) -> None:
    """Flows over a shared link and one of four others, begun at any time: the bytes carried by links add up."""
    clock = Clock()
    network = FlowNetwork(clock)
    shared = network.add_link(100, 0)
    others = [network.add_link(50, 0) for _ in range(4)]
    ends: list[tuple[int, int]] = []

    def begin(n: int) -> None:
        which, size, _ = flows[n]
        network.start([shared, others[which]], size, lambda: ends.append((n, clock.now_us)))

    for n, (_, _, start_us) in enumerate(flows):
        clock.at(start_us, lambda n=n: begin(n))  # type: ignore[misc]
    assert clock.run(lambda: len(ends) == len(flows), 10**9)
    whole = sum(size for _, size, _ in flows)
    assert network.carried_bytes(shared) == pytest.approx(whole, abs=0.1)
    first_us = min(start for _, _, start in flows)
    assert clock.now_us >= first_us + int(whole / 12.5)
    for n, end_us in ends:
        assert end_us - flows[n][2] >= int(flows[n][1] / 6.25)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 20), st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 2), st.integers(0, 9_000)))
        ),
        max_size=5,
    ),
    st.integers(0, 40),
)
def test_start_many_equals_single_starts(batches: list[tuple[int, list[tuple[int, int, int]]]], stop_us: int) -> None:
    """Flows over own and shared links, begun and stopped together, carry the same bytes at the same times."""

    def run(*, together: bool) -> tuple[list[object], list[float], list[float]]:
        clock = Clock()
        network = FlowNetwork(clock)
        links = [network.add_link(100.0 + 10 * n, 0) for n in range(9)]
        seen: list[object] = []
        carried: list[float] = []

        def begin(flows: list[tuple[int, int, int]]) -> None:
            paths = [[links[own]] if other < 0 else [links[own], links[6 + other]] for own, other, _ in flows]
            alive: dict[int, Flow | int] = {}

            def ended(names: Ints, _: Floats) -> None:
                for name in names.tolist():
                    del alive[name]
                    seen.append((clock.now_us, name))

            if together:
                padded = np.array([[*path, -1][:2] for path in paths], np.int64).reshape(-1, 2)
                sizes = np.array([float(size) for _, _, size in flows])
                places = network.start_many(FlowOwner(ended), np.arange(len(flows)), padded, sizes)
                alive.update(enumerate(places.tolist()))
            else:
                for name, (path, (_, _, size)) in enumerate(zip(paths, flows, strict=True)):
                    alive[name] = network.start(path, size, lambda name=name: ended(np.array([name]), np.zeros(1)))  # type: ignore[misc]
            if stop_us:
                clock.at(clock.now_us + stop_us, lambda: stop(alive))

        def stop(alive: dict[int, Flow | int]) -> None:
            places = np.array([flow for flow in alive.values() if isinstance(flow, int)], np.int64)
            if together:
                carried.extend(network.carried_by(places).tolist())
                network.stop_many(places)
            for flow in alive.values():
                if isinstance(flow, Flow):
                    carried.append(network.carried(flow))
            for flow in alive.values():
                if isinstance(flow, Flow):
                    network.stop(flow)
            alive.clear()

        for when_us, flows in batches:
            clock.at(when_us, lambda flows=flows: begin(flows) if flows else None)  # type: ignore[misc]
        clock.run(lambda: False, 10**9)
        return seen, carried, [network.carried_bytes(link) for link in links]

    assert run(together=True) == run(together=False)
