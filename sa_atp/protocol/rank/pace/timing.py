"""How long is long: the path's round trip, and when to ask what happened. (protocol section 5.4)

Results cannot be timed like acknowledgements: they come when the last worker has sent, which may be a straggler. Only
answers to probes measure the path, and results bound it from above, so the estimate takes probes as they are and results
only when they are faster.
"""

INITIAL_RTT_US = 2_000
MIN_TIMEOUT_US = 2_000  # a software switch and a busy host answer in less, but not reliably in much less
MAX_TIMEOUT_US = 100_000
LONGEST_PS_ROUND_TRIP_US = 500_000
PS_ROUND_TRIP_REMEMBERED_US = 1_000_000
LEAST_OF_SAMPLES = 1024  # the empty path's round trip is the least of so many, and of up to as many before
LONGEST_US = 1 << 40
LEAST_REORDERING_US = 250
LEAST_QUEUE_US = 4_000  # a busy host answers that much later now and then (as RFC 9406, section 4.3)


def sample(path: "RoundTrip", elapsed_us: int) -> None:
    """Takes a time into the estimate. (RFC 6298)"""
    if path.samples == 0:
        path.smoothed_us = elapsed_us
        path.deviation_us = elapsed_us // 2
    else:
        error = elapsed_us - path.smoothed_us
        path.smoothed_us += error // 8
        path.deviation_us += (abs(error) - path.deviation_us) // 4
    path.samples += 1
    if path.samples % LEAST_OF_SAMPLES == 0:
        path.least_before_us = path.least_us
        path.least_us = LONGEST_US
    path.least_us = min(path.least_us, elapsed_us)


def time_answer(path: "RoundTrip", elapsed_us: int) -> None:
    """A probe was answered after this time."""
    path.answers += 1
    sample(path, elapsed_us)


def time_result(path: "RoundTrip", elapsed_us: int) -> None:
    """A result came after this time: the path is not slower than that."""
    if elapsed_us < path.smoothed_us:
        sample(path, elapsed_us)


def answer_us(path: "RoundTrip") -> int:
    """The network has answered by then, unless something was lost (RFC 6298, without its lower bound of a second)."""
    return max(MIN_TIMEOUT_US, path.smoothed_us + 4 * path.deviation_us)


def timeout_us(path: "RoundTrip") -> int:
    """Silence after which a worker asks what its slots hold."""
    return min(MAX_TIMEOUT_US, answer_us(path))


def usual_reordering_us(path: "RoundTrip") -> int:
    """A fragment sent this much before one that is complete counts as lost, where no sum goes by the parameter server.
    (RFC 8985, section 6.2)
    """
    return max(path.smoothed_us // 4, LEAST_REORDERING_US)


class RoundTrip:
    """Smoothed round trip of the path to the switch, after RFC 6298: a record class (records.py)."""

    smoothed_us: int
    deviation_us: int
    samples: int
    answers: int
    """Samples that were answers to probes."""
    least_us: int
    least_before_us: int
    """The least of the samples of this period, and of the period before."""
    ps_round_trip_us: int
    ps_round_trip_until_us: int
    """Time of the clock until which `ps_round_trip_us` is good."""

    def __init__(self) -> None:
        self.of_server: RoundTrip | None = None  # of the path there, as far as its answers to probes have measured it
        self.smoothed_us = INITIAL_RTT_US
        self.deviation_us = INITIAL_RTT_US // 2
        self.samples = self.answers = 0
        self.least_us = self.least_before_us = LONGEST_US
        self.ps_round_trip_us = self.ps_round_trip_until_us = 0

    time_answer, time_result = time_answer, time_result

    def time_server_answer(self, elapsed_us: int) -> None:
        """Takes the time after which the parameter server answered a probe, because no switch held the fragment."""
        self.of_server = self.of_server or RoundTrip()
        self.of_server.time_answer(elapsed_us)

    @property
    def empty_share(self) -> float:
        """The round trip of the path when nothing queues, as a share of that of now; 1: nothing does, or nobody knows.

        Where no switch answers, the path is that to the parameter server.
        """
        if not self.answers and self.of_server is not None:
            return self.of_server.empty_share
        if not self.samples:
            return 1.0
        return min(1.0, max(1, self._empty_us) / max(1, self.smoothed_us))

    @property
    def is_queue(self) -> bool:
        """Whether something queues on the path: answers take an eighth longer than the fastest did (RFC 9406)."""
        return self.samples > 0 and self.smoothed_us > self._empty_us + max(self._empty_us // 8, LEAST_QUEUE_US)

    @property
    def _empty_us(self) -> int:
        """The round trip of the fastest sample of late, when nothing queued."""
        return min(self.least_us, self.least_before_us)

    def time_ps_round_trip(self, elapsed_us: int, now_us: int) -> None:
        """A fragment that the switch could not take came back from the parameter server after this time."""
        fading_us = self.ps_round_trip_us - self.ps_round_trip_us // 8 if now_us < self.ps_round_trip_until_us else 0
        self.ps_round_trip_us = min(max(elapsed_us, fading_us), LONGEST_PS_ROUND_TRIP_US)
        self.ps_round_trip_until_us = now_us + PS_ROUND_TRIP_REMEMBERED_US

    def reordering_us(self, now_us: int) -> int:
        """A fragment sent this much before one that is complete counts as lost (RFC 8985, section 6.2).

        Where some go by the parameter server, whose link all workers and jobs share, those that the switch sums
        overtake them by far.
        """
        if not self.some_go_by_server(now_us):
            return usual_reordering_us(self)
        return usual_reordering_us(self) + max(0, self.ps_round_trip_us - self.smoothed_us)

    def some_go_by_server(self, now_us: int) -> bool:
        """Whether the parameter server has finished a sum lately."""
        return now_us < self.ps_round_trip_until_us
