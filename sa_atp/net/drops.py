"""Packets that a switch drops, by cause: it warns when it drops the first, and reports the number when it ends."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sa_atp.net.sockets.ports import InterfacePort, Port, UdpPort
from sa_atp.net.switch_process.impair import ImpairedPort
from sa_atp.switches.embedded.pipeline import ROW_BYTES

TOO_LONG = (
    "packets that are longer than the MTU of their way",
    "has an MTU been lowered? `ip link set INTERFACE mtu BYTES` raises it; a program with fewer lanes (--lanes) has "
    "shorter packets",
)


@dataclass(frozen=True, slots=True)
class Drops:
    """Dropped packets of one cause.

    where: a port, or "" for the switch. cause: a word, for metrics. remedy: what the user can do; "" for drops that every
    network has, which are only reported at the end.
    """

    where: str
    cause: str
    count: int
    description: str
    remedy: str = ""

    def warning(self) -> str:
        return f"{self.where + ': ' if self.where else ''}dropping {self.description}: {self.remedy}"

    def total(self) -> str:
        return f"{self.count} {self.description}{' at ' + self.where if self.where else ''}"


def of_ports(ports: Mapping[int, Port]) -> Iterator[Drops]:
    """Drops at ports."""
    for number, port in ports.items():
        where = f"port {number} ({port.describe()})"
        inner = port.port if isinstance(port, ImpairedPort) else port
        if isinstance(port, ImpairedPort):
            yield Drops(where, "impaired", port.lost, "packets lost on the impaired link, as requested")
            yield Drops(where, "crowded", port.had_no_room, "packets for which the impaired link had no room")
        if isinstance(inner, InterfacePort):
            yield Drops(
                where,
                "oversized",
                inner.oversized,
                f"packets longer than {ROW_BYTES} bytes, or TCP segments that their host left to its interface to cut",
                f"switch that off, at the host's end with `ethtool --offload INTERFACE tso off gso off`, and here with "
                f"`ethtool --offload {inner.interface} gro off`; "
                "in a Mininet script `intf=Interface` of sa_atp.mininet does both",
            )
            yield Drops(where, "refused", inner.refused, "packets that the interface had no room for")
            yield Drops(where, "too_long", inner.too_long, *TOO_LONG)
        elif isinstance(inner, UdpPort):
            yield Drops(
                where,
                "oversized",
                inner.oversized,
                f"datagrams that make frames longer than {ROW_BYTES} bytes",
                "no packet of the program is as long; `sa-atp dissect` reads what `--pcap` writes",
            )
            yield Drops(
                where,
                "not_datagrams",
                inner.not_datagrams,
                "packets of the program that are not UDP datagrams, which this port cannot carry",
                "attach the port to an interface (-i) where it is to carry other traffic",
            )
            yield Drops(where, "refused", inner.refused, "datagrams that the socket did not take")
            yield Drops(where, "too_long", inner.too_long, *TOO_LONG)


def of_switch(*, without_program: int, punts: int, packet_ins: int) -> Iterator[Drops]:
    """Drops of the switch itself.

    Args:
    without_program: packets that came before a program was pushed.
    punts: packets for the CPU port that Python did not take in time.
    packet_ins: packets that no controller took in time.
    """
    yield Drops(
        "",
        "no_program",
        without_program,
        "packets that came before a program was pushed",
        "push one, as `sa-atp deploy` does",
    )
    slow = "more came than the controller takes; send fewer to the CPU port"
    yield Drops("", "punts", punts, "packets for the CPU port", slow)
    yield Drops("", "packet_ins", packet_ins, "packet-ins", slow)
