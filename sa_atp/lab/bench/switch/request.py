"""The request for a measurement through a switch's interfaces."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchRequest:
    """target: embedded or bmv2. link: udp or veth. lanes, contributions: the build. packets: contributions to send.

    cores: cores of the switch, over veth.
    """

    target: str
    link: str
    lanes: int
    contributions: int = 64
    packets: int
    cores: int = 1

    @property
    def build(self) -> tuple[int, int]:
        return self.lanes, self.contributions
