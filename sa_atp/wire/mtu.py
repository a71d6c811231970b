"""How large packets are, and how many lanes fit a path. (protocol section 2.1)"""

from collections.abc import Collection

from sa_atp.errors import UserError
from sa_atp.spec import LANE_BUILDS, Kind
from sa_atp.wire.header import size_of

IP_UDP_BYTES = 20 + 8
LEAST_MTU, MOST_MTU = 68, 65536  # what every link of IPv4 carries (RFC 791); what loopback says of itself


def needed_mtu(lanes: int) -> int:
    """Bytes of an IP packet with so many lanes: what every link on its way must carry whole."""
    return IP_UDP_BYTES + size_of(Kind.DATA, lanes)


def most_lanes(mtu: int, builds: Collection[int] = LANE_BUILDS) -> int:
    """The most lanes that a path carries. Args: mtu: of its narrowest link. Raises: UserError: not those of any build."""
    fitting = [lanes for lanes in builds if needed_mtu(lanes) <= mtu]
    if not fitting:
        least = min(builds)
        raise UserError(f"an MTU of {mtu} bytes: packets of {least} lanes, the fewest, need {needed_mtu(least)}")
    return max(fitting)


def check_fits(lanes: int, mtu: int, where: str) -> None:
    """Raises: UserError: packets with so many lanes do not fit. Args: where: whose MTU it is, for people."""
    if needed_mtu(lanes) > mtu:
        raise UserError(
            f"{where} has an MTU of {mtu} bytes, and packets of {lanes} lanes need {needed_mtu(lanes)}: "
            f"raise it, or use at most {most_lanes(mtu)} lanes"
        )
