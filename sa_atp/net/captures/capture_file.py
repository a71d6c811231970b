"""Reads capture files (pcap, pcapng, also gzipped) with scapy. Importing this imports scapy.

A file is read once, from beginning to end, and only one frame is in memory, so pipes and files of any size will do.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from scapy.error import Scapy_Exception
from scapy.utils import RawPcapNgReader, RawPcapReader

from sa_atp.basics.errors import UserError

_GZIP = b"\x1f\x8b"
_MOST_BYTES = 16 << 20  # of a block; a longer one is a sign of a broken file


@dataclass(slots=True)
class Frame:
    """A captured frame, of which the first 64 kB are kept. time_s: since 1970."""

    link_type: int
    time_s: float
    data: bytes


class CaptureFile:
    """A capture file. After `frames` has ended, `cut` says whether the file is truncated or corrupt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut = False

    def frames(self) -> Iterator[Frame]:
        """Yields all frames. Raises: UserError: the file cannot be read, or is not a capture."""
        try:
            with self.path.open("rb") as file:
                is_zipped = file.peek(2)[:2] == _GZIP
                yield from self._read(_Source(cast(IO[bytes], gzip.GzipFile(fileobj=file)) if is_zipped else file))
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror or error}") from None

    def _read(self, source: "_Source") -> Iterator[Frame]:
        try:
            reader = _Blocks(cast(Any, source))
        except (Scapy_Exception, EOFError):
            raise UserError(
                f"{self.path}: not a capture that can be read ({source.why()}); expected pcap or pcapng"
            ) from None
        while True:
            before = source.taken
            try:
                frame = reader.next_frame()
            except (Scapy_Exception, EOFError):
                self.cut |= source.taken > before or source.is_broken
                return
            self.cut |= source.is_short
            if frame is not None:
                yield frame


class _Source:
    """The bytes of a file as scapy takes them. Scapy does not say whether a file is whole, but that shows here."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.taken = 0
        self.is_short = False
        """Whether the last read brought less than it was asked for."""
        self.is_broken = False
        """Whether the file is compressed, and cannot be read further."""

    def read(self, size: int) -> bytes:
        """Reads `size` bytes, or what is left. Sizes come from the file; nothing is read if one cannot be true."""
        try:
            data = self._file.read(size) if size <= _MOST_BYTES else b""
        except (OSError, EOFError, zlib.error):
            self.is_broken = True
            raise EOFError from None
        self.taken += len(data)
        self.is_short = len(data) < size
        return data

    def seek(self, position: int) -> None:
        """Scapy goes back to the beginning to decompress, but that has been done."""
        raise Scapy_Exception("compressed twice")

    def why(self) -> str:
        """Why these bytes are not the beginning of a capture."""
        if self.is_broken:
            return "gzip cannot read it"
        if self.is_short:
            return "it ends within its header" if self.taken else "it is empty"
        return "its header is unknown or broken"


class _Records(RawPcapReader):
    def next_frame(self) -> Frame:
        data, about = self._read_packet()
        ticks_a_second = 10**9 if self.nano else 10**6
        return Frame(self.linktype, (about.sec * ticks_a_second + about.usec) / ticks_a_second, data)


class _Blocks(RawPcapNgReader):
    alternative = _Records  # what scapy makes of a file that is not pcapng

    def next_frame(self) -> Frame | None:
        """Reads the next block. Returns: None if it has no frame."""
        if (found := self._read_block()) is None:
            return None
        data, about = found
        ticks = (about.tshigh or 0) << 32 | (about.tslow or 0)  # simple blocks have no time
        return Frame(about.linktype, ticks / about.tsresol, data)

    def _read_block_shb(self) -> None:
        self.interfaces.clear()  # each section has its own
        super()._read_block_shb()

    def _check_interface_id(self, number: int) -> bool:
        if number >= len(self.interfaces):
            raise EOFError  # scapy passes over frames of interfaces that nobody has described
        return True
