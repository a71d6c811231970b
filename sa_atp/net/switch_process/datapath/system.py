"""Calls of the C library by compiled code: without Python, its lock, or anything that numba could not cache."""

import socket
from collections.abc import Callable
from typing import Any

SIOCOUTQ = 0x5411
CLOCK_MONOTONIC = 1
POLLOUT = 4


def calls(bits: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The calls, compiled, by name. Args: bits: the compiled operations of `embedded.bits`."""
    import numba
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    from sa_atp.net.shared_memory import atomics

    jit = bits["inner"]
    frame_word, set_frame_word = bits["frame_word"], bits["set_frame_word"]
    i32, u32, i64 = numba.int32, numba.uint32, numba.int64

    def library(name: str, result: Any, *parameters: Any) -> Any:
        return types.ExternalFunction(name, result(*parameters))  # by name: the linker finds it when code is loaded

    c_recvmmsg = library("recvmmsg", i32, i32, i64, u32, i32, i64)
    c_sendmmsg = library("sendmmsg", i32, i32, i64, u32, i32)
    c_poll = library("poll", i32, i64, numba.uint64, i32)
    c_ppoll = library("ppoll", i32, i64, numba.uint64, i64, i64)
    c_ioctl = library("ioctl", i32, i32, numba.uint64, i64)
    c_clock_gettime = library("clock_gettime", i32, i32, i64)
    c_write = library("write", i64, i32, i64, numba.uint64)
    c_read = library("read", i64, i32, i64, numba.uint64)
    c_errno = library("__errno_location", i64)
    no_wait = int(socket.MSG_DONTWAIT)

    @intrinsic
    def number_at(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            at = builder.inttoptr(args[0], ir.IntType(32).as_pointer())
            return builder.sext(builder.load(at), ir.IntType(64))

        return types.int64(types.int64), generate

    @intrinsic
    def call_program(typing: Any, address: Any, frame: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)])

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])

        return types.int64(types.int64, types.int64), generate

    @jit
    def recvmmsg(fd, address, count):  # type: ignore[no-untyped-def]
        return i64(c_recvmmsg(i32(fd), i64(address), u32(count), i32(no_wait), i64(0)))

    @jit
    def sendmmsg(fd, address, count):  # type: ignore[no-untyped-def]
        return i64(c_sendmmsg(i32(fd), i64(address), u32(count), i32(no_wait)))

    @jit
    def poll(address, count, timeout_us, scratch):  # type: ignore[no-untyped-def]
        set_frame_word(scratch, 0, i64(timeout_us // 1_000_000))
        set_frame_word(scratch, 1, i64(timeout_us % 1_000_000 * 1000))
        return i64(c_ppoll(i64(address), numba.uint64(count), i64(scratch), i64(0)))

    @jit
    def errno():  # type: ignore[no-untyped-def]
        return number_at(c_errno())  # type: ignore[call-arg]

    @jit
    def monotonic_us(scratch):  # type: ignore[no-untyped-def]
        c_clock_gettime(i32(CLOCK_MONOTONIC), i64(scratch))
        return frame_word(scratch, 0) * 1_000_000 + frame_word(scratch, 1) // 1000

    @jit
    def queued_bytes(fd, scratch):  # type: ignore[no-untyped-def]
        if c_ioctl(i32(fd), numba.uint64(SIOCOUTQ), i64(scratch)) != 0:
            return i64(0)
        return number_at(i64(scratch))  # type: ignore[call-arg]

    @jit
    def wait_until_writable(fd, scratch, timeout_ms):  # type: ignore[no-untyped-def]
        set_frame_word(scratch, 2, i64(fd) | POLLOUT << 32)
        return i64(c_poll(i64(scratch + 16), numba.uint64(1), i32(timeout_ms)))

    @jit
    def point_at(frame, place, buffer, offset, count):  # type: ignore[no-untyped-def]
        set_frame_word(frame, place, buffer.ctypes.data + offset)
        set_frame_word(frame, place + 1, count)

    @jit
    def load_shared(buffer, offset):  # type: ignore[no-untyped-def]
        return atomics.load_acquire(buffer.ctypes.data + offset)

    @jit
    def store_shared(buffer, offset, value):  # type: ignore[no-untyped-def]
        atomics.store_release(buffer.ctypes.data + offset, value)

    @jit
    def fence():  # type: ignore[no-untyped-def]
        atomics.fence()

    @jit
    def ring_bell(fd, scratch):  # type: ignore[no-untyped-def]
        set_frame_word(scratch, 0, i64(1))
        c_write(i32(fd), i64(scratch), numba.uint64(8))

    @jit
    def hear_bell(fd, scratch):  # type: ignore[no-untyped-def]
        c_read(i32(fd), i64(scratch), numba.uint64(8))

    return {
        "point_at": point_at,
        "load_shared": load_shared,
        "store_shared": store_shared,
        "fence": fence,
        "ring_bell": ring_bell,
        "hear_bell": hear_bell,
        "recvmmsg": recvmmsg,
        "sendmmsg": sendmmsg,
        "poll": poll,
        "errno": errno,
        "monotonic_us": monotonic_us,
        "queued_bytes": queued_bytes,
        "wait_until_writable": wait_until_writable,
        "call_program": call_program,
    }
