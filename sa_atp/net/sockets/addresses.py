"""Addresses as users write them, and as they are on the way to another host."""

import ipaddress
import re
from collections.abc import Iterable

from sa_atp.basics.errors import UserError
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.spec import UDP_PORT

ANY = "0.0.0.0"
IPV4 = "SA-ATP's packets travel over IPv4: write the host's IPv4 address, as 127.0.0.1 for ::1, or a name that has one"


def parse_address(text: str, *, lowest_port: int = 1, usual_port: int = UDP_PORT) -> Address:
    """Parses "HOST[:PORT]" or "udp://HOST[:PORT]". Returns: IPv4 address and port. Raises: UserError."""
    where = f"address {text!r}"
    written = text.removeprefix("udp://")
    if _is_ipv6(written):
        raise UserError(f"{where}: {IPV4}")
    match = re.fullmatch(r"([^:/\s]+)(?::(\d{1,5}))?", written)
    port = int(match[2]) if match and match[2] else usual_port
    if match is None or not lowest_port <= port < 65536:
        raise UserError(f"{where}: expected HOST or HOST:PORT, with a port of {lowest_port} to 65535")
    return ipv4_of(match[1], where), port


def ipv4_of(host: str, where: str) -> str:
    """Returns the IPv4 address of a host. Args: where: begins the message. Raises: UserError: it has none."""
    import socket

    if _is_ipv6(host):
        raise UserError(f"{where}: {IPV4}")
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError):  # the latter for "a..b"
        pass
    try:
        socket.getaddrinfo(host, None, socket.AF_INET6)
    except (OSError, UnicodeError):
        raise UserError(f"{where}: the host {host!r} is not known") from None
    raise UserError(f"{where}: the host {host!r} has no IPv4 address, only IPv6; {IPV4}")


def source_of(own: Address, to: Address) -> Address | None:
    """The address from which datagrams of a socket that is bound to `own` reach `to`; None: they do not."""
    import socket

    if own[0] != ANY:
        return own
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(to)
        except OSError:
            return None
        return str(asked.getsockname()[0]), own[1]


def sources_of(own: Address, peers: Iterable[Address]) -> list[Address]:
    """The different addresses from which datagrams of a socket that is bound to `own` reach peers."""
    hosts = {ip: (ip, port) for ip, port in peers}
    return sorted({found for to in hosts.values() if (found := source_of(own, to)) is not None})


def is_here(ip: str) -> bool:
    """Whether this host has an address: a datagram for it comes from it."""
    return source_of((ANY, 1), (ip, 1)) == (ip, 1)


def _is_ipv6(text: str) -> bool:
    """Whether this is ADDRESS, [ADDRESS] or [ADDRESS]:PORT of IPv6, or is meant to be."""
    if text.startswith("["):
        return True
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
