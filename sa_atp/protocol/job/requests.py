"""Requests to the parameter server: repeated until they are answered, within a bound. (protocol section 9.1)"""

from dataclasses import dataclass

from sa_atp.protocol.packets.control import Request, encode

FIRST_INTERVAL_US = 20_000  # until an answer has been measured
LEAST_INTERVAL_US = 4_000  # busy hosts may answer so much later
LONGEST_INTERVAL_US = 200_000  # between two signs of life
NEVER_US = 1 << 62
REMEMBERED = 64  # repeated requests; the server remembers as many answers
SMOOTHING, SMOOTHING_OF_DEVIATION, DEVIATIONS = 8, 4, 4  # of the round trip (RFC 6298)


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
        """Args: first_number: random, so that a reply to an earlier connection matches no request."""
        self._number = first_number & 0xFFFFFFFF
        self._open: dict[int, _Open] = {}
        self.job = 0
        self.epoch = 0
        self.answer_us = 0
        """Smoothed time that an answer takes; 0: there was none yet."""
        self._deviation_us = 0
        self._backed_off_us = 0
        self._repeated: dict[int, int] = {}  # repeated requests with one answer so far: their last interval

    def ask(self, request: Request, now_us: int, *, timeout_us: int | None) -> int:
        """Queues a request; returns its number. Args: timeout_us: None: it has no deadline until `set_deadline`."""
        self._number = (self._number + 1) & 0xFFFFFFFF or 1
        packet = encode(request, request=self._number, job=self.job, epoch=self.epoch)
        deadline_us = NEVER_US if timeout_us is None else now_us + timeout_us
        self._open[self._number] = _Open(packet, request, now_us, self._interval_us(), deadline_us, now_us)
        return self._number

    def _interval_us(self) -> int:
        """Retransmission time-out of a request that is sent now. (RFC 6298)"""
        if not self.answer_us:
            return FIRST_INTERVAL_US
        usual_us = max(LEAST_INTERVAL_US, self.answer_us + DEVIATIONS * self._deviation_us)
        return min(max(usual_us, self._backed_off_us), LONGEST_INTERVAL_US)

    def take_answer(self, number: int, now_us: int) -> Request | None:
        """Takes a reply, and removes the request that it answers. Returns: the request; None: there is none."""
        found = self._open.pop(number, None)
        if found is None:
            # A second answer to a repeated request: it was not lost, answers take longer. Later requests get a longer
            # interval until one is answered without repetition; else the longer times would never be measured.
            self._backed_off_us = max(self._backed_off_us, self._repeated.pop(number, 0))
            return None
        elapsed_us = max(1, now_us - found.asked_us)
        # a repeated request gives no measurement (Karn), except that a shorter time than usual is one in any case
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

    def set_deadline(self, number: int, deadline_us: int) -> None:
        """Gives an unanswered request a deadline."""
        if number in self._open:
            self._open[number].deadline_us = deadline_us

    def discount_standstill(self, stood_us: int) -> None:
        """Extends deadlines by a time in which this process did not run."""
        for each in self._open.values():
            each.deadline_us += stood_us

    def forget(self, number: int) -> None:
        self._open.pop(number, None)

    def due(self, now_us: int) -> list[bytes]:
        """Datagrams to send now."""
        found: list[bytes] = []
        for each in self._open.values():
            if each.next_us <= now_us < each.deadline_us:
                each.next_us = now_us + each.interval_us
                each.sent += 1
                each.interval_us = min(2 * each.interval_us, LONGEST_INTERVAL_US)
                found.append(each.packet)
        return found

    def expired(self, now_us: int) -> list[tuple[int, Request]]:
        """Removes and returns requests whose deadline has passed, with their numbers."""
        late = [(number, r.request) for number, r in self._open.items() if r.deadline_us <= now_us]
        for number, _ in late:
            del self._open[number]
        return late

    def next_timer_us(self) -> int | None:
        return min(min(r.next_us, r.deadline_us) for r in self._open.values()) if self._open else None
