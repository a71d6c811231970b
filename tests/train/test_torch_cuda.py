"""The same through a GPU: pinned buffers, a stream of its own, and futures that know which stream to wait for."""

from rank_pool import GPU, Ranks

pytestmark = GPU


def test_streams(ranks: Ranks) -> None:
    for answer in ranks.run("streams", 2, module="cuda_scenarios"):
        assert answer["early"] == [3.0, 3.0, 7.0, 7.0, 11.0, 11.0]
        assert answer["late"] == [5.0, 5.0, 9.0, 9.0]


def test_memory_stays_until_the_copies_are_done(ranks: Ranks) -> None:
    assert ranks.run("lifetimes", 2, module="cuda_scenarios") == [0.0, 0.0]


def test_generators(ranks: Ranks) -> None:
    assert ranks.run("generators", 1, module="cuda_scenarios") == [True]


def test_errors_name_the_rank(ranks: Ranks) -> None:
    for message in ranks.run("error", 2, module="cuda_scenarios"):
        assert "rank 1 contributed NaN or infinity" in message
