"""MTUs of this host's interfaces."""

import pytest

from sa_atp.basics.errors import UserError
from sa_atp.net.sockets import mtu
from sa_atp.protocol.packets.mtu import LEAST_MTU, MOST_MTU


def test_loopback_is_asked_in_every_way() -> None:
    said = mtu.of_interface("lo")
    assert mtu.of_address("127.0.0.1") == said
    assert abs(mtu.of_path(("127.0.0.1", 9)) - said) <= 1  # a route's is at most what an IP packet can say
    assert LEAST_MTU <= said <= MOST_MTU


def test_all_addresses_have_the_narrowest_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LEAST_MTU <= mtu.of_address("0.0.0.0") <= MOST_MTU
    monkeypatch.setattr(mtu, "_by_address", lambda: {"127.0.0.1": 65536, "10.0.0.1": 1500, "10.0.0.2": 9000})
    assert mtu.of_address("0.0.0.0") == 1500


def test_an_interface_that_is_not_there() -> None:
    with pytest.raises(UserError, match="the MTU of no-such-0: No such device; `ip link` lists the interfaces"):
        mtu.of_interface("no-such-0")
