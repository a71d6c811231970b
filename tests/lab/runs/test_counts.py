"""Every micro-batch of a step counts once, even if several workers compute it."""

import itertools
from collections import Counter

import pytest

from sa_atp.lab.backends import simulated
from sa_atp.lab.plans import plan_files
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun

PLAN = """
[run]
steps = 5
warm_up = 0
seed = 2
backend = "sim"
policies = ["sa-atp"]
[job]
model = "resnet-50"
model_scale = 0.001
micro_batches = 8
batch_size = 16
compute_us_per_sample = 300
[straggler]
pattern = "random"
"""
STEP = 4 * 8  # micro-batches


def simulate(*overrides: str) -> list[PolicyRun]:
    runs = simulated.run(plan_files.parse(PLAN, "here", overrides), Progress())
    for run in runs:
        assert run.sums_wrong == 0
        check_labels(run)
    return runs


def by_step(run: PolicyRun) -> dict[int, int]:
    found: Counter[int] = Counter()
    for each in run.iterations:
        found[each.step] += each.micro_batches + each.helped
    return dict(found)


def check_labels(run: PolicyRun) -> None:
    """Intervals of help are for other shards, and all count as contributed or unused."""
    done: Counter[int] = Counter()
    for i in run.intervals:
        if i.kind in ("compute", "help") and i.label:
            is_own = i.label.startswith(f"shard {i.worker},")
            assert i.kind == ("compute" if is_own else "help"), i
            done[i.worker] += "cancelled" not in i.label
    counted = Counter(dict.fromkeys(done, 0))
    for each in run.iterations:
        counted[each.worker] += each.micro_batches + each.helped + each.unused
    assert counted == done


def test_tasks_returned_to_their_owner_count_as_its_own() -> None:
    """With lost packets a straggler leaves micro-batches to others, and gets some of them back when it waits."""
    (run,) = simulate("network.loss=0.05", "run.seed=2")
    first_help: dict[tuple[int, int], int] = {}
    for i in run.intervals:
        if i.kind == "help":
            first_help.setdefault((i.worker, i.step), i.start_us)
    late = [
        i for i in run.intervals if i.kind == "compute" and i.start_us > first_help.get((i.worker, i.step), i.start_us)
    ]
    assert late, "nobody got anything back: the test shows nothing"
    assert by_step(run) == dict.fromkeys(range(5), STEP)


def test_of_clones_only_one_counts() -> None:
    (run,) = simulate("help.grade=clone")
    assert by_step(run) == dict.fromkeys(range(5), STEP)
    assert run.help["unused"] == sum(each.unused for each in run.iterations) > 0
    assert run.help["micro_batches"] == sum(each.helped for each in run.iterations) > 0


def test_late_micro_batches_count_as_unused() -> None:
    (run,) = simulate('run.policies=["sync-opt"]')
    assert by_step(run) == dict.fromkeys(range(5), 3 * 8)
    assert any(each.unused and not each.micro_batches for each in run.iterations)


@pytest.mark.parametrize("policy", ["ssp", "falcon", "flexrr"])
def test_where_parameters_are_on_a_server_the_run_adds_up(policy: str) -> None:
    """Workers compute tasks of other clocks, too, and the job ends in the middle of some."""
    (run,) = simulate(f'run.policies=["{policy}"]', "straggler.pattern=constant")
    counted = sum(by_step(run).values())
    # all that is in the parameters: as much as the job is long, and what came with the update that ended it
    assert 5 * STEP <= counted < 5 * STEP + 8
    if policy != "falcon":  # all of whose workers are done at the same time
        assert not all(each.is_finished for each in run.iterations)
    last_us = max(i.end_us for i in run.intervals)
    for rank in range(4):  # until the job is over, there is nothing of which it is not known what it was
        spans = sorted((i.start_us, i.end_us) for i in run.intervals if i.worker == rank)
        ends = list(itertools.accumulate((end for _, end in spans), max))
        assert all(start <= end for end, (start, _) in zip(ends, spans[1:], strict=False))
        if policy != "falcon":  # which computes several tasks at a time
            assert all(start == end for end, (start, _) in zip(ends, spans[1:], strict=False))
        assert last_us - ends[-1] < 5_000
