"""Datagrams that are not what they should be: random bytes, truncations, and bit flips of packets that were valid."""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence

from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.spec import FIELDS, HEADER_BYTES, VERSION, Kind

SIZES = (0, 1, 4, 19, HEADER_BYTES, 21, 64, 275, 276, 277, 1044, 1400)
KEPT = 64  # valid packets of each kind, the newest


def _places() -> dict[str, range]:
    """Where each header field is, as numbers of bits."""
    found, at = {}, 0
    for name, bits, _ in FIELDS:
        found[name] = range(at, at + bits)
        at += bits
    return found


PLACES = _places()


class Seen:
    """Valid packets that have passed by, to be damaged: (where, packet) by kind."""

    def __init__(self) -> None:
        self.of: defaultdict[Kind, deque[tuple[object, bytes]]] = defaultdict(lambda: deque(maxlen=KEPT))

    def note(self, where: object, packet: bytes, payload: bytes) -> None:
        self.of[Kind(payload[0] & 15)].append((where, packet))

    def some(self, rng: random.Random, kind: Kind) -> tuple[object, bytes] | None:
        """One of a kind; None if none has passed yet."""
        return rng.choice(self.of[kind]) if self.of[kind] else None


def noise(rng: random.Random) -> bytes:
    """Random bytes of a random or telling length; in every other one the first byte is one that packets have."""
    size = rng.choice(SIZES) if rng.random() < 0.7 else rng.randrange(1472)
    data = bytearray(rng.randbytes(size))
    if data and rng.random() < 0.5:
        data[0] = VERSION << 4 | rng.randrange(16)
    return bytes(data)


def cut(rng: random.Random, packet: bytes, least: int = 0) -> bytes:
    """The beginning of a packet, at least so many bytes and not all of it: what a request is filled with does not count."""
    packet = packet.rstrip(b" ")
    return packet[: rng.randrange(least, len(packet))]


def flip(packet: bytes, places: Iterable[int]) -> bytes:
    """A packet with these bits the other way round."""
    data = bytearray(packet)
    for place in places:
        data[place // 8] ^= 0x80 >> place % 8
    return bytes(data)


def flip_some(rng: random.Random, packet: bytes, places: Sequence[int] | None = None) -> bytes:
    """One to three flipped bits. Args: places: among these; default: anywhere."""
    choice = range(8 * len(packet)) if places is None else places
    return flip(packet, rng.sample(choice, min(len(choice), rng.randint(1, 3))))


def bursts(datagrams: Iterable[tuple[Address, bytes]]) -> list[Burst]:
    """As a socket gives them, those of one size and sender one after the other, so that they are taken as batches."""
    return [Burst.of(address, data) for address, data in sorted(datagrams, key=lambda d: (len(d[1]), d[0]))]


def tapped(receive: Callable[..., None], seen: Seen) -> Callable[..., None]:
    """A connection's `receive` that also notes what arrives."""

    def taking(arriving: Sequence[Burst], now_us: int) -> None:
        for burst in arriving:
            for row in burst.data:
                seen.note(burst.address, row.tobytes(), row.tobytes())
        receive(arriving, now_us)

    return taking
