"""Process groups and their jobs: who is in which, what ranks believe of one, how long it may wait, and how it ends."""

from typing import Any

import pytest
from rank_pool import Ranks

MODULE = "group_scenarios"


@pytest.mark.parametrize("job", [None, "named"])
@pytest.mark.parametrize("backend", ["gloo", "sa_atp"])
def test_two_groups_of_one_program_are_two_jobs(ranks: Ranks, job: str | None, backend: str) -> None:
    """Also if their jobs have one name. Groups {0, 2} and {1, 3} of ranks that contribute rank + 1."""
    found = ranks.run("two_groups", 4, module=MODULE, backend=backend, job=job)
    assert [answer["mean"] for answer in found] == [[2.0], [3.0], [2.0], [3.0]]
    assert [answer["job"].partition("/")[2] for answer in found] == ["ranks 0, 2", "ranks 1, 3"] * 2


def test_groups_without_members_are_refused(ranks: Ranks) -> None:
    """Where a program of four has two jobs of two with one name, the first two that arrive may be of different groups."""
    for answer in ranks.run("numbered_groups", 4, module=MODULE, agree=False):
        assert answer["said"].startswith("world_size = 2, but the program has 4 processes, and nothing says which")
        assert "pass process_group=..., or" in answer["said"]
    found = ranks.run("numbered_groups", 4, module=MODULE, agree=True)
    assert [(answer["said"], answer["sum"]) for answer in found] == [("", [3.0])] * 2 + [("", [7.0])] * 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([{"nonfinite": "raise"}, {"nonfinite": "spread"}], "nonfinite is 'spread' for rank 1 and 'raise' for rank 0"),
        ([{"bits": 32}, {"bits": 16}], "bits is 16 for rank 1 and 32 for rank 0"),
        ([{"batch_size": 8}, {"batch_size": 9}], "batches.batch_size is '9' for rank 1 and '8' for rank 0"),
        ([{"batch_size": 8}, {}], "batches is 'equal' for rank 1 and not stated for rank 0"),
        ([{"agree": {"a": 1}}, {"agree": {"a": 2}}], "a is 2 for rank 1 and 1 for rank 0"),
        ([{"help": "clone"}, {"help": "steal"}], "help is 'steal' for rank 1 and 'clone' for rank 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_settings_that_differ_are_named_when_ranks_join(
    ranks: Ranks, settings: list[dict[str, Any]], said: str
) -> None:
    first, second = ranks.run("stated", 2, module=MODULE, settings=settings)
    assert second.startswith("the parameter server refuses: job ")
    assert said in second
    assert "these ranks have not joined: 1; one was refused: " in first
    assert said in first


@pytest.mark.parametrize("how", ["init", "new_group", "set"])
def test_time_outs_of_process_groups_bound_sums(ranks: Ranks, how: str) -> None:
    seconds = 2.0
    arguments: dict[str, Any] = {"timeout_s": seconds} if how == "init" else {}
    *waited, _ = ranks.run(
        "slow_rank",
        3,
        module=MODULE,
        backend="sa_atp",
        group_timeout_s=arguments.get("timeout_s"),
        timeout_s=seconds,
        how=how,
    )
    for answer in waited:
        assert "made no progress for 2." in answer["said"]
        assert "waiting for contributions of rank 2" in answer["said"]


def test_time_outs_of_process_groups_bound_the_joining(ranks: Ranks) -> None:
    *waited, _ = ranks.run("unjoined", 3, module=MODULE, backend="sa_atp", group_timeout_s=1.5)
    for said in waited:
        assert "after 1.5 s these ranks have not joined: 2" in said


def test_the_environment_shortens_the_time_out_of_sums(ranks: Ranks) -> None:
    environment = {"SA_ATP_OPERATION_TIMEOUT_S": "1.5"}
    *waited, _ = ranks.run(
        "slow_rank", 2, module=MODULE, backend="sa_atp", environment=environment, timeout_s=1.5, how="init"
    )
    assert "made no progress for 1." in waited[0]["said"]


@pytest.mark.parametrize("when", ["sum", "join"])
@pytest.mark.parametrize(
    ("how", "later"), [("abort", "the process group was aborted"), ("destroy", "the process group was destroyed")]
)
def test_the_end_of_a_group_ends_its_operations(ranks: Ranks, how: str, later: str, when: str) -> None:
    first, _ = ranks.run("ended", 2, module=MODULE, backend="sa_atp", how=how, when=when)
    expected = {
        ("abort", "sum"): "the connection was closed",
        # as this rank hears it first
        ("destroy", "sum"): (
            "lost rank 0: left the job while others still need its contributions",
            "the connection was closed",
        ),
        ("abort", "join"): "joining was cancelled",
        ("destroy", "join"): "joining was cancelled",
    }
    assert first["said"].endswith(expected[how, when])
    assert "\n" not in first["said"]
    assert "callback" not in first["said"]
    assert later in first["later"]


def test_monitored_barrier_of_the_group(ranks: Ranks) -> None:
    first, second, third = ranks.run("barrier_that_says_who", 3, module=MODULE, backend="sa_atp")
    assert "Ranks 2 failed to pass" in first["said"]
    assert second["said"]
    (function,) = {answer["function"] for answer in (first, second, third)}
    assert function in ("", "monitored_barrier is only implemented for GLOO backend.")


@pytest.mark.parametrize("backend", ["gloo", "sa_atp"])
def test_buckets_without_values(ranks: Ranks, backend: str) -> None:
    expected = ranks.run("empty_buckets", 2, module=MODULE, hook=False)
    found = ranks.run("empty_buckets", 2, module=MODULE, backend=backend, hook=backend == "gloo")
    for mine, theirs in zip(found, expected, strict=True):
        for step in range(2):
            assert mine[step] == pytest.approx(theirs[step], rel=1e-5)
