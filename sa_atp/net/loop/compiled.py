"""Kernels, compiled: the functions of protocol/rank/compiled as machine code, kept in the cache folder between runs.

Their source is copied to the cache folder, below a name that changes with it: numba keeps code beside its source, which
here may be where nobody can write. Types are given, so nothing is compiled later on, whatever comes.
"""

import fcntl
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import ModuleType, SimpleNamespace
from typing import Any, cast

from sa_atp.basics.folders import cache_folder
from sa_atp.basics.kept_code import digest_of, executed, source_of
from sa_atp.protocol.rank.compiled import kernels
from sa_atp.protocol.rank.compiled import steady_kernels as plain_steady
from sa_atp.protocol.rank.compiled.common_case import Kernels

_LOCK = threading.Lock()


def worker_kernels() -> Kernels:
    """Those of a worker and a parameter server. Compiling them takes seconds, the first time; later a fraction of one."""
    with _LOCK:
        return _worker_kernels()


def connection_kernels() -> Kernels:
    """As `worker_kernels`, when all that a connection calls is there as well: nothing is compiled once it has joined."""
    steady_loop()
    return worker_kernels()


def socket_kernels() -> Any:
    """Those of a socket."""
    with _LOCK:
        return _socket_kernels()


def steady_kernels() -> Any:
    """Those of protocol/rank/compiled/steady_kernels.py, for a connection whose stream flows."""
    with _LOCK:
        return _steady_kernels()


@lru_cache(maxsize=1)
def _worker_kernels() -> Kernels:
    from numba import types as t

    def read(item: Any, dimensions: int) -> Any:
        return t.Array(item, dimensions, "C", readonly=True)

    i64, numbers, table, mask, bits = t.int64, t.int64[::1], t.int64[:, ::1], t.boolean[::1], t.uint32[::1]
    return cast(
        Kernels,
        compiled(
            kernels,
            ("swapped",),
            fill=i64(
                t.uint32[:, ::1], i64, i64, i64, numbers, bits, t.int16[::1], t.int8[::1], read(t.float32, 1),
            ),
            streams=i64(read(t.uint32, 2), numbers, bits, table),
            take=t.boolean(
                read(t.uint32, 2), i64, i64, numbers, mask, t.int32[::1], t.int16[::1], t.int8[::1], mask, t.int32[::1],
                mask, t.int16[:, ::1], numbers, t.uint8[::1], mask, numbers, table,
            ),
            dequantise=t.void(t.int32[::1], t.int16[::1], i64, i64, i64, i64, t.float32[::1]),
        ),
    )  # fmt: skip


@lru_cache(maxsize=1)
def _socket_kernels() -> Any:
    from numba import types as t

    from sa_atp.net.sockets import socket_kernels as plain

    words = t.uint64[::1]
    data = t.Array(t.uint8, 2, "C", readonly=True)
    return compiled(
        plain,
        receive=t.int64(t.int64, t.uint8[::1], words, words, words, words, t.int64[:, ::1]),
        send=t.int64(t.int64, data, t.int64, t.int64, words, words, words, words),
    )


@lru_cache(maxsize=1)
def _steady_kernels() -> Any:
    from numba import types as t

    fast = _worker_kernels()
    state, i64 = _state(), t.int64
    return compiled(
        plain_steady,
        ("answer_us", "lowest", "sampled", "timed", "end_round", "on_left", "counted", "swapped"),
        {"fill": fast.fill, "streams": fast.streams, "take": fast.take},
        (kernels,),
        receive=i64(t.uint32[:, ::1], i64, state),
        answer=t.boolean(t.uint32[::1], i64, state),
        transmit=i64(t.uint32[:, ::1], i64, i64, t.Array(t.float32, 1, "C", readonly=True), state),
        due_us=i64(t.int64[::1], i64),
        may_gather=i64(t.int64[::1]),
    )


def _state() -> Any:
    """The type of steady_kernels' state."""
    from numba import types as t

    numbers, table, mask, bits = t.int64[::1], t.int64[:, ::1], t.boolean[::1], t.uint32[::1]
    return cast(Any, t).Tuple((
        numbers, t.float64[::1], numbers, numbers, numbers, bits, bits, table, mask, t.int32[::1], t.int16[::1],
        t.int8[::1], mask, t.int32[::1], mask, t.int16[:, ::1], numbers, numbers, t.uint8[::1], mask, t.int8[::1],
        numbers, table, numbers, mask, table, table, bits,
    ))  # fmt: skip


def steady_loop() -> Any:
    """The function `run` of net/loop/steady_loop_kernels.py."""
    with _LOCK:
        return _steady_loop()


@lru_cache(maxsize=1)
def _steady_loop() -> Any:
    from numba import types as t

    from sa_atp.net.loop import steady_loop_kernels as plain
    from sa_atp.net.sockets import socket_kernels as sockets

    steady, plain_sockets = _steady_kernels(), _socket_kernels()
    numbers, words, bytes_ = t.int64[::1], t.uint64[::1], t.uint8[:, ::1]
    return compiled(
        plain,
        ("clock", "wait", "limit", "look", "budget_bytes", "wrote", "resume_us", "pause_us", "take_found", "flush"),
        {
            "receive_messages": plain_sockets.receive, "send": plain_sockets.send, "receive": steady.receive,
            "answer": steady.answer,
            "transmit": steady.transmit, "due_us": steady.due_us, "may_gather": steady.may_gather,
        },
        (kernels, plain_steady, sockets),
        run=t.void(
            numbers, t.float64[::1], numbers, numbers, t.int32[::1], t.uint8[::1], t.uint32[::1], words, words, words,
            words, t.int64[:, ::1], t.uint32[:, ::1], bytes_, bytes_, words, words, words, words,
            t.Array(t.float32, 1, "C", readonly=True), _state(),
        ),
    ).run  # fmt: skip


def compiled(
    module: ModuleType,
    helpers: Sequence[str] = (),
    called: Mapping[str, Any] | None = None,
    theirs: Sequence[ModuleType] = (),
    **signatures: Any,
) -> SimpleNamespace:
    """Functions of a module of kernels, each compiled for the one signature.

    Args:
        helpers: functions of it that they call.
        called: compiled functions of other modules that they call, by name; theirs: those modules.
    """
    import numba

    folder = cache_folder() / "kernels"
    digest = digest_of(*map(source_of, (module, *theirs)))
    copied = executed(f"{module.__name__.replace('.', '_')}_{digest}", [("kernels.py", source_of(module))], folder)
    copied.update(called or {})
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several that start together compile it once
        for name in helpers:
            copied[name] = numba.njit(error_model="numpy")(copied[name])
        return SimpleNamespace(
            **{
                name: numba.njit(signature, nogil=True, cache=True, error_model="numpy")(copied[name])
                for name, signature in signatures.items()
            }
        )
