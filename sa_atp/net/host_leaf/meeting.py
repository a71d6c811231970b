"""The Unix socket at which ranks find the leaf switch of their host. Its name has the user and the parameter server.

    rank                                leaf
      connects                  ──>
      <── one JSON object: the ports

The name is abstract, so it belongs to a network namespace and ends with the leaf. Both ends talk to their own user's
processes only. A rank keeps its connection as long as it uses the leaf.
"""

import contextlib
import errno
import json
import os
import socket
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from sa_atp.basics.errors import UserError
from sa_atp.net.shared_memory.handshake import is_of_this_user
from sa_atp.net.shared_memory.local_server import LocalServer
from sa_atp.protocol.packets.control import LeafPorts
from sa_atp.protocol.packets.datagrams import Address

ANSWER_S = 2.0  # a leaf answers within milliseconds, unless the machine is very busy
MOST_RANKS_WAITING = 64
_ENTRIES = {"down", "grpc", "ranks"}


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a leaf on its host."""

    ranks: Address
    """The UDP port at which ranks ask for channels; nothing is sent there."""
    down: Address
    """The UDP port at which results from the switch above arrive."""
    grpc: int
    """The TCP port of P4Runtime."""

    def encode(self) -> bytes:
        return json.dumps({"ranks": self.ranks, "down": self.down, "grpc": self.grpc}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises: ValueError."""
        found = json.loads(data)
        if not isinstance(found, dict) or found.keys() != _ENTRIES:
            raise ValueError("not the ports of a leaf")
        (ranks_ip, ranks_port), (ip, port) = found["ranks"], found["down"]
        return cls((str(ranks_ip), int(ranks_port)), (str(ip), int(port)), int(found["grpc"]))

    @property
    def stated(self) -> LeafPorts:
        """The ports that a rank states when it asks to join."""
        return LeafPorts(self.down[1], self.grpc)


class Leaf:
    """The leaf of this host, in use by this process until `close`."""

    def __init__(self, ports: Ports, peer: socket.socket) -> None:
        self.ports = ports
        self._peer = peer
        peer.setblocking(False)
        self._close = weakref.finalize(self, peer.close)

    def is_over(self) -> bool:
        """Whether the leaf has ended."""
        with contextlib.suppress(BlockingIOError):
            return not self._peer.recv(1)  # it never says anything else
        return False

    def close(self) -> None:
        self._close()


class Meeting(LocalServer):
    """The leaf's end: a thread that answers ranks, and knows how many there are."""

    def __init__(self, server: Address, ports: Ports) -> None:
        """Args: server: the parameter server. Raises: UserError: this user has such a leaf on this host already."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listening.bind(_name("leaf", server))
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE:
                raise
            raise UserError(
                "a leaf below udp://{}:{} runs on this host already: its ranks find that one".format(*server)
            ) from None
        listening.listen(MOST_RANKS_WAITING)
        self._answer = ports.encode()
        self._ranks: set[socket.socket] = set()
        self._changed_s = time.monotonic()
        super().__init__("sa-atp-leaf-meeting", [listening])

    def unused_s(self) -> float:
        """Seconds since a rank last used the leaf; 0: some do."""
        return 0.0 if self._ranks else time.monotonic() - self._changed_s

    def _welcome(self, peer: socket.socket, listening: socket.socket) -> None:
        self._ranks.add(peer)
        self._changed_s = time.monotonic()
        peer.send(self._answer)

    def _hear(self, peer: socket.socket) -> None:
        """Parts from a rank that has ended, or has sent anything: ranks have nothing to say here."""
        self._part_from(peer)
        self._ranks.discard(peer)
        self._changed_s = time.monotonic()


def find(server: Address) -> Leaf | None:
    """Finds the leaf of this user and host that is below the switches of a parameter server; None: there is none."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        peer.settimeout(ANSWER_S)
        peer.connect(_name("leaf", server))
        if not is_of_this_user(peer):
            raise OSError(errno.EPERM, "another user's")
        return Leaf(Ports.decode(peer.recv(4096)), peer)
    except (OSError, ValueError):
        peer.close()
        return None


@contextlib.contextmanager
def only_one_starts(server: Address) -> Iterator[bool]:
    """Yields whether this process may start the leaf: False while another one of this user does, in this namespace."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with held:
        try:
            held.bind(_name("leaf-start", server))
        except OSError:
            yield False
        else:
            yield True


def _name(what: str, server: Address) -> bytes:
    return f"\0sa-atp/{what}/{os.geteuid()}/{server[0]}:{server[1]}".encode()
