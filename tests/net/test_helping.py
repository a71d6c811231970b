"""A rank's side of help: its messages, and that two threads agree about what it holds. (protocol section 10.2)"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from sa_atp.net.helping import Helping, Work
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.packets.control import Reply, Request
from sa_atp.protocol.packets.help_messages import Assignment, WorkReport

ADDRESS = ("10.0.0.1", 1)
MICRO_BATCHES = 16


class Server:
    """A parameter server that records questions; the test answers them."""

    def __init__(self) -> None:
        self.now_us, self.answer_us = 1_000, 0
        self.asked: list[tuple[Request, Callable[[Reply | None], Any]]] = []
        member = Membership(
            job=1, epoch=0, rank=0, world_size=2, micro_batches=MICRO_BATCHES, lanes=64, slot_base=0, slot_count=64,
            first_seq=0, data_address=ADDRESS, server_address=ADDRESS, alive_every_us=1000,
        )  # fmt: skip
        self.helping = Helping(member, self.ask, lambda: self.now_us, lambda: self.answer_us)

    def ask(self, question: Request, understand: Callable[[Reply | None], Any]) -> "Future[Any]":
        self.asked.append((question, understand))
        return Future()

    def reports(self) -> list[WorkReport]:
        return [question for question, _ in self.asked if isinstance(question, WorkReport)]

    def revoke(self, step: int, held: int) -> None:
        self.helping.on_assigned(Assignment(step=step, revokes=held))

    def answer(self, number: int, reply: Reply | None) -> Any:
        return self.asked[number][1](reply)


def holds(until: int, *, over: bool = False, step: int = 0) -> Assignment:
    """An answer that leaves a rank so much of its own shard."""
    return Assignment(step=step, until=until, over=over)


def test_a_rank_that_holds_its_whole_shard_claims_nothing() -> None:
    server = Server()
    shard = server.helping.work(server.helping.begin_step())
    assert [shard.take() for _ in range(MICRO_BATCHES + 1)] == [*range(MICRO_BATCHES), None]
    assert not shard.may_get_more()
    assert server.asked == []


def test_revoked_micro_batches_are_not_begun_and_older_answers_are_ignored() -> None:
    server = Server()
    shard = server.helping.work(server.helping.begin_step())
    assert shard.take() == 0
    server.revoke(0, 0)
    assert shard.take() is None
    assert shard.may_get_more()
    server.revoke(0, 0)
    assert [(c.begun, c.held) for c in server.reports()] == [(1, 1), (1, 1)]
    more = shard.news
    server.answer(0, holds(9))
    assert shard.take() is None, "it has said something else since"
    server.answer(1, holds(2))
    assert more.done()
    assert (shard.take(), shard.take()) == (1, None)
    server.answer(2, holds(2, over=True))
    assert not shard.may_get_more()


def test_a_claim_in_flight_answers_an_earlier_revocation() -> None:
    """A new claim would void its answer, and the next answer would come a round trip later."""
    server = Server()
    shard = server.helping.work(server.helping.begin_step())
    assert shard.take() == 0
    server.revoke(0, MICRO_BATCHES)
    server.revoke(0, MICRO_BATCHES)
    assert [(c.begun, c.held) for c in server.reports()] == [(1, 1)]
    server.answer(0, holds(3))
    assert (shard.take(), shard.take()) == (1, 2)
    assert len(server.reports()) == 2, "it asks for more"
    server.revoke(0, 3)
    assert len(server.reports()) == 3, "that was asked by somebody who knows what it holds"
    server.answer(2, holds(3))
    server.revoke(0, MICRO_BATCHES)
    assert len(server.reports()) == 4, "that answer may have been to one that was overtaken"


def test_a_revocation_that_comes_before_the_step_leaves_nothing() -> None:
    server = Server()
    server.revoke(0, 0)
    assert [(c.begun, c.held, c.spent_us) for c in server.reports()] == [(0, 0, 0)]
    shard = server.helping.work(server.helping.begin_step())
    assert shard.take() is None
    for _ in range(3):
        server.helping.begin_step()
    server.revoke(0, 0)
    assert len(server.reports()) == 1, "and one of a step that is over says nothing"


@pytest.mark.parametrize(
    ("before", "sent_us", "is_idle", "held"),
    [(1, 1_000, True, 5), (1, 0, True, 5), (1, 1_000, False, 0), (1, 50_000, True, 0), (0, 1_000, True, 0)],
    ids=["waits", "waits, link not known", "is not done", "slow link", "first step"],
)
def test_a_rank_that_only_waits_for_the_last_sum_keeps_a_reserve(
    before: int, sent_us: int, is_idle: bool, held: int
) -> None:
    """Without one it would be idle for a round trip when that sum is there, which is long on a slow link."""
    server = Server()
    server.answer_us = 8_000
    helping = server.helping
    for _ in range(before + 1):
        step = helping.begin_step()
        helping.record_micro_batch(2_000)
    helping.record_sending(sent_us)
    if is_idle:
        helping.work(step).report_done()
    server.revoke(step + 2, 0)
    assert server.reports()[-1].held == 0, "that is not the next one"
    server.revoke(step + 1, 0)
    assert (server.reports()[-1].held, server.reports()[-1].spent_us) == (held, 0)
    shard = helping.work(helping.begin_step())
    assert [shard.take() for _ in range(held + 1)] == [*range(held), None]


def test_no_answer_before_the_step_is_over_counts_as_no() -> None:
    server = Server()
    shard = server.helping.work(server.helping.begin_step())
    server.revoke(0, 0)
    server.answer(0, None)
    assert not shard.may_get_more()


def test_a_revocation_leaves_a_reserve_for_a_round_trip() -> None:
    server = Server()
    server.answer_us = 8_000
    shard = server.helping.work(server.helping.begin_step())
    for _ in range(3):
        shard.take()
        server.now_us += 2_000
        shard.finish_micro_batch()
        server.helping.record_micro_batch(2_000)
    shard.take()
    server.revoke(0, 0)
    assert [(c.begun, c.held, c.took_us) for c in server.reports()] == [(4, 8, 2_000)]


def test_a_rank_that_becomes_slow_reports_it_once_before_its_next_micro_batch() -> None:
    server = Server()

    def computes(each_us: int) -> bool:
        if shard.take() is None:
            return False
        server.now_us += each_us
        shard.finish_micro_batch()
        server.helping.record_micro_batch(each_us)
        return True

    shard = server.helping.work(server.helping.begin_step())
    assert all(computes(1_000) for _ in range(3))
    shard = server.helping.work(server.helping.begin_step())
    assert computes(4_000)
    assert not computes(4_000), "others may be about to do it"
    assert [(c.step, c.begun, c.held, c.took_us) for c in server.reports()] == [(1, 1, 1, 4_000)]
    server.answer(0, holds(16))
    assert all(computes(4_000) for _ in range(3))
    assert len(server.reports()) == 1


def test_a_rank_that_gave_back_ends_only_after_the_servers_answer() -> None:
    """Otherwise its next message, that it is done, could come first, and nobody would do the work."""
    server = Server()
    server.helping.work(server.helping.begin_step()).take()
    server.helping.record_micro_batch(1_000)
    shard = server.helping.work(server.helping.begin_step())
    server.revoke(1, 0)
    server.answer(0, holds(2, over=True))
    assert shard.take() == 0
    shard.finish_micro_batch()
    server.helping.record_micro_batch(4_000)
    assert shard.take() is None, "it is slower, and leaves the second one to others"
    assert shard.may_get_more()
    waits = shard.news
    assert [(c.begun, c.held) for c in server.reports()][1:] == [(1, 1)]
    server.answer(1, holds(1, over=True))
    assert waits.done()
    assert not shard.may_get_more()


def test_advice_counts_from_the_next_step_on() -> None:
    server = Server()
    helping = server.helping
    step = helping.begin_step()
    helping.work(step).report_done()
    server.answer(0, Assignment(step=step, until=MICRO_BATCHES, hold=2, helps=True))
    assert helping.helps
    shard = helping.work(helping.begin_step())
    assert shard.take() == 0
    assert [(c.begun, c.held) for c in server.reports()][1:] == [(1, 2)], "who holds less says so at once"


def test_two_threads_agree_about_what_is_held() -> None:
    """One begins micro-batches, the other revokes and answers: no begun micro-batch is beyond the claim."""
    for _ in range(50):
        server = Server()
        shard = server.helping.work(server.helping.begin_step())
        begun: list[int] = []
        start = threading.Barrier(2)

        def compute(shard: Any = shard, begun: list[int] = begun, start: threading.Barrier = start) -> None:
            start.wait()
            while (m := shard.take()) is not None:
                begun.append(m)
                shard.finish_micro_batch()

        thread = threading.Thread(target=compute)
        thread.start()
        start.wait()
        server.revoke(0, 0)
        thread.join()
        assert len(begun) <= server.reports()[-1].held == server.reports()[0].held


def steps_of(server: Server, *took_us: int) -> None:
    """A step with micro-batches that took this long, without a report."""
    server.helping.begin_step()
    for each_us in took_us:
        server.helping.record_micro_batch(each_us)


def test_single_micro_batches_that_take_long_on_a_busy_host_are_no_slower_device() -> None:
    server = Server()
    steps_of(server, 8_000, 2_000, 4_000, 4_000)
    steps_of(server, 7_000)
    assert not server.helping.is_slower, "one took as long before"
    server.helping.record_micro_batch(16_000)
    assert server.helping.is_slower


def test_the_reported_duration_is_the_mean_of_the_last_three_micro_batches() -> None:
    server, told = Server(), []
    server.helping.begin_step()
    for each_us in (8_000, 2_000, 2_000, 8_000):
        server.helping.record_micro_batch(each_us)
        told.append(server.helping.report(0)["took_us"])
    assert told == [8_000, 5_000, 4_000, 4_000]
    assert server.helping.report(0)["took_us"] == 0, "nothing is new"
    server.helping.record_micro_batch(90_000, cut_off=True)
    server.helping.begin_step()
    assert server.helping.report(1)["took_us"] == 90_000
    server.helping.record_micro_batch(4_000)
    assert server.helping.report(1)["took_us"] == 4_000


def test_work_that_comes_twice_is_done_once_and_begins_at_the_end() -> None:
    """A call may be repeated because it was late. Owners begin at the other end of their shards."""
    server = Server()
    work = server.helping.work(server.helping.begin_step())
    news, told = work.news, Assignment(step=0, work=0b11_0000 << MICRO_BATCHES, copies=0b11 << MICRO_BATCHES)
    for _ in range(2):
        server.helping.on_assigned(told)
    assert news.done()
    assert [work.take_given() for _ in range(3)] == [Work(1, (5, 4), False), Work(1, (0, 1), True), None]
    work.offer(0, busy_us=0, progress=None)
    offer = server.reports()[-1].offer
    assert offer is not None
    assert offer.given == told.work | told.copies
