"""Addresses as users write them."""

import re

from sa_atp.basics.errors import UserError
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.spec import UDP_PORT


def parse_address(text: str, *, lowest_port: int = 1, usual_port: int = UDP_PORT) -> Address:
    """Parses "HOST[:PORT]" or "udp://HOST[:PORT]". Returns: IPv4 address and port. Raises: UserError."""
    import socket

    match = re.fullmatch(r"(?:udp://)?([^:/\s]+)(?::(\d{1,5}))?", text)
    port = int(match[2]) if match and match[2] else usual_port
    if match is None or not lowest_port <= port < 65536:
        raise UserError(f"address {text!r}: expected HOST or HOST:PORT, with a port of {lowest_port} to 65535")
    try:
        return socket.gethostbyname(match[1]), port
    except (OSError, UnicodeError):  # the latter for "a..b"
        raise UserError(f"address {text!r}: the host {match[1]!r} is not known") from None
