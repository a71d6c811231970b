"""Values that do not fit, in whatever stage they come up: a right sum, or the same error on every rank. (sections 1.2,
6.3)

An exponent that was gathered fits by construction, unless values change: a helper computes others than the owner whose
magnitudes were told, or a program writes to an array that is being summed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from helpers.cluster import Cluster, Reduction, reference_sum
from hypothesis import event, given
from hypothesis import settings as effort
from hypothesis import strategies as st

from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.protocol.job.errors import NonFiniteError, TransportError, ValuesChangedError
from sa_atp.protocol.numbers.fragments import CHUNK_VALUES
from sa_atp.protocol.numbers.quantise import quantise
from sa_atp.protocol.rank.sums.operation import UNKNOWN
from sa_atp.switches.embedded.pipeline import Pipeline

LANES = 64
BAD = (np.nan, np.inf, -np.inf, 3e38, -3e38, 2.0**20, -(2.0**12), 100.0)


@dataclass
class Story:
    """A sum of 2 or 3 ranks with 2 micro-batches each, of which one contribution has two versions."""

    cluster: Cluster
    workers: list[SimWorker]
    reduction: Reduction
    owner: int  # rank whose first contribution has another version
    other: np.ndarray
    outcome: dict[int, np.ndarray | TransportError] = field(default_factory=dict)

    @property
    def fragments(self) -> int:
        return -(-self.reduction.values // LANES)

    @property
    def over(self) -> bool:
        return all(w.error is not None or w.membership.rank in self.reduction.outcomes for w in self.workers)

    def run(self) -> None:
        self.cluster.run(lambda: self.over, 20.0)

    def check(self) -> set[type]:
        """Returns: the errors that there were, or none."""
        errors = [worker.error for worker in self.workers if worker.error is not None]
        if errors:
            assert len(errors) == len(self.workers), "an error reaches every rank"
            for error in errors:
                assert isinstance(error, NonFiniteError | ValuesChangedError)
                assert (type(error), str(error)) == (type(errors[0]), str(errors[0]))
                assert error.ranks == (self.owner,)
            assert not self.reduction.outcomes
            return {type(errors[0])}
        integers, exponents = self.reduction.outcomes[0]
        for other, known in self.reduction.outcomes.values():
            np.testing.assert_array_equal(integers, other)
            np.testing.assert_array_equal(exponents, known)
        self.check_sum(integers, exponents)
        return set()

    def check_sum(self, integers: np.ndarray, exponents: np.ndarray) -> None:
        """Each fragment is the sum of what was contributed, with either version, and nothing in it is poisoned."""
        parts = [part for shard in self.reduction.parts for part in shard]
        changed = self.owner * 2
        for first in range(0, len(integers), LANES):
            span = slice(first, min(first + LANES, len(integers)))
            exponent = int(exponents[first // CHUNK_VALUES])
            sums = [
                total
                for version in (parts[changed], self.other)
                if (total := sum_of([*parts[:changed], version, *parts[changed + 1 :]], span, exponent)) is not None
            ]
            assert any(np.array_equal(integers[span], total) for total in sums), f"values {span.start} to {span.stop}"


def sum_of(parts: Sequence[np.ndarray], span: slice, exponent: int) -> np.ndarray | None:
    """Returns: None: a value does not fit."""
    if exponent == UNKNOWN:
        return np.zeros(span.stop - span.start, np.int64)
    rounded = np.empty(span.stop - span.start, np.int32)
    if any(quantise([part[span]], exponent, len(parts), rounded) for part in parts):
        return None
    return reference_sum([part[span] for part in parts], np.array([exponent]))[0]


def story(
    pipeline: Pipeline, *, seed: int, ranks: int, values: int, history: bool, grown: bool, bad: Sequence[tuple[int, float]],
    loss: float = 0.0,
) -> Story:  # fmt: skip
    """Args:
    history: there was a sum with this key before, so that exponents are predicted.
    grown: ... wrongly, because one rank's values are larger now: the chunk is done again.
    bad: places and values that the other version has.
    """
    cluster = Cluster([pipeline], seed=seed, links=LinkSettings(loss=loss))
    workers = cluster.joined_job(ranks, micro_batches=2)
    rng = np.random.default_rng(seed)

    def parts(size: float) -> list[list[np.ndarray]]:
        return [[(size * rng.uniform(-1, 1, values)).astype(np.float32) for _ in range(2)] for _ in range(ranks)]

    if history:
        before = Reduction(parts(1.0), "key")
        cluster.run_collectives([before], workers, 20.0)
    reduction = Reduction(parts(1.0), "key" if history else None)
    if grown:
        reduction.parts[-1][1] *= np.float32(1000.0)
    owner = seed % ranks
    other = reduction.parts[owner][0].copy()
    for place, value in bad:
        other[place % values] = value
    return Story(cluster, workers, reduction, owner, other)


def helped(found: Story, *, sent: int = 0, after_us: int = 0, returns_us: int | None = None) -> None:
    """The owner falls silent after some of what it has to send; a helper sends the other version under its bits.

    Args:
        sent: fragments that the owner sends before; after_us: how long it waits besides.
        returns_us: when the owner speaks again; None: when the others are done.
    """
    cluster, reduction, owner = found.cluster, found.reduction, found.workers[found.owner]
    stats = owner.worker.stats
    sent += stats.fragments_sent
    for worker in found.workers:
        reduction.start(worker)
    cluster.run(lambda: stats.fragments_sent >= sent or found.over)
    cluster.run_for(after_us / 1e6)
    owner.host.paused = True
    helper = found.workers[(found.owner + 1) % len(found.workers)]
    if helper.membership.rank not in reduction.outcomes and helper.error is None:
        bits = owner.membership.map.bits_of(found.owner)
        helper.contribute(
            reduction.sums[helper.membership.rank], [found.other, reduction.parts[found.owner][1]], bits, on_behalf=True
        )
    if returns_us is None:
        others = [w for w in found.workers if w is not owner]
        cluster.run(lambda: all(w.error is not None or w.membership.rank in reduction.outcomes for w in others), 20.0)
    else:
        cluster.run_for(returns_us / 1e6)
    owner.host.paused = False
    owner.host.serve()
    found.run()


def changed_by_its_program(found: Story, *, sent: int, after_us: int) -> None:
    """The owner's program writes to an array that is being summed. Args: see helped."""
    cluster, reduction = found.cluster, found.reduction
    stats = found.workers[found.owner].worker.stats
    sent += stats.fragments_sent
    array = reduction.parts[found.owner][0]
    reduction.parts[found.owner][0] = array.copy()  # what is compared with
    for worker in found.workers:
        reduction.begin(worker)
        own = reduction.parts[worker.membership.rank]
        parts = [array, own[1]] if worker.membership.rank == found.owner else own
        worker.contribute(
            reduction.sums[worker.membership.rank], parts, worker.membership.map.bits_of(worker.membership.rank)
        )
    cluster.run(lambda: stats.fragments_sent >= sent or found.over)
    cluster.run_for(after_us / 1e6)
    array[:] = found.other
    found.run()


def test_a_helper_with_nan_after_the_scales_were_gathered(pipeline: Pipeline) -> None:
    """Every rank took the sum, -30 in the place of 4, without an error."""
    found = story(pipeline, seed=0, ranks=2, values=10, history=False, grown=False, bad=[(3, np.nan)])
    helped(found, sent=1)
    assert found.check() == {NonFiniteError}
    assert "rank 0 contributed NaN or infinity between values 0 and 9" in str(found.workers[1].error)


def test_a_helper_with_too_large_a_value_after_the_scales_were_gathered(pipeline: Pipeline) -> None:
    """It is gathered anew, from what the helper has: there is only that."""
    found = story(pipeline, seed=0, ranks=2, values=10, history=False, grown=False, bad=[(3, 3e38)])
    helped(found, sent=1)
    assert found.check() == set()
    integers, exponents = found.reduction.outcomes[1]
    assert integers[3] * 2.0 ** -int(exponents[0]) == pytest.approx(3e38)
    assert [w.worker.stats.chunks_redone for w in found.workers] == [1, 1]


def test_values_that_change_while_the_second_exponent_is_gathered_are_named_by_every_rank(pipeline: Pipeline) -> None:
    """The prediction did not hold, the owner told how large its values are, and then they were larger."""
    found = story(
        pipeline,
        seed=1,
        ranks=3,
        values=20_000,
        history=True,
        grown=True,
        bad=[(16_384 + 64 * n, 3e38) for n in (2, 5)],
    )
    helped(found, sent=found.fragments + 1)  # the first attempt, and how large the values are
    assert found.check() == {ValuesChangedError}
    said = "operation 1: between values 16512 and 16767, contributions of rank 1 are larger than announced"
    assert str(found.workers[2].error).startswith(said)


TELLINGS = {  # name: what is drawn
    "seed": st.integers(0, 2**16),
    "ranks": st.integers(2, 3),
    "values": st.sampled_from((1, 10, 64, 200, 700, 16_384 + 100)),
    "history": st.booleans(),
    "grown": st.booleans(),
    "bad": st.lists(st.tuples(st.integers(0, 40_000), st.sampled_from(BAD)), min_size=1, max_size=3),
    "loss": st.sampled_from((0.0, 0.0, 0.1)),
}
MOMENTS = {
    "sent": st.sampled_from((0, 1, 1, 2, -1)),
    "attempts": st.integers(0, 1),
    "after_us": st.sampled_from((0, 0, 60)),
}


def moment(found: Story, sent: int, attempts: int) -> int:
    """After how many fragments something happens. Args: sent: after so many attempts; -1: all data."""
    return attempts * found.fragments + (found.fragments if sent < 0 else sent)


@effort(max_examples=80)
@given(
    telling=st.fixed_dictionaries(TELLINGS),
    when=st.fixed_dictionaries(MOMENTS),
    back=st.sampled_from((None, 100, 3000)),
)
def test_a_helpers_version_differs_from_the_owners(
    pipeline: Pipeline, telling: dict[str, Any], when: dict[str, int], back: int | None
) -> None:
    found = story(pipeline, **telling)
    helped(found, sent=moment(found, when["sent"], when["attempts"]), after_us=when["after_us"], returns_us=back)
    event(f"{found.check()}")


@effort(max_examples=80)
@given(telling=st.fixed_dictionaries(TELLINGS), when=st.fixed_dictionaries(MOMENTS))
def test_an_array_that_changes_while_it_is_summed(
    pipeline: Pipeline, telling: dict[str, Any], when: dict[str, int]
) -> None:
    found = story(pipeline, **telling)
    changed_by_its_program(found, sent=moment(found, when["sent"], when["attempts"]), after_us=when["after_us"])
    event(f"{found.check()}")
