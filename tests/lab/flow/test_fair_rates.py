"""Rates of flows that share links are max-min fair, by the definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.lab.flow.fair_rates import fair_rates


@st.composite
def shares(draw: st.DrawFn) -> tuple[list[float], list[dict[int, int]], list[float]]:
    """Rates of links; links and weights of each flow; the cap of rates."""
    links = draw(st.lists(st.floats(1, 1000), min_size=1, max_size=5))
    number = st.integers(0, len(links) - 1)
    flows = draw(st.lists(st.dictionaries(number, st.integers(1, 4), min_size=1), min_size=1, max_size=8))
    caps = draw(
        st.lists(st.one_of(st.floats(0.5, 500), st.just(float("inf"))), min_size=len(flows), max_size=len(flows))
    )
    return links, flows, caps


@given(shares())
def test_every_flow_has_a_bottleneck_link(
    drawn: tuple[list[float], list[dict[int, int]], list[float]],
) -> None:
    """The definition of max-min fairness: a flow below its cap crosses a full link on which it is among the fastest."""
    links, flows, caps = drawn
    entries = [(f, link, weight) for f, path in enumerate(flows) for link, weight in path.items()]
    flow, link, weight = (np.array(column) for column in zip(*entries, strict=True))
    capacity = np.array(links)
    rates = fair_rates(flow, link, weight.astype(float), capacity, np.array(caps))
    used = np.bincount(link, rates[flow] * weight, minlength=len(links))
    assert (used <= capacity * (1 + 1e-6)).all()
    for f, path in enumerate(flows):
        assert rates[f] <= caps[f] * (1 + 1e-6)
        if rates[f] >= caps[f] * (1 - 1e-6):
            continue
        full = [n for n in path if used[n] >= capacity[n] * (1 - 1e-6)]
        assert any(rates[f] >= max(rates[g] for g, p in enumerate(flows) if n in p) * (1 - 1e-6) for n in full)
