"""Locks on blocks of register cells, for programs that run on several cores.

A core locks the block of a cell before it touches the cell, and keeps the lock until it needs another block, or its
batch ends. So a packet's accesses at one index (of all registers, as a slot's state has) are atomic; a packet that
touches several indices locks each in turn. A core holds at most one lock, so there is no deadlock.

The program itself compares the block that it needs with the one that it holds (`translate.statements`): nearly always
they are the same, because packets come in the order of their slots. The number BLOCKS stands for no block.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sa_atp.basics.arrays import AnyIntegers

BLOCK_BITS = 6  # 2**6 cells of a block: about as many as the packets of a host in one batch
BLOCKS = 256  # further blocks share these locks
LINE = 8  # words of a processor's cache line: one lock has a line
TRIES = 64  # to take a lock, before this thread yields its core, perhaps to the lock's holder


def new_locks() -> AnyIntegers:
    """int64[BLOCKS * LINE]: locks that no core holds."""
    return np.zeros(BLOCKS * LINE, np.int64)


def plain() -> dict[str, Callable[..., Any]]:
    """The operations in plain Python, for one thread."""

    def hold(holds: AnyIntegers, block: int, held: int) -> int:
        let_go(holds, held)
        if holds[block * LINE]:
            raise AssertionError(f"block {block} is locked")
        holds[block * LINE] = 1
        return block

    def let_go(holds: AnyIntegers, held: int) -> None:
        if held < BLOCKS:
            holds[held * LINE] = 0

    return {"hold": hold, "let_go": let_go}


def compiled(bits: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The operations for numba. Args: bits: the compiled operations of `embedded.bits`."""
    import numba
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    jit = bits["inner"]
    i64 = numba.int64
    sched_yield = types.ExternalFunction("sched_yield", numba.int32())

    def place(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[0])(context, builder, args[0])
        return builder.gep(array.data, [args[1]])

    def function(made: Any) -> Any:
        """An intrinsic as its callers see it: without the compiler's parameters."""
        return made

    @function
    @intrinsic
    def try_to_take(typing: Any, holds: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            one, zero = ir.Constant(ir.IntType(64), 1), ir.Constant(ir.IntType(64), 0)
            found = builder.cmpxchg(place(context, builder, sig, args), zero, one, "acquire", "monotonic")
            return builder.extract_value(found, 1)

        return types.boolean(holds, types.intp), generate

    @function
    @intrinsic
    def is_free(typing: Any, holds: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            value = builder.load_atomic(place(context, builder, sig, args), "monotonic", 8)
            return builder.icmp_signed("==", value, ir.Constant(ir.IntType(64), 0))

        return types.boolean(holds, types.intp), generate

    @function
    @intrinsic
    def give_back(typing: Any, holds: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            zero = ir.Constant(ir.IntType(64), 0)
            builder.store_atomic(zero, place(context, builder, sig, args), "release", 8)
            return context.get_dummy_value()

        return types.void(holds, types.intp), generate

    @jit
    def let_go(holds, held):  # type: ignore[no-untyped-def]
        if i64(held) < BLOCKS:
            give_back(holds, i64(held) * LINE)

    @jit
    def hold(holds, block, held):  # type: ignore[no-untyped-def]
        let_go(holds, held)
        at = i64(block) * LINE
        tries = 0
        while not try_to_take(holds, at):
            while not is_free(holds, at):
                tries += 1
                if tries >= TRIES:
                    sched_yield()
                    tries = 0
        return block

    return {"hold": hold, "let_go": let_go}
