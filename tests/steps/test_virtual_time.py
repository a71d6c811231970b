"""Whom help is not asked of, in virtual time: leaders that are patient, and steps that others have done."""

from typing import Any

import pytest
from helpers.training import Setting, Training

from sa_atp.protocol.packets.help_messages import Assignment, WorkReport
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.switches.embedded.pipeline import Pipeline

MICRO_BATCHES = 16


STEPS = 8


def setting(**options: object) -> Setting:
    return Setting(
        **{"micro_batches": MICRO_BATCHES, "steps": STEPS, "values": 300, "micro_batch_us": 10_000, **options}  # type: ignore[arg-type]
    )


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
        take = ledger.report

        def counted(rank: int, said: WorkReport, now_us: int, take: Any = take, calls: list[int] = calls) -> Assignment:
            calls += [rank] if said.offer else []
            answer: Assignment = take(rank, said, now_us)
            return answer

        ledger.report = counted  # type: ignore[method-assign]
        training.run()
        asked[patience] = len(calls)
    assert asked[0.02] > 0
    assert asked[0.06] == 0


@pytest.mark.parametrize("help_grade", [HelpGrade.STEAL, HelpGrade.CLONE])
def test_a_worker_that_cannot_stop_skips_steps_that_others_have_done(pipeline: Pipeline, help_grade: HelpGrade) -> None:
    """One micro-batch takes it as long as many steps, all of which others did for it."""
    wanted = setting(
        help_grade=help_grade, micro_batches=1, steps=40, slowdown=lambda step, rank: 100.0 if rank == 3 else 1.0,
        cancels=lambda rank: rank != 3,
    )  # fmt: skip
    training = Training([pipeline], wanted).run()
    alone_us = 100 * wanted.micro_batch_us
    assert sum(record.micro_batches for record in training.records[3]) <= 3
    assert training.records[3][-1].end_us - training.records[0][-1].end_us <= alone_us + wanted.micro_batch_us
