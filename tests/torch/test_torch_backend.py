"""The process-group backend: the answers of Gloo, and the sums through the switch; FSDP2 by its own means."""

import pytest
from rank_pool import Ranks

MODULE = "backend_scenarios"


def test_collectives_are_those_of_gloo(ranks: Ranks) -> None:
    expected = ranks.run("collectives", 3, module=MODULE, backend="gloo")
    found = ranks.run("collectives", 3, module=MODULE, backend="sa_atp")
    for a, b in zip(found, expected, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert a[name] == b[name], name


def test_collectives_of_gloo_in_close_order(ranks: Ranks) -> None:
    """Where PyTorch calls Gloo with the interpreter's lock held, ranks hang within some dozen of these."""
    assert ranks.run("one_after_another", 3, module=MODULE, backend="sa_atp", times=300) == [300] * 3


def test_what_goes_through_the_switch(ranks: Ranks) -> None:
    for sent in ranks.run("through_switch", 2, module=MODULE, backend="sa_atp"):
        assert sent.pop("everything else") == 0
        assert all(count > 0 for count in sent.values()), sent


def test_without_a_server(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match="SA_ATP_SERVER is not set"):
        ranks.run("through_switch", 2, module=MODULE, backend="sa_atp", environment={"SA_ATP_SERVER": ""})


@pytest.mark.parametrize(("world_size", "native", "switch"), [(2, "native", "switch"), (4, "hybrid", "replicas")])
def test_fsdp(ranks: Ranks, world_size: int, native: str, switch: str) -> None:
    expected = ranks.run("fsdp", world_size, module=MODULE, mode=native)[0]
    found = ranks.run("fsdp", world_size, module=MODULE, mode=switch)[0]
    assert found == pytest.approx(expected, rel=1e-5)


def test_fsdp_over_the_backend(ranks: Ranks) -> None:
    expected = ranks.run("fsdp", 2, module=MODULE, mode="native")[0]
    found = ranks.run("fsdp", 2, module=MODULE, mode="native", backend="sa_atp")[0]
    assert found == pytest.approx(expected, rel=1e-5)
