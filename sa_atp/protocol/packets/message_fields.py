"""What control messages are made of: their fields, with bounds, and what all of them have. (protocol section 9.2)"""

import functools
from enum import Enum
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta, Struct

from sa_atp.protocol.packets.spec import MOST_CONTRIBUTIONS, MOST_RANKS

MAX_FETCH = 1024  # stored results asked for at once
MOST_SLOTS = 1 << 16  # that a packet can name; how many a switch has, it says when the job is installed
LONGEST_TEXT = 600  # characters of what is said to people, as JSON
ALL_BITS = (1 << MOST_CONTRIBUTIONS) - 1


class HelpGrade(Enum):
    """How leaders may help stragglers. (protocol section 10)"""

    NONE = "none"
    CLONE = "clone"
    STEAL = "steal"


Seq = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
Rank = Annotated[int, Meta(ge=0, le=MOST_RANKS - 1)]
Ranks = Annotated[int, Meta(ge=1, le=MOST_RANKS)]  # of a job
Contributions = Annotated[int, Meta(ge=1, le=MOST_CONTRIBUTIONS)]  # of a rank
Seats = Annotated[int, Meta(ge=0, le=MOST_RANKS)]  # of a sum; 0: every rank is in it
Octet = Annotated[int, Meta(ge=0, le=255)]  # job, epoch
Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]  # steps, operations, values
Microseconds = Annotated[int, Meta(ge=0, le=1 << 40)]
Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
# As many bits are more than a bound of msgspec's may have: Checked sees to them.
Bitmap = Annotated[int, Meta(ge=0, extra={"bits": MOST_CONTRIBUTIONS})]


class Checked(Struct, frozen=True):
    """What holds bitmaps: none of them may have more bits than the widest build has."""

    def __post_init__(self) -> None:
        for name in _bitmaps(type(self)):
            value = getattr(self, name)
            if value is not None and value > ALL_BITS:
                raise ValueError(f"{name} has more than {MOST_CONTRIBUTIONS} bits")


class Message(Checked, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What all messages have: a type that says which they are. Fields that have their default value do not travel."""


@functools.cache
def _bitmaps(record: type[Checked]) -> tuple[str, ...]:
    return tuple(f.name for f in msgspec.structs.fields(record) if _is_bitmap(f.type))


def _is_bitmap(kind: Any) -> bool:
    return any(m.extra == {"bits": MOST_CONTRIBUTIONS} for m in _metas(kind))


def _metas(kind: Any) -> list[Meta]:
    found = [m for m in getattr(kind, "__metadata__", ()) if isinstance(m, Meta)]
    return found + [m for part in get_args(kind) for m in _metas(part)]
