"""When results show what leaves the network, and when questions have to. (protocol sections 5.2 to 5.4)"""

from typing import NamedTuple

from sa_atp.protocol.rank.pace.probe_timer import ProbeTimer, on_news
from sa_atp.protocol.rank.pace.timing import MIN_TIMEOUT_US, RoundTrip, answer_us
from sa_atp.protocol.rank.pace.window import Window, on_left, on_results
from sa_atp.protocol.rank.sums.progress import NEVER, Transmissions
from sa_atp.protocol.rank.sums.under_way import UnderWay, acknowledge_up_to

QUESTIONS_A_WINDOW, LEAST_BETWEEN = 4, 2  # questions that ride behind a window's fragments, and fragments between two
LEAST_QUESTIONS = 32  # about late fragments may be on their way, or as many as the window has fragments
MEASURE_EVERY_US = 10_000  # the round trip, where questions have no other use: slots are full, and results come


def on_fresh_results(
    asking: "Asking", timer: ProbeTimer, window: Window, round_trip: RoundTrip, news: int, marked: int, collided: int,
    left: int, now_us: int,
) -> None:  # fmt: skip
    """Results have come that were not known: they show that the network works, and what has left it.

    Args: news, marked, collided, left: see window.on_results.
    """
    on_news(timer, now_us)
    asking.results_us = now_us
    on_results(window, news, marked, collided, now_us, round_trip.smoothed_us, left)


def on_left_by_answer(
    under_way: UnderWay, window: Window, round_trip: RoundTrip, behind: int, is_marked: bool, now_us: int
) -> None:
    """An answer shows what has left the network. Args: behind: the newest transmission when the question left."""
    left = acknowledge_up_to(under_way, behind)
    heard = max(left, 1)
    on_left(window, left, heard, heard if is_marked else 0, now_us, round_trip.smoothed_us)


def results_flow(asking: "Asking", round_trip: RoundTrip, now_us: int) -> bool:
    """Whether results come so often that they show what leaves the network; on slow links there is time between two."""
    return now_us - asking.results_us <= max(round_trip.smoothed_us // 2, MIN_TIMEOUT_US)


def is_lossy(asking: "Asking", sent: int) -> bool:
    """Something was lost among the latest transmissions. Args: sent: see UnderWay."""
    return sent < asking.lossy_until


def question_every(window: Window) -> int:
    """Transmissions that a question follows where no results come."""
    return max(LEAST_BETWEEN, int(window.network) // QUESTIONS_A_WINDOW)


def unasked(asking: "Asking", sent: int, out: int) -> int:
    """Transmissions in the network that no question has followed yet. Args: sent, out: see UnderWay."""
    return sent - max(asking.behind, out)


def until_question(asking: "Asking", window: Window, under_way: UnderWay) -> int:
    """Fragments that may leave before a question has to follow them, where no results come."""
    return max(1, question_every(window) - unasked(asking, under_way.sent, under_way.out))


def is_due_while_results_flow(
    asking: "Asking", window: Window, in_flight: int, network: int, out: int, lossy: bool, now_us: int
) -> bool:
    """Whether a question has to ride behind what has left, though results come.

    Args: in_flight, network: fragments in flight, and of these in the network, with what has just left; out: see UnderWay.
    """
    if asking.behind > out or network < int(window.network):
        return False
    return lossy or not is_full(window, in_flight) or now_us - asking.asked_us >= MEASURE_EVERY_US


def is_full(window: Window, in_flight: int) -> bool:
    """Whether all slots are taken: then nothing more may leave, whatever an answer says of the network."""
    return in_flight >= max(int(window.slots), LEAST_QUESTIONS)


def is_answer_late(
    asking: "Asking", round_trip: RoundTrip, window: Window, in_flight: int, waiting: int, lossy: bool, now_us: int
) -> bool:
    """Whether the newest question, or its answer, is lost; or while nothing may leave, none was asked for long.

    Args: in_flight: fragments; waiting: those whose answers are waited for.
    """
    late_us = answer_us(round_trip)
    if waiting == 0 and not lossy and is_full(window, in_flight) and results_flow(asking, round_trip, now_us):
        late_us = max(late_us, MEASURE_EVERY_US)
    return now_us - asking.asked_us > late_us


def room_for_questions(window: Window, waiting: int) -> int:
    """How many more fragments may be asked for. Args: waiting: those whose answers are waited for."""
    return max(int(window.network), LEAST_QUESTIONS) - waiting


def waits_for_answers(asking: "Asking", waiting: int) -> bool:
    """Questions have not been answered, and no results came since they left."""
    return asking.asked_us > asking.results_us and waiting > 0


def late_before_us(group: Transmissions, reordering_us: int) -> int:
    """Returns the time of sending before which fragments are late: one sent sufficiently later is complete. (RFC 8985)"""
    return max(group.newest_done_us - reordering_us, group.asked_before_us)


def is_late_news(group: Transmissions, before_us: int) -> bool:
    """Whether more may be late than has been asked for. Args: before_us: see late_before_us."""
    return group.in_flight != 0 and (before_us > group.asked_before_us or group.late_up_to > group.asked_up_to)


class Asking:
    """The times and transmissions of a connection's last questions and results: a record class (records.py)."""

    results_us: int
    """When results last came."""
    asked_us: int
    """When the newest question left."""
    behind: int
    """The newest transmission behind which a question has left."""
    lossy_until: int
    """The transmission up to which more losses are expected."""

    def __init__(self) -> None:
        self.results_us = self.asked_us = self.behind = self.lossy_until = NEVER


class Asked(NamedTuple):
    """A question that waits for an answer, or was asked meanwhile."""

    local: int
    asked_us: int
    behind: int
    """The newest transmission when it left."""
    flags: int
    """Its number among those about the fragment, as packets carry it."""
    is_answered: bool
