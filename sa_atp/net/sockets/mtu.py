"""MTUs of this host's interfaces and paths, by which the number of lanes is chosen. (protocol section 7.1)

A host knows only its own end of a path, so each rank tells the parameter server its MTU when it joins.
"""

import fcntl
import socket
import struct

from sa_atp.basics.errors import UserError
from sa_atp.net.sockets.addresses import ANY
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.mtu import IP_UDP_BYTES, MOST_MTU

SIOCGIFMTU, SIOCGIFADDR = 0x8921, 0x8915
IP_MTU = 14
_IFREQ = struct.Struct("16si20x")


def of_interface(name: str) -> int:
    """The MTU of an interface. Raises: UserError: there is no such interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            found = fcntl.ioctl(asked, SIOCGIFMTU, _IFREQ.pack(name.encode()[:15], 0))
        except OSError as error:
            raise UserError(f"the MTU of {name}: {error.strerror}; `ip link` lists the interfaces") from None
    return min(MOST_MTU, int(_IFREQ.unpack(found)[1]))


def of_address(ip: str) -> int:
    """The MTU of the interface with this IPv4 address; for 0.0.0.0 the smallest of all but loopback."""
    found = _by_address()
    if ip != ANY:
        return found.get(ip, MOST_MTU if ip.startswith("127.") else min(found.values(), default=MOST_MTU))
    return min((mtu for each, mtu in found.items() if not each.startswith("127.")), default=MOST_MTU)


def of_path(to: Address) -> int:
    """The MTU of the path to an address, as far as this host knows it; MOST_MTU if it does not."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(to)
            return min(MOST_MTU, asked.getsockopt(socket.IPPROTO_IP, IP_MTU))
        except OSError:  # there is no route: joining will report that
            return MOST_MTU


def take_exceeded(socket: UdpSocket) -> tuple[Address, int, int] | None:
    """Reports, once, datagrams that the kernel refused because they are longer than the path's MTU.

    Returns: their receiver, their length as IP packets, and the path's MTU as far as this host knows it; None if none.
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
                continue  # the interface has no IPv4 address, or is gone
    return found
