"""How far everything of one sum has come by now: its streams, and the results at each worker.

What is on its way moves on between two looks of the sum (sa_atp.lab.flow.aggregation), so everything asked here is what was
written down at the last look and what the network has carried since.
"""

import numpy as np

from sa_atp.lab.flow.arrays import Flags, Floats, Ints
from sa_atp.lab.flow.network import Flow, FlowNetwork
from sa_atp.lab.flow.stream import DONE, IN_STEP, NOWHERE, Stream, Streams


class Reached:
    """Positions are bytes on the wire of the whole tensor's fragments."""

    def __init__(
        self,
        network: FlowNetwork,
        streams: Streams,
        *,
        size: float,
        fragment_bytes: float,
        fan_in: int,
        window_bytes: Floats,
        most_bytes: float,
        gathers: bool,
    ) -> None:
        """Args: see `sa_atp.lab.flow.aggregation.Aggregation`."""
        workers = len(window_bytes)
        self.network = network
        self.streams = streams
        self.received: Floats = np.zeros(workers)
        """Of each worker's results, as of the last look."""
        self.follows: Flags = np.zeros(workers, bool)
        """Who receives in step."""
        self.lagging: Ints = np.full(workers, NOWHERE)
        """Of each worker: the place of its flow of results behind the sum."""
        self.in_step: Flow | None = None
        """What moves at one pace."""
        self.gathers = gathers
        """Magnitudes are still to make their round trip: no values travel."""
        self._size = size
        self._fragment = fragment_bytes
        self._fan_in = fan_in
        self._first_window = window_bytes.copy()
        self._most = most_bytes
        self._missing: int | None = None

    @property
    def is_covered(self) -> bool:
        """Whether each contribution has somebody who sends it."""
        return self.streams.covered == self._fan_in

    def forget(self) -> None:
        """Something moves differently from now on."""
        self._missing = None

    @property
    def moved(self) -> float:
        """How far what is in step has come since the last look, bytes."""
        return 0.0 if self.in_step is None else self.network.carried(self.in_step)

    def sent(self, stream: Stream) -> float:
        """How far a stream is, bytes."""
        if stream.number == NOWHERE:
            return 0.0
        streams, number = self.streams, stream.number
        sent, place = float(streams.sent[number]), int(streams.place[number])
        if place != NOWHERE:
            return sent + self.network.carried_at(place)
        return min(self._size, sent + self.moved) if streams.state[number] == IN_STEP else sent

    def all_sent(self) -> Floats:
        """float64[streams]: the same of all."""
        streams = self.streams
        found = streams.sent.copy()
        in_step = streams.state == IN_STEP
        found[in_step] = np.minimum(self._size, found[in_step] + self.moved)
        free = np.flatnonzero(streams.place != NOWHERE)
        found[free] += self.network.carried_by(streams.place[free])
        return found

    def received_by(self, rank: int) -> float:
        """How much of the results a worker has, bytes."""
        received, place = float(self.received[rank]), int(self.lagging[rank])
        if place != NOWHERE:
            return received + self.network.carried_at(place)
        return received + self.moved if self.follows[rank] else received

    def all_received(self) -> Floats:
        """float64[workers]: the same of all."""
        found = self.received.copy()
        late = self.lagging != NOWHERE
        found[self.follows & ~late] += self.moved
        found[late] += self.network.carried_by(self.lagging[late])
        return found

    def windows(self, received: Floats) -> Floats:
        """float64[workers]: how far each may be ahead of its results. Args: received: float64[workers], how many it has."""
        return np.minimum(self._first_window + received, self._most)

    def backlog_bytes(self, rank: int, ahead_bytes: float) -> float:
        """What a worker has written and its link has not taken yet. Args: ahead_bytes: the most that it writes ahead."""
        if self.gathers:
            return 0.0
        mine = [n for n in self.streams.of_rank.get(rank, ()) if self.streams.state[n] != DONE]
        if not mine:
            return 0.0
        end = min(self._size, self.received_by(rank) + self.window_of(rank))
        waits = sum(max(0.0, end - self.sent(self.streams.each[n])) for n in mine)
        return min(waits, ahead_bytes)

    def window_of(self, rank: int) -> float:
        """How far one worker may be ahead of its results, bytes."""
        return min(float(self._first_window[rank]) + self.received_by(rank), self._most)

    def missing_for(self, rank: int) -> int:
        """Contributions that the switch lacks of the oldest fragment whose sum a worker has not got."""
        if not self.is_covered or self.gathers:
            return self._fan_in & ~self.streams.covered  # nothing has come back: it is the first one
        if self.follows[rank] and self._missing is not None:
            return self._missing
        place = min(self.received_by(rank) + self._fragment, self._size)
        missing = self._fan_in & ~self.streams.bits_of(self.all_sent() >= place)
        if self.follows[rank]:
            self._missing = missing  # of all who are as far, until something else moves
        return missing
