"""What help is worth, in virtual time on fast links, where it does not depend on the machine that runs the test.

The numbers are those that the project promises: against the same step without help, and against the fluid bound, total
work over total speed.
"""

import random

import pytest
from helpers.training import Setting, Training

from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.switches.embedded.pipeline import Pipeline

MICRO_BATCHES = 16
WARM_UP = 1  # in the first step nobody knows how fast the others are
STEPS = 8


def mean_us(pipeline: Pipeline, setting: Setting) -> float:
    """Of a step, after the warm-up."""
    training = Training([pipeline], setting).run()
    times = [training.step_us(step) for step in range(WARM_UP, setting.steps)]
    return sum(times) / len(times)


def plain(setting: Setting) -> Setting:
    """The same without help."""
    return Setting(
        help_grade=HelpGrade.NONE, helps=False, micro_batches=setting.micro_batches, steps=setting.steps,
        values=setting.values,
        micro_batch_us=setting.micro_batch_us, slowdown=setting.slowdown,
    )  # fmt: skip


def setting(**options: object) -> Setting:
    return Setting(
        **{"micro_batches": MICRO_BATCHES, "steps": STEPS, "values": 300, "micro_batch_us": 10_000, **options}  # type: ignore[arg-type]
    )


def test_with_one_worker_four_times_slower_steal_is_near_the_fluid_bound(pipeline: Pipeline) -> None:
    wanted = setting(slowdown=lambda step, rank: 4.0 if rank == 3 else 1.0)
    help_us, plain_us = mean_us(pipeline, wanted), mean_us(pipeline, plain(wanted))
    assert help_us <= 1.15 * wanted.fluid_us(1)
    assert help_us <= 0.43 * plain_us


def test_clone_is_as_fast_as_two_shards_one_after_the_other(pipeline: Pipeline) -> None:
    wanted = setting(help_grade=HelpGrade.CLONE, slowdown=lambda step, rank: 4.0 if rank == 3 else 1.0, steps=4)
    assert mean_us(pipeline, wanted) <= 2.1 * MICRO_BATCHES * wanted.micro_batch_us


def test_with_a_random_straggler_each_step(pipeline: Pipeline) -> None:
    rng = random.Random(3)
    chosen = [(rng.randrange(4), rng.uniform(2, 8)) for _ in range(STEPS)]
    wanted = setting(slowdown=lambda step, rank: chosen[step][1] if chosen[step][0] == rank else 1.0)
    assert mean_us(pipeline, wanted) <= 0.6 * mean_us(pipeline, plain(wanted))


@pytest.mark.parametrize("help_grade", [HelpGrade.STEAL, HelpGrade.CLONE])
def test_without_a_straggler_help_costs_nothing_and_none_is_given(pipeline: Pipeline, help_grade: HelpGrade) -> None:
    """Workers that differ by a percent in speed from step to step, as real ones do."""
    rng = random.Random(1)
    noise = [[rng.uniform(1.0, 1.01) for _ in range(4)] for _ in range(STEPS)]
    wanted = setting(help_grade=help_grade, slowdown=lambda step, rank: noise[step][rank])
    training = Training([pipeline], wanted).run()
    assert training.helped == training.backups == 0
    assert mean_us(pipeline, wanted) <= 1.02 * mean_us(pipeline, plain(wanted))


def test_patience_keeps_leaders_from_asking(pipeline: Pipeline) -> None:
    """A leader offers to work only when it has waited for a share of its own compute time."""
    late = setting(slowdown=lambda step, rank: 1.04 if rank == 1 else 1.0, steps=4)
    asked = {}
    for patience in (0.02, 0.06):
        training = Training([pipeline], setting(slowdown=late.slowdown, steps=4, patience=patience))
        ledgers = training.cluster.world.server.jobs
        calls: list[int] = []
        training.cluster.run(lambda: bool(ledgers))  # noqa: B023
        ledger = next(iter(ledgers.values())).ledger
        ask = ledger.ask
        ledger.ask = lambda *a, ask=ask, calls=calls: (calls.append(a[0]), ask(*a))[1]  # type: ignore[method-assign]
        training.run()
        asked[patience] = len(calls)
    assert asked[0.02] > 0
    assert asked[0.06] == 0


@pytest.mark.parametrize("help_grade", [HelpGrade.STEAL, HelpGrade.CLONE])
def test_a_worker_that_cannot_stop_skips_steps_that_others_have_done(pipeline: Pipeline, help_grade: HelpGrade) -> None:
    """One micro-batch takes it as long as many steps, all of which others did for it."""
    wanted = setting(
        help_grade=help_grade, micro_batches=1, steps=40, slowdown=lambda step, rank: 100.0 if rank == 3 else 1.0,
        stoppable=lambda rank: rank != 3,
    )  # fmt: skip
    training = Training([pipeline], wanted).run()
    computed = [record.step for record in training.records[3] if record.seconds("compute")]
    alone_us = 100 * wanted.micro_batch_us
    assert len(computed) <= 3
    assert training.records[3][-1].end_us - training.records[0][-1].end_us <= alone_us + wanted.micro_batch_us
