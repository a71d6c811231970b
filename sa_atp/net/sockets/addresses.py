"""Addresses as users write them."""

import ipaddress
import re

from sa_atp.basics.errors import UserError
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.spec import UDP_PORT

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


def _is_ipv6(text: str) -> bool:
    """Whether this is ADDRESS, [ADDRESS] or [ADDRESS]:PORT of IPv6, or is meant to be."""
    if text.startswith("["):
        return True
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
