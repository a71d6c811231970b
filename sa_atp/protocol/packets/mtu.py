"""How large packets are, and how many lanes fit a path. (protocol section 2.1)"""

from sa_atp.basics.errors import UserError
from sa_atp.protocol.packets.header import size_of
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, LANE_BUILDS, WIDE_BUILDS, Kind

IP_UDP_BYTES = 20 + 8
LEAST_MTU, MOST_MTU = 68, 65536  # what every link of IPv4 carries (RFC 791); what loopback says of itself


def needed_mtu(lanes: int, contributions: int = CONTRIBUTION_BITS) -> int:
    """Bytes of an IP packet with so many lanes, and bits of a bitmap: what every link on its way must carry whole."""
    return IP_UDP_BYTES + size_of(Kind.DATA, lanes, contributions)


def most_lanes(mtu: int, contributions: int = CONTRIBUTION_BITS) -> int:
    """The most lanes that a path carries.

    Args: mtu: of its narrowest link; contributions: that a build must have bits for.
    Raises: UserError: there is no such build, or not for so narrow a link.
    """
    few = contributions <= CONTRIBUTION_BITS
    builds = dict.fromkeys(LANE_BUILDS, CONTRIBUTION_BITS) if few else dict(WIDE_BUILDS)
    enough = {lanes: bits for lanes, bits in builds.items() if bits >= contributions}
    if not enough:
        raise UserError(f"{contributions} contributions: expected at most {max(builds.values())}")
    needed = {lanes: needed_mtu(lanes, bits) for lanes, bits in enough.items()}
    fitting = [lanes for lanes, size in needed.items() if size <= mtu]
    if not fitting:
        least = min(needed)
        raise UserError(f"an MTU of {mtu} bytes: packets of {least} lanes, the fewest, need {needed[least]}")
    return max(fitting)


def check_fits(lanes: int, mtu: int, where: str, contributions: int = CONTRIBUTION_BITS) -> None:
    """Raises: UserError: packets with so many lanes do not fit. Args: where: whose MTU it is, for people."""
    needed = needed_mtu(lanes, contributions)
    if needed > mtu:
        raise UserError(
            f"{where} has an MTU of {mtu} bytes, and packets of {lanes} lanes need {needed}: "
            f"raise it, or use at most {most_lanes(mtu, contributions)} lanes"
        )
