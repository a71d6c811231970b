"""The machine operations of translated programs, in two versions: compiled (numba) and plain Python.

A translated program calls these by name and never touches a buffer otherwise, so the same source runs compiled, for speed,
and plain, to step through it in a debugger. Values are unsigned 64-bit words (`u64`), or signed ones (`i64`) if the P4 type
is signed; an operation never mixes them, because numba would make floats of them.

Buffers are uint8[bytes]; offsets count bytes; multi-byte values are big-endian, as on the wire. No operation checks that an
offset is within its buffer: the translated program compares offsets with the length of the packet, and its caller provides
the packet, and room for the output.

`process` takes one argument, a call frame: words that describe the objects it works on (compiled), or a list of these
objects (plain); see `call_frame.py`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

MASK64 = (1 << 64) - 1
ARRAYS = {
    f"array_{name}_{dimensions}": (np.dtype(code), dimensions)
    for name, code in (("u8", "u1"), ("u16", "u2"), ("u32", "u4"), ("u64", "u8"), ("i32", "i4"), ("i64", "i8"))
    for dimensions in (1, 2)
}
"""Operations that take an array out of a call frame."""
ROWS = {f"rows_u{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)}
"""Operations that take an array of two dimensions out of a call frame, with a number of columns that the source states: the
compiler works out places in it with constants."""


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Stands in for the compiler in plain code: returns the function."""
    return function


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
        return lambda buffer, offset: int.from_bytes(buffer[offset : offset + size].tobytes(), "big")

    def store(size: int) -> Callable[..., None]:
        def put(buffer: np.ndarray, offset: int, value: int) -> None:
            data = (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "big")
            buffer[offset : offset + size] = np.frombuffer(data, np.uint8)

        return put

    def copy_bytes(to: np.ndarray, offset: int, source: np.ndarray, start: int, count: int) -> None:
        to[offset : offset + count] = source[start : start + count]

    def same_bytes(buffer: np.ndarray, first: int, second: int, count: int) -> bool:
        return bool((buffer[first : first + count] == buffer[second : second + count]).all())

    def load_vector(buffer: np.ndarray, offset: int, vector: np.ndarray) -> None:
        data = buffer[offset : offset + 4 * len(vector)].tobytes()
        vector[:] = np.frombuffer(data, ">u4").astype(np.uint32).view(vector.dtype)

    def store_vector(buffer: np.ndarray, offset: int, vector: np.ndarray) -> None:
        data = vector.view(np.uint32).astype(">u4").tobytes()
        buffer[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def take(frame: list[Any], index: int, columns: int = 0) -> Any:
        return frame[index]

    def set_frame_word(frame: list[Any], index: int, value: int) -> None:
        frame[index] = value

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
        "same_bytes": same_bytes,
        "load_vector": load_vector,
        "store_vector": store_vector,
        "put": put,
        "put1": put1,
        "frame_word": take,
        "set_frame_word": set_frame_word,
        **dict.fromkeys((*ARRAYS, *ROWS), take),
        "constant": int,
        "address_in": lambda frame, index: frame[index].ctypes.data,
        "compiled": plain_function,
        "inner": plain_function,
    }


def once_per_type(jit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A numba decorator whose functions are compiled once, and not again for each constant that they are called with."""
    from numba import types

    plain_type: Any = types.unliteral

    def decorate(function: Any) -> Any:
        dispatcher = jit(function)
        template_for = dispatcher.get_call_template

        def get_call_template(arguments: Any, keywords: Any) -> Any:
            return template_for(
                tuple(plain_type(each) for each in arguments),
                {name: plain_type(each) for name, each in keywords.items()},
            )

        dispatcher.get_call_template = get_call_template
        return dispatcher

    return decorate


def compiled(*, kept: bool = True) -> dict[str, Callable[..., Any]]:
    """The operations for numba, which is imported here, so that programs without a switch do not load it.

    Args: kept: numba keeps the code of functions under `compiled` beside their source, which is a file.
    """
    import numba
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    jit = once_per_type(numba.njit(inline="never", nogil=True, error_model="numpy", cache=False))

    def address(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
        data = context.make_array(array_type)(context, builder, array)
        return builder.gep(builder.bitcast(data.data, ir.IntType(8).as_pointer()), [offset])

    def make_load(size: int) -> Any:
        word = ir.IntType(8 * size)

        @intrinsic
        def load(typing: Any, buffer: Any, offset: Any) -> Any:
            signature = types.uint64(buffer, types.intp)

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
        def store(typing: Any, buffer: Any, offset: Any, value: Any) -> Any:
            signature = types.void(buffer, types.intp, types.uint64)

            def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
                at = address(context, builder, sig.args[0], *args[:2])
                value = args[2]
                if size < 8:
                    value = builder.trunc(value, word)
                if size > 1:
                    value = builder.bswap(value)
                builder.store(value, builder.bitcast(at, word.as_pointer()), align=1)
                return context.get_dummy_value()

            return signature, generate

        return store

    @intrinsic
    def copy_bytes(typing: Any, to: Any, offset: Any, source: Any, start: Any, count: Any) -> Any:
        signature = types.void(to, types.intp, source, types.intp, types.intp)

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            target = address(context, builder, sig.args[0], *args[0:2])
            origin = address(context, builder, sig.args[2], *args[2:4])
            cgutils.raw_memcpy(builder, target, origin, args[4], 1)  # type: ignore[no-untyped-call]
            return context.get_dummy_value()

        return signature, generate

    load1, load4, load8, store4 = make_load(1), make_load(4), make_load(8), make_store(4)

    @jit
    def same_bytes(buffer, first, second, count):  # type: ignore[no-untyped-def]
        done = 0
        while count - done >= 8:
            if load8(buffer, first + done) != load8(buffer, second + done):
                return False
            done += 8
        while done < count:
            if load1(buffer, first + done) != load1(buffer, second + done):
                return False
            done += 1
        return True

    @jit
    def load_vector(buffer, offset, vector):  # type: ignore[no-untyped-def]
        for i in range(len(vector)):
            vector[i] = load4(buffer, offset + 4 * i)

    @jit
    def store_vector(buffer, offset, vector):  # type: ignore[no-untyped-def]
        for i in range(len(vector)):
            store4(buffer, offset + 4 * i, numba.uint64(numba.uint32(vector[i])))

    def word_at(builder: Any, frame: Any, index: Any) -> Any:
        return builder.gep(builder.inttoptr(frame, ir.IntType(64).as_pointer()), [index])

    @intrinsic
    def frame_word(typing: Any, frame: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.load(word_at(builder, *args))

        return types.int64(types.int64, types.intp), generate

    @intrinsic
    def set_frame_word(typing: Any, frame: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            builder.store(args[2], word_at(builder, *args[:2]))
            return context.get_dummy_value()

        return types.void(types.int64, types.intp, types.int64), generate

    @intrinsic
    def pointer_at(typing: Any, frame: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.inttoptr(builder.load(word_at(builder, *args)), ir.IntType(8).as_pointer())

        return types.voidptr(types.int64, types.intp), generate

    pointer: Any = pointer_at
    number: Any = frame_word
    carray: Any = numba.carray  # type: ignore[attr-defined]

    def make_array(dtype: Any, dimensions: int) -> Any:
        dtype = numba.from_dtype(dtype)

        @jit
        def vector_of(frame, index):  # type: ignore[no-untyped-def]
            return carray(pointer(frame, index), (number(frame, index + 1),), dtype)

        @jit
        def matrix_of(frame, index):  # type: ignore[no-untyped-def]
            return carray(pointer(frame, index), (number(frame, index + 1), number(frame, index + 2)), dtype)

        return vector_of if dimensions == 1 else matrix_of

    def make_rows(dtype: Any) -> Any:
        dtype = numba.from_dtype(dtype)

        @jit
        def rows_of(frame, index, columns):  # type: ignore[no-untyped-def]
            return carray(pointer(frame, index), (number(frame, index + 1), columns), dtype)

        return rows_of

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
        "load1": load1,
        "load2": make_load(2),
        "load4": load4,
        "load8": load8,
        "store1": make_store(1),
        "store2": make_store(2),
        "store4": store4,
        "store8": make_store(8),
        "copy_bytes": copy_bytes,
        "same_bytes": same_bytes,
        "load_vector": load_vector,
        "store_vector": store_vector,
        "put": put,
        "put1": put1,
        "frame_word": frame_word,
        "set_frame_word": set_frame_word,
        **{name: make_array(*shape) for name, shape in ARRAYS.items()},
        **{name: make_rows(dtype) for name, dtype in ROWS.items()},
        "constant": np.uint64,
        "address_in": frame_word,
        "compiled": numba.njit(nogil=True, error_model="numpy", cache=kept),
        "inner": jit,  # for functions that only compiled functions call
    }
