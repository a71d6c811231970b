"""Gives the ranks on this machine channels: shared memory in place of a UDP port's socket."""

import contextlib
import os
import queue
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sa_atp.net.shared_memory.handshake import Hello, name_of
from sa_atp.net.shared_memory.layout import CHANNEL_BYTES
from sa_atp.net.shared_memory.local_server import LocalServer
from sa_atp.net.shared_memory.region import seal, shared_memory
from sa_atp.protocol.packets.datagrams import Address

MOST_SILENT = 16  # connections that have not asked yet; one more ends the one that has been silent for longest


@dataclass(frozen=True, slots=True)
class Attach:
    """A rank has got a channel: `number`, below the most that there are."""

    number: int
    port: int
    address: Address
    memory: int
    bell: int
    above: Address | None
    """Where packets of the rank go that leave by the link up; None: the switch is no leaf on a host."""
    line: int
    """The rank's own socket, from which they go; -1: none. These three descriptors belong to whoever takes this."""


@dataclass(frozen=True, slots=True)
class Detach:
    """A rank has ended."""

    number: int


class ChannelServer(LocalServer):
    """A thread that makes channels, and notices when ranks end."""

    def __init__(
        self,
        ports: Mapping[int, Address],
        doorbell: int,
        results: int,
        most: int,
        wake: Callable[[], None],
        *,
        has_lines: bool = False,
    ) -> None:
        """Args:
        ports: UDP address of each port that may have channels.
        doorbell: the descriptor at which the switch is woken; results: of the memory where it writes results.
        most: channels.
        wake: called when there is a change; from the thread.
        has_lines: whether ranks hand over their sockets, from which their packets go up.
        """
        self.changes: queue.SimpleQueue[Attach | Detach] = queue.SimpleQueue()
        self._doorbell, self._results, self._wake, self._has_lines = doorbell, results, wake, has_lines
        self._free = list(range(most))
        self._channels: dict[socket.socket, tuple[int, Address]] = {}
        self._ports: dict[socket.socket, int] = {}  # the port of each socket that listens
        self._silent: dict[socket.socket, int] = {}  # with the port at which each has called
        for number, address in ports.items():
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                listening.bind(name_of(address))
            except OSError:  # somebody else has the name: this port has no channels
                listening.close()
                continue
            listening.listen(MOST_SILENT)
            self._ports[listening] = number
        super().__init__("sa-atp-channels", self._ports)

    def end(self, number: int) -> None:
        """Ends a rank's channel, which then goes on by UDP: its `Detach` follows. Called from any thread."""
        for peer, (known, _) in list(self._channels.items()):
            if known == number:
                with contextlib.suppress(OSError):  # it has ended by itself
                    peer.shutdown(socket.SHUT_RDWR)

    def _welcome(self, peer: socket.socket, listening: socket.socket) -> None:
        if len(self._silent) >= MOST_SILENT:
            longest = next(iter(self._silent))
            del self._silent[longest]
            self._part_from(longest)
        self._silent[peer] = self._ports[listening]

    def _hear(self, peer: socket.socket) -> None:
        """A rank asks for a channel, or has ended; anything else ends it."""
        given: list[int] = []
        try:
            data, given, _, _ = socket.recv_fds(peer, 64, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        port = self._silent.pop(peer, None)
        hello = Hello.decode(data)
        if hello is not None and (hello.above is not None, bool(given)) != (self._has_lines, self._has_lines):
            hello = None  # a leaf is asked with a switch above and a line, any other switch without
        if port is None or hello is None or not self._give(peer, port, hello, given[0] if given else -1):
            for each in given:
                os.close(each)
            self._part_from(peer)
            if peer in self._channels:
                number, _ = self._channels.pop(peer)
                self.changes.put(Detach(number))
                self._wake()

    def detached(self, number: int) -> None:
        """Says that a channel is free again. Called from any thread."""
        self._free.append(number)

    def _give(self, peer: socket.socket, port: int, hello: Hello, line: int) -> bool:
        address = hello.address
        if not self._free or any(address == other for _, other in self._channels.values()):
            return False
        number = self._free.pop()
        made: list[int] = []
        try:
            made.append(shared_memory("sa-atp channel", CHANNEL_BYTES))
            seal(made[0], writable=True)
            made.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
            memory, bell = made
            socket.send_fds(peer, [b"channel"], [memory, self._results, bell, self._doorbell])
        except OSError:
            for each in made:
                os.close(each)
            self._free.append(number)
            return False
        self._channels[peer] = number, address
        self.changes.put(Attach(number, port, address, made[0], made[1], hello.above, line))
        self._wake()
        return True
