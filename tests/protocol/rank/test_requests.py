"""When a request to the parameter server is sent again, and for how long. (protocol section 9.1)"""

from helpers.cluster import SECOND_US, Cluster

from sa_atp.protocol.job.requests import FIRST_INTERVAL_US, LEAST_INTERVAL_US, LONGEST_INTERVAL_US, Requests
from sa_atp.protocol.packets.help_messages import Assignment, WorkReport
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.switches.embedded.pipeline import Pipeline

LONG_US = 10_000_000


def asked(requests: Requests, now_us: int) -> int:
    return requests.ask(WorkReport(step=1, begun=1, held=1), now_us, timeout_us=LONG_US)


def sent_at(requests: Requests, until_us: int) -> list[int]:
    """When something leaves, from the next timer on."""
    times = []
    while (now_us := requests.next_timer_us()) is not None and now_us < until_us:
        times += [now_us] * len(list(requests.due(now_us)))
    return times


def after_answers(requests: Requests, *, each_us: int, count: int = 40) -> int:
    """Returns: when the last of so many answers, that took so long, has come."""
    for n in range(count):
        number = asked(requests, n * LONG_US)
        assert len(list(requests.due(n * LONG_US))) == 1
        assert requests.take_answer(number, n * LONG_US + each_us) is not None
    return count * LONG_US


def test_before_there_was_an_answer() -> None:
    requests = Requests(first_number=7)
    asked(requests, 0)
    assert sent_at(requests, 500_000) == [0, 20_000, 60_000, 140_000, 300_000]
    assert FIRST_INTERVAL_US == 20_000


def test_as_soon_as_an_answer_should_have_come() -> None:
    """A lost question costs what answers take here, not what they may take somewhere."""
    near, far = Requests(first_number=7), Requests(first_number=7)
    now_us = after_answers(near, each_us=300)
    asked(near, now_us)
    assert sent_at(near, now_us + 13_000) == [now_us, now_us + LEAST_INTERVAL_US, now_us + 3 * LEAST_INTERVAL_US]
    now_us = after_answers(far, each_us=50_000)
    asked(far, now_us)
    _, again_us = sent_at(far, now_us + 80_000)
    assert 50_000 <= again_us - now_us <= 60_000


def test_answers_that_take_longer_from_now_on_are_measured_again() -> None:
    """Of a repeated request nobody knows which was answered (Karn). Where it was answered again, the next one is given
    more time, until one is not repeated.
    """
    requests = Requests(first_number=7)
    now_us = after_answers(requests, each_us=300)
    repeated = []
    for _ in range(12):
        number = asked(requests, now_us)
        repeated.append(len(sent_at(requests, now_us + 30_000)) - 1)
        assert requests.take_answer(number, now_us + 30_000) is not None
        for _ in range(repeated[-1]):
            assert requests.take_answer(number, now_us + 60_000) is None
        now_us += LONG_US
    assert repeated[0] == 3  # after 4, 12 and 28 ms
    assert repeated[1:3] == [0, repeated[2]]
    assert repeated[-1] == 0
    assert requests.answer_us > 10_000


def test_one_that_was_lost_gives_the_next_no_longer() -> None:
    """Else each loss would make the next one dearer, up to 200 ms where an answer takes 3."""
    requests = Requests(first_number=7)
    now_us = after_answers(requests, each_us=300)
    for _ in range(5):
        number = asked(requests, now_us)
        assert [at_us - now_us for at_us in sent_at(requests, now_us + 13_000)] == [0, 4_000, 12_000]
        assert requests.take_answer(number, now_us + 13_000) is not None, "the last of them was not lost"
        now_us += LONG_US


def test_a_bound_on_how_rarely() -> None:
    requests = Requests(first_number=7)
    now_us = after_answers(requests, each_us=900_000, count=1)
    asked(requests, now_us)
    first, again_us, *_ = sent_at(requests, now_us + 1_000_000)
    assert again_us - first == LONGEST_INTERVAL_US


def test_a_question_about_help_waits_for_its_answer_as_long_as_its_step_lasts(pipelines: list[Pipeline]) -> None:
    """The ledger decides when it hears the question. Who had given up by then would not do what is its own."""
    cluster = Cluster(pipelines[:1])
    worker, _ = cluster.start_job(2, micro_batches=4, help_grade=HelpGrade.STEAL)
    cluster.run_until_joined([worker])
    cluster.world.pause_host(cluster.world.server_host, 9 * SECOND_US)
    earlier, claim = (worker.ask(WorkReport(step=step, begun=1, held=1), lambda reply: reply) for step in (3, 4))
    cluster.run_for(8.0)
    assert (earlier.result(timeout=0), claim.done()) == (None, False)
    cluster.run(claim.done, 2.0)
    assert isinstance(claim.result(timeout=0), Assignment)
    assert worker.error is None
