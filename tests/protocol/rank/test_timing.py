"""When a fragment that others overtake counts as lost."""

import numpy as np
import pytest
from helpers.answers import member_of, results_of

from sa_atp.protocol.packets.header import headers
from sa_atp.protocol.packets.spec import Flag
from sa_atp.protocol.rank.pace.timing import (
    LEAST_OF_SAMPLES,
    LONGEST_PS_ROUND_TRIP_US,
    PS_ROUND_TRIP_REMEMBERED_US,
    RoundTrip,
)
from sa_atp.protocol.rank.worker import Worker

NOW_US = 1_000_000


def round_trip(elapsed_us: int) -> RoundTrip:
    found = RoundTrip()
    for _ in range(100):
        found.time_answer(elapsed_us)
    return found


def test_reordering_is_a_quarter_of_the_round_trip_where_the_switch_sums_everything() -> None:
    assert 1990 <= round_trip(8_000).reordering_us(NOW_US) <= 2010
    assert round_trip(100).reordering_us(NOW_US) == 250


def test_what_goes_by_the_parameter_server_is_given_as_long_as_that_takes() -> None:
    """It would be sent again, by the same way, which would take longer for that."""
    path = round_trip(1_000)
    path.time_ps_round_trip(300_000, NOW_US)
    assert 299_000 <= path.reordering_us(NOW_US + 1) <= 300_000
    path.time_ps_round_trip(20_000, NOW_US + 2)
    assert path.reordering_us(NOW_US + 3) > 200_000, "one that was faster does not say that all are"
    for n in range(100):
        path.time_ps_round_trip(20_000, NOW_US + n)
    assert path.reordering_us(NOW_US + 100) < 25_000
    assert path.reordering_us(NOW_US + 99 + PS_ROUND_TRIP_REMEMBERED_US) == 250
    path.time_ps_round_trip(100 * LONGEST_PS_ROUND_TRIP_US, NOW_US)
    assert path.reordering_us(NOW_US) <= LONGEST_PS_ROUND_TRIP_US


# --- what queues ------------------------------------------------------------------------------------------------------


def test_the_empty_path_is_the_fastest_of_late() -> None:
    path = RoundTrip()
    assert path.empty_share == 1.0, "nobody knows"
    path.time_answer(1_000)
    assert path.empty_share == 1.0
    for _ in range(100):
        path.time_answer(4_000)
    assert 0.24 < path.empty_share < 0.27
    for _ in range(2 * LEAST_OF_SAMPLES):
        path.time_answer(4_000)
    assert path.empty_share > 0.99, "the way has become longer"


def test_answers_that_take_longer_tell_of_a_queue() -> None:
    path = RoundTrip()
    assert not path.is_queue, "nobody knows"
    for elapsed_us, longer_us in ((500, 4_000), (80_000, 10_000)):
        path = round_trip(elapsed_us)
        assert not path.is_queue
        for _ in range(100):
            path.time_answer(elapsed_us + longer_us - 100)
        assert not path.is_queue, "hosts are late now and then"
        for _ in range(100):
            path.time_answer(elapsed_us + longer_us + 100)
        assert path.is_queue


def test_where_no_switch_answers_it_is_the_way_to_the_server() -> None:
    path = RoundTrip()
    path.time_result(500)
    path.time_server_answer(1_000)
    for _ in range(100):
        path.time_server_answer(10_000)
    assert 0.09 < path.empty_share < 0.12
    assert path.smoothed_us < 2_000, "it says nothing of the way to a switch"
    path.time_answer(1_500)
    assert path.empty_share > 0.3


@pytest.mark.parametrize(("levels", "adds"), [(0, False), (1, True)])
def test_the_parameter_servers_time_is_added_only_where_a_switch_sums_as_well(levels: int, *, adds: bool) -> None:
    """Else nothing overtakes what goes by the parameter server, and losses would be seen late."""
    worker = Worker(member_of(levels=levels), NOW_US, first_request=1)
    index = worker.collectives.begin(640, None, NOW_US, whole=True)
    worker.collectives.contribute(index, [np.ones(640, np.int32)], 0b1, NOW_US)
    sent = worker.transmit(NOW_US)[-1]
    results = results_of(sent.data, 0b11)
    headers(results.data)["flags"] |= np.uint8(Flag.FROM_PS | Flag.FAN_OUT)
    worker.receive([results], NOW_US + 50_000)
    assert worker.stats.results_from_server == 10
    assert worker.round_trip.some_go_by_server(NOW_US + 50_001) is adds
