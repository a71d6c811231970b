"""Builds whose bitmaps have more than 64 bits, on a simulated network: every integer of every sum is checked, also where
packets are lost and contributions of all words of a bitmap meet. (protocol section 2.2)
"""

import numpy as np
import pytest
from helpers.cluster import Cluster, Reduction, events_of
from helpers.training import Setting, Training

from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.protocol.job.errors import NonFiniteError, RefusedError
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.switches.control.events import Event
from sa_atp.switches.embedded.pipeline import Pipeline

WIDE = ServerSettings(lanes=256, contribution_bits=512)
CLEAN = LinkSettings()
BAD = LinkSettings(loss=0.05, duplicate=0.03, reorder=0.05, jitter_us=30)


def parts(ranks: int, micro_batches: int, values: int) -> list[list[np.ndarray]]:
    made = np.random.default_rng(ranks)
    return [[made.standard_normal(values).astype(np.float32) for _ in range(micro_batches)] for _ in range(ranks)]


@pytest.mark.parametrize("links", [CLEAN, BAD], ids=["clean", "bad"])
@pytest.mark.parametrize(("ranks", "micro_batches", "switches"), [(64, 8, 1), (6, 85, 1), (7, 73, 3)])
def test_sums_of_contributions_in_all_words(
    many_bits: list[Pipeline], links: LinkSettings, ranks: int, micro_batches: int, switches: int
) -> None:
    cluster = Cluster(many_bits[:switches], links=links, settings=WIDE)
    workers = cluster.start_job(ranks, micro_batches=micro_batches)
    cluster.run_until_joined(workers)
    for key in ("first", "first"):  # gathered, then predicted
        sums = Reduction(parts(ranks, micro_batches, 700), key)
        for worker in workers:
            sums.begin(worker)
        for worker in workers:  # in two groups, so that one rank's bits come in several packets
            half = micro_batches // 2
            sums.contribute(worker, range(half))
            sums.contribute(worker, range(half, micro_batches))
        cluster.run(lambda: sums.over)  # noqa: B023
        sums.check()
    if links is CLEAN:
        finished = sum(int(events_of(rack.switch)[Event.COMPLETED]) for rack in cluster.world.racks)
        assert finished > 0
        assert cluster.world.server.jobs[1].stats.finished_here == 0


@pytest.mark.parametrize("help_grade", [HelpGrade.STEAL, HelpGrade.CLONE])
@pytest.mark.parametrize("levels", [1, 2])
def test_help_with_many_pieces(many_bits: list[Pipeline], levels: int, help_grade: HelpGrade) -> None:
    setting = Setting(
        workers=8, micro_batches=64, micro_batch_us=500, values=600, steps=3, lanes=256, contribution_bits=512,
        help_grade=help_grade, slowdown=lambda step, rank: 4.0 if rank == 5 else 1.0,
    )  # fmt: skip
    training = Training(many_bits[: 1 if levels == 1 else 3], setting).run()
    assert training.helped > 0
    if help_grade is HelpGrade.STEAL:
        assert training.computed == setting.steps * setting.contributions
        last = setting.steps - 1
        assert training.step_us(last) < (1.1 if levels == 1 else 1.5) * setting.fluid_us(last)


def test_help_is_right_where_packets_are_lost(many_bits: list[Pipeline]) -> None:
    setting = Setting(
        workers=5, micro_batches=100, micro_batch_us=300, values=2000, lanes=256, contribution_bits=512, links=BAD,
        slowdown=lambda step, rank: 3.0 if rank == step % 5 else 1.0,
    )  # fmt: skip
    assert Training(many_bits[:1], setting).run().helped > 0


def test_the_rank_of_a_nan_is_named_whatever_word_it_is_in(many_bits: list[Pipeline]) -> None:
    cluster = Cluster(many_bits[:1], settings=WIDE)
    workers = cluster.start_job(4, micro_batches=128)
    cluster.run_until_joined(workers)
    made = parts(4, 128, 500)
    made[3][127][499] = np.nan
    sums = Reduction(made)
    for worker in workers:
        sums.start(worker)
    cluster.run(lambda: all(worker.error is not None for worker in workers))
    for worker in workers:
        assert isinstance(worker.error, NonFiniteError)
        assert worker.error.ranks == (3,)


@pytest.mark.parametrize("micro_batches", [17, 128])
def test_a_job_with_more_contributions_than_the_switch_has_bits_for_is_refused(
    pipelines: list[Pipeline], micro_batches: int
) -> None:
    cluster = Cluster(pipelines[:1])
    workers = cluster.start_job(4, micro_batches=micro_batches)
    cluster.run(lambda: all(worker.error is not None for worker in workers))
    for worker in workers:
        assert isinstance(worker.error, RefusedError)
        said = str(worker.error)
        assert f"4 times {micro_batches} contributions are more than the 64" in said
        assert "at most 16 each, or start switch and server with --contributions" in said
