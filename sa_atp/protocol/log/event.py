"""Events of the log, and the function that a connection calls with each of them. (docs/log.md)

A connection is given a `Log`, as it is given the time, and calls it once for each decision. A log returns nothing and never
fails; it adds the time, from the same clock as the connection's.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar, TypeVar

from msgspec import Meta, Struct


class Event(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A decision. Fields that have their default value are left out of the line."""

    name: ClassVar[str]
    """The name in the log, as category:event."""


Kind = TypeVar("Kind", bound=type[Event])


def called(name: str) -> Callable[[Kind], Kind]:
    """Gives a class of events its name in the log."""

    def give(kind: Kind) -> Kind:
        kind.name = name
        return kind

    return give


Log = Callable[[Event], None]


def nobody(event: Event) -> None:
    """A log that discards its events: the default of every connection."""


def of_nobody(job: str) -> Log:
    """Makes a log for a job that discards its events. Args: job: the job's name."""
    return nobody


# --- what fields are ------------------------------------------------------------------------------------------------------

Microseconds = Annotated[int, Meta(ge=0, description="microseconds")]
Operation = Annotated[int, Meta(ge=0, description="the sum's number in its job, counted by each rank alike")]
Place = Annotated[int, Meta(ge=0, description="a fragment, counted within its sum")]
Fragments = Annotated[int, Meta(ge=0, description="fragments")]
Chunk = Annotated[int, Meta(ge=0, description="a chunk, counted within its sum")]
Attempt = Annotated[int, Meta(ge=0, le=1, description="0; 1: done again")]
Exponent = Annotated[int, Meta(ge=-128, le=127, description="values are multiplied by 2 to this power")]
Seq = Annotated[int, Meta(ge=0, le=0xFFFFFFFF, description="sequence number of a fragment")]
Contributions = Annotated[str, Meta(pattern="^0x[0-9a-f]+$", description="contributions, as a bitmap in hexadecimal")]
Rank = Annotated[int, Meta(ge=0, description="a rank")]
Ranks = Annotated[list[Rank], Meta(description="ranks")]
Step = Annotated[int, Meta(ge=0, description="the step, as the ledger counts")]
Count = Annotated[int, Meta(ge=0, description="a count")]
MicroBatches = Annotated[int, Meta(ge=0, description="micro-batches")]
Epoch = Annotated[int, Meta(ge=0, le=255, description="the job's epoch")]
Address = Annotated[str, Meta(description="HOST:PORT")]
Words = Annotated[str, Meta(description="text for people")]
Yes = Annotated[bool, Meta(description="true or false")]


def place(address: tuple[str, int]) -> str:
    """Formats an address as HOST:PORT, as in fields of events."""
    return f"{address[0]}:{address[1]}"
