"""Bursts that are put together."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.packets.datagrams import Burst, merged


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
