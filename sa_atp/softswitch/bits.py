"""The machine operations that translated programs are written in, twice: compiled (numba) and plain Python.

A translated program calls these by name and never touches a buffer otherwise, so the same source runs in both ways:
compiled for speed, and plain for stepping through it in a debugger. Values are unsigned 64-bit words (`u64`), or signed
ones (`i64`) where the P4 type is signed; the two never meet in one operation, because numba would make floats of them.

Buffers are uint8[packets, bytes]; offsets count bytes; multi-byte values are big-endian, as on the wire.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

MASK64 = (1 << 64) - 1


def plain() -> dict[str, Callable[..., Any]]:
    """The operations in plain Python: integers without a size, masked where a machine would wrap."""

    def u64(value: Any) -> int:
        return int(value) & MASK64

    def i64(value: Any) -> int:
        word = int(value) & MASK64
        return word - (1 << 64) if word >> 63 else word

    def sign_extend(value: int, bits: int) -> int:
        value &= (1 << bits) - 1
        return value - (1 << bits) if value >> (bits - 1) else value

    def clamp(value: int, low: int, high: int) -> int:
        return min(max(value, low), high)

    def shift_left(value: int, count: int) -> int:
        return (value << count) & MASK64 if count < 64 else 0

    def shift_right(value: int, count: int) -> int:
        return value >> count if count < 64 else 0

    def shift_right_signed(value: int, count: int) -> int:
        return value >> min(int(count), 63)

    def load(size: int) -> Callable[..., int]:
        return lambda buffer, row, offset: int.from_bytes(buffer[row, offset : offset + size].tobytes(), "big")

    def store(size: int) -> Callable[..., None]:
        def put(buffer: np.ndarray, row: int, offset: int, value: int) -> None:
            data = (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "big")
            buffer[row, offset : offset + size] = np.frombuffer(data, np.uint8)

        return put

    def copy_bytes(
        to: np.ndarray, row: int, offset: int, source: np.ndarray, line: int, start: int, count: int
    ) -> None:
        to[row, offset : offset + count] = source[line, start : start + count]

    def load_vector(buffer: np.ndarray, row: int, offset: int, vector: np.ndarray) -> None:
        data = buffer[row, offset : offset + 4 * len(vector)].tobytes()
        vector[:] = np.frombuffer(data, ">u4").astype(np.uint32).view(vector.dtype)

    def store_vector(buffer: np.ndarray, row: int, offset: int, vector: np.ndarray) -> None:
        data = vector.view(np.uint32).astype(">u4").tobytes()
        buffer[row, offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def put(array: np.ndarray, row: int, column: int, value: int) -> None:
        """array[row, column] = value, wrapped to the array's type."""
        bits = array.dtype.itemsize * 8
        value &= (1 << bits) - 1
        array[row, column] = value - (1 << bits) if array.dtype.kind == "i" and value >> (bits - 1) else value

    def put1(array: np.ndarray, index: int, value: int) -> None:
        put(array.reshape(1, -1), 0, index, value)

    return {
        "u64": u64,
        "i64": i64,
        "sign_extend": sign_extend,
        "clamp": clamp,
        "shift_left": shift_left,
        "shift_right": shift_right,
        "shift_right_signed": shift_right_signed,
        **{f"load{size}": load(size) for size in (1, 2, 4, 8)},
        **{f"store{size}": store(size) for size in (1, 2, 4, 8)},
        "copy_bytes": copy_bytes,
        "load_vector": load_vector,
        "store_vector": store_vector,
        "put": put,
        "put1": put1,
        "constant": int,
        "compiled": lambda function: function,
    }


def compiled() -> dict[str, Callable[..., Any]]:
    """The same operations for numba. Imported late: a program that never runs a switch does not pay for it."""
    import numba
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    jit = numba.njit(inline="never", nogil=True, error_model="numpy", cache=False)

    def address(context: Any, builder: Any, array_type: Any, array: Any, row: Any, offset: Any) -> Any:
        data = context.make_array(array_type)(context, builder, array)
        stride = builder.extract_value(data.strides, 0)
        start = builder.add(builder.mul(row, stride), offset)
        return builder.gep(builder.bitcast(data.data, ir.IntType(8).as_pointer()), [start])

    def make_load(size: int) -> Any:
        word = ir.IntType(8 * size)

        @intrinsic
        def load(typing: Any, buffer: Any, row: Any, offset: Any) -> Any:
            signature = types.uint64(buffer, types.intp, types.intp)

            def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
                at = address(context, builder, sig.args[0], *args)
                value = builder.load(builder.bitcast(at, word.as_pointer()))
                value.align = 1
                if size > 1:
                    value = builder.bswap(value)
                if size < 8:
                    value = builder.zext(value, ir.IntType(64))
                return value

            return signature, generate

        return load

    def make_store(size: int) -> Any:
        word = ir.IntType(8 * size)

        @intrinsic
        def store(typing: Any, buffer: Any, row: Any, offset: Any, value: Any) -> Any:
            signature = types.void(buffer, types.intp, types.intp, types.uint64)

            def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
                at = address(context, builder, sig.args[0], *args[:3])
                value = args[3]
                if size < 8:
                    value = builder.trunc(value, word)
                if size > 1:
                    value = builder.bswap(value)
                builder.store(value, builder.bitcast(at, word.as_pointer()), align=1)
                return context.get_dummy_value()

            return signature, generate

        return store

    @intrinsic
    def copy_bytes(typing: Any, to: Any, row: Any, offset: Any, source: Any, line: Any, start: Any, count: Any) -> Any:
        signature = types.void(to, types.intp, types.intp, source, types.intp, types.intp, types.intp)

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            target = address(context, builder, sig.args[0], *args[0:3])
            origin = address(context, builder, sig.args[3], *args[3:6])
            cgutils.raw_memcpy(builder, target, origin, args[6], 1)  # type: ignore[no-untyped-call]
            return context.get_dummy_value()

        return signature, generate

    load4, store4 = make_load(4), make_store(4)

    @jit
    def load_vector(buffer, row, offset, vector):  # type: ignore[no-untyped-def]
        for i in range(len(vector)):
            vector[i] = load4(buffer, row, offset + 4 * i)

    @jit
    def store_vector(buffer, row, offset, vector):  # type: ignore[no-untyped-def]
        for i in range(len(vector)):
            store4(buffer, row, offset + 4 * i, numba.uint64(numba.uint32(vector[i])))

    @jit
    def sign_extend(value, bits):  # type: ignore[no-untyped-def]
        shift = numba.int64(64) - numba.int64(bits)
        return (numba.int64(value) << shift) >> shift

    @jit
    def clamp(value, low, high):  # type: ignore[no-untyped-def]
        return min(max(numba.int64(value), numba.int64(low)), numba.int64(high))

    @jit
    def shift_left(value, count):  # type: ignore[no-untyped-def]
        if count < numba.uint64(64):
            return numba.uint64(value) << count
        return numba.uint64(0)

    @jit
    def shift_right(value, count):  # type: ignore[no-untyped-def]
        if count < numba.uint64(64):
            return numba.uint64(value) >> count
        return numba.uint64(0)

    @jit
    def shift_right_signed(value, count):  # type: ignore[no-untyped-def]
        return numba.int64(value) >> numba.int64(min(count, numba.uint64(63)))

    @jit
    def put(array, row, column, value):  # type: ignore[no-untyped-def]
        array[row, column] = value

    @jit
    def put1(array, index, value):  # type: ignore[no-untyped-def]
        array[index] = value

    return {
        "u64": numba.uint64,
        "i64": numba.int64,
        "sign_extend": sign_extend,
        "clamp": clamp,
        "shift_left": shift_left,
        "shift_right": shift_right,
        "shift_right_signed": shift_right_signed,
        "load1": make_load(1),
        "load2": make_load(2),
        "load4": load4,
        "load8": make_load(8),
        "store1": make_store(1),
        "store2": make_store(2),
        "store4": store4,
        "store8": make_store(8),
        "copy_bytes": copy_bytes,
        "load_vector": load_vector,
        "store_vector": store_vector,
        "put": put,
        "put1": put1,
        "constant": np.uint64,
        "compiled": numba.njit(nogil=True, error_model="numpy", cache=True),
    }
