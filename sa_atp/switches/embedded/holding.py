"""Who of several cores works on which registers: a translated program that may run on more than one takes hold of a block
of cells before it touches one of them, and keeps it until it wants another one, or its batch ends.

So what a packet does at one index (of any registers, as a slot's state is) happens as if it were alone; one that touches
several indices has each of them for itself in turn. Nobody waits while holding anything but a core, and nobody holds two
blocks, so there is no circle to wait in.

The program itself compares the block that it wants with the one that it holds (`translate.statements`), which is nearly
always the same: packets come in the order of their slots. BLOCKS instead of a number: none.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sa_atp.basics.arrays import AnyIntegers

BLOCK_BITS = 6  # cells of a block, as a power of two: about as many as a host's packets come together
BLOCKS = 256  # beyond that they share
LINE = 8  # words of a processor's cache line: a block each
TRIES = 64  # before somebody else, who may be the one that holds it, gets the core


def nobody_holds() -> AnyIntegers:
    """int64[BLOCKS * LINE]: what says who holds a block."""
    return np.zeros(BLOCKS * LINE, np.int64)


def plain() -> dict[str, Callable[..., Any]]:
    """As plain Python, of which one thread runs at a time."""

    def hold(holds: AnyIntegers, block: int, held: int) -> int:
        let_go(holds, held)
        if holds[block * LINE]:
            raise AssertionError(f"somebody else holds block {block}")
        holds[block * LINE] = 1
        return block

    def let_go(holds: AnyIntegers, held: int) -> None:
        if held < BLOCKS:
            holds[held * LINE] = 0

    return {"hold": hold, "let_go": let_go}


def compiled(bits: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """As numba compiles it. Args: bits: the compiled operations of `embedded.bits`."""
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
        """An intrinsic as who calls it sees it: without what the compiler is told."""
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
