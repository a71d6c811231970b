"""The transfer of one sum as flows: contributions stream to the switch, and results back at the pace of the slowest.

Positions are bytes on the wire of the whole tensor's fragments, so all streams of a sum have one size. A stream is one
contribution of one worker (its own, or one on behalf of others). Three rules make up the model:

  sum       its position is that of the streams that together have all bits: with disjoint bits, of the slowest one.
  window    a stream stops a window ahead of the results that its sender has (protocol section 5.2).
  in step   the streams that the sum waits for (the front), those at the end of their window, and the results move at one
            pace. They are one flow, which takes a share of each link that any of them uses.

Other streams are flows of their own, and so are the results of a worker whose link is too slow to follow. All this is
decided anew when a stream begins or ends, reaches the end of its window, or meets the sum (an update). Streams are named by
their numbers, and decisions are made for all at once in arrays (sa_atp.lab.flow.stream).
"""

import math
from collections.abc import Callable

import numpy as np

from sa_atp.lab.flow.arrays import Flags, Floats, Ints
from sa_atp.lab.flow.fabric import FRAME_BYTES, Fabric
from sa_atp.lab.flow.stream import DONE, FREE, IN_STEP, NOWHERE, WAITING, FlowStream, Streams
from sa_atp.lab.flow.sum_paths import SumPaths
from sa_atp.lab.flow.sum_progress import SumProgress
from sa_atp.lab.simulator.network import WIRE_OVERHEAD_BYTES
from sa_atp.protocol.packets.spec import HEADER_BYTES

NEVER_US = 1 << 62
MESSAGE_BYTES = HEADER_BYTES + FRAME_BYTES + WIRE_OVERHEAD_BYTES  # of a probe, on the wire


class Aggregation:
    """The transfer of one sum; the arithmetic is in `sums`. Times are those of the clock."""

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
        window_bytes: float64[workers], each worker's first window. It grows with the results received,
        most_bytes: ... up to this: the job's slots.
        gathers: whether magnitudes have to make a round trip before values can travel.
        at_server: whether the parameter server sums instead of the switches, so that everything crosses its link.
        arrived: called with a rank when it has the whole sum.
        complete: called when the last byte of the last contribution has been sent. Returns: bytes to be sent again,
            because their scale did not fit.
        """
        self.fabric = fabric
        self.clock = fabric.clock
        self.size = size
        self.streams = Streams(fan_in, size)
        self._new: list[int] = []  # streams that have not begun to move
        self._paths = SumPaths(fabric, fragment_bytes, at_server=at_server)
        self.progress = SumProgress(
            fabric.network,
            self.streams,
            self._paths,
            self._update_soon,
            size=size,
            fragment_bytes=fragment_bytes,
            fan_in=fan_in,
            window_bytes=window_bytes,
            most_bytes=most_bytes,
            gathers=gathers,
        )
        self.position = 0.0
        """Position of the sum."""
        self.is_complete = False
        self._fragment = fragment_bytes
        self._flushed: set[int] = set()  # racks whose leaf has to pass on what it holds
        self._gathered_us: int | None = None
        self._on_arrived = arrived
        self._on_complete = complete
        self._began: Flags = np.zeros(fabric.settings.workers, bool)
        self._over: Flags = np.zeros(fabric.settings.workers, bool)
        self._front: Ints = np.zeros(0, np.int64)  # streams
        self._updating = False
        self._timer_us = NEVER_US
        self._redone = False
        self._last_up_us = 0.0  # travel time of the last packet of the last contribution
        self._round_ends = (
            0.0  # position up to which the flow in step may move before the round's first results are back
        )
        self._next_round_us = 0  # when they are back
        fabric.network.watchers.append(self._on_rates)

    # --- events of workers --------------------------------------------------------------------------------------------

    def begin(self, rank: int) -> None:
        """A worker begins the operation, and receives results from now on."""
        self._began[rank] = True
        if self.position > 0 or self.is_complete:
            self._update_soon()  # the parameter server sends it the results that it missed

    def contribute(self, rank: int, bits: int, *, past_leaf: bool) -> FlowStream:
        """Adds a stream: a contribution of a worker."""
        if self._over[rank]:
            return FlowStream(self.streams, NOWHERE, rank, bits, self.clock.now_us)
        return self._add(rank, bits, past_leaf=past_leaf)

    def _add(self, rank: int, bits: int, *, past_leaf: bool, end: float = math.inf) -> FlowStream:
        stream = self.streams.add(rank, bits, past_leaf=past_leaf, now_us=self.clock.now_us, end=end)
        self._new.append(stream.number)
        self._update_soon()
        return stream

    def pass_leaf(self, rank: int) -> None:
        """A worker learns that its leaf will not complete the sum. (protocol section 10.5)

        The rest of its contribution is summed at the root. The leaf has to pass on what it holds: one of its workers sends
        its contribution again for that.
        """
        rack = self.fabric.rack_of(rank)
        streams = self.streams
        below = np.flatnonzero(~streams.past_leaf & (streams.rank % self.fabric.settings.racks == rack))
        streams.past_leaf[below] |= (streams.rank[below] == rank) & (streams.state[below] != DONE)
        sent = self.progress.all_sent()[below].tolist()
        held = {r: far for r, far in zip(streams.rank[below].tolist(), sent, strict=True) if far > 0}
        if held and rack not in self._flushed and not self.is_complete:
            self._flushed.add(rack)
            first = min(held)
            up = self.fabric.up[first]
            asked_us = 2 * (self.fabric.network.delay_us[up] + self.fabric.network.transmission_us(up, MESSAGE_BYTES))
            self.clock.at(self.clock.now_us + math.ceil(asked_us), lambda: self._flush(first, max(held.values())))
        self._update_soon()

    def _flush(self, rank: int, end: float) -> None:
        if not self._over[rank]:
            self._add(rank, 0, past_leaf=True, end=end)

    # --- updates ------------------------------------------------------------------------------------------------------

    def _update_soon(self) -> None:
        if not self._updating:
            self._updating = True
            self.clock.at(self.clock.now_us, self._update)

    def _update(self) -> None:
        """Stops all flows, advances all positions, and starts new flows."""
        progress = self.progress
        self._updating = False
        progress.forget()
        if not progress.is_covered:
            self._send_ahead()
            return
        if progress.gathers and not self._gathered():
            return
        progress.stop()
        if not self.is_complete:
            self._update_position()
            if self.position >= self.size - self._fragment / 2:
                self._finish_sum()
        self._announce_results()
        self._start_flows()

    def _send_ahead(self) -> None:
        """Starts streams up to the end of their windows, while the sum cannot move yet."""
        if self.progress.gathers:
            return
        streams = self.streams
        held, free = [], []
        sending: set[int] = set()
        for number in self._new:
            rank = streams.each[number].rank
            if rank in sending or any(streams.state[other] == FREE for other in streams.of_rank[rank]):
                held.append(number)  # the contributions of one worker leave one after the other
            else:
                sending.add(rank)
                free.append(number)
        ends = [min(float(streams.end[n]), self.progress.window_of(streams.each[n].rank)) for n in free]
        self.progress.start(np.array(free, np.int64), np.array(ends))
        self._new = held

    def _gathered(self) -> bool:
        """Whether magnitudes have made their round trip, which begins when all contributions have."""
        if self._gathered_us is None:
            self._gathered_us = self.clock.now_us + math.ceil(self._round_trip_us())
            self.clock.at(self._gathered_us, self._update_soon)
        if self.clock.now_us < self._gathered_us:
            return False
        self.progress.gathers = False
        return True

    def _update_position(self) -> None:
        """Advances the sum to the position of the streams that together have all bits; streams near it are its front."""
        progress = self.progress
        streams = self.streams
        sent, state = streams.sent, streams.state
        again = ~streams.names_bits & (state != DONE)
        place = min(streams.all_have(sent), float(sent[again].min(initial=math.inf)))
        self.position = max(self.position, min(place, self.size))
        np.maximum(sent, progress.received[streams.rank], out=sent)  # fragments whose result has arrived are not sent
        is_done = sent >= streams.end - self._fragment / 2
        last = streams.rank[is_done & (state != DONE)]  # streams that have just ended
        sent[is_done], state[is_done] = self.size, DONE
        self._front = np.flatnonzero(~is_done & (np.abs(sent - self.position) < self._fragment))
        sent[self._front] = self.position
        self._last_up_us = self._paths.up_us(last) if len(last) else 0.0
        behind = self.position - progress.received
        np.copyto(progress.received, self.position, where=self._began & (behind < self._fragment))

    def _finish_sum(self) -> None:
        """All contributions have arrived. Chunks whose scale did not fit are sent again, after a round trip."""
        progress = self.progress
        again = 0.0 if self._redone else min(self.size, self._on_complete())
        if again > 0:
            self._redone = True
            self.position = self.size - again
            np.minimum(progress.received, self.position, out=progress.received)
            np.minimum(self.streams.sent, self.position, out=self.streams.sent)
            self.streams.state[:] = WAITING
            progress.gathers, self._gathered_us = True, None
            self._update_soon()
            return
        self.is_complete = True
        self.position = self.size
        self.streams.state[:] = DONE

    def _announce_results(self) -> None:
        """Announces the sum to workers that have all of it, once the last packet has arrived."""
        if not self.is_complete:
            return
        up_us, self._last_up_us = self._last_up_us, 0.0  # only the first results wait for the last contribution
        down_us = self._paths.down_us()
        has_all = self.progress.received >= self.size - self._fragment
        for rank in np.flatnonzero(self._began & ~self._over & has_all).tolist():
            self._over[rank] = True
            when_us = self.clock.now_us + math.ceil(up_us + down_us[rank])
            self.clock.at(when_us, lambda rank=rank: self._on_arrived(rank))  # type: ignore[misc]
        if self._over.all() and self._on_rates in self.fabric.network.watchers:
            self.fabric.network.watchers.remove(self._on_rates)

    # --- starting flows -----------------------------------------------------------------------------------------------

    def _start_flows(self) -> None:
        progress = self.progress
        if progress.gathers:
            return
        network = self.fabric.network
        self._new.clear()
        streams = self.streams
        sent, rank = streams.sent, streams.rank
        waits = streams.state != DONE
        ends = (progress.received + progress.windows(progress.received) - self._fragment)[rank]
        at_end, is_front = sent >= ends, sent <= self.position
        blocked = waits & self._comes_later(waits & ~at_end)
        goes = waits & ~blocked
        in_step = np.flatnonzero(goes & (at_end | is_front))
        ahead = np.flatnonzero(goes & ~(at_end | is_front))
        if (blocked & is_front).any() and not self.is_complete:
            # a worker of the front has to finish another contribution first
            ahead = np.concatenate([ahead, in_step[~at_end[in_step]]])
            in_step = in_step[:0]
        progress.start(ahead, streams.end[ahead])
        here = self._began & ~self._over
        progress.follows = here & (progress.received >= self.position) & (not self.is_complete)
        progress.start_late(np.flatnonzero(here & ~progress.follows))
        if len(in_step) and not self.is_complete:
            self._step(in_step)
        network.settle()
        self._set_timer()

    def _comes_later(self, has_room: Flags) -> Flags:
        """bool[streams]: whether an earlier stream of the same worker has room in its window, and so goes first."""
        streams = self.streams
        if len(streams.of_rank) == len(streams.each):
            return np.zeros(len(streams.each), bool)
        numbers = np.arange(len(streams.each))
        first = np.full(len(self._over), len(numbers))  # by worker: its first stream with room
        np.minimum.at(first, streams.rank[has_room], numbers[has_room])
        return numbers > first[streams.rank]

    def _step(self, in_step: Ints) -> None:
        """Starts the flow of all that moves in step, without members that would only slow it down."""
        progress = self.progress
        network, streams = self.fabric.network, self.streams
        left = float(streams.end[in_step].min()) - self.position
        while True:
            receivers = np.flatnonzero(progress.follows)
            links, weights = self._paths.in_step(streams.rank[in_step], streams.past_leaf[in_step], receivers)
            flow = progress.start_in_step(links, left, weights)
            streams.state[in_step] = IN_STEP
            network.settle()
            leaders, late = self._limiting(links, in_step)
            if not len(leaders) and not len(late):
                break
            progress.stop_in_step()
            in_step = in_step[~np.isin(in_step, leaders)]
            progress.start(leaders, streams.end[leaders])
            progress.follows[late] = False
            progress.start_late(late)
        limit = self._round(network.rate(flow))
        if limit < left:
            progress.stop_in_step()
            if limit > 0:
                progress.start_in_step(links, limit, weights)

    def _round(self, rate: float) -> float:
        """How far the flow in step may move before it waits for results: a window in each round trip.

        Args: rate: its rate. Returns: bytes; infinite if the window does not limit it.
        """
        round_trip_us = self._round_trip_us()
        windows = self.progress.windows(self.progress.received)
        window = float(windows[self.streams.rank[self._front]].min(initial=math.inf))
        if rate * round_trip_us <= window:
            return math.inf
        now_us = self.clock.now_us
        if now_us >= self._next_round_us:
            self._next_round_us = now_us + math.ceil(round_trip_us)
            self._round_ends = self.position + window
        left = self._round_ends - self.position
        if left <= self._fragment / 2:
            self._update_at(self._next_round_us)
            return 0.0
        return left

    def _round_trip_us(self) -> float:
        """The longest round trip of the workers that the sum waits for."""
        ranks = self.streams.rank
        return self._paths.round_trip_us(ranks[self._front] if len(self._front) else ranks)

    def _limiting(self, links: Ints, in_step: Ints) -> tuple[Ints, Ints]:
        """Members of the flow in step that limit it without need.

        Returns: streams ahead of the sum on slow links, and receivers whose results may come later.
        """
        progress = self.progress
        fabric, streams = self.fabric, self.streams
        no_streams = in_step[:0]
        full = np.zeros(len(fabric.network.delay_us), bool)
        full[links[fabric.network.are_full(links)]] = True
        if not full.any():
            return no_streams, no_streams
        is_slow = full[self._paths.up[streams.rank[in_step]]]
        essential = np.isin(in_step, self._front)
        if (is_slow & essential).any():
            return in_step[essential & ~is_slow], no_streams
        shared = [*fabric.rack_up, *fabric.rack_down, fabric.server_up, fabric.server_down]
        if full[shared].any():
            return no_streams, no_streams
        busy = np.zeros(len(self._over), bool)
        busy[streams.rank[streams.state != DONE]] = True
        received = progress.all_received()
        slack = progress.windows(received) - (self.position - progress.received)
        late = progress.follows & full[self._paths.down] & (~busy | (slack > self._fragment))
        return in_step[is_slow & ~essential], np.flatnonzero(late)

    # --- the next update ----------------------------------------------------------------------------------------------

    def _on_rates(self) -> None:
        """Rates have changed because of other flows."""
        if not self._updating and self.progress.is_covered and not self.progress.gathers:
            self._set_timer()

    def _set_timer(self) -> None:
        """Schedules an update: when a stream reaches the end of its window or meets the sum, or late results catch up."""
        progress = self.progress
        network = self.fabric.network
        pace = 0.0 if progress.in_step is None else network.rate(progress.in_step)
        position = self.position + progress.moved
        soonest = self._timer_us - self.clock.now_us if self._timer_us < NEVER_US else math.inf
        streams = self.streams
        free = np.flatnonzero(streams.place != NOWHERE)
        late = np.flatnonzero(progress.lagging != NOWHERE)
        if len(free) or len(late):
            received = progress.all_received()
            received_rate = np.where(progress.follows, pace, 0.0)
            received_rate[late] = network.rates(progress.lagging[late])
            if len(late) and not self.is_complete:
                gap, gains = position - received[late], received_rate[late] - pace
                soonest = min(soonest, _soonest(gap, gains))
            rank, rate = streams.rank[free], network.rates(streams.place[free])
            place = streams.sent[free] + network.carried_by(streams.place[free])
            room = (received + progress.windows(received))[rank] - place
            soonest = min(soonest, _soonest(room, rate - received_rate[rank]))
            is_ahead = place >= position
            soonest = min(soonest, _soonest((place - position)[is_ahead], (pace - rate)[is_ahead]))
        if soonest < math.inf:
            self._update_at(self.clock.now_us + max(1, math.ceil(soonest)))

    def _update_at(self, when_us: int) -> None:
        self._timer_us = when_us

        def due() -> None:
            if self._timer_us == when_us:
                self._timer_us = NEVER_US
                self._update_soon()

        self.clock.at(when_us, due)


def _soonest(distances: Floats, gains: Floats) -> float:
    """When the first of some distances reaches 0; infinite if none shrinks. Args: gains: how fast each shrinks."""
    shorter = gains > 0
    return float((np.maximum(0.0, distances[shorter]) / gains[shorter]).min(initial=math.inf))
