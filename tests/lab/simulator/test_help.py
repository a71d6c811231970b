"""Help on a simulated network: whoever computes, every sum is right bit for bit, and nobody waits for what others can do.

`Training.run` compares every integer of every rank's sum of every step with a reference, and fails when the steps are not
over in time. (protocol section 10)
"""

import random
from collections.abc import Callable, Sequence

import pytest
from helpers.cluster import events_of
from helpers.training import Setting, Training, lossy

from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.switches.control.events import Event
from sa_atp.switches.embedded.pipeline import Pipeline

LANES = 64
LEVELS = (1, 2)
MODES = (HelpGrade.STEAL, HelpGrade.CLONE)
MICRO_BATCH_US = 5_000


def slow(**times: float) -> object:
    """Slowdown of workers, by "r" and rank, in every step."""
    return lambda step, rank: times.get(f"r{rank}", 1.0)


def train(pipelines: Sequence[Pipeline], levels: int, **options: object) -> Training:
    """Four workers at one switch, or six below two leaves. Ranks 1 and 3 are below the same leaf, rank 2 is not."""
    setting = Setting(
        **{"workers": 4 if levels == 1 else 6, "micro_batch_us": MICRO_BATCH_US, "steps": 3, **options}  # type: ignore[arg-type]
    )
    return Training(pipelines[:1] if levels == 1 else pipelines, setting).run()


def switch_events(training: Training, event: Event) -> int:
    """The number of packets that switches counted as this event."""
    return sum(int(events_of(rack.switch)[event]) for rack in training.cluster.world.racks)


# --- nothing is lost ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("stragglers", [{"r1": 4.0}, {"r1": 4.0, "r2": 3.0}, {"r1": 4.0, "r3": 4.0}])
def test_steal_computes_everything_once(pipelines: list[Pipeline], levels: int, stragglers: dict[str, float]) -> None:
    training = train(pipelines, levels, slowdown=slow(**stragglers))
    setting = training.setting
    assert training.computed == setting.steps * setting.contributions
    assert training.helped > 0
    assert training.backups == 0
    assert sum(w.worker.stats.retransmitted for w in training.workers) <= 30 * setting.steps * (levels - 1)
    for step in range(levels, setting.steps):  # what help across racks costs is not known in step 1
        best_us = setting.fluid_us(step)
        # a slow worker's last micro-batch may end so much after the others are done
        assert training.step_us(step) < best_us + 0.7 * max(stragglers.values()) * MICRO_BATCH_US


@pytest.mark.parametrize("help_grade", MODES)
@pytest.mark.parametrize("number", [lambda step: 7, lambda step: step % 2, lambda step: 1000 - step])
def test_step_numbers_may_repeat(
    pipelines: list[Pipeline], help_grade: HelpGrade, number: Callable[[int], int]
) -> None:
    """Assignments of the earlier step do not leak into the later one, where ranks would wait for work already done."""
    training = train(pipelines, 1, help_grade=help_grade, slowdown=slow(r1=4.0), number=number, steps=8)
    assert training.helped >= 7
    for step in range(1, 8):
        assert training.step_us(step) < 0.8 * training.setting.alone_us(step)


@pytest.mark.parametrize("levels", LEVELS)
def test_duplicates_of_clones_are_dropped(pipelines: list[Pipeline], levels: int) -> None:
    """The straggler is fast enough to send its shard as well."""
    training = train(pipelines, levels, help_grade=HelpGrade.CLONE, slowdown=slow(r1=3.0))
    setting = training.setting
    assert training.helped == setting.steps * setting.micro_batches
    assert (
        setting.contributions * setting.steps
        < training.computed
        <= setting.steps * (setting.contributions + training.helped)
    )
    assert training.step_us(1) < 0.8 * setting.alone_us(1)


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("help_grade", MODES)
def test_a_worker_stuck_in_a_step_delays_nobody_and_takes_part_in_the_next(
    pipelines: list[Pipeline], levels: int, help_grade: HelpGrade
) -> None:
    training = train(
        pipelines, levels, help_grade=help_grade, hangs=lambda step, rank, m: step == 1 and rank == 1 and m == 3
    )
    # one helper computes the whole shard of a clone, from when it believes the worker late
    longest = {HelpGrade.STEAL: 2.6, HelpGrade.CLONE: 3.4}[help_grade]
    assert training.step_us(1) < longest * training.setting.alone_us(1)
    assert training.step_us(2) < 1.1 * training.setting.alone_us(2)
    labels = [activity.label for activity in training.records[1][1].activities]
    assert "shard 1, micro-batch 3, cancelled" in labels
    assert len(training.records[1][2].computed) == training.setting.micro_batches


@pytest.mark.parametrize("levels", LEVELS)
def test_a_paused_straggler_catches_up_at_once(pipelines: list[Pipeline], levels: int) -> None:
    """Its pause is longer than two steps; results of the second step arrive before it begins that step."""
    training = train(pipelines, levels, steps=5, pause_us=lambda step, rank: 160_000 if (step, rank) == (1, 2) else 0)
    records = training.records[2]
    assert records[2].computed == []
    assert records[2].end_us - records[2].start_us < 1_000
    assert records[4].micro_batches > 0


@pytest.mark.parametrize("help_grade", MODES)
def test_helpers_replace_a_worker_that_is_cut_off(pipelines: list[Pipeline], help_grade: HelpGrade) -> None:
    """A worker's link carries nothing for half a second: others compute its shard, and it comes back."""
    setting = Setting(help_grade=help_grade, micro_batch_us=MICRO_BATCH_US, steps=4)
    training = Training(pipelines[:1], setting)
    host = training.workers[2].host

    def away() -> None:
        host.paused = True
        training.cluster.clock.at(training.cluster.clock.now_us + 500_000, back)

    def back() -> None:
        host.paused = False
        host.serve()

    training.cluster.clock.at(60_000, away)
    training.run()
    others = [training.records[rank][1] for rank in (0, 1, 3)]
    assert max(r.end_us - r.start_us for r in others) < 300_000
    assert training.records[2][-1].end_us > 560_000


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("pause_us", range(60_000, 80_000, 4_000))
def test_a_returning_worker_and_its_helpers_do_not_disturb_one_another(
    pipelines: list[Pipeline], levels: int, pause_us: int
) -> None:
    """The packets of both may meet on the way, as whole groups: then each fragment is sent twice at most."""
    training = train(
        pipelines, levels, steps=4, values=3_000, pause_us=lambda step, rank: pause_us if (step, rank) == (2, 3) else 0
    )
    # a leaf passes on what it holds once it is asked to, by a fragment for a fragment (section 10.5)
    fragments = -(-training.setting.values // LANES)
    assert sum(worker.worker.stats.retransmitted for worker in training.workers) <= levels * fragments
    assert training.step_us(2) <= training.setting.alone_us(2) + pause_us + 5_000


# --- long delays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [1_000, 20_000])
@pytest.mark.parametrize("delay_us", [10_000, 60_000, 120_000])
def test_long_delays_are_not_taken_for_loss(pipelines: list[Pipeline], values: int, delay_us: int) -> None:
    """Leaders probe again before they are answered; an answer is as old as the probe's passage through the switch."""
    training = train(pipelines, 1, values=values, slowdown=slow(r1=4.0), links=LinkSettings(delay_us=delay_us), steps=5)
    for worker in training.workers:
        stats = worker.worker.stats
        assert (stats.retransmitted, stats.lost_by_probe, stats.lost_by_order) == (0, 0, 0)
    to_server_and_back_us = 4 * delay_us
    for step in range(1, training.setting.steps):
        assert training.step_us(step) < training.setting.alone_us(step) + 3.5 * to_server_and_back_us


@pytest.mark.parametrize("delay_us", [6_000, 25_000])
def test_an_idle_helper_sends_before_an_answer_arrives(pipelines: list[Pipeline], delay_us: int) -> None:
    """An answer takes as long as five micro-batches, and as twenty."""
    training = train(
        pipelines, 1, micro_batches=16, slowdown=slow(r1=4.0), links=LinkSettings(delay_us=delay_us), steps=8
    )
    setting = training.setting
    assert training.computed == setting.steps * setting.contributions
    assert training.helped > 0
    for step in range(4, setting.steps):
        # helpers learn what to do from an answer, and their packets need the time of two links and back
        heard_us = max(4 * delay_us, setting.micro_batches * setting.micro_batch_us)
        assert training.step_us(step) < max(setting.fluid_us(step), heard_us) + 2 * delay_us + 7 * MICRO_BATCH_US


def test_with_long_delays_helpers_do_not_wait_to_learn_the_route(pipelines: list[Pipeline]) -> None:
    delay_us = 10_000
    training = train(pipelines, 2, links=LinkSettings(delay_us=delay_us), steps=4)
    for step in range(1, training.setting.steps):
        assert training.step_us(step) < training.setting.alone_us(step) + 4 * delay_us + 5_000


# --- losses ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("help_grade", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_random_stragglers_on_a_network_that_loses_packets(
    pipelines: list[Pipeline], levels: int, help_grade: HelpGrade, seed: int
) -> None:
    rng = random.Random(seed)
    speeds = {(step, rank): rng.choice((1, 1, 1, 1.3, 2, 4, 8)) for step in range(3) for rank in range(6)}
    hanging = {(step, rng.randrange(4), rng.randrange(8)) for step in (1, 2) if rng.random() < 0.5}
    training = train(
        pipelines, levels, seed=seed, help_grade=help_grade, values=rng.choice((1, 64, 700, 3000)),
        links=lossy(rng.choice((0.01, 0.1)), duplicate=0.01, reorder=0.05),
        slowdown=lambda step, rank: speeds[step, rank], hangs=lambda *where: where in hanging,
    )  # fmt: skip
    if help_grade is HelpGrade.STEAL and not training.backups:
        assert training.computed == training.setting.steps * training.setting.contributions
