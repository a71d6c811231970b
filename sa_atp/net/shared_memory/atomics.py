"""Loads and stores of compiled code that another process sees in order. Addresses are of aligned int64."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

WORD = ir.IntType(64)


def _load_acquire(typing: Any, address: Any) -> Any:
    """Returns the number at an address; what its writer has written before is seen by what follows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], WORD.as_pointer()), "acquire", 8)

    return types.int64(types.intp), generate


def _store_release(typing: Any, address: Any, value: Any) -> Any:
    """Writes a number; who reads it by `load_acquire` sees all that was written before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[1], builder.inttoptr(arguments[0], WORD.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), generate


def _fence(typing: Any) -> Any:
    """Whatever is stored before is seen by others before anything is loaded after it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def _copy_memory(typing: Any, to: Any, source: Any, count: Any) -> Any:
    """Copies bytes from one address to another. A loop over bytes would be ten times slower."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        goal, origin = (builder.inttoptr(each, byte) for each in arguments[:2])
        cgutils.raw_memcpy(builder, goal, origin, arguments[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


load_acquire: Any = intrinsic(_load_acquire)
store_release: Any = intrinsic(_store_release)
fence: Any = intrinsic(_fence)
copy_memory: Any = intrinsic(_copy_memory)

assert cgutils.intp_t == WORD
