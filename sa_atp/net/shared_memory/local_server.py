"""A thread that serves the processes of this user and machine which connect to Unix sockets."""

import contextlib
import selectors
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection

from sa_atp.net.shared_memory.handshake import is_of_this_user


class LocalServer(ABC):
    """Accepts this user's processes, and hears when one says something or ends. Its methods run in the thread."""

    def __init__(self, name: str, listening: Collection[socket.socket]) -> None:
        """Starts the thread, so it is called last. Args: listening: sockets that listen; this object closes them."""
        self._selector = selectors.DefaultSelector()
        self._stop, self._stopped = socket.socketpair()
        for each in (*listening, self._stopped):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)
        self._listening = listening
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @abstractmethod
    def _welcome(self, peer: socket.socket, listening: socket.socket) -> None:
        """A process has connected. May raise OSError: it has ended already, which is heard next."""

    @abstractmethod
    def _hear(self, peer: socket.socket) -> None:
        """A process has said something, or has ended."""

    def close(self) -> None:
        self._stop.send(b"x")
        self._thread.join()
        for each in [self._stop, *(key.fileobj for key in self._selector.get_map().values())]:
            assert isinstance(each, socket.socket)
            each.close()
        self._selector.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                assert isinstance(key.fileobj, socket.socket)
                if key.fileobj is self._stopped:
                    return
                if key.fileobj in self._listening:
                    self._accept(key.fileobj)
                elif key.fileobj.fileno() >= 0:  # not closed a moment ago
                    self._hear(key.fileobj)

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            peer, _ = listening.accept()
            if not is_of_this_user(peer):
                peer.close()
                return
            peer.setblocking(False)
            self._selector.register(peer, selectors.EVENT_READ)
            self._welcome(peer, listening)

    def _part_from(self, peer: socket.socket) -> None:
        """Closes a process's connection."""
        self._selector.unregister(peer)
        peer.close()
