"""The operations of translated programs and of the compiled loop in plain Python, which check every index."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sa_atp.basics.arrays import AnyIntegers
from sa_atp.switches.embedded import bits


class Checked:
    """An array that refuses negative indices and those beyond its end."""

    def __init__(self, array: AnyIntegers) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def __len__(self) -> int:
        return len(self.array)

    def _look(self, index: Any) -> None:
        if isinstance(index, slice):
            assert index == slice(None)
            return
        for i, size in zip(index if isinstance(index, tuple) else (index,), self.array.shape, strict=True):
            assert 0 <= i < size, f"index {i} of {size}"

    def __getitem__(self, index: Any) -> int:
        self._look(index)
        return int(self.array[index])

    def __setitem__(self, index: Any, value: int) -> None:
        self._look(index)
        self.array[index] = value


def checked_operations() -> dict[str, Callable[..., Any]]:
    """The plain operations, which check where they read and write."""
    operations, plain = bits.plain(), bits.plain()

    def within(buffer: Checked, offset: int, count: int) -> AnyIntegers:
        assert min(offset, count) >= 0, f"{offset}, {count}"
        assert offset + count <= len(buffer), f"{offset}, {count} of {len(buffer)}"
        return buffer.array[offset : offset + count]

    def load(size: int) -> Callable[[Checked, int], int]:
        return lambda buffer, offset: int.from_bytes(within(buffer, offset, size).tobytes(), "big")

    def store(size: int) -> Callable[[Checked, int, int], None]:
        def put(buffer: Checked, offset: int, value: int) -> None:
            data = (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "big")
            within(buffer, offset, size)[:] = np.frombuffer(data, np.uint8)

        return put

    def copy_bytes(to: Checked, offset: int, source: Checked, start: int, count: int) -> None:
        within(to, offset, count)[:] = within(source, start, count)

    def same_bytes(buffer: Checked, first: int, second: int, count: int) -> bool:
        return bool((within(buffer, first, count) == within(buffer, second, count)).all())

    def load_vector(buffer: Checked, offset: int, vector: Checked) -> None:
        found = within(buffer, offset, 4 * len(vector)).copy().view(">u4")
        vector.array[:] = found.astype(np.uint32).view(vector.array.dtype)

    def store_vector(buffer: Checked, offset: int, vector: Checked) -> None:
        within(buffer, offset, 4 * len(vector))[:] = vector.array.view(np.uint32).astype(">u4").view(np.uint8)

    def put(array: Checked, row: int, column: int, value: int) -> None:
        assert 0 <= row < array.shape[0]
        assert 0 <= column < array.shape[1]
        plain["put"](array.array, row, column, value)

    def put1(array: Checked, index: int, value: int) -> None:
        assert 0 <= index < len(array)
        plain["put1"](array.array, index, value)

    def load_shared(buffer: Checked, offset: int) -> int:
        assert offset % 8 == 0
        return int(within(buffer, offset, 8).view(np.int64)[0])

    def store_shared(buffer: Checked, offset: int, value: int) -> None:
        assert offset % 8 == 0
        within(buffer, offset, 8).view(np.int64)[0] = value

    def point_at(frame: list[Any], place: int, buffer: Checked, offset: int, count: int) -> None:
        frame[place] = within(buffer, offset, count)

    operations["point_at"] = point_at
    operations |= {"load_shared": load_shared, "store_shared": store_shared, "fence": lambda: None}
    operations["ring_bell"] = operations["hear_bell"] = lambda fd, scratch: None
    for size in (1, 2, 4, 8):
        operations[f"load{size}"], operations[f"store{size}"] = load(size), store(size)
    for each in (copy_bytes, same_bytes, load_vector, store_vector, put, put1):
        operations[each.__name__] = each
    operations["address_in"] = lambda frame, place: frame[place].ctypes.data
    for name in bits.ARRAYS:
        operations[name] = lambda frame, place: Checked(frame[place])
    return operations
