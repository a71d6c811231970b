"""The package's compiled functions, built so that nothing they do wrong goes unseen: every index is looked at, and what
they ask the kernel for comes from a script in memory, which also looks at where the kernel would have read and written.

`build` has the package compile itself (net/loop/compiled.py), with other settings: its own sources, signatures and order. A
*fault* is one comparison of these sources with a number added that is zero until it is switched on.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest

from sa_atp.basics.arrays import AnyIntegers
from sa_atp.net.loop import compiled

from .guarded import Guarded

# --- the script, as items of int64[SCRIPT_ITEMS] --------------------------------------------------------------------------
# microseconds; the next message, how many there are, and where; bytes that wait in this host
(CLOCK, NEXT, COUNT, TABLE, HELD) = range(5)
# calls of sendmsg until one is refused, of ppoll until a signal comes; where what is sent is kept, from which byte on, and
# up to which; the same of its messages, segment and bytes of each
(SENDS, SIGNAL, KEPT_AT, KEPT, KEPT_END, LOG_AT, LOGGED, LOG_END) = range(5, 13)
# memory that recvmsg may write datagrams to, and that sendmsg may read them from, twice: first address, and behind the last
(IN_FIRST, IN_END, OUT_FIRST, OUT_END, ASK_FIRST, ASK_END) = range(13, 19)
# what was wrong with a call; faults that are switched on
(WRONG, FAULTS) = range(19, 21)
SCRIPT_ITEMS = FAULTS + 16
WRONG_TEXTS = ("", "recvmsg would write outside of the room", "sendmsg would read outside of what is written")

# a message, as int64[MESSAGE_ITEMS]: where its bytes are, how many (negative: an errno), its sender, bytes of control data,
# the three words of that, and flags
(M_AT, M_BYTES, M_SENDER, M_CONTROL, M_LENGTH, M_KIND, M_SEGMENT, M_FLAGS, MESSAGE_ITEMS) = range(9)
COALESCED = 104 << 32 | 17  # UDP_GRO of SOL_UDP
AGAIN, INTERRUPTED, REFUSED, NO_BUFFERS = 11, 4, 111, 105  # errno


FAULTS_KNOWN: dict[str, tuple[tuple[str, str, str], ...]] = {
    "a message more than there are rows for": (
        ("socket_kernels", "messages < found.shape[0]", "messages < found.shape[0] + {}"),
    ),
    "a message more than there is room for": (
        ("socket_kernels", "at + MOST_BYTES <= room.size", "at + MOST_BYTES <= room.size + MOST_BYTES * {}"),
    ),
    "a datagram more than was written": (
        ("socket_kernels", "data.shape[0] - first)", "data.shape[0] - first + {})"),
    ),
    "a packet more than there are rows for": (
        ("steady_kernels", "words.shape[0] > rows.shape[0]", "words.shape[0] > rows.shape[0] + {}"),
    ),
    "an answer more than questions": (
        ("steady_kernels", "n >= flow.asked or", "n >= flow.asked + {} or"),
    ),
    "a question more than there are rows for": (
        ("steady_kernels", "flow.asked >= asked.shape[0]", "flow.asked >= asked.shape[0] + {}"),
    ),
    "a word more than a bitmap has": (
        ("kernels", "for b in range(bits.size):", "for b in range(bits.size + {}):"),
    ),
    "a lane more than a packet has": (
        ("kernels", "for i in range(lanes):\n                word = source[i]",
         "for i in range(lanes + {}):\n                word = source[i]"),
    ),
    "a chunk more than the results are of": (
        ("kernels", "(fragment + count - 1) // part.chunk_fragments + 1",
         "(fragment + count - 1) // part.chunk_fragments + 1 + {}"),
    ),
    "a value more than there are": (
        ("kernels", "count = min(lanes, total - place)", "count = min(lanes, total - place + {})"),
    ),
    # these five stand behind one another: each alone is enough. The last is wrong behind the end only, since results that
    # are taken twice would end the streams that this one has to come in
    "a fragment behind the last": (
        ("steady_kernels", "local + fragments > data_end", "local + fragments > data_end + {}"),
        ("kernels", "fragment + count > part.data_fragments", "fragment + count > part.data_fragments + {}"),
        ("kernels", "first + count > part.high", "first + count > part.high + {}"),
        ("kernels", "(fragment + count) * lanes > sums.lanes", "(fragment + count - {}) * lanes > sums.lanes"),
        ("kernels", "if not sums.pending[first + i]:",
         "if not sums.pending[first + i] and fragment + i < part.data_fragments + (1 - {}) * count:"),
    ),
}  # fmt: skip
"""What is wrong, and where: module, what is there, and what is there instead; {} is 1 when it is switched on, else 0."""

_types: Any = numba.types
_memcpy = _types.ExternalFunction("memcpy", _types.uintp(_types.uintp, _types.uintp, _types.uintp))
_errno = _types.ExternalFunction("__errno_location", _types.CPointer(_types.int32)())
_carray: Any = getattr(numba, "carray")  # noqa: B009  (numba does not say what it exports)


@dataclass(frozen=True, slots=True)
class Built:
    worker: Any
    """fill, streams, take, dequantise: see net/loop/compiled.py, as of the others."""
    sockets: Any
    run: Any
    """The loop."""
    script: AnyIntegers
    """int64[SCRIPT_ITEMS]: the script, which answers system calls."""

    @contextmanager
    def fault(self, name: str | None) -> Iterator[None]:
        """Switches a fault on for the duration of the context."""
        self.script[WRONG] = 0
        which = None if name is None else FAULTS + list(FAULTS_KNOWN).index(name)
        if which is not None:
            self.script[which] = 1
        try:
            yield
        finally:
            self.script[WRONG:] = 0

    def look(self) -> None:
        """Raises: AssertionError: a system call was given memory that is not meant for it."""
        assert self.script[WRONG] == 0, WRONG_TEXTS[int(self.script[WRONG])]


def build(*, faults: bool, boundscheck: bool = True) -> Built:
    """Args:
    faults: whether some can be switched on; if not, the sources are as they are.
    boundscheck: whether every index is looked at; if not, this is what the package has, and only guards show anything.
    """
    whole = Guarded(SCRIPT_ITEMS, np.int64)
    _KEPT_ALIVE.append(whole)  # compiled code has its address
    calls = _calls(int(whole.array.ctypes.data))

    def checked(
        module: ModuleType,
        before: Sequence[compiled.Compiled] = (),
        beside: Sequence[ModuleType] = (),
        **signatures: Any,
    ) -> compiled.Compiled:
        name = module.__name__.rpartition(".")[2]
        source = inspect.getsource(module)
        space: dict[str, Any] = {"__name__": f"checked_{name}"}
        if faults:
            source = _with_faults(name, source)
            space |= {f"fault_{i}": calls[f"fault_{i}"] for i in range(len(FAULTS_KNOWN))}
        exec(compile(source, module.__file__ or name, "exec"), space)
        space |= {name: call for name, call in calls.items() if name in space}
        settings = {"boundscheck": boundscheck}
        return compiled.link(module, space, source, before, signatures, settings, settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "compiled", checked)
        for name in ("_worker_kernels", "_socket_kernels", "_ring_kernels", "_steady_kernels", "_steady_loop"):
            # those that the package has in this process stay its own
            patch.setattr(compiled, name, lru_cache(maxsize=1)(getattr(compiled, name).__wrapped__))
        return Built(compiled.worker_kernels(), compiled.socket_kernels(), compiled.steady_loop(), whole.array)


_KEPT_ALIVE: list[Guarded] = []


def _with_faults(module: str, source: str) -> str:
    for i, edits in enumerate(FAULTS_KNOWN.values()):
        for where, right, wrong in edits:
            if where == module:
                assert source.count(right) == 1, f"{module} has not once: {right}"
                source = source.replace(right, wrong.format(f"fault_{i}()"))
    return source


def _calls(script: int) -> dict[str, Any]:
    """The system calls of these functions. Args: script: its address, a constant of the compiled code."""
    jit: Callable[[Any], Any] = numba.njit(error_model="numpy")
    memcpy, errno = _memcpy, _errno

    @jit
    def get(item: int) -> int:
        word = np.empty(1, np.int64)
        memcpy(word.ctypes.data, script + 8 * item, 8)
        return int(word[0])

    @jit
    def put(item: int, value: int) -> None:
        word = np.empty(1, np.int64)
        word[0] = value
        memcpy(script + 8 * item, word.ctypes.data, 8)

    @jit
    def fails(why: int) -> int:
        _carray(errno(), (1,))[0] = why
        return -1

    @jit
    def recvmsg(_fd: int, header_at: int, _flags: int) -> int:
        if get(NEXT) >= get(COUNT):
            return int(fails(AGAIN))
        header, vector, row = np.empty(7, np.int64), np.empty(2, np.int64), np.empty(MESSAGE_ITEMS, np.int64)
        memcpy(row.ctypes.data, get(TABLE) + 8 * MESSAGE_ITEMS * get(NEXT), 8 * MESSAGE_ITEMS)
        put(NEXT, get(NEXT) + 1)
        if row[M_BYTES] < 0:
            return int(fails(-row[M_BYTES]))
        memcpy(header.ctypes.data, np.int64(header_at), 56)
        memcpy(vector.ctypes.data, header[2], 16)
        if vector[0] < get(IN_FIRST) or vector[0] + vector[1] > get(IN_END):
            put(WRONG, 1)
            return int(fails(AGAIN))
        size = min(row[M_BYTES], vector[1])
        memcpy(vector[0], row[M_AT], size)
        memcpy(header[0], row.ctypes.data + 8 * M_SENDER, 8)
        memcpy(header[4], row.ctypes.data + 8 * M_LENGTH, min(row[M_CONTROL], 24))
        header[5], header[6] = row[M_CONTROL], row[M_FLAGS]
        memcpy(np.int64(header_at), header.ctypes.data, 56)
        return int(size)

    @jit
    def sendmsg(_fd: int, header_at: int, _flags: int) -> int:
        header, vector, control = np.empty(7, np.int64), np.empty(2, np.int64), np.empty(3, np.int64)
        memcpy(header.ctypes.data, np.int64(header_at), 56)
        memcpy(vector.ctypes.data, header[2], 16)
        end = vector[0] + vector[1]
        if (vector[0] < get(OUT_FIRST) or end > get(OUT_END)) and (vector[0] < get(ASK_FIRST) or end > get(ASK_END)):
            put(WRONG, 2)
            return int(fails(AGAIN))
        put(SENDS, get(SENDS) - 1)
        if get(SENDS) == 0 or get(KEPT) + vector[1] > get(KEPT_END) or get(LOGGED) >= get(LOG_END):
            return int(fails(NO_BUFFERS))
        segment = vector[1]
        if header[5] != 0:
            memcpy(control.ctypes.data, header[4], header[5])
            segment = control[2] & 0xFFFF
        memcpy(get(KEPT_AT) + get(KEPT), vector[0], vector[1])
        control[0], control[1] = segment, vector[1]
        memcpy(get(LOG_AT) + 16 * get(LOGGED), control.ctypes.data, 16)
        put(KEPT, get(KEPT) + vector[1])
        put(LOGGED, get(LOGGED) + 1)
        return int(vector[1])

    @jit
    def ppoll(polls_at: int, count: int, times_at: int, _mask: int) -> int:
        times, poll = np.empty(2, np.int64), np.empty(1, np.int64)
        memcpy(times.ctypes.data, np.int64(times_at), 16)
        wait_us = times[0] * 1_000_000 + times[1] // 1000
        if count == 1:
            put(CLOCK, get(CLOCK) + wait_us)
            return 0
        put(SIGNAL, get(SIGNAL) - 1)
        if get(SIGNAL) == 0:
            return int(fails(INTERRUPTED))
        has_more = get(NEXT) < get(COUNT)
        put(CLOCK, get(CLOCK) + min(wait_us, 20))
        at = np.int64(polls_at) + (0 if has_more else 8)  # else somebody wants the loop
        memcpy(poll.ctypes.data, at, 8)
        poll[0] |= 1 << 48
        memcpy(at, poll.ctypes.data, 8)
        return 1

    @jit
    def clock_gettime(_which: int, times_at: int) -> int:
        times = np.empty(2, np.int64)
        put(CLOCK, get(CLOCK) + 1)
        times[0], times[1] = get(CLOCK) // 1_000_000, get(CLOCK) % 1_000_000 * 1000
        memcpy(np.int64(times_at), times.ctypes.data, 16)
        return 0

    @jit
    def ioctl(_fd: int, _what: int, held_at: int) -> int:
        memcpy(np.int64(held_at), script + 8 * HELD, 4)
        return 0

    def fault(item: int) -> Any:
        return jit(lambda: get(item))

    made = {
        "recvmsg": recvmsg, "sendmsg": sendmsg, "ppoll": ppoll, "clock_gettime": clock_gettime, "ioctl": ioctl,
    }  # fmt: skip
    return made | {f"fault_{i}": fault(FAULTS + i) for i in range(len(FAULTS_KNOWN))}
