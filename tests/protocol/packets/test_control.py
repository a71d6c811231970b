"""Control messages: each comes back as it was, and everything else is refused by name."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.packets import control, message_fields
from sa_atp.protocol.packets.control import (
    MAX_BYTES,
    Alive,
    CutOff,
    Failure,
    Join,
    MalformedError,
    Refused,
    Waiting,
    Welcome,
    decode_reply,
    decode_request,
    encode,
    plain,
)
from sa_atp.protocol.packets.header import first_byte, headers, pack
from sa_atp.protocol.packets.help_messages import Offer, WorkReport
from sa_atp.protocol.packets.message_fields import LONGEST_TEXT, HelpGrade, Message, Results
from sa_atp.protocol.packets.spec import (
    BUILDS,
    CONTRIBUTION_BITS,
    HEADER_BYTES,
    LANE_BUILDS,
    MOST_CONTRIBUTIONS,
    MOST_RANKS,
    Flag,
    Kind,
)
from sa_atp.protocol.packets.status_messages import Description, MemberStatus

REQUESTS: tuple[type[Message], ...] = get_args(control.Request)
REPLIES: tuple[type[Message], ...] = get_args(control.Reply)
PROTOCOL = Path(__file__).resolve().parents[3] / "docs/protocol.md"


def type_of(message: type[Message]) -> str:
    return str(message.__struct_config__.tag)


def packet(body: bytes) -> bytes:
    return pack(Kind.CONTROL, body=body)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """A strategy for all values of a field's type."""
    origin, parts = get_origin(kind), get_args(kind)
    metas = message_fields._metas(kind) if origin is not None and hasattr(kind, "__metadata__") else []
    bounds = {name: getattr(m, name) for m in metas for name in ("ge", "le", "min_length", "max_length")}
    if message_fields._is_bitmap(kind) and hasattr(kind, "__metadata__"):
        return st.integers(0, 2**MOST_CONTRIBUTIONS - 1)
    if hasattr(kind, "__metadata__"):
        kind = parts[0]
    if kind is int:
        return st.integers(bounds.get("ge"), bounds.get("le"))
    if kind is bool:
        return st.booleans()
    if kind is str:
        return st.text(st.characters(codec="ascii"), max_size=min(20, bounds.get("max_length") or 20), min_size=1)
    if kind in (HelpGrade, Results):
        return st.sampled_from(kind)
    if get_origin(kind) is list:
        return st.lists(values(get_args(kind)[0]), max_size=4)
    if get_origin(kind) is dict:
        return st.dictionaries(*map(values, get_args(kind)), max_size=4)
    if get_origin(kind) is tuple:
        return st.tuples(*map(values, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return messages(kind)
    if kind is type(None):
        return st.none()
    return st.one_of(*map(values, parts))


FITTING: dict[type, Callable[[dict[str, Any]], dict[str, Any]]] = {
    Join: lambda f: f | {"world_size": 4, "micro_batches": 16, "rank": f["rank"] % 4,
                         "seats": f["seats"] % 5 if f["help_grade"] is HelpGrade.NONE else 0, "cut_off": None}
                    | ({"help_grade": HelpGrade.NONE, "seats": 3, "cut_off": CutOff(f["rank"], 1 + f["rank"] % 3)}
                       if f["cut_off"] else {})
                    | ({} if f["results"] is Results.TO_ALL else
                       {"micro_batches": 1, "seats": 0, "help_grade": HelpGrade.NONE, "cut_off": None}),
    Welcome: lambda f: f | {"world_size": 4, "micro_batches": 1 + f["micro_batches"] % 16, "seats": f["seats"] % 5}
                         | dict(zip(("lanes", "contribution_bits"), BUILDS[f["lanes"] % len(BUILDS)], strict=True)),
    Alive: lambda f: f if None not in (f["operation"], f["values"], f["first"]) else f | dict.fromkeys(
        ("operation", "values", "first")
    ),
    WorkReport: lambda f: f | {"begun": min(f["begun"], f["held"])},
}  # fmt: skip


def messages(kind: type[Any]) -> st.SearchStrategy[Any]:
    fields = st.fixed_dictionaries({f.name: values(f.type) for f in msgspec.structs.fields(kind)})
    return fields.map(lambda found: kind(**FITTING.get(kind, dict)(found)))


@pytest.mark.parametrize("kind", [*REQUESTS, *REPLIES], ids=lambda kind: kind.__name__)
@given(st.data())
def test_every_message_comes_back_as_it_was(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    number, job = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.integers(0, 255))
    sent = encode(message, request=number, job=job, epoch=7, reply=kind in REPLIES)
    assert (decode_request if kind in REQUESTS else decode_reply)(sent) == message
    [head] = headers(np.frombuffer(sent, np.uint8).reshape(1, -1))
    flags = Flag.FROM_PS if kind in REPLIES else 0
    assert head[["first", "seq", "job", "epoch", "flags"]].tolist() == (
        first_byte(Kind.CONTROL), number, job, 7, flags,
    )  # fmt: skip


def test_types_are_told_apart_in_each_direction() -> None:
    for direction in (REQUESTS, REPLIES):
        assert len({type_of(kind) for kind in direction}) == len(direction)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nonsense", b"[]", b"7", b"null", b'"leave"', b"{}", b'{"type":7}', b'{"type":null}',
        b'{"type":["leave"]}', b"\xff\xfe\x00", b"\xc3\x28", b"[" * 1300, b'{"a":' * 200, b"9" * 1300, b'{"type":"a"}',
        b'{"type":"stats"}x', b'{"type":"stats","x":' + b"[" * 1300, b'{"type":"welcome"}', b'{"type":"granted"}',
    ],
    ids=lambda b: repr(b[:24]),
)  # fmt: skip
def test_bodies_that_are_no_messages_are_malformed(body: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_request(packet(body))


@given(st.binary(max_size=MAX_BYTES + 50))
def test_random_bodies_are_understood_or_malformed(body: bytes) -> None:
    for decode in (decode_request, decode_reply):
        try:
            assert isinstance(decode(packet(body)), Message)
        except MalformedError:
            continue
        assert len(packet(body)) <= MAX_BYTES


def test_a_body_that_is_too_long_is_malformed_and_never_made() -> None:
    with pytest.raises(MalformedError, match="exceed 1400"):
        decode_request(packet(json.dumps({"type": "stats", "x": "x" * MAX_BYTES}).encode()))
    room = MAX_BYTES - HEADER_BYTES - len('{"type":"refused","reason":""}')
    assert len(encode(Refused(reason="x" * room), request=1)) == MAX_BYTES
    with pytest.raises(ValueError, match="1401 bytes exceeds 1400"):
        encode(Refused(reason="x" * (room + 1)), request=1)


REPORT = {"type": "work_report", "step": 1, "begun": 0, "held": 2}


@pytest.mark.parametrize("value", [None, True, False, 1.0, "1", [1], {}, -1, (1 << 40) + 1, 10**30])
def test_an_integer_is_an_integer_in_its_range(value: object) -> None:
    assert decode_request(packet(json.dumps(REPORT).encode())) == WorkReport(step=1, begun=0, held=2)
    with pytest.raises(MalformedError, match=r"\$\.step|out of range"):
        decode_request(packet(json.dumps(REPORT | {"step": value}).encode()))
    with pytest.raises(MalformedError, match="step"):
        decode_request(packet(b'{"type":"work_report","begun":0,"held":2}'))


@pytest.mark.parametrize("ok", [0, 1, 2**63, 2**64 - 1, 2**64, 2**512 - 1])
def test_a_bitmap_has_as_many_bits_as_the_widest_build(ok: int) -> None:
    said = decode_request(packet(json.dumps(REPORT | {"offer": {"missing": ok}}).encode()))
    assert said == WorkReport(step=1, begun=0, held=2, offer=Offer(missing=ok))


@pytest.mark.parametrize("bad", [-1, 2**512, 10**400, 1.5, "7", None])
def test_a_bitmap_has_no_more(bad: object) -> None:
    with pytest.raises(MalformedError):
        decode_request(packet(json.dumps(REPORT | {"offer": {"missing": bad}}).encode()))
    member = [0, "10.0.0.1", 1, 0, 0, None, False, bad, None, False]
    with pytest.raises(MalformedError):
        decode_reply(packet(json.dumps({"type": "description", "members": [member]}).encode()))


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"rank": 4}, "rank must be an integer from 0 to 3"),
        ({"micro_batches": 129}, "at most 512"),
        ({"name": ""}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"grade": "borrow"}, "grade"),
        ({"seats": 5, "grade": "none"}, "expected 0 to world_size"),
        ({"seats": 3}, "expected one or the other"),
        ({"seats": 3, "micro_batches": 171, "grade": "none"}, "at most 512"),
        ({"seats": 65}, "seats"),
        ({"seats": 3, "grade": "none", "cut_off": [0, 4]}, "cut_off w"),
        ({"seats": 3, "grade": "none", "cut_off": [-1, 2]}, "cut_off"),
        ({"cut_off": [10, 1]}, "cut_off w"),
        ({"incarnation": 1 << 31}, "incarnation"),
    ],
)
def test_contradictory_fields_are_malformed(changed: dict[str, Any], problem: str) -> None:
    join = {"type": "join", "name": "a", "rank": 3, "world_size": 4, "micro_batches": 16, "grade": "steal",
            "incarnation": 5}  # fmt: skip
    assert isinstance(decode_request(packet(json.dumps(join).encode())), Join)
    with pytest.raises(MalformedError, match=problem):
        decode_request(packet(json.dumps(join | changed).encode()))


def test_an_operation_is_described_whole_or_not_at_all() -> None:
    with pytest.raises(MalformedError, match="come together"):
        decode_request(packet(b'{"type":"alive","oldest":1,"waiting":true,"operation":1,"values":5}'))


def test_unknown_fields_are_passed_over() -> None:
    """A later version may have more fields; the known ones still count."""
    assert decode_reply(packet(b'{"type":"failed","reason":"late","x":[1]}')) == Failure(reason="late")


def test_lists_of_ranks_hold_ranks() -> None:
    for ranks in ([64], [-1], [True], ["0"], [1.0], {"0": 1}, "01"):
        with pytest.raises(MalformedError):
            decode_reply(packet(json.dumps({"type": "waiting", "missing": ranks}).encode()))
    assert decode_reply(packet(b'{"type":"waiting","missing":[0,63]}')) == Waiting(missing=[0, 63])


def test_the_longest_member_of_a_description_is_a_list_without_names() -> None:
    status = MemberStatus(63, "255.255.255.255", 65535, 10**9, 10**9, 1 << 20, False, 2**64 - 1, 2**64 - 1, False)
    body = encode(Description(job=255, members=[status]), request=1)[HEADER_BYTES:]
    assert json.loads(body)["members"][0][:2] == [63, "255.255.255.255"]


@given(st.text(max_size=2000))
def test_any_text_can_be_told_to_people(text: str) -> None:
    made = plain(text)
    assert made.isascii()
    assert made.isprintable()
    taken = len(encode(Refused(reason=made), request=1)) - len(encode(Refused(reason=""), request=1))
    assert taken <= LONGEST_TEXT
    assert taken > LONGEST_TEXT - 2 or len(made) == len(text)


@pytest.mark.parametrize(
    "text", ['"' * 5000, '\\"' * 400, "\x00\r\n" * 3000, "\ud800" * 700, "é" * 5000, "a" * 599 + '"']
)
def test_texts_that_json_makes_longer(text: str) -> None:
    """Else a server that could not encode a switch's refusal would end with a ValueError."""
    bare, long = (len(encode(Refused(reason=each), request=1, reply=True)) for each in ("", plain(text)))
    assert LONGEST_TEXT - 2 < long - bare <= LONGEST_TEXT


# --- the protocol's tables
# ------------------------------------------------------------------------------------------------


def documented(heading: str) -> dict[str, set[str]]:
    """Fields of each type, from the table of section 9.2 or 9.3 behind a heading."""
    text = PROTOCOL.read_text()
    table = text[text.index(heading) :].split("\n\n")[1]
    found: dict[str, set[str]] = {}
    for row in table.splitlines()[2:]:
        types, fields = row.split("|")[1:3]
        for name in re.findall(r"`(\w+)`", types):
            # what stands in parentheses explains a field
            found.setdefault(name, set()).update(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", fields)))
    return found


@pytest.mark.parametrize(
    ("heading", "direction"),
    [("From a worker, or whoever asks, to the parameter server:", REQUESTS), ("From the parameter server:", REPLIES)],
    ids=["requests", "replies"],
)
def test_the_protocol_describes_these_messages(heading: str, direction: tuple[type[Message], ...]) -> None:
    coded = {type_of(kind): {f.encode_name for f in msgspec.structs.fields(kind)} for kind in direction}
    told = documented(heading)
    assert set(told) == set(coded)
    for name, fields in coded.items():
        assert told[name] == fields, f"section 9.2 describes {name!r} with other fields"


def test_bounds_follow_the_packet() -> None:
    assert (CONTRIBUTION_BITS, MOST_CONTRIBUTIONS, MOST_RANKS) == (64, 512, 64)
    assert set(LANE_BUILDS) == {32, 64, 256, 2048}
