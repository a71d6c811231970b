"""P4Runtime's encoding of numbers: big-endian byte strings of the least length. (section 8.4)

Decoding accepts leading zero bytes (for int<W>: sign bytes); encoding is canonical.
"""

from sa_atp.switches.p4runtime.errors import Code, Refusal


def encode(value: int) -> bytes:
    """Encodes a bit<W>; zero is one zero byte."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def decode(data: bytes, bits: int, what: str) -> int:
    """Decodes a bit<W>. Raises: Refusal: empty, or more than `bits` bits; `what` names the field in the message."""
    if not data:
        raise Refusal(Code.INVALID_ARGUMENT, f"{what}: the value is empty; zero is written as one zero byte")
    value = int.from_bytes(data, "big")
    if value.bit_length() > bits:
        raise Refusal(Code.OUT_OF_RANGE, f"{what}: 0x{value:x} does not fit in {bits} bits")
    return value


def encode_signed(value: int) -> bytes:
    """Encodes an int<W>: two's complement, with room for the sign."""
    bits = (value if value >= 0 else ~value).bit_length() + 1
    return value.to_bytes((bits + 7) // 8, "big", signed=True)


def decode_signed(data: bytes, bits: int, what: str) -> int:
    """Decodes an int<W>. Raises: Refusal: empty, or outside -2**(bits-1) to 2**(bits-1) - 1."""
    if not data:
        raise Refusal(Code.INVALID_ARGUMENT, f"{what}: the value is empty; zero is written as one zero byte")
    value = int.from_bytes(data, "big", signed=True)
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise Refusal(Code.OUT_OF_RANGE, f"{what}: {value} does not fit in {bits} bits")
    return value
