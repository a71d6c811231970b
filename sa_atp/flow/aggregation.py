"""One sum on its way, as flows: contributions stream to the switch, and results back as the slowest of them gets on.

Positions are bytes on the wire of the whole tensor's fragments, so all streams of a sum have one size. A stream is one
contribution of one worker (its own, or what it sends on behalf of others). Three rules make up the model:

  sum       it is as far as the streams whose bits together are all bits: with disjoint bits, as the slowest one.
  window    a stream is at most a window ahead of the results that its sender has (protocol section 5.2): it stops there.
  in step   whoever the sum waits for (*front*), whoever waits at the end of its window, and the results, move at one pace.
            They are one flow, which takes a share of each link that any of them uses.

Streams that are neither are flows of their own, and so are the results of a worker whose link is too slow to follow.
Which is which is decided anew when a stream begins or ends, reaches the end of its window, or meets the sum.
"""

import math
from collections.abc import Callable

import numpy as np

from sa_atp.flow.fabric import FRAME_BYTES, Fabric
from sa_atp.flow.network import Flags, Floats, Flow, Ints
from sa_atp.flow.stream import State, Stream
from sa_atp.flow.ways import Ways, ranks_of
from sa_atp.sim.network import WIRE_OVERHEAD_BYTES
from sa_atp.spec import HEADER_BYTES

NEVER_US = 1 << 62
MESSAGE_BYTES = HEADER_BYTES + FRAME_BYTES + WIRE_OVERHEAD_BYTES  # of a probe, on the wire


class Aggregation:
    """Times are the clock's; nothing here adds numbers."""

    def __init__(
        self,
        fabric: Fabric,
        *,
        size: float,
        fragment_bytes: float,
        fan_in: int,
        window_bytes: Floats,
        most_bytes: float,
        gathers: bool,
        at_server: bool,
        arrived: Callable[[int], None],
        complete: Callable[[], float],
    ) -> None:
        """Args:
        size: of the whole tensor, bytes on the wire.
        fragment_bytes: of one fragment.
        fan_in: bitmap of a complete sum.
        window_bytes: float64[workers], how far each may be ahead of its first results. It grows as results come,
        most_bytes: ... up to this, what the job's slots hold.
        gathers: magnitudes have to make a round trip before values can travel.
        at_server: the parameter server adds up, not the switches: everything crosses its link.
        arrived: called with a rank when it has the whole sum.
        complete: called when the last byte of the last contribution has been sent. Returns: bytes of it that have to travel
            once more, because their scale did not fit.
        """
        self.fabric = fabric
        self.clock = fabric.clock
        self.size = size
        self.streams: list[Stream] = []
        self._of_rank: dict[int, list[Stream]] = {}
        self._new: list[Stream] = []  # streams that have not begun to move
        self.position = 0.0
        """Of the sum."""
        self.received: Floats = np.zeros(fabric.settings.workers)
        """Of each worker's results."""
        self.is_complete = False
        self._fragment = fragment_bytes
        self._fan_in = fan_in
        self._first_window = window_bytes.copy()
        self._most = most_bytes
        self._gathers = gathers
        self._ways = Ways(fabric, fragment_bytes, at_server=at_server)
        self._flushed: set[int] = set()  # racks whose leaf has been made to pass on what it holds
        self._gathered_us: int | None = None
        self._on_arrived = arrived
        self._on_complete = complete
        self._covered = 0  # bits of all streams
        self._began: Flags = np.zeros(fabric.settings.workers, bool)
        self._follows: Flags = np.zeros(fabric.settings.workers, bool)  # receives in step
        self._over: Flags = np.zeros(fabric.settings.workers, bool)
        self._lagging: dict[int, Flow] = {}  # rank: its results, behind the sum
        self._in_step: Flow | None = None
        self._front: list[Stream] = []
        self._at_us = self.clock.now_us  # when what is in step has begun to move as it does
        self._looking = False
        self._missing: int | None = None
        self._timer_us = NEVER_US
        self._redone = False
        self._last_up_us = 0.0  # how long the last packet of the last contribution is on its way
        self._round_ends = 0.0  # how far it may move before the results of what moved first are back
        self._next_round_us = 0  # when they are
        fabric.network.watchers.append(self._on_rates)

    # --- what happens -------------------------------------------------------------------------------------------------

    def begin(self, rank: int) -> None:
        """A worker is there for results."""
        self._began[rank] = True
        if self.position > 0 or self.is_complete:
            self._look_soon()  # it has missed some, which come to it from the parameter server

    def contribute(self, rank: int, bits: int, *, past_leaf: bool) -> Stream:
        """A worker has something to send."""
        stream = Stream(rank, bits, past_leaf, self.clock.now_us)
        if self._over[rank]:
            stream.state = State.DONE
            return stream
        self._add(stream)
        return stream

    def _add(self, stream: Stream) -> None:
        stream.end = min(stream.end, self.size)
        self.streams.append(stream)
        self._new.append(stream)
        self._of_rank.setdefault(stream.rank, []).append(stream)
        self._covered |= stream.bits
        self._look_soon()

    def pass_leaf(self, rank: int) -> None:
        """A worker hears that its leaf will not complete the sum. (protocol section 10.5)

        What it has still to send is summed at the root. What the leaf holds has to leave it: one of those whose it is sends
        all of its own again, and takes the others' along.
        """
        rack = self.fabric.rack_of(rank)
        below = [s for s in self.streams if not s.past_leaf and self.fabric.rack_of(s.rank) == rack]
        for stream in below:
            stream.past_leaf |= stream.rank == rank and stream.state is not State.DONE
        held = {s.rank: self.sent(s) for s in below if self.sent(s) > 0}
        if held and rack not in self._flushed and not self.is_complete:
            self._flushed.add(rack)
            first = min(held)
            up = self.fabric.up[first]
            asked_us = 2 * (self.fabric.network.delay_us[up] + self.fabric.network.transmission_us(up, MESSAGE_BYTES))
            self.clock.at(self.clock.now_us + math.ceil(asked_us), lambda: self._flush(first, max(held.values())))
        self._look_soon()

    def _flush(self, rank: int, end: float) -> None:
        if not self._over[rank]:
            self._add(Stream(rank, 0, True, self.clock.now_us, end=end))

    @property
    def is_covered(self) -> bool:
        return self._covered == self._fan_in

    def sent(self, stream: Stream) -> float:
        """How far a stream is now, bytes."""
        if stream.flow is not None:
            return stream.sent + self._moved(stream.flow)
        if stream.state is State.IN_STEP and self._in_step is not None:
            return min(self.size, stream.sent + self._moved(self._in_step))
        return stream.sent

    def received_by(self, rank: int) -> float:
        """How much of the results a worker has now, bytes."""
        flow = self._lagging.get(rank)
        if flow is None and self._follows[rank]:
            flow = self._in_step
        return float(self.received[rank]) + (0.0 if flow is None else self._moved(flow))

    def backlog_bytes(self, rank: int, ahead_bytes: float) -> float:
        """What a worker has written and its link has not taken yet. Args: ahead_bytes: the most that it writes ahead."""
        if self._gathers:
            return 0.0
        end = min(self.size, self.received_by(rank) + self._window_of(rank))
        mine = [s for s in self._of_rank.get(rank, ()) if s.state is not State.DONE]
        waits = sum(max(0.0, end - self.sent(stream)) for stream in mine)
        return min(waits, ahead_bytes)

    def missing_for(self, rank: int) -> int:
        """Contributions that the switch lacks of the oldest fragment whose sum a worker has not got."""
        if not self.is_covered or self._gathers:
            return self._fan_in & ~self._covered  # nothing has come back: it is the first one
        if self._follows[rank] and self._missing is not None:
            return self._missing
        place = min(self.received_by(rank) + self._fragment, self.size)
        held = 0
        for stream in self.streams:
            if self.sent(stream) >= place:
                held |= stream.bits
        missing = self._fan_in & ~held
        if self._follows[rank]:
            self._missing = missing  # of all who are as far, until something else moves
        return missing

    def _window(self) -> Floats:
        """float64[workers]: how far each may be ahead of its results."""
        return np.minimum(self._first_window + self.received, self._most)

    def _window_of(self, rank: int) -> float:
        return min(float(self._first_window[rank]) + self.received_by(rank), self._most)

    # --- looking ------------------------------------------------------------------------------------------------------

    def _moved(self, flow: Flow) -> float:
        return self.fabric.network.carried(flow)

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self.clock.at(self.clock.now_us, self._look)

    def _look(self) -> None:
        """Sees how far everything is, and decides what moves how from now on."""
        self._looking = False
        self._missing = None
        if not self.is_covered:
            self._send_ahead()
            return
        if self._gathers and not self._gathered():
            return
        self._halt()
        if not self.is_complete:
            self._see_position()
            if self.position >= self.size - self._fragment / 2:
                self._finish_sum()
        self._retire()
        self._go()

    def _send_ahead(self) -> None:
        """The sum cannot move yet: everyone sends what its window allows."""
        if self._gathers:
            return
        held = []
        for stream in self._new:
            if any(other.state is State.FREE for other in self._of_rank[stream.rank]):
                held.append(stream)  # what a worker contributes leaves one after the other
            else:
                self._free(stream, min(stream.end, self._window_of(stream.rank)))
        self._new = held

    def _gathered(self) -> bool:
        """Whether magnitudes have made their round trip, which they begin when all contributions are there."""
        if self._gathered_us is None:
            self._gathered_us = self.clock.now_us + math.ceil(
                self._ways.round_trip_us(ranks_of(self._front or self.streams))
            )
            self.clock.at(self._gathered_us, self._look_soon)
        if self.clock.now_us < self._gathered_us:
            return False
        self._gathers = False
        return True

    def _free(self, stream: Stream, end: float) -> None:
        """A stream goes on as a flow of its own, up to a position."""
        stream.state = State.FREE
        stream.moves_since_us = self.clock.now_us

        def left() -> None:
            stream.sent, stream.flow = end, None
            stream.has_moved(stream.moves_since_us, self.clock.now_us)
            stream.state = State.DONE if end >= stream.end else State.WAITING
            if self.is_covered or len(self._of_rank[stream.rank]) > 1:
                self._look_soon()

        stream.flow = self.fabric.network.start(self._ways.of_stream(stream), end - stream.sent, left)

    def _halt(self) -> None:
        """Ends all flows of this sum, and writes down how far they came."""
        now_us = self.clock.now_us
        network = self.fabric.network
        if self._in_step is not None:
            moved = self._moved(self._in_step)
            network.stop(self._in_step)
            self._in_step = None
            for stream in self.streams:
                if stream.state is State.IN_STEP:
                    stream.sent = min(self.size, stream.sent + moved)
                    if moved > 0:
                        stream.has_moved(self._at_us, now_us)
                    stream.state = State.WAITING
            self.received[self._follows] += moved
        for stream in self.streams:
            if stream.flow is not None:
                stream.sent += self._moved(stream.flow)
                network.stop(stream.flow)
                stream.has_moved(stream.moves_since_us, now_us)
                stream.flow, stream.state = None, State.WAITING
        for rank, flow in self._lagging.items():
            self.received[rank] += self._moved(flow)
            network.stop(flow)
        self._lagging.clear()
        self._at_us = now_us

    def _see_position(self) -> None:
        """The sum is as far as those streams whose bits are all bits; those who are about as far are its front."""
        held, place = 0, 0.0
        for stream in sorted(self.streams, key=lambda s: -s.sent):
            held |= stream.bits
            if held == self._fan_in:
                place = stream.sent
                break
        place = min([place, *(s.sent for s in self.streams if not s.bits and s.state is not State.DONE)])
        self.position = max(self.position, min(place, self.size))
        self._front = []
        last: set[int] = set()  # who has just been done
        for stream in self.streams:
            # what others know already is not sent any more
            stream.sent = max(stream.sent, float(self.received[stream.rank]))
            if stream.sent >= stream.end - self._fragment / 2:
                if stream.state is not State.DONE:
                    last.add(stream.rank)
                stream.sent, stream.state = self.size, State.DONE
            elif abs(stream.sent - self.position) < self._fragment:
                stream.sent = self.position
                self._front.append(stream)
        self._last_up_us = self._ways.up_us(np.array(sorted(last))) if last else 0.0
        behind = self.position - self.received
        np.copyto(self.received, self.position, where=self._began & (behind < self._fragment))

    def _finish_sum(self) -> None:
        """Every contribution is there. What does not fit its scale is asked for again: a round trip, and its bytes."""
        again = 0.0 if self._redone else min(self.size, self._on_complete())
        if again > 0:
            self._redone = True
            self.position = self.size - again
            np.minimum(self.received, self.position, out=self.received)
            for stream in self.streams:
                stream.sent = min(stream.sent, self.position)
                stream.state = State.WAITING
            self._gathers, self._gathered_us = True, None
            self._look_soon()
            return
        self.is_complete = True
        self.position = self.size
        for stream in self.streams:
            stream.state = State.DONE

    def _retire(self) -> None:
        """Those who have it all have it when the last packet has arrived."""
        if not self.is_complete:
            return
        up_us, self._last_up_us = self._last_up_us, 0.0  # what is late is late behind a sum that is there
        down_us = self._ways.down_us()
        for rank in np.flatnonzero(self._began & ~self._over & (self.received >= self.size - self._fragment)).tolist():
            self._over[rank] = True
            when_us = self.clock.now_us + math.ceil(up_us + down_us[rank])
            self.clock.at(when_us, lambda rank=rank: self._on_arrived(rank))  # type: ignore[misc]
        if self._over.all() and self._on_rates in self.fabric.network.watchers:
            self.fabric.network.watchers.remove(self._on_rates)

    # --- what moves how -----------------------------------------------------------------------------------------------

    def _go(self) -> None:
        if self._gathers:
            return
        network = self.fabric.network
        self._new.clear()
        ends = self.received + self._window() - self._fragment
        in_step: list[Stream] = []
        ahead: list[Stream] = []
        stuck = False  # somebody whom the sum waits for sends something else first
        busy: set[int] = set()  # ranks with an earlier stream that has room in its window
        for stream in self.streams:
            if stream.state is State.DONE:
                continue
            at_end = stream.sent >= ends[stream.rank]
            is_front = stream.sent <= self.position
            if stream.rank in busy:
                stuck |= is_front
                continue
            if not at_end and len(self._of_rank[stream.rank]) > 1:
                busy.add(stream.rank)
            (in_step if at_end or is_front else ahead).append(stream)
        if stuck and not self.is_complete:
            ahead += [stream for stream in in_step if stream.sent < ends[stream.rank]]
            in_step = []
        for stream in ahead:
            self._free(stream, stream.end)
        self._follows = self._began & ~self._over & (self.received >= self.position) & (not self.is_complete)
        for rank in np.flatnonzero(self._began & ~self._over & ~self._follows).tolist():
            self._lag(rank)
        if in_step and not self.is_complete:
            self._step(in_step)
        network.settle()
        self._set_timer()

    def _step(self, in_step: list[Stream]) -> None:
        """What is in step moves, without those who would hold it up for no need."""
        network = self.fabric.network
        essential = set(map(id, self._front))
        left = min(stream.end for stream in in_step) - self.position
        while True:
            links, weights = self._ways.in_step(in_step, np.flatnonzero(self._follows).tolist())
            self._in_step = network.start(links, left, self._look_soon, weights=weights)
            for stream in in_step:
                stream.state = State.IN_STEP
            network.settle()
            leaves = self._in_the_way(links, in_step, essential)
            if not leaves:
                break
            network.stop(self._in_step)
            for member in leaves:
                if isinstance(member, Stream):
                    in_step.remove(member)
                    self._free(member, member.end)
                else:
                    self._follows[member] = False
                    self._lag(member)
        limit = self._round(network.rate(self._in_step))
        if limit < left:
            network.stop(self._in_step)
            self._in_step = None
            if limit > 0:
                self._in_step = network.start(links, limit, self._look_soon, weights=weights)

    def _round(self, rate: float) -> float:
        """How far what is in step may move before it has to wait: a window in a round trip, the window at once.

        Args: rate: at which it would move. Returns: bytes; as much as there is if the window is no limit.
        """
        round_trip_us = self._ways.round_trip_us(ranks_of(self._front or self.streams))
        window = float(self._window()[ranks_of(self._front)].min()) if self._front else math.inf
        if rate * round_trip_us <= window:
            return math.inf
        now_us = self.clock.now_us
        if now_us >= self._next_round_us:
            self._next_round_us = now_us + math.ceil(round_trip_us)
            self._round_ends = self.position + window
        left = self._round_ends - self.position
        if left <= self._fragment / 2:
            self._look_at(self._next_round_us)
            return 0.0
        return left

    def _lag(self, rank: int) -> None:
        """A worker's results come behind the sum: those that it has missed from the parameter server, others late."""
        if rank in self._lagging:
            return
        left = self.size - float(self.received[rank])
        self._lagging[rank] = self.fabric.network.start(self._ways.of_results(rank), left, self._look_soon)

    def _in_the_way(self, links: Ints, in_step: list[Stream], essential: set[int]) -> list[Stream | int]:
        """Who in step should not be: a leader whose link is slow, a receiver that may come later, who could be faster."""
        assert self._in_step is not None
        full = set(links[self.fabric.network.are_full(links)].tolist())
        if not full:
            return []
        fabric = self.fabric
        needed = {fabric.up[s.rank] for s in in_step if id(s) in essential}
        if full & needed:
            return [s for s in in_step if id(s) in essential and fabric.up[s.rank] not in full]
        needed.update(fabric.rack_up)
        needed.update(fabric.rack_down)
        needed.update((fabric.server_up, fabric.server_down))
        if full & needed:
            return []
        busy = {s.rank for s in self.streams if s.state is not State.DONE}
        slow: list[Stream | int] = [s for s in in_step if id(s) not in essential and fabric.up[s.rank] in full]
        for rank in np.flatnonzero(self._follows).tolist():
            slack = self._window_of(rank) - (self.position - float(self.received[rank]))
            if fabric.down[rank] in full and (rank not in busy or slack > self._fragment):
                slow.append(rank)
        return slow

    # --- when to look again -------------------------------------------------------------------------------------------

    def _on_rates(self) -> None:
        """Rates have changed because of others."""
        if not self._looking and self.is_covered and not self._gathers:
            self._set_timer()

    def _set_timer(self) -> None:
        """A stream reaches the end of its window, or is met by the sum; a late receiver catches up, or is too late."""
        network = self.fabric.network
        pace = 0.0 if self._in_step is None else network.rate(self._in_step)
        position = self.position + (0.0 if self._in_step is None else self._moved(self._in_step))
        soonest = self._timer_us - self.clock.now_us if self._timer_us < NEVER_US else math.inf
        for stream in self.streams:
            if stream.flow is None:
                continue
            rate = network.rate(stream.flow)
            place = self.sent(stream)
            follows = bool(self._follows[stream.rank])
            late = self._lagging.get(stream.rank)
            received_rate = pace if follows else 0.0 if late is None else network.rate(late)
            room = self.received_by(stream.rank) + self._window_of(stream.rank) - place
            if rate > received_rate:
                soonest = min(soonest, max(0.0, room) / (rate - received_rate))
            if pace > rate and place >= position:
                soonest = min(soonest, (place - position) / (pace - rate))
        for rank, flow in self._lagging.items():
            rate = network.rate(flow)
            gap = position - self.received_by(rank)
            if rate > pace and not self.is_complete:
                soonest = min(soonest, max(0.0, gap) / (rate - pace))
        if soonest < math.inf:
            self._look_at(self.clock.now_us + max(1, math.ceil(soonest)))

    def _look_at(self, when_us: int) -> None:
        self._timer_us = when_us

        def due() -> None:
            if self._timer_us == when_us:
                self._timer_us = NEVER_US
                self._look_soon()

        self.clock.at(when_us, due)
