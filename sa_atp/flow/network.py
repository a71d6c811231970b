"""Flows that share links fairly, in virtual time.

A flow has so many bytes to carry over some links. All flows together have max-min fair rates: no flow could be faster
without making one slower that is not faster than it (Bertsekas and Gallager, Data Networks, section 6.5.2). Rates hold
until a flow begins or ends, or a link changes; then they are worked out anew, once for all that happens in one
microsecond.

A flow may use a link several times (a weight): what moves in step, like the contributions to one sum, is one flow that
takes a share of each contributor's link.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sa_atp.sim.network import Clock

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

BYTES_PER_US = 1 / 8  # of a megabit a second
DONE_BYTES = 1e-3  # less than that is rounding
UNBOUNDED = 1e12  # bytes in a microsecond, of what uses no link
FULL_SHARE = 1e-9  # of a link's rate: less room than that is none


@dataclass(slots=True, eq=False)
class Flow:
    """A flow that has begun; made by `FlowNetwork.start`."""

    links: Ints
    weights: Floats
    finished: Callable[[], None]
    serial: int
    """Flows that end in the same microsecond end in this order."""
    index: int = -1
    """Where its numbers are; -1: it is over."""
    first_entry: int = -1
    carried: float = 0.0
    """When it is over: the bytes that it has carried."""

    @property
    def is_over(self) -> bool:
        return self.index < 0


class FlowNetwork:
    """Links are named by the numbers that `add_link` gives. Times are the clock's, sizes are bytes on the wire."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.delay_us: list[int] = []  # of each link
        self.changes = 0
        """How many times a link's rate has changed."""
        self.watchers: list[Callable[[], None]] = []
        """Called when rates have been worked out anew; they must not begin or end flows."""
        self._capacity: Floats = np.zeros(0)  # of each link, bytes in a microsecond
        self._users: Ints = np.zeros(0, np.int64)  # of each link: flows that use it
        self._carried: Floats = np.zeros(0)  # of each link: bytes, by flows that are over
        self._flows: list[Flow | None] = []
        self._free: list[int] = []  # places of flows that are over
        self._left: Floats = np.zeros(16)  # of each flow: bytes
        self._size: Floats = np.zeros(16)
        self._rate: Floats = np.zeros(16)
        self._cap: Floats = np.zeros(16)
        self._active: Flags = np.zeros(16, bool)
        self._entries = 0  # (flow, link, weight), one for each link of each flow; a weight of 0: the flow is over
        self._entry_flow: Ints = np.zeros(64, np.int64)
        self._entry_link: Ints = np.zeros(64, np.int64)
        self._entry_weight: Floats = np.zeros(64)
        self._dead_entries = 0
        self._at_us = clock.now_us  # what `_left` is as of
        self._started = 0
        self._unsolved = False  # rates are to be worked out anew
        self._settling = False  # ... or the next end is, later in this microsecond
        self._next_us: int | None = None

    # --- links --------------------------------------------------------------------------------------------------------

    def add_link(self, rate_mbps: float, delay_us: int) -> int:
        """One direction of a link. Returns: its number."""
        self.delay_us.append(delay_us)
        self._capacity = np.append(self._capacity, rate_mbps * BYTES_PER_US)
        self._users = np.append(self._users, 0)
        self._carried = np.append(self._carried, 0.0)
        return len(self.delay_us) - 1

    def rate_mbps(self, link: int) -> float:
        return float(self._capacity[link]) / BYTES_PER_US

    def capacity(self, links: Ints) -> Floats:
        """float64[links]: rates of some links, bytes in a microsecond."""
        found: Floats = self._capacity[links]
        return found

    def set_rate(self, link: int, rate_mbps: float) -> None:
        """From now on the link has this rate; 0: nothing gets through."""
        self._advance()
        self._capacity[link] = rate_mbps * BYTES_PER_US
        self.changes += 1
        if self._users[link]:
            self._unsolved = True
            self._settle_soon()

    def transmission_us(self, link: int, size: float) -> float:
        """How long so many bytes are on a link that nobody else uses."""
        capacity = float(self._capacity[link])
        return size / capacity if capacity else float("inf")

    def packet_us(self, links: Ints, size: float) -> Floats:
        """float64[links]: what a packet takes over each of some links, to its last bit at the other end."""
        capacity = self._capacity[links]
        times: Floats = np.divide(size, capacity, out=np.full(len(links), np.inf), where=capacity > 0)
        times += np.array(self.delay_us, np.float64)[links]
        return times

    def share(self, link: int) -> float:
        """How much of a link is in use now, 0 to 1."""
        capacity = float(self._capacity[link])
        if not capacity or not self._users[link]:
            return 0.0
        at = slice(0, self._entries)
        on_it = self._entry_link[at] == link
        used = (self._rate[self._entry_flow[at][on_it]] * self._entry_weight[at][on_it]).sum()
        return float(used) / capacity

    def carried_bytes(self, link: int) -> float:
        """What flows that are over have carried over a link."""
        return float(self._carried[link])

    # --- flows --------------------------------------------------------------------------------------------------------

    def start(
        self,
        links: Sequence[int] | Ints,
        size: float,
        finished: Callable[[], None],
        *,
        weights: Sequence[float] | Floats | None = None,
        cap: float = float("inf"),
    ) -> Flow:
        """A flow of `size` bytes begins.

        Args:
            links: each once.
            finished: called when the last byte has left; not how long it takes after that to arrive.
            weights: how many times it uses each of them; default: once.
            cap: it is never faster, bytes in a microsecond.
        """
        self._advance()
        path: Ints = np.asarray(links, np.int64)
        factors: Floats = np.ones(len(path)) if weights is None else np.asarray(weights, np.float64)
        flow = Flow(path, factors, finished, self._started)
        self._started += 1
        index = flow.index = self._place(flow)
        self._left[index] = self._size[index] = max(0.0, size)
        self._cap[index], self._active[index] = cap, True
        flow.first_entry = self._add_entries(index, path, factors)
        self._users[path] += 1
        if not self._unsolved and (len(path) == 0 or int(self._users[path].max()) == 1):
            self._rate[index] = self._alone(flow, cap)  # nobody else notices
        else:
            self._rate[index] = 0.0
            self._unsolved = True
        self._settle_soon()
        return flow

    def stop(self, flow: Flow) -> float:
        """Ends a flow before its time; `finished` is not called. Returns: the bytes that it has not carried."""
        if flow.is_over:
            return 0.0
        self._advance()
        left = float(self._left[flow.index])
        self._remove(flow)
        self._settle_soon()
        return left

    def set_cap(self, flow: Flow, cap: float) -> None:
        """From now on the flow is not faster than that, bytes in a microsecond."""
        if not flow.is_over and self._cap[flow.index] != cap:
            self._advance()
            self._cap[flow.index] = cap
            self._unsolved = True
            self._settle_soon()

    def left(self, flow: Flow) -> float:
        """Bytes that a flow has not carried yet."""
        if flow.is_over:
            return 0.0
        gone = float(self._rate[flow.index]) * (self.clock.now_us - self._at_us)
        return max(0.0, float(self._left[flow.index]) - gone)

    def carried(self, flow: Flow) -> float:
        """Bytes that a flow has carried so far."""
        return flow.carried if flow.is_over else float(self._size[flow.index]) - self.left(flow)

    def are_full(self, links: Ints) -> Flags:
        """bool[links]: whether flows leave nothing of a link."""
        at = slice(0, self._entries)
        used = np.bincount(
            self._entry_link[at], self._rate[self._entry_flow[at]] * self._entry_weight[at], len(self._capacity)
        )
        full: Flags = used[links] >= self._capacity[links] * (1 - 1e-6)
        return full

    def rate(self, flow: Flow) -> float:
        """Bytes in a microsecond, now; what changes in this microsecond may not be in it yet."""
        return 0.0 if flow.is_over else float(self._rate[flow.index])

    def settle(self) -> None:
        """Works out at once what has changed in this microsecond, for who wants to know rates now."""
        self._advance()
        if self._unsolved:
            self._solve()

    # --- places -------------------------------------------------------------------------------------------------------

    def _place(self, flow: Flow) -> int:
        if self._free:
            index = self._free.pop()
            self._flows[index] = flow
            return index
        index = len(self._flows)
        self._flows.append(flow)
        if index >= len(self._left):
            more = len(self._left)
            self._left, self._size, self._rate, self._cap = (
                np.concatenate([array, np.zeros(more)]) for array in (self._left, self._size, self._rate, self._cap)
            )
            self._active = np.concatenate([self._active, np.zeros(more, bool)])
        return index

    def _add_entries(self, index: int, links: Ints, weights: Floats) -> int:
        if self._entries + len(links) > len(self._entry_flow):
            self._make_room(len(links))
        first, end = self._entries, self._entries + len(links)
        self._entry_flow[first:end] = index
        self._entry_link[first:end] = links
        self._entry_weight[first:end] = weights
        self._entries = end
        return first

    def _make_room(self, more: int) -> None:
        """Forgets the entries of flows that are over; doubles what is left if that is not enough."""
        if self._dead_entries:
            live = np.flatnonzero(self._entry_weight[: self._entries] > 0)
            for array in (self._entry_flow, self._entry_link, self._entry_weight):
                array[: len(live)] = array[live]
            moved = np.searchsorted(live, [flow.first_entry if flow is not None else 0 for flow in self._flows])
            for flow, first in zip(self._flows, moved.tolist(), strict=True):
                if flow is not None:
                    flow.first_entry = first
            self._entries, self._dead_entries = len(live), 0
        while 2 * (self._entries + more) > len(self._entry_flow):
            size = len(self._entry_flow)
            self._entry_flow = np.concatenate([self._entry_flow, np.zeros(size, np.int64)])
            self._entry_link = np.concatenate([self._entry_link, np.zeros(size, np.int64)])
            self._entry_weight = np.concatenate([self._entry_weight, np.zeros(size)])

    def _remove(self, flow: Flow) -> None:
        index = flow.index
        flow.carried = float(self._size[index] - self._left[index])
        self._carried[flow.links] += flow.weights * flow.carried
        self._users[flow.links] -= 1
        self._unsolved = self._unsolved or bool(self._users[flow.links].any())
        span = slice(flow.first_entry, flow.first_entry + len(flow.links))
        self._entry_weight[span] = 0.0
        self._dead_entries += len(flow.links)
        self._left[index] = self._rate[index] = 0.0
        self._active[index] = False
        self._flows[index] = None
        self._free.append(index)
        flow.index = -1

    # --- time ---------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        passed = self.clock.now_us - self._at_us
        if passed:
            many = len(self._flows)
            self._left[:many] -= self._rate[:many] * passed
            np.maximum(self._left[:many], 0.0, out=self._left[:many])
            self._at_us = self.clock.now_us

    def _settle_soon(self) -> None:
        if not self._settling:
            self._settling = True
            self.clock.at(self.clock.now_us, self._settle)

    def _settle(self) -> None:
        self._settling = False
        changed = self._unsolved
        self.settle()
        self._plan_next()
        if changed:
            for watcher in list(self.watchers):
                watcher()

    def _plan_next(self) -> None:
        """Puts the next end of a flow on the clock."""
        many = len(self._flows)
        left, rate, active = self._left[:many], self._rate[:many], self._active[:many]
        moving = rate > 0  # of active flows only
        if (active & (left <= DONE_BYTES)).any():
            when_us = self.clock.now_us
        elif moving.any():
            soonest = float(np.min(left[moving] / rate[moving]))
            when_us = self._at_us + max(1, int(np.ceil(soonest - 1e-9)))
        else:
            self._next_us = None
            return
        if when_us != self._next_us:
            self._next_us = when_us
            self.clock.at(when_us, lambda: self._end(when_us))

    def _end(self, when_us: int) -> None:
        """Ends what is done."""
        if self._next_us != when_us:
            return  # something has changed since
        self._next_us = None
        self._advance()
        many = len(self._flows)
        ended = np.flatnonzero(self._active[:many] & (self._left[:many] <= DONE_BYTES))
        done = sorted((f for i in ended.tolist() if (f := self._flows[i]) is not None), key=lambda flow: flow.serial)
        for flow in done:
            self._remove(flow)
        self._settle_soon()
        for flow in done:
            flow.finished()

    # --- shares -------------------------------------------------------------------------------------------------------

    def _alone(self, flow: Flow, cap: float) -> float:
        if len(flow.links) == 0:
            return min(cap, UNBOUNDED)
        return min(cap, float((self._capacity[flow.links] / flow.weights).min()))

    def _solve(self) -> None:
        """Works out all rates."""
        self._unsolved = False
        many = len(self._flows)
        at = slice(0, self._entries)
        live = self._entry_weight[at] > 0
        flow, link, weight = self._entry_flow[at][live], self._entry_link[at][live], self._entry_weight[at][live]
        self._rate[:many] = fair_rates(flow, link, weight, self._capacity, self._cap[:many])
        for index in np.flatnonzero(self._active[:many] & (np.bincount(flow, minlength=many) == 0)).tolist():
            self._rate[index] = min(float(self._cap[index]), UNBOUNDED)  # it uses no link


def fair_rates(flow: Ints, link: Ints, weight: Floats, capacity: Floats, cap: Floats) -> Floats:
    """Max-min fair rates by filling up: all rise together until a link is full; its flows stay as they are, others rise on.

    Args:
        flow, link, weight: int64[n], int64[n], float64[n]: that a flow uses a link so many times.
        capacity: float64[links].
        cap: float64[flows]: what no flow exceeds.

    Returns: float64[flows]; 0 for flows that use no link.
    """
    rate = np.zeros(len(cap))
    growing = np.zeros(len(cap), bool)
    growing[flow] = True
    room = capacity.astype(np.float64)
    while len(flow):
        load = np.bincount(link, weight, minlength=len(capacity))
        used = load > 0
        step = float((room[used] / load[used]).min())
        to_cap = cap[growing] - rate[growing]
        step = max(0.0, min(step, float(to_cap.min())))
        rate[growing] += step
        room -= load * step
        full = used & (room <= FULL_SHARE * capacity)
        stopped = np.zeros(len(cap), bool)
        stopped[flow[full[link]]] = True
        stopped |= growing & (rate >= cap * (1 - FULL_SHARE))
        growing &= ~stopped
        stays = growing[flow]
        flow, link, weight = flow[stays], link[stays], weight[stays]
    return rate
