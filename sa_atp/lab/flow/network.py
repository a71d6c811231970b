"""Flows that share links fairly, in virtual time.

A flow carries a number of bytes over some links. All flows together have max-min fair rates (`fair_rates`), which hold
until a flow begins or ends or a link changes; then they are computed anew, once for all changes in one microsecond.

A flow may use a link several times (its weight there): contributions that move in step are one flow, which takes a share of
each contributor's link.

An owner of many flows has them by their places in the network's arrays (`FlowOwner`), so that an operation on all of them
costs little more than on one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sa_atp.lab.flow.arrays import Flags, Floats, Ints
from sa_atp.lab.flow.fair_rates import fair_rates
from sa_atp.lab.simulator.network import Clock

Owners = NDArray[np.object_]

BYTES_PER_US = 1 / 8  # in a Mbit/s
DONE_BYTES = 1e-3  # a flow with less than this left has ended: the rest is rounding
UNBOUNDED = 1e12  # bytes per microsecond of a flow without links


@dataclass(slots=True, eq=False)
class Flow:
    """A flow that has begun; made by `FlowNetwork.start`."""

    finished: Callable[[], None]
    index: int = -1
    """Its place in the network's arrays; -1: it has ended."""
    carried: float = 0.0
    """Once it has ended: the bytes that it carried."""

    @property
    def is_over(self) -> bool:
        return self.index < 0


@dataclass(slots=True, eq=False)
class FlowOwner:
    """An owner of many flows, which it knows by their places, see `FlowNetwork.start_many`."""

    finished: Callable[[Ints, Floats], None]
    """Called with the names of flows that have ended in a microsecond, and the bytes that each has carried."""


class FlowNetwork:
    """Links are named by the numbers that `add_link` gives. Times are the clock's, sizes are bytes on the wire."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.delay_us: list[int] = []  # of each link
        self.changes = 0
        """How many times a link's rate has changed."""
        self.watchers: list[Callable[[], None]] = []
        """Callbacks after rates have been computed anew; they must not begin or end flows."""
        self._capacity: Floats = np.zeros(0)  # by link: bytes per microsecond
        self._capacities: list[float] = []  # the same as Python floats
        self._users: Ints = np.zeros(0, np.int64)  # by link: number of flows
        self._carried: Floats = np.zeros(0)  # by link: bytes carried by flows that have ended
        self._places = 0  # places used so far
        self._free: list[int] = []  # places of flows that have ended
        self._owner: Owners = np.full(16, None, object)  # by place
        self._name: Ints = np.zeros(16, np.int64)  # by place: the owner's name for the flow
        self._serial: Ints = np.zeros(16, np.int64)  # flows that end in the same microsecond end in this order
        self._first_entry: Ints = np.zeros(16, np.int64)
        self._links: Ints = np.zeros(16, np.int64)  # by place: number of links
        self._left: Floats = np.zeros(16)  # by place: bytes
        self._size: Floats = np.zeros(16)
        self._rate: Floats = np.zeros(16)
        self._cap: Floats = np.zeros(16)
        self._active: Flags = np.zeros(16, bool)
        self._entries = 0  # (flow, link, weight), one for each link of each flow; a weight of 0: the flow is over
        self._entry_flow: Ints = np.zeros(64, np.int64)
        self._entry_link: Ints = np.zeros(64, np.int64)
        self._entry_weight: Floats = np.zeros(64)
        self._dead_entries = 0
        self._at_us = clock.now_us  # the time of `_left`
        self._started = 0
        self._unsolved = False  # rates have to be computed anew
        self._settling = False  # rates or the next end will be computed later in this microsecond
        self._next_us: int | None = None

    # --- links --------------------------------------------------------------------------------------------------------

    def add_link(self, rate_mbps: float, delay_us: int) -> int:
        """Adds one direction of a link. Returns: its number."""
        self.delay_us.append(delay_us)
        self._capacity = np.append(self._capacity, rate_mbps * BYTES_PER_US)
        self._capacities.append(rate_mbps * BYTES_PER_US)
        self._users = np.append(self._users, 0)
        self._carried = np.append(self._carried, 0.0)
        return len(self.delay_us) - 1

    def rate_mbps(self, link: int) -> float:
        return self._capacities[link] / BYTES_PER_US

    def capacity(self, links: Ints) -> Floats:
        """float64[links]: rates of some links, bytes per microsecond."""
        found: Floats = self._capacity[links]
        return found

    def set_rate(self, link: int, rate_mbps: float) -> None:
        """Changes a link's rate from now on; 0 stops its flows."""
        self._advance()
        self._capacity[link] = self._capacities[link] = rate_mbps * BYTES_PER_US
        self.changes += 1
        if self._users[link]:
            self._unsolved = True
            self._settle_soon()

    def transmission_us(self, link: int, size: float) -> float:
        """Transmission time of so many bytes on an idle link."""
        capacity = self._capacities[link]
        return size / capacity if capacity else float("inf")

    def packet_us(self, links: Ints, size: float) -> Floats:
        """float64[links]: time of a packet over each of some links, delay included."""
        capacity = self._capacity[links]
        times: Floats = np.divide(size, capacity, out=np.full(len(links), np.inf), where=capacity > 0)
        times += np.array(self.delay_us, np.float64)[links]
        return times

    def carried_bytes(self, link: int) -> float:
        """Bytes carried over a link by flows that have ended."""
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
        """Starts a flow of `size` bytes.

        Args:
            links: each once.
            finished: called when the last byte has left, before it has arrived.
            weights: how many times the flow uses each link; default: once.
            cap: its largest rate, bytes per microsecond.
        """
        path: Ints = np.asarray(links, np.int64)
        factors: Floats = np.ones(len(path)) if weights is None else np.asarray(weights, np.float64)
        flow = Flow(finished)
        counts = np.array([len(path)])
        (flow.index,) = self._begin(flow, np.zeros(1, np.int64), counts, path, factors, np.array([size]), cap).tolist()
        return flow

    def start_many(self, owner: FlowOwner, names: Ints, paths: Ints, sizes: Floats) -> Ints:
        """Starts many flows.

        Args:
            names: int64[flows], the owner's names for them.
            paths: int64[flows, links]: the links of each, at least one, padded with -1.
            sizes: float64[flows], bytes.

        Returns: int64[flows], their places, valid until they end.
        """
        used = paths >= 0
        links = paths[used]
        return self._begin(owner, names, used.sum(1), links, np.ones(len(links)), sizes, float("inf"))

    def stop(self, flow: Flow) -> None:
        """Stops a flow; `finished` is not called."""
        if not flow.is_over:
            self.stop_many(np.array([flow.index]))

    def stop_many(self, places: Ints) -> None:
        """Stops flows that have not ended."""
        if len(places):
            self._advance()
            self._remove(places)
            self._settle_soon()

    def carried(self, flow: Flow) -> float:
        """Bytes that a flow has carried so far."""
        return flow.carried if flow.is_over else self.carried_at(flow.index)

    def carried_at(self, place: int) -> float:
        """Bytes that the flow at a place has carried so far."""
        left = float(self._left[place]) - float(self._rate[place]) * (self.clock.now_us - self._at_us)
        return float(self._size[place]) - max(0.0, left)

    def carried_by(self, places: Ints) -> Floats:
        """float64[flows]: bytes that flows have carried so far; none has ended."""
        left = self._left[places] - self._rate[places] * (self.clock.now_us - self._at_us)
        carried: Floats = self._size[places] - np.maximum(0.0, left)
        return carried

    def are_full(self, links: Ints) -> Flags:
        """bool[links]: whether flows use a link's whole rate."""
        at = slice(0, self._entries)
        used = np.bincount(
            self._entry_link[at], self._rate[self._entry_flow[at]] * self._entry_weight[at], len(self._capacity)
        )
        full: Flags = used[links] >= self._capacity[links] * (1 - 1e-6)
        return full

    def rate(self, flow: Flow) -> float:
        """A flow's rate, bytes per microsecond; without changes of this microsecond, before `settle`."""
        return 0.0 if flow.is_over else float(self._rate[flow.index])

    def rates(self, places: Ints) -> Floats:
        """float64[flows]: the rates of flows that have not ended."""
        found: Floats = self._rate[places]
        return found

    def settle(self) -> None:
        """Computes rates at once, with all changes of this microsecond."""
        self._advance()
        if self._unsolved:
            self._solve()

    # --- places -------------------------------------------------------------------------------------------------------

    def _begin(
        self,
        owner: "Flow | FlowOwner",
        names: Ints,
        counts: Ints,
        links: Ints,
        weights: Floats,
        sizes: Floats,
        cap: float,
    ) -> Ints:
        """Starts flows. Returns: their places.

        Args: counts: number of links of each; links, weights: those of all flows, concatenated.
        """
        self._advance()
        many = len(names)
        places = self._find_places(many)
        self._owner[places], self._name[places] = owner, names
        self._serial[places] = np.arange(self._started, self._started + many)
        self._started += many
        self._left[places] = self._size[places] = np.maximum(0.0, sizes)
        self._cap[places], self._active[places] = cap, True
        self._add_entries(places, counts, links, weights)
        np.add.at(self._users, links, 1)
        if not self._unsolved and (len(links) == 0 or int(self._users[links].max()) == 1):
            self._rate[places] = self._alone(counts, links, weights, cap)  # no other flow is affected
        else:
            self._rate[places] = 0.0
            self._unsolved = True
        self._settle_soon()
        return places

    def _find_places(self, many: int) -> Ints:
        again = min(many, len(self._free))
        found = [self._free.pop() for _ in range(again)]
        found += range(self._places, self._places + many - again)
        self._places += many - again
        while self._places > len(self._left):
            more = len(self._left)
            self._left, self._size, self._rate, self._cap = (
                np.concatenate([array, np.zeros(more)]) for array in (self._left, self._size, self._rate, self._cap)
            )
            self._name, self._serial, self._first_entry, self._links = (
                np.concatenate([array, np.zeros(more, np.int64)])
                for array in (self._name, self._serial, self._first_entry, self._links)
            )
            self._owner = np.concatenate([self._owner, np.full(more, None, object)])
            self._active = np.concatenate([self._active, np.zeros(more, bool)])
        return np.array(found, np.int64)

    def _add_entries(self, places: Ints, counts: Ints, links: Ints, weights: Floats) -> None:
        if self._entries + len(links) > len(self._entry_flow):
            self._make_room(len(links))
        first, end = self._entries, self._entries + len(links)
        self._entry_flow[first:end] = np.repeat(places, counts)
        self._entry_link[first:end] = links
        self._entry_weight[first:end] = weights
        self._entries = end
        self._first_entry[places], self._links[places] = end - np.cumsum(counts[::-1])[::-1], counts

    def _make_room(self, more: int) -> None:
        """Drops entries of flows that have ended, and doubles the arrays if that is not enough."""
        if self._dead_entries:
            live = np.flatnonzero(self._entry_weight[: self._entries] > 0)
            for array in (self._entry_flow, self._entry_link, self._entry_weight):
                array[: len(live)] = array[live]
            self._first_entry = np.searchsorted(live, self._first_entry)
            self._entries, self._dead_entries = len(live), 0
        while 2 * (self._entries + more) > len(self._entry_flow):
            size = len(self._entry_flow)
            self._entry_flow = np.concatenate([self._entry_flow, np.zeros(size, np.int64)])
            self._entry_link = np.concatenate([self._entry_link, np.zeros(size, np.int64)])
            self._entry_weight = np.concatenate([self._entry_weight, np.zeros(size)])

    def _remove(self, places: Ints) -> Floats:
        """Removes flows. Returns: float64[flows]: the bytes that they have carried."""
        carried: Floats = self._size[places] - self._left[places]
        counts = self._links[places]
        before = np.cumsum(counts) - counts
        entries = np.arange(counts.sum()) + np.repeat(self._first_entry[places] - before, counts)
        links = self._entry_link[entries]
        np.add.at(self._carried, links, self._entry_weight[entries] * np.repeat(carried, counts))
        # flows that share a link with a removed one will be faster
        self._unsolved = self._unsolved or bool((self._users[links] > 1).any())
        np.subtract.at(self._users, links, 1)
        self._entry_weight[entries] = 0.0
        self._dead_entries += len(entries)
        self._left[places] = self._rate[places] = 0.0
        self._active[places] = False
        for owner, moved in zip(self._owner[places], carried.tolist(), strict=True):
            if isinstance(owner, Flow):
                owner.index, owner.carried = -1, moved
        self._owner[places] = None
        self._free += places.tolist()
        return carried

    # --- time ---------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        passed = self.clock.now_us - self._at_us
        if passed:
            many = self._places
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
        """Schedules the next end of a flow."""
        many = self._places
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
        """Ends the flows that are due."""
        if self._next_us != when_us:
            return  # rates have changed since
        self._next_us = None
        self._advance()
        many = self._places
        ended = np.flatnonzero(self._active[:many] & (self._left[:many] <= DONE_BYTES))
        ended = ended[np.argsort(self._serial[ended])]
        owners, names = self._owner[ended], self._name[ended]
        carried = self._remove(ended)
        self._settle_soon()
        for owner in dict.fromkeys(owners.tolist()):  # in the order of each owner's first flow
            if isinstance(owner, Flow):
                owner.finished()
            else:
                its = owners == owner
                owner.finished(names[its], carried[its])

    # --- shares -------------------------------------------------------------------------------------------------------

    def _alone(self, counts: Ints, links: Ints, weights: Floats, cap: float) -> Floats:
        """float64[flows]: rates of flows that share no link with others."""
        if len(links) == 0:
            return np.full(len(counts), min(cap, UNBOUNDED))
        first = np.cumsum(counts) - counts
        slowest: Floats = np.minimum.reduceat(self._capacity[links] / weights, first)
        return np.minimum(cap, slowest)

    def _solve(self) -> None:
        """Computes all rates."""
        self._unsolved = False
        many = self._places
        at = slice(0, self._entries)
        live = self._entry_weight[at] > 0
        flow, link, weight = self._entry_flow[at][live], self._entry_link[at][live], self._entry_weight[at][live]
        self._rate[:many] = fair_rates(flow, link, weight, self._capacity, self._cap[:many])
        for index in np.flatnonzero(self._active[:many] & (np.bincount(flow, minlength=many) == 0)).tolist():
            self._rate[index] = min(float(self._cap[index]), UNBOUNDED)  # it uses no link
