"""Projected finish times of workers with slow links. (protocol section 10.3)"""

import random

import pytest
from helpers.work import Crew

from sa_atp.protocol.help.belief import Belief, Forecast
from sa_atp.protocol.help.believing import NEVER_US, machine
from sa_atp.protocol.help.plan import Machine
from sa_atp.protocol.help.progress import NOBODY, Step, Worker
from sa_atp.protocol.help.projection import LEAST_SENDING_US, WRITTEN_AHEAD_US, Projection
from sa_atp.protocol.packets.help_messages import WorkReport

EACH_US, SEND_US, NOW_US = 6_000, 90_000, 100_000


def workers(*send_us: int) -> list[Worker]:
    return [Worker(Forecast.of(EACH_US), send_us=each_us) for each_us in send_us]


def idle(state: Step, *ranks: int) -> Step:
    """Lets ranks have computed their own shards just now."""
    for rank in ranks:
        state.courses[rank].idle_us = NOW_US
        state.courses[rank].began_us = 0
    return state


def machine_of(projection: Projection, state: Step, rank: int) -> Machine:
    b, found = projection.belief(state, rank), Machine()
    machine(b, NEVER_US, NOW_US, found)
    return found


def link_free_us(projection: Projection, state: Step, rank: int) -> int:
    return machine_of(projection, state, rank).link_free_us


def test_results_of_helping_leave_after_ones_own_contribution() -> None:
    projection, state = Projection(workers(SEND_US, SEND_US)), idle(Step.begin(2, 4, 0), 0)
    assert link_free_us(projection, state, 0) == NOW_US + SEND_US
    computing = machine_of(projection, state, 1)
    assert (computing.link_free_us, computing.joins) == (0, False), "it leaves when that is computed"


def measured(step: int, each_us: int) -> WorkReport:
    """A report of a micro-batch that took so long in its step."""
    return WorkReport(step=step, begun=0, held=0, took_us=each_us, spent_us=each_us)


@pytest.mark.parametrize(
    ("took_us", "counts_us"),
    [
        ((LEAST_SENDING_US - 2_000,) * 2, LEAST_SENDING_US - 2_000),
        ((30_000, 40_000), 30_000),
        ((WRITTEN_AHEAD_US, 40_000), 0),
    ],
)
def test_a_link_that_is_not_slow_counts_with_its_shortest_time(took_us: tuple[int, ...], counts_us: int) -> None:
    worker = Worker()
    for each_us in took_us:
        worker.learn(WorkReport(step=0, begun=0, held=0, sent_us=each_us))
    projection, state = Projection([worker]), idle(Step.begin(1, 4, 0), 0)
    assert not projection.has_slow_link(0)
    assert projection.link_us(0) == counts_us
    assert link_free_us(projection, state, 0) == NOW_US + counts_us


def learnt(*took_us: int) -> Worker:
    """A worker that reported once in each step how long a micro-batch took."""
    worker = Worker()
    for step, each_us in enumerate(took_us):
        worker.learn(measured(step, each_us))
    return worker


@pytest.mark.parametrize(
    ("took_us", "is_slow"),
    [((50_000,) * 3, True), ((EACH_US, EACH_US, 50_000), False), ((EACH_US, 50_000, EACH_US), False)],
)
def test_a_worker_slow_in_one_step_only_may_be_fast_in_the_next(took_us: tuple[int, ...], is_slow: bool) -> None:
    projection = Projection([learnt(EACH_US), learnt(EACH_US), learnt(*took_us)])
    assert projection.least_us(2) == (50_000 if is_slow else EACH_US)


def test_a_worker_that_stays_slow_is_surely_slow_after_some_steps() -> None:
    projection = Projection([learnt(EACH_US), learnt(EACH_US), learnt(EACH_US, *[50_000] * 8)])
    assert projection.least_us(2) > 49_000


def test_a_speed_that_changed_within_a_step_is_as_unsure_as_one_measurement_makes_it() -> None:
    worker = learnt(EACH_US)
    for _ in range(8):
        worker.learn(measured(1, 50_000))
    assert worker.unsure_us == 50_000 - EACH_US
    assert worker.unit_us == (EACH_US + 50_000) / 2  # of two steps
    # in the next step it reports the time of this step's last micro-batch
    worker.learn(WorkReport(step=2, begun=0, held=0, took_us=50_000, spent_us=1))
    assert worker.unsure_us == 50_000 - EACH_US


def test_a_sent_lot_keeps_the_link_busy_once() -> None:
    projection, state = Projection(workers(SEND_US, SEND_US)), idle(Step.begin(2, 4, 0), 0, 1)
    state.courses[0].is_gathering = True
    state.courses[0].lot_until_us = NOW_US + EACH_US
    state.courses[1].lot_until_us = NOW_US + EACH_US  # and has nothing to send
    for _ in range(2):
        projection.note_sending(state, 0)
        projection.note_sending(state, 1)
        assert link_free_us(projection, state, 0) == NOW_US + 2 * SEND_US
        assert link_free_us(projection, state, 1) == NOW_US + SEND_US
    state.courses[0].is_gathering = True
    state.courses[0].lot_until_us = NOW_US + 3 * SEND_US
    projection.note_sending(state, 0)
    assert link_free_us(projection, state, 0) == NOW_US + 4 * SEND_US, "computed when the link was free"


def test_a_contribution_that_joins_the_lot_does_not_delay_it() -> None:
    projection, state = Projection(workers(SEND_US)), idle(Step.begin(1, 4, 0), 0)
    state.courses[0].joins_lot = state.courses[0].is_gathering = True
    state.courses[0].lot_until_us = NOW_US + EACH_US
    assert link_free_us(projection, state, 0) == 0
    projection.note_sending(state, 0)
    assert link_free_us(projection, state, 0) == NOW_US + EACH_US + SEND_US


@pytest.mark.parametrize("held", [0, 1])
def test_an_owner_stopped_before_it_began_has_no_contribution_to_send(held: int) -> None:
    projection, state = Projection(workers(SEND_US)), idle(Step.begin(1, 4, 0), 0)
    state.owner[0][held:] = [-1] * (4 - held)
    state.ended.add(0)
    assert link_free_us(projection, state, 0) == (NOW_US + SEND_US if held else 0)


def test_an_owner_gives_up_at_once_what_nobody_holds_and_later_what_it_holds() -> None:
    slow = Worker(Forecast.of(EACH_US), answer_us=EACH_US)
    projection, state = Projection([slow]), Step.begin(1, 8, NOW_US)
    state.courses[0].began_us = state.courses[0].newest_us = NOW_US
    state.courses[0].begun, state.courses[0].is_computing = 1, True
    state.owner[0][4:] = [-1] * 4
    found = machine_of(projection, state, 0)
    assert (found.free_us, found.held, found.open, found.sends) == (NOW_US + EACH_US, 3, 4, True)
    assert (found.spared_us, found.release_us) == (0, NOW_US + EACH_US)
    state.ended.add(0)
    found = machine_of(projection, state, 0)
    assert (found.open, found.loose) == (0, 4)


def test_a_worker_that_has_not_begun_the_step_is_not_free() -> None:
    """It may have stopped in the step before; it is expected to take as much longer as it is late already."""
    projection, state = Projection([Worker(Forecast.of(EACH_US))]), Step.begin(1, 4, 0)
    state.owner[0] = [-1] * 4
    assert machine_of(projection, state, 0).free_us == 2 * NOW_US


@pytest.mark.parametrize("seed", range(3))
def test_beliefs_without_news_are_what_would_be_worked_out_now(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In steps of workers of which another one is slow each time."""
    kept, anew = Projection.beliefs, []

    def checked(self: Projection, state: Step) -> list[Belief]:
        for rank, known in enumerate(state.beliefs):
            if rank not in state.news | state.unmeasured:
                anew.append(rank)
                assert known == self.belief(state, rank)
        return kept(self, state)

    monkeypatch.setattr(Projection, "beliefs", checked)
    rng, crew = random.Random(seed), Crew(5, 8)
    for step in range(6):
        times_us = [6_000] * 5
        times_us[rng.randrange(5)] = rng.choice((12_000, 60_000))
        stopped = rng.randrange(5) if step == 4 else NOBODY
        crew.run(times_us, lambda rank, m, stopped=stopped: rank == stopped and m == 3)  # type: ignore[misc]
    assert len(anew) > 500
