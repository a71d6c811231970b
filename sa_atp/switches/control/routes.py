"""Routes of ordinary traffic, also of a job's control messages: entries of the table `bridge`."""

import ipaddress

from sa_atp.basics.errors import UserError
from sa_atp.switches.control.writer import Writer
from sa_atp.switches.p4runtime.entities import Lpm, TableEntry, Update, UpdateKind

TABLE = "bridge"
PORT_BITS = 9
"""Bits of a port number, on v1model and TNA."""


def check(prefix: str, port: int) -> None:
    """Checks a route without writing it. Raises: UserError: it is not valid."""
    if not 0 <= port < 1 << PORT_BITS:
        raise UserError(f"route {prefix}: port {port}: expected 0 to {(1 << PORT_BITS) - 1}")
    entry(prefix, port)


def add(writer: Writer, prefix: str, port: int) -> bool:
    """Adds a route for an address ("10.0.0.1") or a network ("10.0.0.0/24") to a port.

    Returns: False if the switch had it already.
    """
    wanted = entry(prefix, port)
    present = {str(_network(e)): e.params.get("port") for e in _read(writer)}
    network = str(_network(wanted))
    if network in present and present[network] == port:
        return False
    writer.write([Update(UpdateKind.MODIFY if network in present else UpdateKind.INSERT, wanted)])
    return True


def remove(writer: Writer, prefix: str) -> bool:
    """Removes a route. Returns: False if there was none."""
    wanted = entry(prefix, 0)
    if _network(wanted) not in {_network(e) for e in _read(writer)}:
        return False
    writer.write([Update(UpdateKind.DELETE, TableEntry(table=TABLE, match=wanted.match))])
    return True


def read(writer: Writer) -> dict[str, int]:
    """Reads all routes: port by network, such as "10.0.0.1/32"."""
    return {str(_network(e)): e.params["port"] for e in _read(writer) if e.action == "to_port"}


def _read(writer: Writer) -> list[TableEntry]:
    return [e for e in writer.read(TableEntry(table=TABLE)) if isinstance(e, TableEntry)]


def entry(prefix: str, port: int) -> TableEntry:
    """The entry for a route. Raises: UserError: the address is not valid."""
    try:
        network = ipaddress.IPv4Network(prefix)
    except ValueError as error:
        raise UserError(f"route {prefix!r}: expected an IPv4 address or network like 10.0.0.0/24 ({error})") from None
    match = {"ip": Lpm(int(network.network_address), network.prefixlen)} if network.prefixlen else {}
    return TableEntry(table=TABLE, match=match, action="to_port", params={"port": port})


def _network(entry: TableEntry) -> ipaddress.IPv4Network:
    match = entry.match.get("ip", Lpm(0, 0))
    assert isinstance(match, Lpm)
    return ipaddress.IPv4Network((match.value, match.prefix_bits))
