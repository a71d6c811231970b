"""What the answer to a probe leads to, what order tells, and who is asked: sections 5.3 and 5.4 as tables."""

from collections.abc import Sequence

import numpy as np
import pytest
from helpers.answers import SWITCH, answers_to, member_of
from msgspec.structs import replace

from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.header import HEADER, LANE, first_byte, headers, lanes_of, size_of
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.question_numbers import QUESTION_NUMBERS
from sa_atp.protocol.packets.spec import Flag, Kind
from sa_atp.protocol.rank.connection import Connection
from sa_atp.protocol.rank.events import WaitingFor, WorkerLimits
from sa_atp.protocol.rank.pace.timing import INITIAL_RTT_US, answer_us, timeout_us
from sa_atp.protocol.rank.pace.window import INITIAL_WINDOW
from sa_atp.protocol.rank.recovery.probing import MAX_QUESTIONS, Prober
from sa_atp.protocol.rank.recovery.recovery import Recovery
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.operation import UNKNOWN, Operation
from sa_atp.protocol.rank.worker import Worker

MEMBER = member_of(micro_batches=4, first_seq=100)
OURS, ALL = 0b1111, 0b1111_1111
VALUES = 700  # a scale fragment, and eleven of data
DATA = range(1, 12)
LATER_US = INITIAL_RTT_US // 4  # this much later is sufficiently later, see section 5.3
Questioned = np.void  # a probe's header


class Asker:
    """Recovery with all that it shares, and operations whose data may be sent."""

    def __init__(self, operations: int = 1, parts: int = 4, member: Membership = MEMBER) -> None:
        connection = Connection(member, 0, WorkerLimits(operation_timeout_us=10_000_000))
        self.stats, self.path, self.window = connection.stats, connection.round_trip, connection.window
        self.probe_timer, self.book = connection.probe_timer, connection.operations
        self.prober = Prober(connection)
        self.recovery = Recovery(connection, self.prober)
        self.groups: list[ContributionGroup] = []
        for _ in range(operations):
            index = self.book.begin(VALUES, None)
            self.book.open_waiting()
            found = self.book[index]
            group = ContributionGroup(
                found.plan, OURS, [np.ones(VALUES, np.float32)] * parts, MEMBER.contributions, on_behalf=False,
                under_way=self.book.under_way,
            )  # fmt: skip
            found.add(group)
            found.on_results(0, 0, np.full((1, 64), 127, LANE))
            assert found.exponent[0] != UNKNOWN
            self.groups.append(group)

    @property
    def operation(self) -> Operation:
        return self.book[0]

    def send(self, count: int, now_us: int, n: int = 0) -> None:
        group, found = self.groups[n], self.book[n]
        for first, end in group.take(1000, count, found.plan.span, found.pending):
            group.on_sent(first, end, now_us, 100)

    def result(self, first: int, end: int) -> None:
        self.operation.on_results(first, int(self.operation.exponent[0]), np.ones((end - first, 64), LANE))

    def answer(
        self, local: int, held: int, now_us: int, flags: int = 0, *, question: Questioned | None = None
    ) -> WaitingFor | None:
        """Args: question: the probe to answer; None: the first one about this fragment."""
        head = np.zeros(1, HEADER)
        head["seq"] = self.operation.first_seq + local
        head["flags"] = flags if question is None else flags | int(question["flags"])
        return self.recovery.on_answer(head[0], held, self.operation, now_us)

    def ask(self, local: int, now_us: int) -> Questioned:
        """Asks for a fragment of the first operation. Returns: the probe."""
        self.asked()
        self.prober.ask(self.operation, local, now_us)
        (burst,) = self.prober.packets
        probe: Questioned = headers(burst.data)[0]
        return probe

    def asked(self) -> list[int]:
        """Sequence numbers that are asked for."""
        seqs = [int(seq) for burst in self.prober.packets for seq in headers(burst.data)["seq"]]
        self.prober.packets.clear()
        return seqs

    def places(self) -> list[int]:
        """The fragments of the first operation that are asked for."""
        return sorted(seq - self.operation.first_seq for seq in self.asked())

    def lost(self) -> set[int]:
        return set(np.flatnonzero(self.groups[0].marked_lost).tolist())


# --- what an answer leads to
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "lost", "asked", "leads"),
    [
        (0, {3}, True, None),  # not there, and what was sent around it may not be there either
        (ALL & ~OURS, {3}, True, None),
        (ALL, {3}, True, None),  # complete, and we have not heard: the switch answers with the result
        (OURS, set(), False, ALL & ~OURS),  # all that is missing is others' work
        (OURS | 0b0001_0000, set(), False, 0b1110_0000),
        (0b0001, {3}, True, None),  # somebody else has added a part of it: this one fragment without that part
        (0b0111_0111, {3}, True, None),
    ],
)
def test_a_slots_contents_show_what_is_lost(held: int, lost: set[int], asked: bool, leads: int | None) -> None:
    asker = Asker()
    asker.send(100, 1_000)
    asker.probe_timer.timeouts = 3
    asker.prober.ask(asker.operation, 3, 2_000)
    asker.asked()
    found = asker.answer(3, held, 3_000)
    assert asker.lost() == lost
    assert asker.groups[0].in_flight == len(DATA) - len(lost)
    assert asker.stats.lost_by_probe == len(lost)
    assert asker.window.network == INITIAL_WINDOW + len(DATA), "they have left the network, and no queue has lost one"
    assert asker.probe_timer.timeouts == (0 if lost else 3), "only what was found out makes questions urgent again"
    assert (found and found.missing_bits) == leads
    assert asker.operation.held_bits == held
    assert asker.path.samples == 1
    assert asker.answer(3, 0, 4_000) is None
    assert asker.lost() == lost, "what is not asked any more is not answered"
    assert asker.path.samples == 1
    asker.recovery.find_losses(asker.book.active(), 4_000)
    assert asker.places() == ([n for n in DATA if n != 3] if asked else []), "each of the others may be there or not"


def test_fragments_sent_after_the_question_are_not_lost() -> None:
    asker = Asker()
    asker.send(4, 1_000)
    asker.send(1, 2_000)
    asker.prober.ask(asker.operation, 1, 2_000)
    asker.send(100, 2_001)
    asker.asked()
    asker.answer(1, 0, 3_000)
    assert asker.lost() == {1}
    asker.recovery.find_losses(asker.book.active(), 3_000)
    assert asker.places() == [2, 3, 4, 5], "sent at the time of the question, before it left"


@pytest.mark.parametrize(("sent", "leads"), [("before", True), ("after", False), ("never", False)])
def test_only_a_worker_that_sent_before_it_asked_can_lead(sent: str, leads: bool) -> None:
    """Others may have sent under its bits."""
    asker = Asker()
    if sent == "before":
        asker.send(100, 2_000)
    asker.prober.ask(asker.operation, 1, 2_000)
    if sent == "after":
        asker.send(100, 2_000)
    assert (asker.answer(1, OURS, 3_000) is not None) == leads


def test_how_far_a_leader_is_and_how_long_it_took() -> None:
    asker = Asker()
    asker.send(11, 1_000)
    asker.result(6, 12)
    asker.prober.ask(asker.operation, 1, 2_000)
    found = asker.answer(1, OURS, 3_000)
    assert found is not None
    assert found.progress.pending == 5 / 11
    assert found.progress.send_us == 2_000


def test_a_contribution_of_which_a_part_was_sent_again_tells_no_pace() -> None:
    """With losses a link at 250 Mbit/s seemed to be as slow as one at 60, so that others were given its worker's shard."""
    asker = Asker()
    asker.send(11, 1_000)
    asker.prober.ask(asker.operation, 1, 2_000)
    asker.answer(1, 0, 3_000)
    asker.send(1, 4_000)
    found = asker.answer(1, OURS, 6_000, question=asker.ask(1, 5_000))
    assert found is not None
    assert found.progress.send_us == 0


@pytest.mark.parametrize(
    ("help_grade", "sent", "results", "asked"),
    [
        (HelpGrade.STEAL, len(DATA), False, True),
        (HelpGrade.NONE, len(DATA), False, False),  # nobody counts on it
        (HelpGrade.STEAL, len(DATA) - 1, False, False),  # there is more to leave
        (HelpGrade.STEAL, len(DATA), True, False),  # results show when it is there
    ],
)
def test_a_worker_that_may_be_helped_measures_how_long_its_contribution_takes_to_leave(
    help_grade: HelpGrade, sent: int, results: bool, asked: bool
) -> None:
    asker = Asker(member=replace(MEMBER, help_grade=help_grade))
    asker.send(sent, 1_000_000)
    if results:
        asker.prober.asking.results_us = 1_000_000
    asker.prober.on_sent(asker.operation, DATA[sent - 1], 1_000_000)
    asked_once = len(asker.prober.packets)
    for _ in range(2):
        asker.prober.on_nothing_to_send(1_000_000)
    assert len(asker.prober.packets) == asked_once, "once is enough"
    probes_ = [headers(burst.data)[0] for burst in asker.prober.packets]
    found = [asker.answer(DATA[sent - 1], OURS, 1_005_000, question=probe) for probe in probes_]
    assert [each.progress.send_us for each in found if each is not None] == ([5_000] if asked else [])


def test_the_time_to_leave_is_measured_after_kernels_sent_the_end() -> None:
    asker = Asker(member=replace(MEMBER, help_grade=HelpGrade.STEAL))
    asker.send(len(DATA), 1_000_000)
    asker.prober.take_sent(asker.operation, DATA[-1])
    assert asker.places() == []
    asker.prober.on_nothing_to_send(1_001_000)
    assert asker.places() == [DATA[-1]]
    asker.prober.on_nothing_to_send(1_002_000)
    assert asker.places() == []


def test_a_part_added_by_others_is_probed_in_every_fragment_once() -> None:
    """Only each fragment's slot can tell; an answer that is no news leads to no more probes."""
    asker = Asker()
    asker.send(100, 1_000)
    asker.prober.ask(asker.operation, 3, 20_000)
    asker.asked()
    asker.answer(3, 0b0001, 21_000)
    assert asker.places() == [n for n in DATA if n != 3]
    asker.answer(4, 0b0001, 21_500)
    assert asker.lost() == {3, 4}
    assert asker.asked() == [], "the others have been asked a moment ago"
    asker.send(2, 21_600)
    again = asker.ask(3, 21_700)
    asker.asked()
    asker.answer(3, 0b0001, 22_000, question=again)
    assert asker.asked() == []
    assert asker.lost() == {3}, "as before: our rest has not arrived"


def test_one_array_for_all_contributions_is_in_a_sum_as_a_whole() -> None:
    asker = Asker(parts=1)
    asker.send(100, 1_000)
    asker.prober.ask(asker.operation, 3, 2_000)
    asker.asked()
    asker.answer(3, 0b0001, 3_000)
    assert asker.lost() == {3}
    assert asker.asked() == []


def test_answers_measure_the_path_unless_the_parameter_server_gave_them() -> None:
    asker = Asker()
    asker.send(100, 1_000)
    asker.prober.ask(asker.operation, 1, 2_000)
    asker.prober.ask(asker.operation, 2, 2_000)
    asker.answer(1, OURS, 9_000, Flag.FROM_PS)
    assert asker.path.samples == 0
    asker.answer(2, OURS, 2_700)
    assert (asker.path.samples, asker.path.smoothed_us) == (1, 700)


def test_an_answer_about_a_known_sum_only_measures_the_path() -> None:
    asker = Asker()
    asker.send(100, 1_000)
    asker.prober.ask(asker.operation, 1, 2_000)
    asker.result(1, 2)
    assert asker.answer(1, 0, 2_500) is None
    assert (asker.lost(), asker.path.samples) == (set(), 1)


# --- which question is answered
# -------------------------------------------------------------------------------------------


def test_several_questions_about_a_fragment_are_told_apart() -> None:
    """On a long path several are under way. Each answer describes the time and round trip of its own question."""
    asker = Asker()
    asker.send(100, 1_000)
    first, second = asker.ask(3, 2_000), asker.ask(3, 102_000)
    asker.answer(3, 0, 242_000, question=first)
    assert (asker.lost(), asker.path.smoothed_us) == ({3}, 240_000)
    asker.send(1, 243_000)
    third = asker.ask(3, 244_000)
    asker.answer(3, 0, 342_000, question=second)
    assert asker.lost() == set(), "it was sent again after that question"
    assert asker.path.smoothed_us == 240_000
    found = asker.answer(3, OURS, 484_000, question=third)
    assert found is not None
    assert asker.lost() == set()
    assert (asker.path.samples, asker.path.smoothed_us) == (3, 240_000)


def test_where_no_switch_aggregates_the_servers_answers_measure_the_path() -> None:
    """Contributions go to it. With an estimate of 2 ms in place of 100, everything would be asked for again and again."""
    asker = Asker(member=replace(MEMBER, levels=0))
    asker.send(100, 1_000)
    asker.answer(3, OURS, 102_000, Flag.FROM_PS, question=asker.ask(3, 2_000))
    assert asker.path.smoothed_us == 100_000
    assert asker.path.empty_share == 1.0
    assert answer_us(asker.path) > 100_000


def test_an_answer_after_its_time_out_is_taken_all_the_same() -> None:
    """The parameter server's answers always come after the switch's to later questions."""
    asker = Asker()
    asker.send(100, 1_000)
    asked = asker.ask(3, 2_000)
    other = asker.ask(4, 10_000)
    asker.answer(4, OURS, 11_000, question=other)
    again = asker.ask(3, 11_000)
    asker.answer(3, 0, 52_000, Flag.FROM_PS, question=asked)
    assert asker.lost() == {3}
    asker.send(1, 53_000)
    asker.answer(3, 0, 61_000, Flag.FROM_PS, question=again)
    assert asker.lost() == set(), "it was sent again after that question"


def test_answers_to_questions_of_before_show_no_loss_of_what_was_sent_again_since() -> None:
    asker = Asker()
    asker.send(100, 1_000)
    asked = [asker.ask(3, 2_000 + n) for n in range(QUESTION_NUMBERS - 1)]
    assert len({int(question["flags"]) for question in asked}) == len(asked)
    asker.groups[0].mark_lost(np.array([3]))
    asker.send(1, 50_000)
    last = asker.ask(3, 60_000)
    asker.answer(3, 0, 70_000, question=asked[0])
    assert asker.lost() == set()
    asker.answer(3, 0, 100_000, question=last)
    assert asker.lost() == {3}


def test_a_later_question_also_answers_an_earlier_one() -> None:
    asker = Asker()
    asker.send(4, 1_000)
    asker.ask(1, 2_000)
    asker.asked()
    asker.send(7, 3_000)
    asker.result(8, 9)
    asker.groups[0].ask_again_us[:] = 0
    asker.recovery.find_losses(asker.book.active(), 50_000)
    (again,) = [
        row
        for burst in asker.prober.packets
        for row in headers(burst.data)
        if row["seq"] == asker.operation.first_seq + 1
    ]
    assert asker.answer(1, OURS, 51_000, question=again) is not None


# --- what order tells
# -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("later_us", "again", "asked"),
    [
        (LATER_US - 1, False, []),
        (LATER_US, False, []),
        (LATER_US + 1, False, [1, 2, 3, 4]),
        (10 * LATER_US, True, []),  # sent twice: which of the two came back?
    ],
)
def test_fragments_sent_sufficiently_earlier_are_asked_for(later_us: int, again: bool, asked: list[int]) -> None:
    """They are late; the switch knows whether they are lost, or another worker's contributions are."""
    asker = Asker()
    asker.send(4, 1_000)
    asker.send(4, 1_000 + later_us)
    if again:
        asker.groups[0].mark_lost(np.arange(5, 9))
        asker.send(4, 1_000 + later_us)
    asker.result(5, 9)
    asker.recovery.find_losses(asker.book.active(), 100_000)
    assert asker.places() == asked
    asker.recovery.find_losses(asker.book.active(), 100_000)
    assert asker.places() == [], "once"
    for local in asked:
        asker.answer(local, OURS if local % 2 else 0, 101_000)
    assert asker.lost() == {local for local in asked if local % 2 == 0}
    assert asker.stats.lost_by_order == 0
    assert asker.probe_timer.timeouts == 0


@pytest.mark.parametrize("known", [True, False])
def test_a_question_that_is_overdue_shows_a_loss_only_while_the_sum_is_not_known(known: bool) -> None:
    """If it is known, the slot may have another owner, and the parameter server answers, later than the switch."""
    asker = Asker()
    asker.send(8, 1_000)
    early, late = asker.ask(3, 2_000), asker.ask(8, 8_000)
    asker.asked()
    if known:
        asker.result(1, 4)
    asker.answer(8, OURS, 10_000, question=late)
    assert asker.prober.expects_losses != known
    asker.recovery.find_losses(asker.book.active(), 10_000)
    assert bool(asker.asked()) != known
    assert asker.answer(3, ALL, 50_000, Flag.FROM_PS, question=early) is None
    assert asker.lost() == (set() if known else {3})


# --- who is asked
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "known", "asked"),
    [
        ((0,), 0, [1]),  # the oldest of all, though we have sent nothing: it may be complete
        ((1,), 0, [1]),
        ((5,), 0, [1, 5]),  # the oldest and the newest that were sent
        ((11,), 4, [5, 11]),
        ((5, 5, 5), 0, [1, 5, 25, 29, 49, 53]),
        ((5, 0, 5), 0, [1, 5, 49, 53]),  # of the second nothing is under way
        ((0, 0, 5), 0, [1, 49, 53]),
    ],
)
def test_after_a_silence_the_ends_of_each_operation_are_asked_for(
    sent: Sequence[int], known: int, asked: list[int]
) -> None:
    asker = Asker(len(sent))
    for n, count in enumerate(sent):
        if count:
            asker.send(count, 1_000, n)
    if known:
        asker.result(1, 1 + known)
    asker.prober.ask_around(asker.book.active(), 2_000)
    assert [seq - MEMBER.first_seq for seq in sorted(asker.asked())] == asked


def test_the_questions_after_a_silence_are_bounded() -> None:
    asker = Asker(21)
    for n in range(21):
        asker.send(8, 1_000, n)
    asker.prober.ask_around(asker.book.active(), 2_000)
    assert len(asker.asked()) == 2 * 21 < MAX_QUESTIONS
    for n in range(21):  # second groups, that have sent something else
        found = asker.book[n]
        more = ContributionGroup(
            found.plan, ALL & ~OURS, [np.ones(VALUES, np.float32)], 8, on_behalf=True, under_way=asker.book.under_way
        )
        found.add(more)
        more.take(1000, 100, found.plan.span, found.pending)
        more.on_sent(2, 8, 1_500, 100)
    asker.prober.ask_around(asker.book.active(), 3_000)
    assert MAX_QUESTIONS <= len(asker.asked()) < MAX_QUESTIONS + 4


# --- in a worker
# ----------------------------------------------------------------------------------------------------------

FIRST_US = 6_000  # silence on a path that nothing is known of


def packets(worker: Worker, now_us: int, kind: Kind) -> np.ndarray:
    """Headers of what leaves now, of this kind."""
    found = [np.empty(0, HEADER)]
    while bursts := worker.transmit(now_us):
        found += [headers(b.data).copy() for b in bursts if b.data[0, 0] == first_byte(kind)]
    return np.concatenate(found).astype(HEADER)


def scale_result(worker: Worker, sent: np.ndarray, now_us: int, *, epoch: int = 1) -> None:
    packet = np.zeros((1, size_of(Kind.RESULT, 64)), np.uint8)
    head = headers(packet)
    head[:] = sent[:1]
    head["first"], head["bits"], head["epoch"] = first_byte(Kind.RESULT), ALL, epoch
    lanes_of(packet)[:] = 127
    worker.receive([Burst(SWITCH, packet)], now_us)


def contribute_ones(worker: Worker, now_us: int) -> None:
    """Begins a sum of VALUES values, and contributes this rank's part of it."""
    operation = worker.collectives.begin(VALUES, None, now_us)
    worker.collectives.contribute(operation, [np.ones(VALUES, np.float32)] * 4, OURS, now_us)


@pytest.mark.parametrize(
    ("arrives", "wait_us"),
    [
        (None, 4 * FIRST_US),
        ("reply: held", 4 * FIRST_US),
        ("reply: lost", FIRST_US),  # and sent again
        ("result", FIRST_US),  # and data sent
        ("stale result", 4 * FIRST_US),
    ],
)
def test_a_worker_asks_after_each_probe_timer(
    arrives: str | None, wait_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two silences of 6 and 12 ms; then something arrives, and the next one begins."""
    worker = Worker(MEMBER, 0, first_request=1)
    worker.handle_timer(0)
    now_us = 1_000_000
    contribute_ones(worker, now_us)
    now_us += 3_000
    sent = packets(worker, now_us, Kind.DATA)
    assert len(sent) == 1
    for waited_us in (FIRST_US, 2 * FIRST_US):
        assert not len(packets(worker, now_us + waited_us - 1, Kind.PROBE))
        worker.handle_timer(now_us + waited_us - 1)
        assert not len(packets(worker, now_us + waited_us - 1, Kind.PROBE)), "too early"
        now_us += waited_us
        assert worker.next_timer_us() is not None
        worker.handle_timer(now_us)
        asked = packets(worker, now_us, Kind.PROBE)
        assert asked["seq"].tolist() == sent["seq"].tolist()
        worker.handle_timer(now_us)
        assert not len(packets(worker, now_us, Kind.PROBE)), "twice for one silence"
    monkeypatch.setattr(worker.round_trip, "time_answer", lambda _: None)  # the path stays as it is
    silent_us = now_us
    if arrives and arrives.startswith("reply"):
        probes = asked.view(np.uint8).reshape(len(asked), -1)
        worker.receive([answers_to(probes, OURS if arrives == "reply: held" else 0)], now_us)
    elif arrives:
        scale_result(worker, sent, now_us, epoch=2 if arrives == "stale result" else 1)
    again = packets(worker, now_us, Kind.DATA)
    assert len(again) == {"reply: lost": 1, "result": 11}.get(arrives or "", 0)
    worker.handle_timer(silent_us + wait_us - 1)
    assert not len(packets(worker, silent_us + wait_us - 1, Kind.PROBE))
    worker.handle_timer(silent_us + wait_us)
    assert len(packets(worker, silent_us + wait_us, Kind.PROBE))


def test_a_result_that_is_known_ends_no_probe_timer() -> None:
    worker = Worker(MEMBER, 0, first_request=1)
    now_us = 1_000_000
    contribute_ones(worker, now_us)
    sent = packets(worker, now_us, Kind.DATA)
    scale_result(worker, sent, now_us + 3_000)
    assert len(packets(worker, now_us + 3_000, Kind.DATA)) == 11
    due_us = now_us + 3_000 + timeout_us(worker.round_trip)
    scale_result(worker, sent, due_us - 1)
    assert worker.stats.duplicates == 1
    worker.handle_timer(due_us)
    assert len(packets(worker, due_us, Kind.PROBE))


def test_a_worker_that_had_nothing_to_send_has_not_been_silent() -> None:
    worker = Worker(MEMBER, 0, first_request=1)
    contribute_ones(worker, 1_000_000)
    worker.handle_timer(1_000_000)
    assert not len(packets(worker, 1_000_000, Kind.PROBE))
