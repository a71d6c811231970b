"""One sum on its way, as flows: contributions stream to the switch, and results back as the slowest of them gets on.

Positions are bytes on the wire of the whole tensor's fragments, so all streams of a sum have one size. A stream is one
contribution of one worker (its own, or what it sends on behalf of others). Three rules make up the model:

  sum       it is as far as the streams whose bits together are all bits: with disjoint bits, as the slowest one.
  window    a stream is at most a window ahead of the results that its sender has (protocol section 5.2): it stops there.
  in step   whoever the sum waits for (*front*), whoever waits at the end of its window, and the results, move at one pace.
            They are one flow, which takes a share of each link that any of them uses.

Streams that are neither are flows of their own, and so are the results of a worker whose link is too slow to follow.
Which is which is decided anew when a stream begins or ends, reaches the end of its window, or meets the sum. Streams are
named by their numbers, and what is decided is decided for all at once (sa_atp.lab.flow.stream).
"""

import math
from collections.abc import Callable

import numpy as np

from sa_atp.lab.flow.arrays import Flags, Floats, Ints
from sa_atp.lab.flow.fabric import FRAME_BYTES, Fabric
from sa_atp.lab.flow.network import Many
from sa_atp.lab.flow.reached import Reached
from sa_atp.lab.flow.stream import DONE, FREE, IN_STEP, NOWHERE, WAITING, Stream, Streams
from sa_atp.lab.flow.ways import Ways
from sa_atp.lab.simulator.network import WIRE_OVERHEAD_BYTES
from sa_atp.protocol.packets.spec import HEADER_BYTES

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
        self.streams = Streams(fan_in, size)
        self._new: list[int] = []  # streams that have not begun to move
        self.reached = Reached(
            fabric.network,
            self.streams,
            size=size,
            fragment_bytes=fragment_bytes,
            fan_in=fan_in,
            window_bytes=window_bytes,
            most_bytes=most_bytes,
            gathers=gathers,
        )
        self.position = 0.0
        """Of the sum."""
        self.is_complete = False
        self._fragment = fragment_bytes
        self._ways = Ways(fabric, fragment_bytes, at_server=at_server)
        self._flushed: set[int] = set()  # racks whose leaf has been made to pass on what it holds
        self._gathered_us: int | None = None
        self._on_arrived = arrived
        self._on_complete = complete
        self._began: Flags = np.zeros(fabric.settings.workers, bool)
        self._over: Flags = np.zeros(fabric.settings.workers, bool)
        self._front: Ints = np.zeros(0, np.int64)  # streams
        self._free_flows = Many(self._have_left)
        self._late_flows = Many(self._have_caught_up)
        self._at_us = self.clock.now_us  # when what is in step has begun to move as it does
        self._looking = False
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
        if self._over[rank]:
            return Stream(self.streams, NOWHERE, rank, bits, self.clock.now_us)
        return self._add(rank, bits, past_leaf=past_leaf)

    def _add(self, rank: int, bits: int, *, past_leaf: bool, end: float = math.inf) -> Stream:
        stream = self.streams.add(rank, bits, past_leaf=past_leaf, now_us=self.clock.now_us, end=end)
        self._new.append(stream.number)
        self._look_soon()
        return stream

    def pass_leaf(self, rank: int) -> None:
        """A worker hears that its leaf will not complete the sum. (protocol section 10.5)

        What it has still to send is summed at the root. What the leaf holds has to leave it: one of those whose it is sends
        all of its own again, and takes the others' along.
        """
        rack = self.fabric.rack_of(rank)
        streams = self.streams
        below = np.flatnonzero(~streams.past_leaf & (streams.rank % self.fabric.settings.racks == rack))
        streams.past_leaf[below] |= (streams.rank[below] == rank) & (streams.state[below] != DONE)
        sent = self.reached.all_sent()[below].tolist()
        held = {r: far for r, far in zip(streams.rank[below].tolist(), sent, strict=True) if far > 0}
        if held and rack not in self._flushed and not self.is_complete:
            self._flushed.add(rack)
            first = min(held)
            up = self.fabric.up[first]
            asked_us = 2 * (self.fabric.network.delay_us[up] + self.fabric.network.transmission_us(up, MESSAGE_BYTES))
            self.clock.at(self.clock.now_us + math.ceil(asked_us), lambda: self._flush(first, max(held.values())))
        self._look_soon()

    def _flush(self, rank: int, end: float) -> None:
        if not self._over[rank]:
            self._add(rank, 0, past_leaf=True, end=end)

    # --- looking ------------------------------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self.clock.at(self.clock.now_us, self._look)

    def _look(self) -> None:
        """Sees how far everything is, and decides what moves how from now on."""
        reached = self.reached
        self._looking = False
        reached.forget()
        if not reached.is_covered:
            self._send_ahead()
            return
        if reached.gathers and not self._gathered():
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
        if self.reached.gathers:
            return
        streams = self.streams
        held, free = [], []
        sending: set[int] = set()
        for number in self._new:
            rank = streams.each[number].rank
            if rank in sending or any(streams.state[other] == FREE for other in streams.of_rank[rank]):
                held.append(number)  # what a worker contributes leaves one after the other
            else:
                sending.add(rank)
                free.append(number)
        ends = [min(float(streams.end[n]), self.reached.window_of(streams.each[n].rank)) for n in free]
        self._free(np.array(free, np.int64), np.array(ends))
        self._new = held

    def _gathered(self) -> bool:
        """Whether magnitudes have made their round trip, which they begin when all contributions are there."""
        if self._gathered_us is None:
            self._gathered_us = self.clock.now_us + math.ceil(self._round_trip_us())
            self.clock.at(self._gathered_us, self._look_soon)
        if self.clock.now_us < self._gathered_us:
            return False
        self.reached.gathers = False
        return True

    def _free(self, numbers: Ints, ends: Floats) -> None:
        """Streams go on as flows of their own, each up to a position."""
        if not len(numbers):
            return
        streams = self.streams
        streams.state[numbers] = FREE
        streams.moves_since_us[numbers] = self.clock.now_us
        streams.until[numbers] = ends
        paths = self._ways.of_streams(streams.rank[numbers], streams.past_leaf[numbers])
        left = ends - streams.sent[numbers]
        streams.place[numbers] = self.fabric.network.start_many(self._free_flows, numbers, paths, left)

    def _have_left(self, numbers: Ints, _: Floats) -> None:
        """Streams with flows of their own are where those end."""
        streams = self.streams
        streams.sent[numbers] = streams.until[numbers]
        streams.place[numbers] = NOWHERE
        streams.have_moved(numbers, streams.moves_since_us[numbers], self.clock.now_us)
        is_done = streams.until[numbers] >= streams.end[numbers]
        streams.state[numbers] = np.where(is_done, DONE, WAITING)
        if self.reached.is_covered or any(len(streams.of_rank[rank]) > 1 for rank in streams.rank[numbers].tolist()):
            self._look_soon()

    def _halt(self) -> None:
        """Ends all flows of this sum, and writes down how far they came."""
        reached = self.reached
        now_us = self.clock.now_us
        network, streams = self.fabric.network, self.streams
        if reached.in_step is not None:
            moved = reached.moved
            network.stop(reached.in_step)
            reached.in_step = None
            in_step = np.flatnonzero(streams.state == IN_STEP)
            streams.sent[in_step] = np.minimum(self.size, streams.sent[in_step] + moved)
            if moved > 0:
                streams.have_moved(in_step, self._at_us, now_us)
            streams.state[in_step] = WAITING
            reached.received[reached.follows] += moved
        free = np.flatnonzero(streams.place != NOWHERE)
        streams.sent[free] += network.carried_by(streams.place[free])
        network.stop_many(streams.place[free])
        streams.have_moved(free, streams.moves_since_us[free], now_us)
        streams.place[free], streams.state[free] = NOWHERE, WAITING
        late = np.flatnonzero(reached.lagging != NOWHERE)
        reached.received[late] += network.carried_by(reached.lagging[late])
        network.stop_many(reached.lagging[late])
        reached.lagging[late] = NOWHERE
        self._at_us = now_us

    def _see_position(self) -> None:
        """The sum is as far as those streams whose bits are all bits; those who are about as far are its front."""
        reached = self.reached
        streams = self.streams
        sent, state = streams.sent, streams.state
        again = ~streams.names_bits & (state != DONE)
        place = min(streams.all_have(sent), float(sent[again].min(initial=math.inf)))
        self.position = max(self.position, min(place, self.size))
        np.maximum(sent, reached.received[streams.rank], out=sent)  # what others know already is not sent any more
        is_done = sent >= streams.end - self._fragment / 2
        last = streams.rank[is_done & (state != DONE)]  # who has just been done
        sent[is_done], state[is_done] = self.size, DONE
        self._front = np.flatnonzero(~is_done & (np.abs(sent - self.position) < self._fragment))
        sent[self._front] = self.position
        self._last_up_us = self._ways.up_us(last) if len(last) else 0.0
        behind = self.position - reached.received
        np.copyto(reached.received, self.position, where=self._began & (behind < self._fragment))

    def _finish_sum(self) -> None:
        """Every contribution is there. What does not fit its scale is asked for again: a round trip, and its bytes."""
        reached = self.reached
        again = 0.0 if self._redone else min(self.size, self._on_complete())
        if again > 0:
            self._redone = True
            self.position = self.size - again
            np.minimum(reached.received, self.position, out=reached.received)
            np.minimum(self.streams.sent, self.position, out=self.streams.sent)
            self.streams.state[:] = WAITING
            reached.gathers, self._gathered_us = True, None
            self._look_soon()
            return
        self.is_complete = True
        self.position = self.size
        self.streams.state[:] = DONE

    def _retire(self) -> None:
        """Those who have it all have it when the last packet has arrived."""
        if not self.is_complete:
            return
        up_us, self._last_up_us = self._last_up_us, 0.0  # what is late is late behind a sum that is there
        down_us = self._ways.down_us()
        has_all = self.reached.received >= self.size - self._fragment
        for rank in np.flatnonzero(self._began & ~self._over & has_all).tolist():
            self._over[rank] = True
            when_us = self.clock.now_us + math.ceil(up_us + down_us[rank])
            self.clock.at(when_us, lambda rank=rank: self._on_arrived(rank))  # type: ignore[misc]
        if self._over.all() and self._on_rates in self.fabric.network.watchers:
            self.fabric.network.watchers.remove(self._on_rates)

    # --- what moves how -----------------------------------------------------------------------------------------------

    def _go(self) -> None:
        reached = self.reached
        if reached.gathers:
            return
        network = self.fabric.network
        self._new.clear()
        streams = self.streams
        sent, rank = streams.sent, streams.rank
        waits = streams.state != DONE
        ends = (reached.received + reached.windows(reached.received) - self._fragment)[rank]
        at_end, is_front = sent >= ends, sent <= self.position
        blocked = waits & self._comes_later(waits & ~at_end)
        goes = waits & ~blocked
        in_step = np.flatnonzero(goes & (at_end | is_front))
        ahead = np.flatnonzero(goes & ~(at_end | is_front))
        if (blocked & is_front).any() and not self.is_complete:
            # somebody whom the sum waits for sends something else first
            ahead = np.concatenate([ahead, in_step[~at_end[in_step]]])
            in_step = in_step[:0]
        self._free(ahead, streams.end[ahead])
        here = self._began & ~self._over
        reached.follows = here & (reached.received >= self.position) & (not self.is_complete)
        self._lag(np.flatnonzero(here & ~reached.follows))
        if len(in_step) and not self.is_complete:
            self._step(in_step)
        network.settle()
        self._set_timer()

    def _comes_later(self, has_room: Flags) -> Flags:
        """bool[streams]: who leaves after an earlier one of the same worker that has room in its window."""
        streams = self.streams
        if len(streams.of_rank) == len(streams.each):
            return np.zeros(len(streams.each), bool)
        numbers = np.arange(len(streams.each))
        first = np.full(len(self._over), len(numbers))  # of each worker: the first one that has room
        np.minimum.at(first, streams.rank[has_room], numbers[has_room])
        return numbers > first[streams.rank]

    def _step(self, in_step: Ints) -> None:
        """What is in step moves, without those who would hold it up for no need."""
        reached = self.reached
        network, streams = self.fabric.network, self.streams
        left = float(streams.end[in_step].min()) - self.position
        while True:
            receivers = np.flatnonzero(reached.follows)
            links, weights = self._ways.in_step(streams.rank[in_step], streams.past_leaf[in_step], receivers)
            reached.in_step = network.start(links, left, self._look_soon, weights=weights)
            streams.state[in_step] = IN_STEP
            network.settle()
            leaders, late = self._in_the_way(links, in_step)
            if not len(leaders) and not len(late):
                break
            network.stop(reached.in_step)
            in_step = in_step[~np.isin(in_step, leaders)]
            self._free(leaders, streams.end[leaders])
            reached.follows[late] = False
            self._lag(late)
        limit = self._round(network.rate(reached.in_step))
        if limit < left:
            network.stop(reached.in_step)
            reached.in_step = None
            if limit > 0:
                reached.in_step = network.start(links, limit, self._look_soon, weights=weights)

    def _round(self, rate: float) -> float:
        """How far what is in step may move before it has to wait: a window in a round trip, the window at once.

        Args: rate: at which it would move. Returns: bytes; as much as there is if the window is no limit.
        """
        round_trip_us = self._round_trip_us()
        windows = self.reached.windows(self.reached.received)
        window = float(windows[self.streams.rank[self._front]].min(initial=math.inf))
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

    def _round_trip_us(self) -> float:
        """Of those whom the sum waits for, the longest."""
        ranks = self.streams.rank
        return self._ways.round_trip_us(ranks[self._front] if len(self._front) else ranks)

    def _lag(self, ranks: Ints) -> None:
        """Results come to some behind the sum: those that they have missed from the parameter server, others late."""
        reached = self.reached
        ranks = ranks[reached.lagging[ranks] == NOWHERE]
        if len(ranks):
            left = self.size - reached.received[ranks]
            paths = self._ways.of_results(ranks)
            reached.lagging[ranks] = self.fabric.network.start_many(self._late_flows, ranks, paths, left)

    def _have_caught_up(self, ranks: Ints, carried: Floats) -> None:
        """Results that came behind the sum are all there."""
        self.reached.received[ranks] += carried
        self.reached.lagging[ranks] = NOWHERE
        self._look_soon()

    def _in_the_way(self, links: Ints, in_step: Ints) -> tuple[Ints, Ints]:
        """Who in step should not be, who could be faster.

        Returns: streams of leaders whose links are slow, and receivers that may come later.
        """
        reached = self.reached
        fabric, streams = self.fabric, self.streams
        nobody = in_step[:0]
        full = np.zeros(len(fabric.network.delay_us), bool)
        full[links[fabric.network.are_full(links)]] = True
        if not full.any():
            return nobody, nobody
        is_slow = full[self._ways.up[streams.rank[in_step]]]
        essential = np.isin(in_step, self._front)
        if (is_slow & essential).any():
            return in_step[essential & ~is_slow], nobody
        shared = [*fabric.rack_up, *fabric.rack_down, fabric.server_up, fabric.server_down]
        if full[shared].any():
            return nobody, nobody
        busy = np.zeros(len(self._over), bool)
        busy[streams.rank[streams.state != DONE]] = True
        received = reached.all_received()
        slack = reached.windows(received) - (self.position - reached.received)
        late = reached.follows & full[self._ways.down] & (~busy | (slack > self._fragment))
        return in_step[is_slow & ~essential], np.flatnonzero(late)

    # --- when to look again -------------------------------------------------------------------------------------------

    def _on_rates(self) -> None:
        """Rates have changed because of others."""
        if not self._looking and self.reached.is_covered and not self.reached.gathers:
            self._set_timer()

    def _set_timer(self) -> None:
        """A stream reaches the end of its window, or is met by the sum; a late receiver catches up, or is too late."""
        reached = self.reached
        network = self.fabric.network
        pace = 0.0 if reached.in_step is None else network.rate(reached.in_step)
        position = self.position + reached.moved
        soonest = self._timer_us - self.clock.now_us if self._timer_us < NEVER_US else math.inf
        streams = self.streams
        free = np.flatnonzero(streams.place != NOWHERE)
        late = np.flatnonzero(reached.lagging != NOWHERE)
        if len(free) or len(late):
            received = reached.all_received()
            received_rate = np.where(reached.follows, pace, 0.0)
            received_rate[late] = network.rates(reached.lagging[late])
            if len(late) and not self.is_complete:
                gap, gains = position - received[late], received_rate[late] - pace
                soonest = min(soonest, _soonest(gap, gains))
            rank, rate = streams.rank[free], network.rates(streams.place[free])
            place = streams.sent[free] + network.carried_by(streams.place[free])
            room = (received + reached.windows(received))[rank] - place
            soonest = min(soonest, _soonest(room, rate - received_rate[rank]))
            is_ahead = place >= position
            soonest = min(soonest, _soonest((place - position)[is_ahead], (pace - rate)[is_ahead]))
        if soonest < math.inf:
            self._look_at(self.clock.now_us + max(1, math.ceil(soonest)))

    def _look_at(self, when_us: int) -> None:
        self._timer_us = when_us

        def due() -> None:
            if self._timer_us == when_us:
                self._timer_us = NEVER_US
                self._look_soon()

        self.clock.at(when_us, due)


def _soonest(distances: Floats, gains: Floats) -> float:
    """When the first of some distances is none, where it gets shorter; else infinite."""
    shorter = gains > 0
    return float((np.maximum(0.0, distances[shorter]) / gains[shorter]).min(initial=math.inf))
