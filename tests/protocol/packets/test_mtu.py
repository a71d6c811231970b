"""How many lanes a path carries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.basics.errors import UserError
from sa_atp.protocol.numbers.fragments import CHUNK_VALUES
from sa_atp.protocol.packets.mtu import MOST_MTU, check_fits, most_lanes, needed_mtu
from sa_atp.protocol.packets.spec import LANE_BUILDS


@given(st.integers(needed_mtu(min(LANE_BUILDS)), MOST_MTU))
def test_the_most_lanes_that_fit_an_mtu(mtu: int) -> None:
    lanes = most_lanes(mtu)
    assert needed_mtu(lanes) <= mtu
    assert all(needed_mtu(more) > mtu for more in LANE_BUILDS if more > lanes)
    check_fits(lanes, mtu, "here")


@pytest.mark.parametrize(("mtu", "lanes"), [(1500, 256), (8239, 256), (8240, 2048), (9000, 2048), (65536, 2048)])
def test_lanes_of_common_links(mtu: int, lanes: int) -> None:
    assert most_lanes(mtu) == lanes


def test_every_build_divides_a_chunk() -> None:
    """Otherwise a fragment would belong to two chunks, with two exponents. (protocol section 5.1)"""
    assert all(CHUNK_VALUES % lanes == 0 for lanes in LANE_BUILDS)


def test_packets_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(
        UserError, match=r"port 1 has an MTU of 1500 bytes, and packets of 2048 lanes need 8240: .* 256 lanes"
    ):
        check_fits(2048, 1500, "port 1")
    with pytest.raises(UserError, match="an MTU of 100 bytes: packets of 32 lanes, the fewest, need 176"):
        most_lanes(100)
