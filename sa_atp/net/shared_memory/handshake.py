"""How a rank gets its channel: a socket of the machine, named after the switch's UDP port, that is asked once.

    rank                                    switch
      Hello: version, the rank's UDP address  ──>
      <── the channel's memory, the switch's results, the rank's bell, the switch's doorbell (descriptors)

Of a leaf on its host, a rank also asks that packets go on to the switch above, and hands over its own socket for that: so
they leave in the rank's name, and answers from above come to the rank itself.

The name is abstract, so it belongs to a network namespace and ends with the switch. Both ends ask the kernel whose process
the other one is, and talk to their own user's only. Either end sees by the closed socket that the other one has ended.
"""

import errno
import os
import socket
import struct
from dataclasses import dataclass

from sa_atp.net.shared_memory.layout import VERSION
from sa_atp.protocol.packets.datagrams import Address

_HELLO = struct.Struct("=4sI4sH4sH")
MAGIC = b"SATM"
NOWHERE: Address = ("0.0.0.0", 0)
_CREDENTIALS = struct.Struct("=iII")
DESCRIPTORS = 4  # of an answer
ANSWER_S = 2.0  # a switch answers within milliseconds, unless the machine is very busy


@dataclass(frozen=True, slots=True)
class Hello:
    """A rank's question: the address that its datagrams to the switch come from."""

    address: Address
    above: Address | None = None
    """Asked of a leaf: where packets of this rank go that the leaf sends up. The rank's socket comes with the question."""

    def encode(self) -> bytes:
        above_ip, above_port = self.above or NOWHERE
        return _HELLO.pack(
            MAGIC, VERSION, socket.inet_aton(self.address[0]), self.address[1], socket.inet_aton(above_ip), above_port
        )

    @staticmethod
    def decode(data: bytes) -> "Hello | None":
        """Returns None for what is no question of this version."""
        if len(data) != _HELLO.size:
            return None
        magic, version, ip, port, above_ip, above_port = _HELLO.unpack(data)
        if (magic, version) != (MAGIC, VERSION) or not port:
            return None
        above = (socket.inet_ntoa(above_ip), above_port) if above_port else None
        return Hello((socket.inet_ntoa(ip), port), above)


def name_of(switch: Address) -> bytes:
    """The abstract name of the socket at which a switch with this UDP port is asked."""
    return f"\0sa-atp/{switch[0]}:{switch[1]}".encode()


def is_of_this_user(peer: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket is this user's."""
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    return bool(user == os.geteuid())


def ask(switch: Address, hello: Hello, line: int | None = None) -> tuple[socket.socket, list[int]] | None:
    """Asks a switch for a channel.

    Args: switch: its UDP port; line: of a leaf, this rank's UDP socket, from which packets go up.
    Returns: the socket, which ends with the switch, and these descriptors; None: there is no such switch on this machine,
    it is another user's, or it makes no channels.
    """
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptors: list[int] = []
    try:
        peer.settimeout(ANSWER_S)
        peer.connect(name_of(switch))
        if not is_of_this_user(peer):
            raise OSError(errno.EPERM, "another user's")
        socket.send_fds(peer, [hello.encode()], [] if line is None else [line])
        _, descriptors, _, _ = socket.recv_fds(peer, 16, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if len(descriptors) != DESCRIPTORS:
            raise OSError(errno.EPROTO, "no channel")
    except OSError:
        peer.close()
        for each in descriptors:
            os.close(each)
        return None
    peer.setblocking(False)
    return peer, descriptors
