"""Field types of control messages, with their bounds, and the messages' base classes. (protocol section 9.2)"""

import functools
from enum import Enum
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta, Struct

from sa_atp.protocol.packets.spec import MOST_CONTRIBUTIONS, MOST_RANKS

MAX_FETCH = 1024  # stored results in one Fetch
MOST_SLOTS = 1 << 16  # that a packet can name; a switch may have fewer
LONGEST_TEXT = 600  # characters of a text for people, as JSON
ALL_BITS = (1 << MOST_CONTRIBUTIONS) - 1


class HelpGrade(Enum):
    """How leaders may help stragglers; `help.grade` of plans. (protocol section 10)"""

    NONE = "none"
    CLONE = "clone"
    STEAL = "steal"


class Results(Enum):
    """The ranks that need the results of a job's sums. (protocol section 5.9)"""

    TO_ALL = "to all"
    SCATTERED = "scattered"
    """Each rank needs one of as many equal parts as there are ranks."""


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
# msgspec cannot express so large a bound: Checked tests it.
Bitmap = Annotated[int, Meta(ge=0, extra={"bits": MOST_CONTRIBUTIONS})]


class Checked(Struct, frozen=True):
    """A record whose bitmaps are checked: none may have more bits than the widest build."""

    def __post_init__(self) -> None:
        for name in _bitmaps(type(self)):
            value = getattr(self, name)
            if value is not None and value > ALL_BITS:
                raise ValueError(f"{name} has more than {MOST_CONTRIBUTIONS} bits")


class Message(Checked, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all messages: a field `type` names the message, and fields with their default value are left out."""


@functools.cache
def _bitmaps(record: type[Checked]) -> tuple[str, ...]:
    return tuple(f.name for f in msgspec.structs.fields(record) if _is_bitmap(f.type))


def _is_bitmap(kind: Any) -> bool:
    return any(m.extra == {"bits": MOST_CONTRIBUTIONS} for m in _metas(kind))


def _metas(kind: Any) -> list[Meta]:
    found = [m for m in getattr(kind, "__metadata__", ()) if isinstance(m, Meta)]
    return found + [m for part in get_args(kind) for m in _metas(part)]
