"""Control messages: what is understood, and that everything else is refused by name."""

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.spec import HEADER_BYTES, Flag, Kind
from sa_atp.wire.datagrams import Burst, merged
from sa_atp.wire.header import describe, pack
from sa_atp.wire.messages import MAX_BYTES, MalformedError, decode, encode, integer, integers, text

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4), st.integers(0, 2**32 - 1), st.integers(0, 255))
def test_round_trip(body: dict[str, Any], request: int, job: int) -> None:
    body["type"] = "example"
    packet = encode(body, request=request, job=job, epoch=7)
    assert decode(packet) == body
    head = describe(packet)
    assert (head["kind"], head["seq"], head["job"], head["epoch"], head["flags"]) == (Kind.CONTROL, request, job, 7, 0)
    assert describe(encode(body, request=request, reply=True))["flags"] == Flag.FROM_PS


def test_a_message_that_would_not_fit_is_not_made() -> None:
    room = MAX_BYTES - HEADER_BYTES - len('{"type":""}')
    assert len(encode({"type": "x" * room}, request=1)) == MAX_BYTES
    with pytest.raises(ValueError, match="1401 bytes exceeds 1400"):
        encode({"type": "x" * (room + 1)}, request=1)


@pytest.mark.parametrize(
    "text_",
    [
        b"", b"{", b"nonsense", b"[]", b"7", b"null", b'"leave"', b"{}", b'{"type":7}', b'{"type":null}',
        b'{"type":["leave"]}', b"\xff\xfe\x00", b"\xc3\x28", b"[" * 1300, b'{"a":' * 200, b"9" * 1300, b'{"type":"a"}x',
    ],
    ids=lambda b: repr(b[:16]),
)  # fmt: skip
def test_what_is_not_a_message_is_malformed(text_: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(pack(Kind.CONTROL, body=text_))


@given(st.binary(max_size=MAX_BYTES + 50))
def test_random_bodies_are_understood_or_malformed(body: bytes) -> None:
    packet = pack(Kind.CONTROL, body=body)
    try:
        found = decode(packet)
    except MalformedError:
        return
    assert isinstance(found["type"], str)
    assert len(packet) <= MAX_BYTES


def test_a_body_that_is_too_long_is_malformed() -> None:
    with pytest.raises(MalformedError, match="exceed"):
        decode(pack(Kind.CONTROL, body=json.dumps({"type": "x" * MAX_BYTES}).encode()))


@pytest.mark.parametrize("value", [None, True, False, 1.0, "1", [1], {}, -1, 11, 10**30])
def test_an_integer_is_an_integer_in_its_range(value: object) -> None:
    with pytest.raises(MalformedError, match="rank must be an integer from 0 to 10"):
        integer({"rank": value}, "rank", 0, 10)
    with pytest.raises(MalformedError):
        integer({}, "rank", 0, 10)


def test_ends_of_ranges_are_accepted() -> None:
    assert [integer({"n": n}, "n", 0, 10) for n in (0, 10)] == [0, 10]
    assert text({"s": "abc"}, "s", 3) == "abc"
    assert integers({"l": [0, 5]}, "l", 0, 5, 2) == [0, 5]
    assert integers({"l": []}, "l", 0, 5, 2) == []


@pytest.mark.parametrize("value", [None, 7, b"x", ["a"], "abcd"])
def test_a_text_is_a_string_that_is_not_too_long(value: object) -> None:
    with pytest.raises(MalformedError, match="name must be a string of at most 3 characters"):
        text({"name": value}, "name", 3)


@pytest.mark.parametrize("value", [None, 7, "12", [1, 2, 3], [1, True], [6], [-1], [1.0], [None], {"0": 1}])
def test_a_list_of_integers_is_one(value: object) -> None:
    with pytest.raises(MalformedError, match="ranks must be a list of at most 2 integers from 0 to 5"):
        integers({"ranks": value}, "ranks", 0, 5, 2)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3), st.integers(1, 3)), max_size=8))
def test_merging_bursts_changes_neither_datagrams_nor_their_order(shape: list[tuple[int, int, int]]) -> None:
    count = 0
    bursts = []
    for host, rows, size in shape:
        data = np.arange(count, count + rows * size, dtype=np.uint8).reshape(rows, size)
        count += rows * size
        bursts.append(Burst((f"10.0.0.{host}", 1), data))

    def datagrams(some: list[Burst]) -> list[tuple[str, bytes]]:
        return [(b.address[0], row.tobytes()) for b in some for row in b.data]

    fewer = list(merged(bursts))
    assert datagrams(fewer) == datagrams(bursts)
    for one, other in itertools.pairwise(fewer):
        assert one.address != other.address or one.data.shape[1] != other.data.shape[1]
