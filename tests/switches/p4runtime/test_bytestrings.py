"""P4Runtime's encoding of numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.switches.p4runtime import bytestrings
from sa_atp.switches.p4runtime.errors import Code, Refusal


@pytest.mark.parametrize(
    ("value", "data"), [(0x63, b"\x63"), (0x3064, b"\x30\x64"), (0, b"\x00"), (0x100, b"\x01\x00")]
)
def test_the_specifications_examples_of_unsigned_numbers(value: int, data: bytes) -> None:
    assert bytestrings.encode(value) == data
    assert bytestrings.decode(data, 16, "x") == value


@pytest.mark.parametrize(("value", "bits", "data"), [(-99, 8, b"\x9d"), (-739, 12, b"\xfd\x1d"), (0, 3, b"\x00")])
def test_the_specifications_examples_of_signed_numbers(value: int, bits: int, data: bytes) -> None:
    assert bytestrings.encode_signed(value) == data
    assert bytestrings.decode_signed(data, bits, "x") == value


@given(
    st.integers(1, 64).flatmap(
        lambda bits: st.tuples(st.just(bits), st.integers(0, (1 << bits) - 1), st.integers(0, 3))
    )
)
def test_numbers_survive_with_any_padding(case: tuple[int, int, int]) -> None:
    bits, value, padding = case
    canonical = bytestrings.encode(value)
    assert bytestrings.decode(bytes(padding) + canonical, bits, "x") == value
    assert len(canonical) == 1 or canonical[0]
    signed = value - (1 << (bits - 1))
    short = bytestrings.encode_signed(signed)
    assert bytestrings.decode_signed((b"\xff" if signed < 0 else b"\x00") * padding + short, bits, "x") == signed


@pytest.mark.parametrize("data", [b"\x01\x00", b"\xff\x7f"])
def test_a_signed_number_that_does_not_fit(data: bytes) -> None:
    with pytest.raises(Refusal, match="does not fit in 8 bits") as caught:
        bytestrings.decode_signed(data, 8, "x")
    assert caught.value.code is Code.OUT_OF_RANGE
    with pytest.raises(Refusal, match="the value is empty"):
        bytestrings.decode_signed(b"", 8, "x")
