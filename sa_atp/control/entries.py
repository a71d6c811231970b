"""What a controller writes and reads, as frozen dataclasses, with their P4Runtime messages.

The embedded target decodes with the same functions, so they live beside it; here is where controllers import them from.
"""

from sa_atp.softswitch.p4runtime.codec import decode, encode, encode_update
from sa_atp.softswitch.p4runtime.entities import (
    CounterEntry,
    Counts,
    DirectCounterEntry,
    Entity,
    Exact,
    Lpm,
    Match,
    MulticastGroup,
    Optional,
    Range,
    RegisterEntry,
    Replica,
    TableEntry,
    Ternary,
    Update,
    UpdateKind,
)
from sa_atp.softswitch.p4runtime.schema import Schema, from_p4info

__all__ = [
    "CounterEntry",
    "Counts",
    "DirectCounterEntry",
    "Entity",
    "Exact",
    "Lpm",
    "Match",
    "MulticastGroup",
    "Optional",
    "Range",
    "RegisterEntry",
    "Replica",
    "Schema",
    "TableEntry",
    "Ternary",
    "Update",
    "UpdateKind",
    "decode",
    "encode",
    "encode_update",
    "from_p4info",
]
