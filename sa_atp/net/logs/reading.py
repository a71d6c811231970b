"""Reads logs: single files, or all files below folders."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sa_atp.basics.errors import UserError
from sa_atp.protocol.log import lines
from sa_atp.protocol.log.event import Event
from sa_atp.protocol.log.lines import BadLine, Header


@dataclass(frozen=True, slots=True)
class LogFile:
    header: Header
    events: list[tuple[int, Event]]
    """Times, in microseconds of the connection's clock, and events."""

    @property
    def rank(self) -> int | None:
        """The rank that logged; None: the parameter server."""
        return self.header.trace.vantage_point.rank


def read(path: Path) -> LogFile:
    """Reads a log. A last line that is cut off, as a killed process or a full disk leaves it, is left out.

    Raises: UserError: the file is not a log of this release.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    whole = text.split(b"\n")[:-1]
    number = 1
    try:
        header = lines.decode_header(whole[0] if whole else b"")
        events = []
        for line in whole[1:]:
            number += 1
            events.append(lines.decode(line))
    except BadLine as error:
        raise UserError(f"{path}, line {number}: {error}") from None
    return LogFile(header, events)


def below(paths: Iterable[Path]) -> Iterator[Path]:
    """Yields the given files, and all *.jsonl files below the given folders. Raises: UserError: a folder has none."""
    for path in paths:
        found = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
        if not found:
            raise UserError(f"{path}: there is no log (*.jsonl) in this folder")
        yield from found
