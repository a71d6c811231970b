"""How large packets are, and how many lanes fit a path. (protocol section 2.1)"""

from sa_atp.basics.errors import UserError
from sa_atp.protocol.packets.header import size_of
from sa_atp.protocol.packets.spec import BUILDS, CONTRIBUTION_BITS, MOST_CONTRIBUTIONS, Kind

IP_UDP_BYTES = 20 + 8
LEAST_MTU, MOST_MTU = 68, 65536  # the least that an IPv4 link may have (RFC 791); that of loopback


def needed_mtu(lanes: int, contributions: int = CONTRIBUTION_BITS) -> int:
    """The MTU that packets with so many lanes and contributions need on every link, in bytes of an IP packet."""
    return IP_UDP_BYTES + size_of(Kind.DATA, lanes, contributions)


def most_lanes(mtu: int, contributions: int = CONTRIBUTION_BITS) -> int:
    """The most lanes that a path carries.

    Args: mtu: of the path's narrowest link; contributions: bits that the build must have.
    Raises: UserError: no build has so many bits, or none has packets so small.
    """
    needed = [(needed_mtu(lanes, bits), lanes) for lanes, bits in BUILDS if bits >= contributions]
    if not needed:
        raise UserError(f"{contributions} contributions: expected at most {MOST_CONTRIBUTIONS}")
    fitting = [lanes for size, lanes in needed if size <= mtu]
    if not fitting:
        size, least = min(needed)
        raise UserError(f"an MTU of {mtu} bytes: packets of {least} lanes, the fewest, need {size}")
    return max(fitting)


def check_fits(lanes: int, mtu: int, where: str, contributions: int = CONTRIBUTION_BITS) -> None:
    """Raises: UserError: packets with so many lanes do not fit. Args: where: the interface or path, for the message."""
    needed = needed_mtu(lanes, contributions)
    if needed > mtu:
        raise UserError(
            f"{where} has an MTU of {mtu} bytes, and packets of {lanes} lanes need {needed}: "
            f"raise it, or use at most {most_lanes(mtu, contributions)} lanes"
        )
