"""System calls in compiled loops: many datagrams for the cost of one call of Python's. See net/loop/compiled.py.

Compiled code calls the C library by name. Structures are arrays of words: struct msghdr as uint64[7], struct iovec as
uint64[2] (64-bit Linux, little-endian: elsewhere this is not used).
"""

from typing import Any

import numba
import numpy as np

types: Any = numba.types
carray: Any = getattr(numba, "carray")  # noqa: B009  (numba does not say what it exports)
recvmsg = types.ExternalFunction("recvmsg", types.intp(types.int32, types.uintp, types.int32))
errno_location = types.ExternalFunction("__errno_location", types.CPointer(types.int32)())

sendmsg = types.ExternalFunction("sendmsg", types.intp(types.int32, types.uintp, types.int32))

# a row of int64 for consecutive messages of one sender with datagrams of one size: where their bytes begin, how many there
# are, the size of each datagram, and the sender, as the first half of struct sockaddr_in
FOUND_START, FOUND_BYTES, FOUND_SEGMENT, FOUND_SENDER, FOUND_ITEMS = range(5)
MOST_BYTES = 65_536  # of a message
DONTWAIT = 0x40
INTERRUPTED, NOTHING, REFUSED = 4, 11, 111  # errno: EINTR, EAGAIN, ECONNREFUSED


def receive(fd: int, room: Any, header: Any, vector: Any, name: Any, control: Any, found: Any) -> int:
    """Receives messages into one buffer, so that consecutive datagrams of one size and sender are contiguous.

    Args:
        room: uint8[...], filled as long as the largest message fits. header, vector: see above.
        name: uint64[2]. control: uint64[8]. found: int64[most messages, FOUND_ITEMS]: a row for contiguous datagrams, of
            which only the last may be shorter.

    Returns: how many rows; if no message is left, the complement of that, which is negative.
    """
    count = 0
    messages = 0
    at = 0
    end = -1  # of the last row
    base = room.ctypes.data
    vector[1] = MOST_BYTES
    header[0] = name.ctypes.data
    header[2] = vector.ctypes.data
    header[3] = 1
    header[4] = control.ctypes.data
    while messages < found.shape[0] and at + MOST_BYTES <= room.size:
        vector[0] = base + at
        header[1] = 16
        header[5] = 64
        header[6] = 0
        control[0] = 0
        size = recvmsg(fd, header.ctypes.data, DONTWAIT)
        if size < 0:
            problem = carray(errno_location(), (1,))[0]
            if problem in (INTERRUPTED, REFUSED):  # interrupted, or an ICMP error of an earlier send
                continue
            return -1 - count
        if size == 0:
            continue
        segment = size
        # struct cmsghdr: length, then level and kind in one word, then the value
        if header[5] >= 20 and control[0] >= 20 and control[1] == (104 << 32 | 17):
            told = int(control[2] & 0xFFFFFFFF)
            if told > 0:
                segment = told
        messages += 1
        if (
            at == end
            and segment == found[count - 1, FOUND_SEGMENT]
            and np.int64(name[0]) == found[count - 1, FOUND_SENDER]
        ):
            found[count - 1, FOUND_BYTES] += size
        else:
            found[count, FOUND_START] = at
            found[count, FOUND_BYTES] = size
            found[count, FOUND_SEGMENT] = segment
            found[count, FOUND_SENDER] = np.int64(name[0])
            count += 1
        # a shorter datagram ends a row
        end = at + size if size % segment == 0 else -1
        at = (at + size + 3) & ~3
    return count


def send(fd: int, data: Any, first: int, segments: int, header: Any, vector: Any, name: Any, control: Any) -> int:
    """Sends datagrams with segmented calls.

    Args:
        data: uint8[datagrams, size]. first: the first to send. segments: datagrams of one call.
        header, vector: see above. name: uint64[2], struct sockaddr_in. control: uint64[3].

    Returns: the index of the first datagram that was not sent, because the kernel refuses it at the moment.
    """
    size = data.shape[1]
    header[0] = name.ctypes.data
    header[1] = 16
    header[2] = vector.ctypes.data
    header[3] = 1
    header[4] = control.ctypes.data
    header[6] = 0
    control[0] = 18  # struct cmsghdr with a number of 16 bits
    control[1] = 103 << 32 | 17
    control[2] = size
    base = data.ctypes.data
    while first < data.shape[0]:
        count = min(segments, data.shape[0] - first)
        vector[0] = base + first * size
        vector[1] = count * size
        header[5] = 24 if count > 1 else 0
        if sendmsg(fd, header.ctypes.data, 0) < 0:
            return first
        first += count
    return first
