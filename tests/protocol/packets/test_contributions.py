"""Which bit is whose: every bit belongs to one micro-batch of one rank, and back."""

from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.packets.contributions import ContributionMap

MAPS = st.integers(1, 64).flatmap(lambda n: st.builds(ContributionMap, st.just(n), st.integers(1, 64 // n)))


@given(MAPS)
def test_shards_divide_the_bits_of_a_sum(map_: ContributionMap) -> None:
    shards = [map_.bits_of(rank) for rank in range(map_.world_size)]
    assert sum(shards) == map_.fan_in  # disjoint, and nothing is left out
    assert map_.fan_in.bit_length() == map_.fan_in.bit_count() == map_.contributions
    for rank, bits in enumerate(shards):
        assert bits == sum(map_.bit(rank, m) for m in range(map_.micro_batches))


@given(MAPS, st.data())
def test_a_contribution_leads_back_to_its_rank(map_: ContributionMap, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, map_.world_size - 1))
    micro_batch = data.draw(st.integers(0, map_.micro_batches - 1))
    bit = map_.bit(rank, micro_batch)
    assert bit == 1 << map_.number(rank, micro_batch)
    assert map_.rank_of(map_.number(rank, micro_batch)) == map_.lowest_rank(bit) == rank
    assert map_.ranks_of(bit) == [rank]


@given(MAPS, st.integers(1, 2**64 - 1))
def test_a_bitmap_of_several_ranks_names_each(map_: ContributionMap, bits: int) -> None:
    bits &= map_.fan_in
    named = map_.ranks_of(bits)
    assert sum(map_.bits_of(rank) & bits for rank in named) == bits
    if bits:
        assert map_.lowest_rank(bits) == min(named)


@given(MAPS, st.integers(0, 63))
def test_seats_divide_the_bits_of_a_sum_and_no_rank_has_any(map_: ContributionMap, more: int) -> None:
    with_seats = ContributionMap(min(64, map_.world_size + more), map_.micro_batches, seats=map_.world_size)
    assert with_seats.fits
    assert (with_seats.fan_in, with_seats.contributions) == (map_.fan_in, map_.contributions)
    for seat in range(map_.world_size):
        assert with_seats.bits_of_seat(seat) == map_.bits_of(seat)
    assert not any(with_seats.bits_of(rank) for rank in range(with_seats.world_size))
    assert with_seats.summed_below([0]) == with_seats.fan_in
    assert map_.summed_below([0]) == map_.bits_of(0)


def test_the_largest_jobs_that_a_packet_can_name() -> None:
    assert ContributionMap(64, 16, seats=4).fits
    assert not ContributionMap(64, 129, seats=4).fits
    assert not ContributionMap(65, 1, seats=4).fits
    assert not ContributionMap(4, 1, seats=5).fits
    assert ContributionMap(64, 1).fits
    assert ContributionMap(4, 16).fits
    assert ContributionMap(4, 128).fits
    assert not ContributionMap(4, 129).fits
    assert not ContributionMap(65, 1).fits
    assert not ContributionMap(0, 4).fits
    assert ContributionMap(2, 2).bits_of(1) == 0b1100  # protocol section 1.1
