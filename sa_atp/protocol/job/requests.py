"""Requests to the parameter server: sent until they are answered, within a bound. (protocol section 9.1)"""

from collections.abc import Iterator
from dataclasses import dataclass

from sa_atp.protocol.packets.control import Request, encode

FIRST_INTERVAL_US = 20_000  # before there was an answer
LEAST_INTERVAL_US = 4_000  # busy hosts answer so much later now and then
LONGEST_INTERVAL_US = 200_000  # as often as a worker says that it lives
NEVER_US = 1 << 62
REMEMBERED = 64  # repeated requests; as many answers the server remembers
SMOOTHING, SMOOTHING_OF_DEVIATION, DEVIATIONS = 8, 4, 4  # the newest answer's weight is 1 in so many (RFC 6298)


@dataclass(slots=True)
class _Open:
    packet: bytes
    request: Request
    next_us: int
    interval_us: int
    deadline_us: int
    asked_us: int
    sent: int = 0  # times


class Requests:
    """The client's side: numbers requests, repeats them, matches replies."""

    def __init__(self, *, first_number: int) -> None:
        """Args: first_number: drawn at random, so that a reply to an earlier connection matches nothing."""
        self._number = first_number & 0xFFFFFFFF
        self._open: dict[int, _Open] = {}
        self.job = 0
        self.epoch = 0
        self.answer_us = 0
        """How long answers take to come, smoothed; 0: there was none yet."""
        self._deviation_us = 0
        self._backed_off_us = 0
        self._repeated: dict[int, int] = {}  # number: interval in the end; of those answered once so far

    def ask(self, request: Request, now_us: int, *, timeout_us: int | None) -> int:
        """Queues a request; returns its number. Args: timeout_us: None: it is sent until it is answered, or `bound`."""
        self._number = (self._number + 1) & 0xFFFFFFFF or 1
        packet = encode(request, request=self._number, job=self.job, epoch=self.epoch)
        deadline_us = NEVER_US if timeout_us is None else now_us + timeout_us
        self._open[self._number] = _Open(packet, request, now_us, self._interval_us(), deadline_us, now_us)
        return self._number

    def _interval_us(self) -> int:
        """When a request that is sent now should have been answered. (RFC 6298)"""
        if not self.answer_us:
            return FIRST_INTERVAL_US
        usual_us = max(LEAST_INTERVAL_US, self.answer_us + DEVIATIONS * self._deviation_us)
        return min(max(usual_us, self._backed_off_us), LONGEST_INTERVAL_US)

    def answered(self, number: int, now_us: int) -> Request | None:
        """The request that a reply with this number answers, once; None if it answers none."""
        found = self._open.pop(number, None)
        if found is None:
            # Repeated and answered twice: it was not lost, answers take longer. So the next is given longer, until one is
            # answered that was not repeated: else answers that take longer from now on would never be measured. One that
            # was lost says nothing of that.
            self._backed_off_us = max(self._backed_off_us, self._repeated.pop(number, 0))
            return None
        elapsed_us = max(1, now_us - found.asked_us)
        # of one that was repeated nobody knows which was answered (Karn); longer than all before it was not lost
        if found.sent <= 1 or elapsed_us < self.answer_us or not self.answer_us:
            self._learn(elapsed_us)
        if found.sent <= 1:
            self._backed_off_us = 0
            return found.request
        self._repeated[number] = found.interval_us
        if len(self._repeated) > REMEMBERED:
            del self._repeated[next(iter(self._repeated))]
        return found.request

    def _learn(self, elapsed_us: int) -> None:
        if not self.answer_us:
            self.answer_us, self._deviation_us = elapsed_us, elapsed_us // 2
            return
        error_us = elapsed_us - self.answer_us
        self._deviation_us += (abs(error_us) - self._deviation_us) // SMOOTHING_OF_DEVIATION
        self.answer_us += error_us // SMOOTHING

    def bound(self, number: int, deadline_us: int) -> None:
        """Asks until then, and no longer, if there is no answer yet."""
        if number in self._open:
            self._open[number].deadline_us = deadline_us

    def stood_still(self, stood_us: int) -> None:
        """Nobody could be asked for so long, or heard: that is no time in which they did not answer."""
        for each in self._open.values():
            each.deadline_us += stood_us

    def forget(self, number: int) -> None:
        self._open.pop(number, None)

    def due(self, now_us: int) -> Iterator[bytes]:
        """Datagrams to send now."""
        for each in self._open.values():
            if each.next_us <= now_us < each.deadline_us:
                each.next_us = now_us + each.interval_us
                each.sent += 1
                each.interval_us = min(2 * each.interval_us, LONGEST_INTERVAL_US)
                yield each.packet

    def expired(self, now_us: int) -> list[tuple[int, Request]]:
        """Requests whose time is up, with their numbers; they are forgotten."""
        late = [(number, r.request) for number, r in self._open.items() if r.deadline_us <= now_us]
        for number, _ in late:
            del self._open[number]
        return late

    def next_timer_us(self) -> int | None:
        return min((min(r.next_us, r.deadline_us) for r in self._open.values()), default=None)
