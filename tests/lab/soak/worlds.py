"""Small worlds for the tests of the soak."""

from dataclasses import replace
from typing import Any

from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.lab.soak.scene import JobScene, Scene
from sa_atp.protocol.packets.message_fields import HelpGrade


def small(ranks: int = 3, lengths: tuple[int, ...] = (200, 200), **options: Any) -> Scene:
    """A scene with one job, whose links lose and duplicate packets. Args: options: further fields of the scene."""
    job = JobScene(
        ranks=ranks, lengths=lengths, magnitudes=(0,) * len(lengths), shapes=("normal",) * len(lengths), keyed=True
    )
    links = LinkSettings(loss=0.1, duplicate=0.1)
    return replace(Scene(seed=1, links=links, trunk=links, slots=64, quota=64, jobs=(job,)), **options)


def helped(ranks: int = 3) -> Scene:
    """The same with help."""
    scene = small(ranks)
    job = replace(scene.jobs[0], micro_batches=4, help=HelpGrade.STEAL, compute_us=1000, slow=(0,), slowdown=10)
    return replace(scene, jobs=(job,))
