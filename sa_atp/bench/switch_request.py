"""What a measurement through a switch's interfaces is asked for."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """target: embedded or bmv2. link: udp or veth. packets: contributions to measure with."""

    target: str
    link: str
    lanes: int
    packets: int
