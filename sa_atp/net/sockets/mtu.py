"""What this host's interfaces carry: the MTUs by which the number of lanes is chosen. (protocol section 7.1)

What lies between two interfaces the kernel does not know; whoever joins says what it knows of its own way.
"""

import fcntl
import socket
import struct

from sa_atp.basics.errors import UserError
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.mtu import IP_UDP_BYTES, MOST_MTU

SIOCGIFMTU, SIOCGIFADDR = 0x8921, 0x8915
IP_MTU = 14
_IFREQ = struct.Struct("16si20x")
ANY = "0.0.0.0"


def of_interface(name: str) -> int:
    """Raises: UserError: there is no such interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            found = fcntl.ioctl(asked, SIOCGIFMTU, _IFREQ.pack(name.encode()[:15], 0))
        except OSError as error:
            raise UserError(f"the MTU of {name}: {error.strerror}; `ip link` lists the interfaces") from None
    return min(MOST_MTU, int(_IFREQ.unpack(found)[1]))


def of_address(ip: str) -> int:
    """Of the interface that has this IPv4 address; of the narrowest that is not loopback, where it means all of them."""
    found = _by_address()
    if ip != ANY:
        return found.get(ip, MOST_MTU if ip.startswith("127.") else min(found.values(), default=MOST_MTU))
    return min((mtu for each, mtu in found.items() if not each.startswith("127.")), default=MOST_MTU)


def of_path(to: Address) -> int:
    """Of the way to an address, as far as this host knows it; MOST_MTU where it knows none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(to)
            return min(MOST_MTU, asked.getsockopt(socket.IPPROTO_IP, IP_MTU))
        except OSError:  # nobody can be reached there: joining will say so
            return MOST_MTU


def exceeded(socket: UdpSocket) -> tuple[Address, int, int] | None:
    """Whether datagrams have not left because they are too long for the way; told once.

    Returns: where to, how long they are as IP packets, and what the way carries, as far as this host knows it.
    """
    if socket.too_long is None:
        return None
    (to, size), socket.too_long = socket.too_long, None
    return to, size + IP_UDP_BYTES, of_path(to)


def _by_address() -> dict[str, int]:
    """MTU by IPv4 address, of interfaces that have one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("16s24x", name.encode()))
                found[socket.inet_ntoa(answer[20:24])] = of_interface(name)
            except (OSError, UserError):
                continue  # it has no IPv4 address, or has gone
    return found
