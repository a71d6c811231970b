"""Drawn worlds: a seed always gives the same one, and together they cover every kind of fault and setting."""

import json

from sa_atp.lab.soak.draw import draw
from sa_atp.lab.soak.scene import Fault, FaultKind, JobScene, Scene
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.spec import LANE_BUILDS

SCENES = [draw(seed) for seed in range(3000)]


def test_a_seed_is_one_world() -> None:
    assert [draw(seed) for seed in range(50)] == SCENES[:50]
    assert len({json.dumps(scene.as_dict()) for scene in SCENES}) == len(SCENES)


def test_all_settings_are_drawn() -> None:
    jobs = [job for scene in SCENES for job in scene.jobs]
    faults = [fault for scene in SCENES for fault in scene.faults]
    assert {fault.kind for fault in faults} == set(FaultKind)
    assert any(fault.at_us < 0 for fault in faults)
    assert any(
        fault.kind is FaultKind.PAUSE_SERVER and 5_000_000 < fault.for_us < 10_000_000
        for scene in SCENES
        for fault in scene.faults
        if any(job.help is HelpGrade.STEAL for job in scene.jobs)
    )
    assert {job.help for job in jobs} == set(HelpGrade)
    assert {scene.lanes for scene in SCENES} == set(LANE_BUILDS)
    assert {scene.leaves for scene in SCENES} == {0, 1, 2, 3}
    assert {len(scene.jobs) for scene in SCENES} == {1, 2, 3}
    assert {scene.aggregates for scene in SCENES} == {True, False}
    assert min(scene.slots for scene in SCENES) == 1
    assert min(job.ranks for job in jobs) == 1
    assert max(job.ranks for job in jobs) > 56
    assert max(scene.links.loss for scene in SCENES) == 0.3
    assert max(max(job.loss) for job in jobs if job.lossy) == 0.3
    for name in ("loss", "duplicate", "reorder", "jitter_us", "corrupt"):
        assert {bool(getattr(scene.links, name)) for scene in SCENES} == {True, False}
    assert any(job.not_finite for job in jobs)
    assert {scene.may_fail for scene in SCENES} == {True, False}


def test_every_drawn_world_is_valid() -> None:
    for scene in SCENES:
        assert scene.quota <= scene.slots
        for job in scene.jobs:
            assert job.contributions <= scene.contributions
            assert len(job.lengths) == len(job.magnitudes) == len(job.shapes) > 0
            if job.help is not HelpGrade.NONE:
                assert (len(set(job.lengths)), job.ahead, job.keyed) == (1, 1, True)
        for fault in scene.faults:
            assert fault.switch <= scene.leaves
            assert fault.rank < scene.jobs[fault.job].ranks


def test_most_worlds_are_small() -> None:
    ranks = sorted(sum(job.ranks for job in scene.jobs) for scene in SCENES)
    assert ranks[len(ranks) // 2] < 8


def test_the_description_in_words() -> None:
    scene = Scene(
        seed=7,
        leaves=2,
        jobs=(JobScene(ranks=3, help=HelpGrade.STEAL, lengths=(5, 5), magnitudes=(1, 2), shapes=("whole", "normal")),),
        faults=(
            Fault(kind=FaultKind.RESTART_SWITCH, at_us=5, for_us=100, switch=1),
            Fault(kind=FaultKind.KILL_WORKER, at_us=-9, for_us=0, rank=2),
        ),
    )
    said = "\n".join(scene.words())
    for words in (
        "a root and 2 leaves; 64 lanes",
        "10000 Mbit/s, 20 us",
        "job 0: 3 ranks with 1 contribution each; help: steal; 2 sums of values: 5 (whole, 2**1), 5 (normal, 2**2)",
        "5 us after the first rank has joined: a switch loses all state, leaf 0, for 100 us",
        "9 us after the beginning: a worker dies for good, rank 2 of job 0",
    ):
        assert words in said


def test_which_faults_end_jobs() -> None:
    def with_faults(*faults: Fault) -> Scene:
        return Scene(seed=0, jobs=(JobScene(ranks=2),), faults=faults)

    short = Fault(kind=FaultKind.PAUSE_SERVER, at_us=0, for_us=3_000_000)
    assert not with_faults(short, short).may_fail
    assert with_faults(short, short, short).may_fail
    assert with_faults(Fault(kind=FaultKind.RESTART_WORKER, at_us=0, for_us=1)).may_fail


def test_some_worlds_have_wide_bitmaps_and_use_them() -> None:
    wide = [scene for scene in SCENES if scene.contributions > 64]
    assert {scene.lanes for scene in wide} == {256}
    assert any(scene.lanes == 256 and scene.contributions == 64 for scene in SCENES)
    assert any(job.contributions > 64 for scene in wide for job in scene.jobs)
