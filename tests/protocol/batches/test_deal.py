"""Every sample is in one piece, and pieces are of the sizes that were asked for."""

from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.batches.deal import Deal


@given(st.lists(st.integers(0, 90), min_size=1, max_size=6), st.integers(1, 20))
def test_every_sample_is_in_one_piece(sizes: list[int], pieces: int) -> None:
    deal = Deal(sizes, pieces)
    dealt = [deal.samples(shard, piece) for shard in range(len(sizes)) for piece in range(pieces)]
    assert [place for samples in dealt for place in samples] == list(range(sum(sizes)))
    for shard, size in enumerate(sizes):
        lengths = [len(deal.samples(shard, piece)) for piece in range(pieces)]
        assert lengths[: deal.empty(shard)] == [0] * deal.empty(shard)
        assert all(lengths[deal.empty(shard) :])
        assert sum(lengths) == size
        assert max(lengths[deal.empty(shard) :], default=0) - min(lengths[deal.empty(shard) :], default=0) <= 1
