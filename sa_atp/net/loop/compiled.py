"""Kernels, compiled: rules and kernels of protocol/rank as machine code, kept in the cache folder between runs.

Modules are compiled in the order in which they call one another: each is copied to the cache folder, below a name that
changes with its source and theirs, and finds compiled functions where it has imported plain ones. (numba keeps code beside
its source, which here may be where nobody can write.) Types of what Python calls are given, so nothing is compiled later
on, whatever comes.
"""

import fcntl
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, cast

from sa_atp.basics.code_cache import digest_of, executed, source_of
from sa_atp.basics.folders import cache_folder
from sa_atp.net.loop import receive_coalescing, send_pacer
from sa_atp.protocol.help import believing, planning
from sa_atp.protocol.help.belief import Belief
from sa_atp.protocol.help.plan import Kernels as PlanKernels
from sa_atp.protocol.help.plan import Machine
from sa_atp.protocol.numbers import pair_kernels as plain_pairs
from sa_atp.protocol.numbers.pairs import PairKernels
from sa_atp.protocol.rank.compiled import kernels
from sa_atp.protocol.rank.compiled import steady_kernels as plain_steady
from sa_atp.protocol.rank.compiled.common_case import Kernels
from sa_atp.protocol.rank.pace import probe_timer, timing, window
from sa_atp.protocol.rank.recovery import asking
from sa_atp.protocol.rank.sums import progress, under_way
from sa_atp.protocol.records import dtype_of

_LOCK = threading.Lock()
RULES = (window, timing, probe_timer, under_way, progress, asking)
"""Modules whose rules steady_kernels.py calls, each before those that call it."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A module whose functions are compiled."""

    functions: Any
    """Those that Python calls."""
    known: dict[Any, Any]
    """Each plain function of this module and of those before it: the compiled one."""
    sources: str


def worker_kernels() -> Kernels:
    """Returns the kernels of a worker and a parameter server. The first time it takes seconds."""
    with _LOCK:
        return cast(Kernels, _worker_kernels().functions)


def connection_kernels() -> Kernels:
    """As `worker_kernels`, once all is there that a connection calls: nothing is compiled after it has joined."""
    steady_loop()
    return worker_kernels()


def are_kept() -> bool:
    """Whether `connection_kernels` has compiled these sources on this machine before, so that it will load them."""
    return _mark().is_file()


def _mark() -> Path:
    """A file that is there once all kernels of a connection are."""
    from llvmlite import binding

    from sa_atp.net.loop import steady_loop_kernels
    from sa_atp.net.shared_memory import atomics, layout, ring_kernels
    from sa_atp.net.sockets import socket_kernels

    modules = (
        kernels, *RULES, plain_steady, steady_loop_kernels, socket_kernels, send_pacer, receive_coalescing, layout, atomics,
        ring_kernels,
    )  # fmt: skip
    versions = metadata.version("numba"), binding.get_host_cpu_name()
    return cache_folder() / "kernels" / f"kept-{digest_of(*map(source_of, modules), *versions)}"


def plan_kernels() -> PlanKernels:
    """Returns the kernels of a ledger: functions of protocol/help/believing.py and planning.py."""
    with _LOCK:
        return _plan_kernels()


def pair_kernels() -> PairKernels:
    """Returns the kernels of protocol/numbers/pair_kernels.py, for sums whose values travel in pairs."""
    with _LOCK:
        return cast(PairKernels, _pair_kernels().functions)


def socket_kernels() -> Any:
    """Returns the kernels of a socket: `receive` and `send` of socket_kernels.py."""
    with _LOCK:
        return _socket_kernels().functions


def ring_kernels() -> Any:
    """Returns the kernels of net/shared_memory/ring_kernels.py."""
    with _LOCK:
        return _ring_kernels().functions


def steady_kernels() -> Any:
    """Returns the kernels of protocol/rank/compiled/steady_kernels.py, for a connection whose stream flows."""
    with _LOCK:
        return _steady_kernels().functions


def rules() -> dict[Any, Any]:
    """Returns the compiled function for each plain one that a flowing stream's kernels call, and for these themselves."""
    with _LOCK:
        return _steady_kernels().known


@lru_cache(maxsize=1)
def _worker_kernels() -> Compiled:
    from numba import types as t

    i64, bits, words = t.int64, t.uint32[::1], _read_only(t.uint32, 2)
    return compiled(
        kernels,
        fill=i64(
            t.uint32[:, ::1], i64, i64, i64, _records(kernels.Contribution), bits, t.int16[::1], t.int8[::1],
            _read_only(t.float32, 1),
        ),
        streams=i64(words, _records(kernels.Expected), bits, _records(kernels.Stream)),
        take=t.boolean(
            words, i64, i64, _records(kernels.Part), _sums(), _sent(), _records(kernels.Found),
            _records(kernels.Complete),
        ),
        dequantise=t.void(t.int32[::1], t.int16[::1], i64, i64, i64, i64, t.float32, t.float32[::1]),
    )  # fmt: skip


@lru_cache(maxsize=1)
def _plan_kernels() -> PlanKernels:
    from numba import types as t

    i64, f64, machines, beliefs = t.int64, t.float64, _records(Machine), _records(Belief)
    believed = compiled(
        believing,
        machines=i64(beliefs, i64, i64, i64, machines),
        next_late=i64(beliefs, i64, i64, i64),
        next_overdue=i64(beliefs, i64, i64, i64),
        ask_again_us=i64(beliefs, i64, i64),
    )
    planned = compiled(planning, make=f64(machines, t.boolean[:, ::1], i64[::1], i64[:, ::1]))
    return SimpleNamespace(**vars(believed.functions), make=planned.functions.make)


@lru_cache(maxsize=1)
def _pair_kernels() -> Compiled:
    from numba import types as t

    i64, values, lanes, units = t.int64, t.float32[::1], t.int32[::1], t.float64[::1]
    return compiled(
        plain_pairs,
        magnitudes=t.void(_read_only(t.float32, 1), i64, t.int64[::1]),
        pack=t.void(values, units, i64, i64, i64, t.uint64, t.boolean, lanes),
        unpack=t.void(lanes, units, i64, i64, t.float64, values),
    )


@lru_cache(maxsize=1)
def _socket_kernels() -> Compiled:
    from numba import types as t

    from sa_atp.net.sockets import socket_kernels as plain

    words = t.uint64[::1]
    return compiled(
        plain,
        receive=t.int64(t.int64, t.uint8[::1], words, words, words, words, t.int64[:, ::1]),
        send=t.int64(t.int64, _read_only(t.uint8, 2), t.int64, t.int64, words, words, words, words),
    )


@lru_cache(maxsize=1)
def _ring_kernels() -> Compiled:
    from numba import types as t

    from sa_atp.net.shared_memory import atomics, layout
    from sa_atp.net.shared_memory import ring_kernels as plain

    ring = _ring()
    return compiled(
        plain,
        beside=(layout, atomics),
        take=t.int64(ring),
        held_bytes=t.int64(ring),
        put=t.int64(ring, _read_only(t.uint8, 2), t.int64),
        fall_asleep=t.boolean(ring),
    )


@lru_cache(maxsize=1)
def _steady_kernels() -> Compiled:
    from numba import types as t

    before = [_worker_kernels()]
    for module in RULES:
        before.append(compiled(module, before[-1:]))
    state, i64 = _state(), t.int64
    return compiled(
        plain_steady,
        before[-1:],
        receive=i64(t.uint32[:, ::1], i64, state),
        answer=t.boolean(t.uint32[::1], i64, state),
        transmit=i64(t.uint32[:, ::1], i64, i64, _read_only(t.float32, 2), state),
        due_us=i64(state),
        may_gather=i64(state),
    )


@lru_cache(maxsize=1)
def _steady_loop() -> Compiled:
    from numba import types as t

    from sa_atp.net.loop import steady_loop_kernels as plain

    before = [_steady_kernels(), _socket_kernels(), _ring_kernels(), compiled(send_pacer), compiled(receive_coalescing)]
    words, bytes_ = t.uint64[::1], t.uint8[:, ::1]
    outgoing = _named(plain.Outgoing, header=words, vector=words, name=words, control=words)
    incoming = _named(
        plain.Incoming, room=t.uint8[::1], words=t.uint32[::1], header=words, vector=words, name=words, control=words,
        found=t.int64[:, ::1],
    )  # fmt: skip
    memory = _named(
        plain.Memory, polls=t.int64[::1], times=t.int64[::1], held=t.int32[::1], incoming=incoming, outgoing=outgoing,
        ring=_ring(), out=t.uint32[:, ::1], data=bytes_, question=bytes_,
    )  # fmt: skip
    made = compiled(plain, before, run=t.void(_records(plain.Loop), memory, _read_only(t.float32, 2), _state()))
    _mark().touch()
    return made


def steady_loop() -> Any:
    """Returns the function `run` of net/loop/steady_loop_kernels.py."""
    with _LOCK:
        return _steady_loop().functions.run


# --- types --------------------------------------------------------------------------------------------------------------


def _records(kind: type) -> Any:
    """The type of an array of a record class."""
    import numba

    return cast(Any, numba).from_dtype(dtype_of(kind))[::1]


def _named(kind: Any, **types: Any) -> Any:
    """The type of a named tuple. Args: types: of its fields, by name."""
    from numba import types as t

    return cast(Any, t).BaseTuple.from_types([types[name] for name in kind._fields], kind)


def _read_only(item: Any, dimensions: int) -> Any:
    from numba import types as t

    return cast(Any, t).Array(item, dimensions, "C", readonly=True)


def _sums() -> Any:
    from numba import types as t

    mask = t.boolean[::1]
    return _named(
        kernels.Sums, pending=mask, waiting=t.int32[::1], exponents=t.int16[::1], attempts=t.int8[::1], accepted=mask,
        lanes=t.int32[::1], histories=_records(kernels.HistoryRow),
    )  # fmt: skip


def _sent() -> Any:
    from numba import types as t

    times, mask = t.int64[::1], t.boolean[::1]
    return _named(
        kernels.Sent, sent_us=times, order=times, tries=t.uint8[::1], lost=mask, ask_again_us=times, held=mask
    )


def _ring() -> Any:
    from numba import types as t

    from sa_atp.net.shared_memory.ring_kernels import Ring

    numbers = t.int64[::1]
    return _named(
        Ring, control=numbers, up=t.uint8[::1], up_words=t.uint32[::1], words=t.uint32[::1], mine=numbers, starts=numbers,
        found=t.int64[:, ::1],
    )  # fmt: skip


def _state() -> Any:
    from numba import types as t

    bits = t.uint32[::1]
    return _named(
        plain_steady.State, flow=_records(plain_steady.Flow), contribution=_records(kernels.Contribution),
        expected=_records(kernels.Expected), part=_records(kernels.Part), found=_records(kernels.Found), bits=bits,
        fan_in=bits, rows=_records(kernels.Stream), sums=_sums(), sent=_sent(), fits=t.int8[:, ::1],
        done=_records(kernels.Complete), asked=_records(asking.Asked), gaps=_records(plain_steady.Gap),
        question=bits,
    )  # fmt: skip


# --- compiling ----------------------------------------------------------------------------------------------------------


def compiled(
    module: ModuleType, before: Sequence[Compiled] = (), beside: Sequence[ModuleType] = (), **signatures: Any
) -> Compiled:
    """A module's functions, compiled. Args: beside: other modules on whose text its code depends; else see `link`."""
    sources = "".join([*map(source_of, (module, *beside)), *(each.sources for each in before)])
    folder = cache_folder() / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several that start together compile it once
        return link(module, _copy(module, sources), sources, before, signatures, {"cache": True, "nogil": True})


def link(
    module: ModuleType,
    space: dict[str, Any],
    sources: str,
    before: Sequence[Compiled],
    signatures: Mapping[str, Any],
    settings: Mapping[str, Any],
    helper_settings: Mapping[str, Any] | None = None,
) -> Compiled:
    """Compiles the functions of a module's copy, which call one another, and those before them.

    Args:
        space: the copy's names, which are changed.
        before: modules that it imports functions from.
        signatures: of the functions that Python calls. The others are compiled when one of these calls them.
        settings: of numba, for what Python calls; helper_settings: for the others.
    """
    import numba

    known: dict[Any, Any] = {}
    for each in before:
        known |= each.known
    functions = {name: value for name, value in vars(module).items() if isinstance(value, FunctionType)}
    for name, plain in functions.items():
        if plain.__module__ == module.__name__ and name not in signatures:
            known[plain] = numba.njit(error_model="numpy", **(helper_settings or {}))(space[name])
        if plain in known:
            space[name] = known[plain]
    for name, signature in signatures.items():
        known[functions[name]] = space[name] = numba.njit(signature, error_model="numpy", **settings)(space[name])
    return Compiled(SimpleNamespace(**{name: space[name] for name in signatures}), known, sources)


def _copy(module: ModuleType, sources: str) -> dict[str, Any]:
    """The module's names, executed again from a file in the cache folder. Args: sources: what its code follows from."""
    name = f"{module.__name__.replace('.', '_')}_{digest_of(sources)}"
    if name in sys.modules:
        return vars(sys.modules[name])
    return executed(name, [("kernels.py", source_of(module))], cache_folder() / "kernels")
