"""The progress of one sum: positions of its streams, and of the results at each worker, and the flows that move them.

Flows move between two updates of the sum (sa_atp.lab.flow.aggregation), which decides what starts. So a position is what
was recorded when its flow began, plus what the network has carried since.
"""

from collections.abc import Callable

import numpy as np

from sa_atp.lab.flow.arrays import Flags, Floats, Ints
from sa_atp.lab.flow.network import Flow, FlowNetwork, FlowOwner
from sa_atp.lab.flow.stream import DONE, FREE, IN_STEP, NOWHERE, WAITING, FlowStream, Streams
from sa_atp.lab.flow.sum_paths import SumPaths


class SumProgress:
    """The progress of one sum. Positions are bytes on the wire of the whole tensor's fragments."""

    def __init__(
        self,
        network: FlowNetwork,
        streams: Streams,
        paths: SumPaths,
        ended: Callable[[], None],
        *,
        size: float,
        fragment_bytes: float,
        fan_in: int,
        window_bytes: Floats,
        most_bytes: float,
        gathers: bool,
    ) -> None:
        """Args: ended: called when a flow has ended; for the others see `sa_atp.lab.flow.aggregation.Aggregation`."""
        workers = len(window_bytes)
        self.network = network
        self.streams = streams
        self.received: Floats = np.zeros(workers)
        """float64[workers]: position of the results at each worker at the last update."""
        self.follows: Flags = np.zeros(workers, bool)
        """bool[workers]: workers whose results move in step."""
        self.lagging: Ints = np.full(workers, NOWHERE)
        """int64[workers]: place of the worker's flow of late results; NOWHERE: it has none."""
        self.in_step: Flow | None = None
        """The flow of all that moves at one pace."""
        self.gathers = gathers
        """Whether magnitudes have not made their round trip yet, so that no values travel."""
        self._fan_in = fan_in
        self._size = size
        self._fragment = fragment_bytes
        self._first_window = window_bytes.copy()
        self._most = most_bytes
        self._missing: int | None = None
        self._paths, self._ended = paths, ended
        self._free_flows, self._late_flows = FlowOwner(self._on_ended), FlowOwner(self._on_late_ended)
        self._at_us = network.clock.now_us  # when the flow in step began at its present pace

    @property
    def is_covered(self) -> bool:
        """Whether every contribution has a stream."""
        return self.streams.covered == self._fan_in

    def forget(self) -> None:
        """Drops the cached answer of `missing_for`, because flows change."""
        self._missing = None

    @property
    def moved(self) -> float:
        """Bytes that the flow in step has carried since the last update."""
        return 0.0 if self.in_step is None else self.network.carried(self.in_step)

    def sent(self, stream: FlowStream) -> float:
        """Position of a stream, bytes."""
        if stream.number == NOWHERE:
            return 0.0
        streams, number = self.streams, stream.number
        sent, place = float(streams.sent[number]), int(streams.place[number])
        if place != NOWHERE:
            return sent + self.network.carried_at(place)
        return min(self._size, sent + self.moved) if streams.state[number] == IN_STEP else sent

    def all_sent(self) -> Floats:
        """float64[streams]: positions of all streams."""
        streams = self.streams
        found = streams.sent.copy()
        in_step = streams.state == IN_STEP
        found[in_step] = np.minimum(self._size, found[in_step] + self.moved)
        free = np.flatnonzero(streams.place != NOWHERE)
        found[free] += self.network.carried_by(streams.place[free])
        return found

    def received_by(self, rank: int) -> float:
        """Position of a worker's results, bytes."""
        received, place = float(self.received[rank]), int(self.lagging[rank])
        if place != NOWHERE:
            return received + self.network.carried_at(place)
        return received + self.moved if self.follows[rank] else received

    def all_received(self) -> Floats:
        """float64[workers]: positions of all workers' results."""
        found = self.received.copy()
        late = self.lagging != NOWHERE
        found[self.follows & ~late] += self.moved
        found[late] += self.network.carried_by(self.lagging[late])
        return found

    def windows(self, received: Floats) -> Floats:
        """float64[workers]: each worker's window, bytes. Args: received: float64[workers], positions of their results."""
        return np.minimum(self._first_window + received, self._most)

    def backlog_bytes(self, rank: int, ahead_bytes: float) -> float:
        """Bytes that a worker has written and not sent yet. Args: ahead_bytes: the most that it writes ahead."""
        if self.gathers:
            return 0.0
        mine = [n for n in self.streams.of_rank.get(rank, ()) if self.streams.state[n] != DONE]
        if not mine:
            return 0.0
        end = min(self._size, self.received_by(rank) + self.window_of(rank))
        waits = sum(max(0.0, end - self.sent(self.streams.each[n])) for n in mine)
        return min(waits, ahead_bytes)

    def window_of(self, rank: int) -> float:
        """The window of one worker, bytes."""
        return min(float(self._first_window[rank]) + self.received_by(rank), self._most)

    def missing_for(self, rank: int) -> int:
        """Bitmap of contributions that the switch lacks for the oldest fragment missing at a worker."""
        if not self.is_covered or self.gathers:
            return self._fan_in & ~self.streams.covered  # no result has come back, so the oldest fragment is the first
        if self.follows[rank] and self._missing is not None:
            return self._missing
        place = min(self.received_by(rank) + self._fragment, self._size)
        missing = self._fan_in & ~self.streams.bits_of(self.all_sent() >= place)
        if self.follows[rank]:
            self._missing = missing  # valid for all workers at the same position, until flows change
        return missing

    # --- flows --------------------------------------------------------------------------------------------------------

    def start(self, numbers: Ints, ends: Floats) -> None:
        """Starts flows for single streams, each up to a position."""
        if not len(numbers):
            return
        streams = self.streams
        streams.state[numbers] = FREE
        streams.moves_since_us[numbers] = self.network.clock.now_us
        streams.until[numbers] = ends
        paths = self._paths.of_streams(streams.rank[numbers], streams.past_leaf[numbers])
        left = ends - streams.sent[numbers]
        streams.place[numbers] = self.network.start_many(self._free_flows, numbers, paths, left)

    def _on_ended(self, numbers: Ints, _: Floats) -> None:
        """Flows of single streams have reached their ends."""
        streams = self.streams
        streams.sent[numbers] = streams.until[numbers]
        streams.place[numbers] = NOWHERE
        streams.note_moved(numbers, streams.moves_since_us[numbers], self.network.clock.now_us)
        is_done = streams.until[numbers] >= streams.end[numbers]
        streams.state[numbers] = np.where(is_done, DONE, WAITING)
        if self.is_covered or any(len(streams.of_rank[rank]) > 1 for rank in streams.rank[numbers].tolist()):
            self._ended()

    def start_late(self, ranks: Ints) -> None:
        """Starts flows of results behind the sum, for workers that missed some or whose links are slow."""
        ranks = ranks[self.lagging[ranks] == NOWHERE]
        if len(ranks):
            left = self._size - self.received[ranks]
            self.lagging[ranks] = self.network.start_many(self._late_flows, ranks, self._paths.of_results(ranks), left)

    def _on_late_ended(self, ranks: Ints, carried: Floats) -> None:
        """Flows of late results have ended."""
        self.received[ranks] += carried
        self.lagging[ranks] = NOWHERE
        self._ended()

    def start_in_step(self, links: Ints, left: float, weights: Floats) -> Flow:
        """Starts the flow of all that moves at one pace. Args: left: bytes; weights: how many times it uses each link."""
        self.in_step = self.network.start(links, left, self._ended, weights=weights)
        return self.in_step

    def stop_in_step(self) -> None:
        """Stops the flow in step; positions do not change."""
        assert self.in_step is not None
        self.network.stop(self.in_step)
        self.in_step = None

    def stop(self) -> None:
        """Stops all flows of the sum, and records positions."""
        now_us = self.network.clock.now_us
        network, streams = self.network, self.streams
        if self.in_step is not None:
            moved = self.moved
            self.stop_in_step()
            in_step = np.flatnonzero(streams.state == IN_STEP)
            streams.sent[in_step] = np.minimum(self._size, streams.sent[in_step] + moved)
            if moved > 0:
                streams.note_moved(in_step, self._at_us, now_us)
            streams.state[in_step] = WAITING
            self.received[self.follows] += moved
        free = np.flatnonzero(streams.place != NOWHERE)
        streams.sent[free] += network.carried_by(streams.place[free])
        network.stop_many(streams.place[free])
        streams.note_moved(free, streams.moves_since_us[free], now_us)
        streams.place[free], streams.state[free] = NOWHERE, WAITING
        late = np.flatnonzero(self.lagging != NOWHERE)
        self.received[late] += network.carried_by(self.lagging[late])
        network.stop_many(self.lagging[late])
        self.lagging[late] = NOWHERE
        self._at_us = now_us
