"""Correct worlds pass; each mutant of the code under test is found by the invariant that it breaks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sa_atp.lab.peers import switchml
from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.lab.soak import run as soak_run
from sa_atp.lab.soak import world as soak_world
from sa_atp.lab.soak.draw import draw
from sa_atp.lab.soak.invariants import Broken, check_error
from sa_atp.lab.soak.run import run_scene
from sa_atp.lab.soak.scene import Fault, FaultKind, Scene
from sa_atp.lab.soak.transcript import Transcript
from sa_atp.net.session import Session
from sa_atp.protocol.job.errors import TransportError, WorkerLostError
from sa_atp.protocol.rank.collectives import Collectives
from sa_atp.protocol.rank.pace.receiving import Receiver
from sa_atp.protocol.rank.pace.window import Window
from sa_atp.protocol.rank.worker import Worker
from sa_atp.protocol.server.job import Job, State
from sa_atp.protocol.server.sums import SumStore
from sa_atp.switches.embedded.pipeline import Pipeline

from .worlds import helped, small


def broken(scene: Scene) -> Broken:
    with pytest.raises(Broken) as found:
        run_scene(scene)
    return found.value


# --- sound worlds -------------------------------------------------------------------------------------------------------


def test_a_sound_world_ends_with_all_sums() -> None:
    outcome = run_scene(small())
    assert (outcome.sums, outcome.ranks, outcome.done, outcome.errors) == (6, 3, 3, 0)
    assert run_scene(helped()).done == 3


def test_a_rank_that_computes_for_long_is_no_hang() -> None:
    """256 micro-batches on a rank ten times slower: no rank makes progress for 25.6 s."""
    scene = small(ranks=2, lanes=256, contributions=512)
    job = replace(scene.jobs[0], micro_batches=256, compute_us=10_000, slow=(0,), slowdown=10)
    outcome = run_scene(replace(scene, jobs=(job,)))
    assert (outcome.done, outcome.errors) == (2, 0)
    assert outcome.longest_us > 25_000_000


def test_the_same_description_is_the_same_world_packet_by_packet() -> None:
    seen = []
    for _ in range(2):
        transcript = Transcript(lines=10_000)
        seen.append((run_scene(helped(), transcript), transcript.lines()))
    assert seen[0] == seen[1]
    assert len(seen[0][1]) > 100


def test_what_a_transcript_says_of_packets() -> None:
    transcript = Transcript(lines=10_000)
    run_scene(small(leaves=2, links=replace(small().links, corrupt=0.1)), transcript)
    said = "\n".join(transcript.lines())
    for words in ("from 10.0.0.1", "to 10.0.0.3", "up from leaf 1", "lost", "damaged", "DATA ", "RESULT ", "bits=0x"):
        assert words in said


def test_a_job_of_switchml_is_summed_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, with_peer = (run_scene(small(peer=peer)) for peer in (False, True))
    assert with_peer.sums == plain.sums + 3 * 2
    monkeypatch.setattr(switchml, "reference", lambda parts, lanes: np.sum(parts, axis=0) + 1)
    found = broken(small(peer=True))
    assert (found.what, found.detail) == ("switchml sum", "sum 0: wrong at rank 0, 1 and 2")


def test_a_rank_that_leaves_while_cut_off_counts_as_lost() -> None:
    cut = small(faults=(Fault(kind=FaultKind.CUT_WORKER, at_us=0, for_us=2_000_000, rank=1),))
    lost = WorkerLostError((1,), "not heard of for 10.0 s")
    check_error(cut, 0, lost, gone={1}, left={1})
    with pytest.raises(Broken, match="no fault of this world is long or severe enough for WorkerLostError"):
        check_error(cut, 0, lost, gone=())  # it has not left
    with pytest.raises(Broken, match="no fault of this world is long or severe enough for WorkerLostError"):
        check_error(small(), 0, lost, gone={1}, left={1})  # it was in reach
    absent = TransportError("job 'job 0': after 30.0 s these ranks have not joined: 1")
    check_error(cut, 0, absent, gone={1}, left={1})
    with pytest.raises(Broken, match="no fault of this world is long or severe enough for TransportError"):
        check_error(cut, 0, absent, gone=(), left=())


FAULTS = [Fault(kind=kind, at_us=50, for_us=300_000, switch=kind is FaultKind.CUT_LEAF, rank=1) for kind in FaultKind]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind.name.lower())
def test_faults_end_as_they_should(fault: Fault) -> None:
    scene = small(leaves=2, lengths=(2000,) * 3, faults=(fault,))
    outcome = run_scene(scene)
    if not scene.may_fail:
        assert (outcome.done, outcome.errors) == (3, 0)
    elif fault.kind is FaultKind.KILL_WORKER:
        assert outcome.done == 0
    else:
        assert outcome.errors > 0
        assert outcome.done == 3  # they have connected anew


def test_silence_beyond_the_bound_is_an_error_and_then_all_goes_on() -> None:
    fault = Fault(kind=FaultKind.PAUSE_SERVER, at_us=50, for_us=12_000_000)
    outcome = run_scene(small(lengths=(2000,) * 3, slots=1, quota=1, faults=(fault,)))
    assert outcome.errors >= 3
    assert outcome.done == 3


def test_a_rank_that_all_others_have_left_may_ask_in_vain_to_join_again() -> None:
    """They leave unheard while the server is paused for 2.6 s, and a rank that lacks a result is alone."""
    outcome = run_scene(draw(9_500_067))
    assert outcome.errors > 0
    assert outcome.longest_us > soak_world.STALL_US


def test_a_queue_that_is_shorter_than_the_job_loses_no_rank() -> None:
    """All have joined in the same moment; their signs of life must not meet in the queue again and again."""
    links = LinkSettings(delay_us=50_000, queue_packets=30)
    outcome = run_scene(small(36, (1,), links=links, trunk=links, slots=1024, quota=1024, gather_us=10))
    assert (outcome.done, outcome.errors) == (36, 0)


def test_a_server_that_is_away_for_long_holds_up_help_only_for_so_long() -> None:
    """Helpers compute a part of a rank's shard while the server is silent for 6 s: no rank gets an error."""
    scene, links = helped(ranks=2), LinkSettings(loss=0.01)
    job = replace(scene.jobs[0], slowdown=3, lengths=(8000,) * 2, shapes=("whole",) * 2)
    fault = Fault(kind=FaultKind.PAUSE_SERVER, at_us=13_000, for_us=6_000_000)
    outcome = run_scene(replace(scene, seed=55, links=links, trunk=links, jobs=(job,), slots=1024, faults=(fault,)))
    assert (outcome.done, outcome.errors) == (2, 0)
    assert outcome.virtual_us < fault.for_us + 2_000_000


def test_nan_is_an_error_of_its_rank() -> None:
    scene = small()
    outcome = run_scene(replace(scene, jobs=(replace(scene.jobs[0], not_finite=(1, 2)),)))
    assert (outcome.done, outcome.errors) == (0, 3)


# --- mutants ------------------------------------------------------------------------------------------------------------


def test_a_server_that_adds_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    merge = SumStore._merge

    def twice(self: SumStore, page: Any, at: Any, bits: Any, stream: Any, lanes: Any) -> Any:
        known = page.bits[at]
        page.bits[at] &= ~bits  # the mutant forgets these contributions
        found = merge(self, page, at, bits, stream, lanes)
        page.bits[at] |= known
        return found

    monkeypatch.setattr(SumStore, "_merge", twice)
    assert broken(small(aggregates=False)).what == "sum"


def test_a_switch_that_adds_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Pipeline.process
    count = 0

    def forgetful(self: Pipeline, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count % 3 == 0:  # the mutant forgets which contributions slots have
            self.register("offered_lo.offered")[:] = 0
        return process(self, *arguments)

    monkeypatch.setattr(Pipeline, "process", forgetful)
    assert broken(small(links=LinkSettings(duplicate=0.5))).what in ("sum", "slot")


def test_a_rank_that_has_another_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Collectives.take

    def other(self: Collectives, operation: int, out: Any, *arguments: Any) -> Any:
        done = take(self, operation, out, *arguments)
        out[0] += np.float32(self._member.rank == 2)
        return done

    monkeypatch.setattr(Collectives, "take", other)
    assert "its values differ from another rank's" in broken(small()).detail


def test_a_worker_that_is_deaf_to_results_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Receiver, "take", lambda self, *arguments: None)
    found = broken(small())
    assert found.what == "hang"
    assert "no rank makes progress" in found.detail
    assert "rank 2: window" in found.detail


def test_a_timer_that_is_always_due_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_world, "EVENTS", 5_000)
    monkeypatch.setattr(Worker, "next_timer_us", lambda self: 0)
    assert broken(small()).what == "storm"


def test_a_loop_that_does_not_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def transmit(self: Worker, now_us: int, budget_bytes: int | None = None) -> Any:
        while True:
            pass

    monkeypatch.setattr(soak_run, "MOST_CPU_S", 0.3)
    monkeypatch.setattr(Worker, "transmit", transmit)
    found = broken(small())
    assert found.what == "endless"
    assert "in transmit" in found.detail
    assert soak_run.explain(1, small(), found).transcript == []  # it is not run again


def test_a_bound_that_is_too_short_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sa_atp.protocol.server.server_events.ServerSettings.__init__", _settings(dead_after_us=1_000_000)
    )
    fault = Fault(kind=FaultKind.PAUSE_WORKER, at_us=50, for_us=3_000_000)
    found = broken(small(lengths=(2000,) * 3, links=LinkSettings(), trunk=LinkSettings(), faults=(fault,)))
    assert found.what == "error"
    assert "no fault of this world is long or severe enough for WorkerLostError: lost rank 0" in found.detail


def _settings(**changed: Any) -> Callable[..., None]:
    from sa_atp.protocol.server.server_events import ServerSettings

    init = ServerSettings.__init__
    return lambda self, **options: init(self, **{**options, **changed})


def test_a_job_that_does_not_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(self: Job, state: State) -> None:
        self.state = state

    monkeypatch.setattr(Job, "end", end)
    found = broken(small())
    assert (found.what, "pages of sums" in found.detail) == ("left over", True)


def test_an_exception_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Window, "on_result", lambda self, *arguments: 1 // 0, raising=False)
    monkeypatch.setattr(Session, "_finish", lambda self, sum_, now_us: 1 // 0)
    found = broken(small())
    assert found.what == "unhandled"
    assert "ZeroDivisionError" in found.detail


def test_an_exception_that_a_future_swallows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Session._finish

    def with_a_listener(self: Session, sum_: Any, now_us: int) -> None:
        sum_.future.add_done_callback(lambda _: 1 // 0)
        finish(self, sum_, now_us)

    monkeypatch.setattr(Session, "_finish", with_a_listener)
    assert "ZeroDivisionError" in broken(small()).detail


def test_wrong_counters_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Worker.receive

    def miscounted(self: Worker, bursts: Sequence[Any], now_us: int) -> None:
        receive(self, bursts, now_us)
        self._operations.under_way.in_flight += 1

    monkeypatch.setattr(Worker, "receive", miscounted)
    assert broken(small()).what in ("books", "left over", "hang")
