"""The log as text: a header line of JSON with the connection's identity, then a line for each event. (docs/log.md)

Names and order follow qlog (draft-ietf-quic-qlog-main-schema): version and format, one trace with a vantage point, events
with `time`, `name` and `data`.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Raw, Struct

from sa_atp.protocol.log import rank_events, server_events
from sa_atp.protocol.log.event import Event
from sa_atp.protocol.log.rank_events import StoodStill

PARAMETER_SERVER = "parameter server"


def _kinds(module: Any) -> dict[str, type[Event]]:
    found = [k for k in vars(module).values() if isinstance(k, type) and issubclass(k, Event) and k is not Event]
    return {kind.name: kind for kind in found}


RANK_KINDS = _kinds(rank_events)
SERVER_KINDS = _kinds(server_events) | {StoodStill.name: StoodStill}
KINDS = RANK_KINDS | SERVER_KINDS
"""All events, by name."""
CATEGORIES = tuple(dict.fromkeys(name.partition(":")[0] for name in KINDS))


class ReferenceTime(Struct, frozen=True, omit_defaults=True):
    clock_type: Literal["monotonic", "virtual"]
    wall_clock_time: str | None = None
    """The date and time when the clock showed `time_us`, in UTC (RFC 3339); None: the clock is virtual."""
    time_us: int = 0


class VantagePoint(Struct, frozen=True, omit_defaults=True):
    name: str
    """ "rank 2", or "parameter server"."""
    type: Literal["client", "server"]
    rank: int | None = None


class Trace(Struct, frozen=True):
    vantage_point: VantagePoint
    reference_time: ReferenceTime
    title: str
    """The job's name."""
    time_unit: Literal["us"] = "us"
    protocol_type: tuple[str, ...] = ("SA-ATP",)


class Header(Struct, frozen=True, kw_only=True):
    """The first line."""

    qlog_version: Literal["0.3"] = "0.3"
    qlog_format: Literal["SA-ATP NDJSON"] = "SA-ATP NDJSON"
    title: str
    trace: Trace


def header(job: str, rank: int | None, clock: ReferenceTime) -> Header:
    """Makes the header of a log. Args: rank: the rank that logs; None: the parameter server logs."""
    name = PARAMETER_SERVER if rank is None else f"rank {rank}"
    point = VantagePoint(name, "server" if rank is None else "client", rank)
    return Header(title=f"{name} of job {job}", trace=Trace(point, clock, job))


class _Line(Struct, frozen=True):
    time: int
    name: str
    data: Raw


class _Written(Struct, frozen=True):
    time: int
    name: str
    data: Event


class BadLine(ValueError):
    """A line that is not part of a log; the message says why."""


_encoder = msgspec.json.Encoder(enc_hook=lambda value: value.item(), order=None)  # NumPy's integers, too
_lines = msgspec.json.Decoder(_Line)
_headers = msgspec.json.Decoder(Header)
_decoders = {name: msgspec.json.Decoder(kind) for name, kind in KINDS.items()}


def encode_header(first: Header) -> bytes:
    return _encoder.encode(first) + b"\n"


def encode(time_us: int, event: Event) -> bytes:
    return _encoder.encode(_Written(time_us, event.name, event)) + b"\n"


def decode_header(line: bytes) -> Header:
    """Raises: BadLine."""
    try:
        return _headers.decode(line)
    except msgspec.MsgspecError as error:
        raise BadLine(f"not the first line of a log: {error}") from None


def decode(line: bytes) -> tuple[int, Event]:
    """Returns the time of an event in microseconds, and the event. Raises: BadLine: no such event is declared."""
    try:
        found = _lines.decode(line)
        if found.name not in KINDS:
            raise BadLine(f"no event is called {found.name!r}")
        return found.time, _decoders[found.name].decode(found.data)
    except msgspec.MsgspecError as error:
        raise BadLine(f"not an event: {error}") from None


# --- for people -----------------------------------------------------------------------------------------------------------


def fields(event: Event) -> dict[str, Any]:
    """The fields of an event that do not have their default value, as data for JSON."""
    found: dict[str, Any] = msgspec.to_builtins(event, enc_hook=lambda value: value.item())
    return found


def tables() -> str:
    """Describes all events in Markdown, from their declarations, for docs/log.md: tables of events, and one of fields."""
    parts = []
    for title, kinds in (("A rank", RANK_KINDS), ("The parameter server", SERVER_KINDS)):
        parts.append(f"## {title}\n\n| event | when | fields |\n|---|---|---|")
        parts.extend(_described(kind) for kind in kinds.values())
        parts.append("")
    parts.append("## Fields\n\n| field | type | meaning |\n|---|---|---|")
    parts.extend(_field_rows())
    return "\n".join(parts) + "\n"


def _described(kind: type[Event]) -> str:
    when = " ".join((kind.__doc__ or "").split())
    named = [f"`{field.name}`" + ("" if field.required else "?") for field in msgspec.structs.fields(kind)]
    return f"| `{kind.name}` | {when} | {', '.join(named)} |"


def _field_rows() -> Iterator[str]:
    """A row for each meaning of a field; where it has several, with the events in which it has this one."""
    events: dict[tuple[str, str, str], list[str]] = {}
    for kind in KINDS.values():
        for field in msgspec.structs.fields(kind):
            meaning = (field.name, _type(field.type), _parts(field.type)[1])
            events.setdefault(meaning, []).append(kind.name)
    names = [name for name, _, _ in events]
    for name, values, says in sorted(events):
        where = f"in {', '.join(f'`{event}`' for event in events[name, values, says])}" * (names.count(name) > 1)
        yield f"| `{name}` | {values} | {'; '.join(filter(None, (says, where)))} |"


def _parts(kind: Any) -> tuple[Any, str]:
    """Splits a type into the type itself, without None, and its description."""
    if get_origin(kind) is Annotated:
        inner, *metas = get_args(kind)
        said = [m.description for m in metas if isinstance(m, Meta) and m.description]
        return inner, said[0] if said else ""
    known = [part for part in get_args(kind) if part is not type(None)]
    if len(known) == 1 and len(get_args(kind)) == 2:
        return _parts(known[0])
    return kind, ""


def _type(kind: Any) -> str:
    plain, _ = _parts(kind)
    if get_origin(plain) is Literal:
        return "one of " + ", ".join(f"`{value}`" for value in get_args(plain))
    if get_origin(plain) is list:
        return "array of " + {"integer": "integers"}.get(_type(get_args(plain)[0]), "arrays")
    return {int: "integer", str: "text", bool: "true or false", float: "number"}[plain]
