"""A window that a straggler cannot close: what leaves when no results come, and how much is asked. (sections 5.2 to 5.4)"""

import heapq
from collections.abc import Callable

import numpy as np
import pytest
from helpers.answers import SWITCH, answers_to, member_of, results_of
from helpers.cluster import Cluster, Reduction

from sa_atp.basics.arrays import ByteRows
from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.header import first_byte, headers, lanes_of, size_of
from sa_atp.protocol.packets.spec import Kind
from sa_atp.protocol.rank.events import WaitingFor
from sa_atp.protocol.rank.pace.window import INITIAL_WINDOW, MIN_WINDOW
from sa_atp.protocol.rank.recovery.asking import LEAST_QUESTIONS, QUESTIONS_A_WINDOW
from sa_atp.protocol.rank.worker import Worker
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.switches.embedded.pipeline import Pipeline

SLOTS = 512
MEMBER = member_of(slot_count=SLOTS, alive_every_us=100_000_000)
OURS, ALL = 0b01, 0b11
ONE_WAY_US = 500


class Leader:
    """A worker, and a switch that takes what it sends and answers what it asks. The other rank never sends."""

    def __init__(
        self, fragments: int, lost: Callable[[int, int], bool] = lambda seq, time: False, one_way_us: int = ONE_WAY_US
    ) -> None:
        """Args: lost: whether a fragment is lost on the way, when it is sent for the nth time, from 0."""
        self.now_us = 1_000_000
        self.worker = Worker(MEMBER, self.now_us, first_request=1)
        self.lost = lost
        self.one_way_us = one_way_us
        self.times: dict[int, int] = {}
        self.held: set[int] = set()
        self.sent_us: list[int] = []
        self.asked_us: list[int] = []
        self._arrivals: list[tuple[int, int, Burst]] = []
        self._count = 0
        operation = self.worker.collectives.begin(64 * fragments, None, self.now_us)
        self.worker.collectives.contribute(operation, [np.ones(64 * fragments, np.float32)], OURS, self.now_us)
        self.first = self._gather()
        """Of the data: what comes before are scales, whose sums have come."""

    def _gather(self) -> int:
        """The scales are known: all data may leave."""
        (burst,) = [b for b in self.worker.transmit(self.now_us) if b.data[0, 0] == first_byte(Kind.DATA)]
        result = results_of(burst.data, ALL)
        lanes_of(result.data)[:] = 0x7F7F7F
        self.worker.receive([result], self.now_us)
        self.now_us += 200_000  # nothing has come for long
        self.worker.window.network = float(INITIAL_WINDOW)
        return len(burst)

    def run(self, us: int) -> None:
        """Lets time pass, as a driver would."""
        end_us = self.now_us + us
        while True:
            self._transmit()
            due = [t for t in (self.worker.next_timer_us(), self._arrivals[0][0] if self._arrivals else None) if t]
            self.now_us = max(self.now_us, min([*due, end_us]))
            if self.now_us >= end_us:
                return
            while self._arrivals and self._arrivals[0][0] <= self.now_us:
                self.worker.receive([heapq.heappop(self._arrivals)[2]], self.now_us)
                self._transmit()
            self.worker.handle_timer(self.now_us)

    def result(self, seq: int) -> None:
        """The sum of a data fragment comes."""
        (operation,) = self.worker._operations.active()
        packet = np.zeros((1, size_of(Kind.RESULT, 64)), np.uint8)
        head = headers(packet)
        head["first"], head["bits"], head["seq"] = first_byte(Kind.RESULT), ALL, seq
        head["job"], head["epoch"], head["tag"] = MEMBER.job, MEMBER.epoch, operation.tag
        head["exponent"] = int(operation.exponent[0])
        self.worker.receive([Burst(SWITCH, packet)], self.now_us)

    def _transmit(self) -> None:
        while bursts := self.worker.transmit(self.now_us):
            for burst in bursts:
                head = headers(burst.data)
                if burst.data[0, 0] == first_byte(Kind.DATA):
                    for seq in head["seq"].tolist():
                        time = self.times.get(seq, 0)
                        self.times[seq] = time + 1
                        self.sent_us.append(self.now_us)
                        if not self.lost(seq, time):
                            self.held.add(seq)
                elif burst.data[0, 0] == first_byte(Kind.PROBE):
                    self._answer(burst.data)

    def _answer(self, asked: ByteRows) -> None:
        self.asked_us += [self.now_us] * len(asked)
        answers = answers_to(asked, [OURS if seq in self.held else 0 for seq in headers(asked)["seq"].tolist()])
        self._count += 1
        heapq.heappush(self._arrivals, (self.now_us + 2 * self.one_way_us, self._count, answers))

    @property
    def under_way(self) -> tuple[int, int]:
        """Fragments that are in flight, and those of them that may be in the network."""
        found = self.worker._operations.under_way
        return found.in_flight, found.in_network


def test_what_has_arrived_is_not_in_the_network() -> None:
    leader = Leader(2 * SLOTS)
    leader.run(1)
    assert leader.under_way == (INITIAL_WINDOW, INITIAL_WINDOW)
    leader.run(2 * ONE_WAY_US)
    in_flight, in_network = leader.under_way
    assert in_flight > in_network > 0
    leader.run(100_000)
    assert leader.under_way == (len(leader.held), 0)


def test_a_question_that_is_put_with_a_contribution_leaves_behind_it() -> None:
    """Else its answer says that nothing is there, and not how long it took."""
    leader = Leader(INITIAL_WINDOW)
    leader.worker.collectives.probe(0)
    leader.run(3 * ONE_WAY_US)
    waiting = leader.worker.next_event()
    assert isinstance(waiting, WaitingFor)
    assert waiting.missing_bits & OURS == 0
    assert waiting.progress.send_us >= 2 * ONE_WAY_US


def test_how_much_of_a_contribution_has_left() -> None:
    leader = Leader(2 * SLOTS)
    assert leader.worker.collectives.sent_share(0) == 0
    leader.run(1)
    assert leader.worker.collectives.sent_share(0) == INITIAL_WINDOW / (2 * SLOTS)
    leader.run(100_000)
    assert leader.worker.collectives.sent_share(0) == 0.5


def test_it_sends_up_to_the_slots_without_a_single_result() -> None:
    leader = Leader(2 * SLOTS)
    leader.run(20 * ONE_WAY_US)
    assert len(leader.held) == len(leader.sent_us) == SLOTS, "and nothing twice"


def test_the_window_grows_with_what_arrives() -> None:
    """Twice as many each round trip: slow start needs no results."""
    leader = Leader(2 * SLOTS)
    sent = []
    for _ in range(3):
        leader.run(2 * ONE_WAY_US)
        sent.append(len(leader.sent_us))
    assert sent[1] >= 2.5 * INITIAL_WINDOW
    assert leader.worker.window.network >= 3 * INITIAL_WINDOW


@pytest.mark.parametrize("one_way_us", [20_000, 60_000, 120_000, 300_000])
def test_a_long_way_looks_like_no_loss(one_way_us: int) -> None:
    """Longer than the longest time-out: a fragment is asked for again before the first answer comes."""
    leader = Leader(2 * SLOTS, one_way_us=one_way_us)
    for _ in range(4):
        leader.worker.window.network = 16.0  # so that it goes on sending
        leader.run(2 * one_way_us)
    leader.worker.window.network = float(INITIAL_WINDOW)
    leader.run(40 * one_way_us)
    assert set(leader.times.values()) == {1}, "nothing is sent twice"
    assert leader.worker.stats.lost_by_probe == 0
    assert leader.worker.window.network >= INITIAL_WINDOW
    assert leader.worker.round_trip.smoothed_us == pytest.approx(2 * one_way_us, rel=0.01)


@pytest.mark.parametrize("network", [MIN_WINDOW, 16, 64])
def test_questions_are_few(network: int) -> None:
    """So many a window, and none after everything has been sent but what silence brings on."""
    leader = Leader(2 * SLOTS)
    for _ in range(100):
        leader.worker.window.network = float(network)
        leader.run(2 * ONE_WAY_US)
    sent = len(leader.sent_us)
    assert sent >= min(SLOTS, 60 * network)
    every = max(2, network // QUESTIONS_A_WINDOW)
    assert len(leader.asked_us) <= sent / every + 25
    leader.worker.window.network = float(SLOTS)
    leader.run(100_000)
    before = len(leader.asked_us)
    leader.run(1_000_000)
    assert len(leader.asked_us) - before <= 30, "others are slow: nothing is to be found out"


def test_next_to_nothing_is_asked_while_results_come_and_the_slots_are_full() -> None:
    """An answer would let nothing more leave."""
    leader = Leader(6 * SLOTS)
    leader.run(50_000)
    assert leader.under_way[0] == SLOTS
    leader.worker.window.network = float(SLOTS)
    before, rounds = len(leader.asked_us), 4
    for first in range(leader.first, leader.first + rounds * SLOTS, SLOTS):
        for local in range(first, first + SLOTS):
            leader.result(local)
        leader.run(2000)  # all slots are free at once, and full again
    assert leader.under_way[0] == SLOTS
    assert len(leader.asked_us) - before <= rounds // 2, "not one a window"


@pytest.mark.parametrize(
    "lost", [{40}, {2, 3, 4}, {63}, {100, 101, 200, 500}, set(range(2, 400, 7)), set(range(2, 65))]
)
def test_what_is_lost_among_what_waits_is_found_without_results(lost: set[int]) -> None:
    """Two round trips after it was sent, where losses are known to happen."""
    leader = Leader(2 * SLOTS, lambda seq, time: time == 0 and seq in lost)
    leader.worker._prober.asking.lossy_until = 1 << 40
    while len(leader.times) < SLOTS:
        leader.run(2 * ONE_WAY_US)
        assert leader.now_us < 2_000_000
    leader.run(5 * ONE_WAY_US + len(lost) // LEAST_QUESTIONS * 2 * ONE_WAY_US)
    assert lost <= leader.held
    assert all(count == 1 + (seq in lost) for seq, count in leader.times.items()), "only what was lost is sent again"


def test_a_full_window_asks_again_though_older_results_come() -> None:
    """The questions behind it are lost, and there is no silence in which it would ask again."""
    leader = Leader(2 * SLOTS)
    leader.run(20 * ONE_WAY_US)
    worker = leader.worker
    under_way = worker._operations.under_way
    under_way.sent += 1000  # of which nothing is known
    under_way.in_flight += 1000
    worker.window.network = 16.0
    asked = len(leader.asked_us)
    for local in range(leader.first, leader.first + 40):
        leader.result(local)
        leader.run(300)
    assert len(leader.asked_us) > asked
    assert under_way.in_network < 1000


def test_each_fragment_is_asked_for_about_once_where_something_is_lost() -> None:
    leader = Leader(2 * SLOTS, lambda seq, time: time == 0 and seq % 50 == 1)
    leader.worker._prober.asking.lossy_until = 1 << 40
    leader.run(400_000)
    assert set(leader.times) == leader.held
    assert len(leader.asked_us) <= 1.3 * len(leader.sent_us) + 10


def test_a_switch_that_forgets_everything_gets_everything_again() -> None:
    leader = Leader(2 * SLOTS)
    leader.run(50_000)
    count = len(leader.held)
    leader.held.clear()
    leader.run(300_000)
    assert len(leader.held) == count
    assert all(times <= 2 for times in leader.times.values())


# --- on links -------------------------------------------------------------------------------------------------------------

MBPS = 100.0
FRAME_BITS = 8 * (1086 + 24)


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05])
def test_leaders_send_at_the_speed_of_their_links_whoever_is_slow(wide_pipeline: Pipeline, loss: float) -> None:
    fragments = 256
    cluster = Cluster(
        [wide_pipeline],
        seed=3,
        links=LinkSettings(rate_mbps=MBPS, loss=loss),
        settings=ServerSettings(lanes=256, slots=1024),
        ttl_ticks=100,
    )
    workers = cluster.joined_job(3)
    rng = np.random.default_rng(1)
    parts = [[rng.standard_normal(256 * fragments).astype(np.float32)] for _ in workers]
    for late in (False, True, True, True):  # the first one learns the scales
        reduction = Reduction(parts, key="tensor")
        for worker in workers[:2]:
            reduction.start(worker)
        if late:
            at_once_us = fragments * FRAME_BITS / MBPS
            cluster.run_for(1.3 * at_once_us / 1e6 + 0.004)
            for worker in workers[:2]:
                (group,) = worker.worker._operations[reduction.sums[worker.membership.rank].operation].groups
                assert group.fresh == 0
                assert group.high == group.plan.attempt_fragments
                held = np.count_nonzero(group.held) if loss else fragments
                assert held >= 0.97 * fragments, "and knows what has arrived"
            cluster.run_for(0.1)
        reduction.start(workers[2])
        cluster.finish_collectives([reduction], 20.0)
    cluster.check_books()
