"""Reads capture files (pcap, pcapng, also gzipped) in batches of frames.

A file is read once, from beginning to end, and only one batch is in memory, so pipes and files of any size will do.
(draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng)
"""

import gzip
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from sa_atp.basics.arrays import Indices, Lengths, Octets
from sa_atp.basics.errors import UserError

CHUNK = 1 << 20  # bytes of one read
SLACK = 128  # zeros behind the frames of a batch, so that headers can be read before their lengths are checked
MOST_BYTES = 0xFFFF  # of a frame; the rest is skipped
_BEYOND = 4 * MOST_BYTES  # a frame that claims to be longer is a sign of a broken file
_MOST_BLOCK = 16 << 20  # a longer block of a pcapng file is skipped

# magic numbers of pcap as they lie in the file: (byte order, ticks a second)
_PCAP = {
    b"\xa1\xb2\xc3\xd4": (">", 10**6),
    b"\xd4\xc3\xb2\xa1": ("<", 10**6),
    b"\xa1\xb2\x3c\x4d": (">", 10**9),
    b"\x4d\x3c\xb2\xa1": ("<", 10**9),
}
_PCAPNG = b"\x0a\x0d\x0d\x0a"
_ORDERS = {b"\x1a\x2b\x3c\x4d": ">", b"\x4d\x3c\x2b\x1a": "<"}
_GZIP = b"\x1f\x8b"
_SECTION, _INTERFACE, _OLD_PACKET, _SIMPLE, _ENHANCED = 0x0A0D0D0A, 1, 2, 3, 6
_TSRESOL = 9  # option of an interface: the resolution of its times


@dataclass(slots=True)
class Batch:
    """Frames of one link type.

    data: the bytes of all frames; starts, lengths: where each frame is in them, and how many bytes were captured; ticks:
    each frame's time since 1970, in units of 1/ticks_a_second.
    """

    link_type: int
    ticks_a_second: int
    data: Octets
    starts: Indices
    lengths: Lengths
    ticks: list[int]

    def frame(self, index: int) -> bytes:
        start = int(self.starts[index])
        return self.data[start : start + int(self.lengths[index])].tobytes()


class CaptureFile:
    """A capture file. After `batches` has ended, `cut` says whether the file is truncated or corrupt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut = False

    def batches(self) -> Iterator[Batch]:
        """Yields all frames. Raises: UserError: the file cannot be read, or is not a capture."""
        try:
            with self.path.open("rb") as file:
                yield from self._read(file)
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror or error}") from None

    def _read(self, file: IO[bytes]) -> Iterator[Batch]:
        window = _Window(file)
        try:
            reader = self._reader(window)
        except (OSError, EOFError, zlib.error):
            raise self._no_capture("gzip cannot read it") from None
        try:
            yield from reader.batches()
        except (OSError, EOFError, zlib.error):  # a compressed file that is broken or cut
            self.cut = True
            yield from reader.flush()
        self.cut |= reader.cut

    def _reader(self, window: "_Window") -> "_Reader":
        magic = window.take(4)
        if magic == _PCAPNG:
            found = _PcapNg(window)
            if found.section():
                return found
            raise self._no_capture("its first section header is broken")
        if magic not in _PCAP:
            raise self._no_capture("it begins with something else" if magic or window.size else "it is empty")
        if not (head := window.take(20)):
            raise self._no_capture("it ends within its header")
        order, ticks_a_second = _PCAP[magic]
        return _Pcap(window, order, ticks_a_second, link_type=struct.unpack(order + "I", head[16:])[0])

    def _no_capture(self, why: str) -> UserError:
        return UserError(f"{self.path}: not a capture that can be read ({why}); expected pcap or pcapng")


class _Window:
    """The part of a file that is in memory; it moves forwards."""

    def __init__(self, file: IO[bytes]) -> None:
        self.data = b""
        self.at = 0  # position in the data up to which it has been taken
        self._file = file
        self._ended = False
        if self.fill(2) and self.data[:2] == _GZIP:
            self._file = cast(IO[bytes], gzip.GzipFile(mode="rb", fileobj=cast(Any, _Joined(self.data, file))))
            self.data, self._ended = b"", False

    @property
    def size(self) -> int:
        """Bytes that have been read and not taken."""
        return len(self.data) - self.at

    def fill(self, size: int) -> bool:
        """Reads until `size` bytes are there. Returns: False if the file ended before."""
        if self.size >= size:
            return True
        parts, have = [self.data[self.at :]], self.size
        self.data, self.at = b"", 0
        try:
            while have < size and not self._ended:
                part = self._file.read1(CHUNK)  # type: ignore[attr-defined]
                self._ended = not part
                parts.append(part)
                have += len(part)
        finally:
            self.data = b"".join(parts)
        return have >= size

    def take(self, size: int) -> bytes:
        """Takes the next `size` bytes; empty if the file ended before."""
        if not self.fill(size):
            return b""
        self.at += size
        return self.data[self.at - size : self.at]

    def skip(self, size: int) -> bool:
        """Skips bytes without holding them. Returns: False if the file ended before."""
        while size > self.size:
            size -= self.size
            self.at = len(self.data)
            if not self.fill(1):
                return False
        self.at += size
        return True


class _Joined:
    """The bytes that were read of a file, followed by the rest: pipes cannot seek back."""

    def __init__(self, before: bytes, file: IO[bytes]) -> None:
        self._before = before
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not self._before:
            return self._file.read(size)
        size = len(self._before) if size < 0 else size
        data, self._before = self._before[:size], self._before[size:]
        return data


class _Reader(ABC):
    """A format's reader: gathers frames, and yields them as a batch before the window moves."""

    def __init__(self, window: _Window) -> None:
        self.window = window
        self.cut = False
        self.link_type = 1
        self.ticks_a_second = 10**6
        self._starts: list[int] = []
        self._lengths: list[int] = []
        self._ticks: list[int] = []

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """Yields all frames from the window's position on."""

    def flush(self) -> Iterator[Batch]:
        """Yields the gathered frames; their positions are those of the window."""
        if self._starts:
            window, first = self.window, self._starts[0]
            end = self._starts[-1] + self._lengths[-1]
            data = np.zeros(end - first + SLACK, np.uint8)
            data[: end - first] = np.frombuffer(window.data, np.uint8, end - first, first)
            starts = np.array(self._starts) - first
            yield Batch(self.link_type, self.ticks_a_second, data, starts, np.array(self._lengths), self._ticks)
            self._starts, self._lengths, self._ticks = [], [], []


class _Pcap(_Reader):
    def __init__(self, window: _Window, order: str, ticks_a_second: int, link_type: int) -> None:
        super().__init__(window)
        self._record = struct.Struct(order + "IIII")
        self.ticks_a_second = ticks_a_second
        self.link_type = link_type

    def batches(self) -> Iterator[Batch]:
        window, unpack, scale = self.window, self._record.unpack_from, self.ticks_a_second
        while True:
            add_start, add_length, add_tick = self._starts.append, self._lengths.append, self._ticks.append
            data, at = window.data, window.at
            last = len(data) - 16
            while at <= last:
                seconds, fraction, captured, _ = unpack(data, at)
                end = at + 16 + captured
                if captured > MOST_BYTES or end > len(data):
                    break
                add_start(at + 16)
                add_length(captured)
                add_tick(seconds * scale + fraction)
                at = end
            window.at = at
            yield from self.flush()
            if not window.fill(16):
                self.cut |= window.size > 0
                return
            seconds, fraction, captured, _ = unpack(window.data, window.at)
            kept = min(captured, MOST_BYTES)
            if window.fill(16 + kept) and captured == kept:
                continue
            # the file ends here, or the frame is longer than MOST_BYTES
            kept = min(kept, window.size - 16)
            self._starts, self._lengths = [window.at + 16], [kept]
            self._ticks = [seconds * scale + fraction]
            yield from self.flush()
            self.cut |= not window.skip(16 + captured) or captured > _BEYOND


class _PcapNg(_Reader):
    def __init__(self, window: _Window) -> None:
        super().__init__(window)
        self._order = "<"
        self._interfaces: list[tuple[int, int, int]] = []  # link type, longest frame, ticks a second

    def section(self) -> bool:
        """Takes a section header, after its type. Each section has its own interfaces and byte order."""
        window = self.window
        if not window.fill(8) or (order := _ORDERS.get(window.data[window.at + 4 : window.at + 8])) is None:
            return False
        self._order = order
        (size,) = struct.unpack_from(order + "I", window.data, window.at)
        if size < 28 or size > _MOST_BLOCK or not window.fill(size - 4):
            return False
        (major,) = struct.unpack_from(order + "H", window.data, window.at + 8)
        (again,) = struct.unpack_from(order + "I", window.data, window.at + size - 8)
        window.at += size - 4
        self._interfaces = []
        return bool(major == 1 and again == size)

    def batches(self) -> Iterator[Batch]:
        window = self.window
        while True:
            if window.size < 12 or window.size < self._size():  # the window is about to move
                yield from self.flush()
                if not window.fill(12):
                    self.cut |= window.size > 0
                    return
            kind, size = struct.unpack_from(self._order + "II", window.data, window.at)
            if kind == _SECTION:
                yield from self.flush()
                window.at += 4
                if not self.section():
                    self.cut = True
                    return
                continue
            if size < 12:
                self.cut = True
                break
            padded = size + -size % 4
            if size > _MOST_BLOCK:
                yield from self.flush()
                if not window.skip(padded):
                    self.cut = True
                    return
                continue
            if not window.fill(padded):
                self.cut = True
                break
            body = window.at + 8
            window.at += padded
            self.cut |= padded != size
            (again,) = struct.unpack_from(self._order + "I", window.data, window.at - 4)
            if again != size:
                self.cut = True
                break
            if kind == _INTERFACE:
                self._interface(window.data[body : body + size - 12])
            elif kind in (_ENHANCED, _OLD_PACKET, _SIMPLE):
                yield from self._packet(kind, body, size - 12)
        yield from self.flush()

    def _size(self) -> int:
        """The size of the next block."""
        (size,) = struct.unpack_from(self._order + "I", self.window.data, self.window.at + 4)
        return min(int(size) + -int(size) % 4, _MOST_BLOCK)

    def _interface(self, body: bytes) -> None:
        if len(body) < 8:
            self.cut = True
            return
        link_type, longest = struct.unpack_from(self._order + "HxxI", body)
        ticks, at = 10**6, 8
        while at + 4 <= len(body):
            code, size = struct.unpack_from(self._order + "HH", body, at)
            if code == 0:
                break
            if code == _TSRESOL and size == 1 and at + 4 < len(body):
                ticks = (2 if body[at + 4] & 128 else 10) ** (body[at + 4] & 127)
            at += 4 + size + -size % 4
        self._interfaces.append((link_type, longest, ticks))

    def _packet(self, kind: int, body: int, size: int) -> Iterator[Batch]:
        """Gathers the frame of a block; if its link type is another one, yields what was gathered before."""
        data, interface, ticks = self.window.data, 0, 0
        try:
            if kind == _SIMPLE:  # it has no time, and belongs to the first interface
                (captured,) = struct.unpack_from(self._order + "I", data, body)
                captured, head = min(captured, self._interfaces[0][1]), 4
            elif kind == _ENHANCED:
                interface, high, low, captured, _ = struct.unpack_from(self._order + "5I", data, body)
                ticks, head = high << 32 | low, 20
            else:
                interface, _, high, low, captured, _ = struct.unpack_from(self._order + "HH4I", data, body)
                ticks, head = high << 32 | low, 20
            link_type, _, ticks_a_second = self._interfaces[interface]
        except (struct.error, IndexError):
            self.cut = True
            return
        if size < head:
            self.cut = True
            return
        if (link_type, ticks_a_second) != (self.link_type, self.ticks_a_second):
            yield from self.flush()
            self.link_type, self.ticks_a_second = link_type, ticks_a_second
        self._starts.append(body + head)
        self._lengths.append(min(captured, size - head, MOST_BYTES))
        self._ticks.append(ticks)
