"""Shrinking ends, with a small world that fails in the same way."""

from dataclasses import replace

from sa_atp.lab.soak.draw import draw
from sa_atp.lab.soak.invariants import Broken
from sa_atp.lab.soak.scene import FaultKind, Scene
from sa_atp.lab.soak.shrink import shrink, smaller
from sa_atp.protocol.packets.message_fields import HelpGrade


def test_every_candidate_is_valid_and_differs() -> None:
    for seed in range(150):
        scene = draw(seed)
        for candidate in smaller(scene):
            assert candidate != scene
            for job in candidate.jobs:
                assert len(job.lengths) == len(job.magnitudes) == len(job.shapes) > 0
                assert job.help is HelpGrade.NONE or (job.ranks > 1 and job.keyed)
            for fault in candidate.faults:
                assert fault.rank < candidate.jobs[fault.job].ranks
                assert fault.switch <= candidate.leaves
                assert fault.kind is not FaultKind.CUT_LEAF or fault.switch >= 1


def test_only_the_relevant_fault_remains() -> None:
    """The world fails if a switch restarts; shrinking removes everything else."""

    def fails(scene: Scene) -> Broken | None:
        restarts = any(fault.kind is FaultKind.RESTART_SWITCH for fault in scene.faults)
        return Broken("sum", "wrong") if restarts and scene.links.loss else None

    scenes = [scene for scene in map(draw, range(400)) if fails(scene)]
    assert len(scenes) > 20
    for scene in scenes[:20]:
        found, why = shrink(scene, Broken("sum", "wrong"), fails)
        assert (len(found.faults), len(found.jobs), found.leaves) == (1, 1, 0)
        (job,) = found.jobs
        assert (job.ranks, job.micro_batches, job.lengths, job.help) == (1, 1, (1,), HelpGrade.NONE)
        assert found.links == replace(type(found.links)(), loss=scene.links.loss)
        assert found.seed == scene.seed
        assert why.what == "sum"


def test_a_violation_of_another_kind_does_not_count() -> None:
    scene = draw(3)
    found, why = shrink(scene, Broken("sum", "wrong"), lambda _: Broken("hang", "for ever"))
    assert found == scene
    assert str(why) == "sum: wrong"


def test_it_ends_after_so_many_runs() -> None:
    runs = 0

    def fails(scene: Scene) -> Broken:
        nonlocal runs
        runs += 1
        return Broken("sum", "wrong")

    shrink(draw(0), Broken("sum", "wrong"), fails, most_runs=7)
    assert runs == 7
