"""The door of a process: a Unix socket at which it tells its state to other processes of its user.

Who connects is sent one line of JSON for each thing that the process has to tell, and then the end. The sockets are in a
folder that only the user can enter, as tmux's are: $SA_ATP_DOORS, or /tmp/sa_atp-doors-UID; an empty $SA_ATP_DOORS means
that there are no doors. A file's name reaches across network namespaces, so a Mininet host's processes are found, too; and
nothing listens on a network.
"""

import atexit
import contextlib
import os
import secrets
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import msgspec

from sa_atp.net.watching.states import Told

VARIABLE = "SA_ATP_DOORS"
SUFFIX = ".sock"
WAITING = 8  # who looks, and waits for the one before
LONGEST_S = 2.0  # for a reader to take what it is told
TURN_S = 1.0  # for a loop to say what its state is

T = TypeVar("T")
Telling = Callable[[], Told]


_started_by: list[int] = []


def note_parent(number: int) -> None:
    """Notes which process had this one started, where that is not the one that has forked it."""
    _started_by[:] = [number]


def parent() -> int:
    """The process that has started this one, or had it started."""
    return _started_by[0] if _started_by else os.getppid()


def folder() -> Path | None:
    """The folder of this user's doors; it may not exist yet. None: there are no doors."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return Path(chosen) if chosen else None
    return Path(f"/tmp/sa_atp-doors-{os.geteuid()}")


def is_own(place: Path) -> bool:
    """Whether a folder is there, is this user's, and nobody else can enter it."""
    try:
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def between_turns(call: Callable[[Callable[[], None]], None], at: Callable[[], T], timeout_s: float = TURN_S) -> T:
    """Has a loop call `at` between two turns. Args: call: has the loop call something soon.

    Returns: its result. Raises: what `at` raises; TimeoutError: the loop is stuck.
    """
    seen: Future[T] = Future()

    def look() -> None:
        try:
            seen.set_result(at())
        except Exception as problem:
            seen.set_exception(problem)

    call(look)
    return seen.result(timeout_s)


@contextlib.contextmanager
def name_of(path: Path) -> Iterator[str]:
    """A name of a socket's file that fits into the address of a socket, of at most 107 bytes, wherever the file is."""
    place = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{place}/{path.name}"
    finally:
        os.close(place)


class _Door:
    """The door of this process, which is there as long as there is something to tell."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._forget()
        os.register_at_fork(after_in_child=self._forget)  # a fork has neither the thread nor what is told
        atexit.register(self._close)

    def _forget(self) -> None:
        self._lock = threading.RLock()  # a connection that is collected as garbage may end in the middle of `add`
        self._told: dict[int, Telling] = {}
        self._newest = 0
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._path = Path()

    def add(self, telling: Telling) -> int:
        with self._lock:
            self._newest += 1
            self._told[self._newest] = telling
            if self._socket is None:
                self._open()
            return self._newest

    def remove(self, number: int) -> None:
        with self._lock:
            if self._told.pop(number, None) is not None and not self._told:
                self._close()

    def _open(self) -> None:
        place = folder()
        if place is None:
            return
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_own(place):
                raise PermissionError
            path = place / f"{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
            with name_of(path) as name:
                listening.bind(name)
            listening.listen(WAITING)
        except OSError:  # whoever looks does not see this process; it runs all the same
            listening.close()
            return
        self._socket, self._path = listening, path
        threading.Thread(target=self._run, args=(listening,), name="sa-atp-door", daemon=True).start()

    def _close(self) -> None:
        if self._socket is None:
            return
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it
        self._socket = None

    def _run(self, listening: socket.socket) -> None:
        with listening:
            while True:
                try:
                    visitor, _ = listening.accept()
                except OSError:
                    return
                with visitor, contextlib.suppress(OSError):
                    visitor.settimeout(LONGEST_S)
                    for line in self._lines():
                        visitor.sendall(line)

    def _lines(self) -> Iterator[bytes]:
        with self._lock:
            told = list(self._told.values())
        for telling in told:
            with contextlib.suppress(Exception):  # what is over, or stuck, tells nothing; others do
                yield msgspec.json.encode(telling()) + b"\n"


_door = _Door()


def tell(telling: Telling) -> Callable[[], None]:
    """Has this process tell a state from now on. Args: telling: called in a thread of its own with each look.

    Returns: a function that ends it, once or several times.
    """
    number = _door.add(telling)
    process = os.getpid()

    def end() -> None:
        if os.getpid() == process:  # in a fork the number is another one's
            _door.remove(number)

    return end


@contextlib.contextmanager
def telling(state: Telling) -> Iterator[None]:
    """`tell` for a block."""
    end = tell(state)
    try:
        yield
    finally:
        end()
