"""Flows that share links fairly, in virtual time.

A flow has so many bytes to carry over some links. All flows together have max-min fair rates (`fair_rates`). Rates hold
until a flow begins or ends, or a link changes; then they are worked out anew, once for all that happens in one
microsecond.

A flow may use a link several times (a weight): what moves in step, like the contributions to one sum, is one flow that
takes a share of each contributor's link.

Who has many flows has them by their places in the network's arrays (`Many`): what is done with all of them at once costs
little more than with one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sa_atp.lab.flow.arrays import Flags, Floats, Ints
from sa_atp.lab.flow.fair_rates import fair_rates
from sa_atp.lab.simulator.network import Clock

Owners = NDArray[np.object_]

BYTES_PER_US = 1 / 8  # of a megabit a second
DONE_BYTES = 1e-3  # less than that is rounding
UNBOUNDED = 1e12  # bytes in a microsecond, of what uses no link


@dataclass(slots=True, eq=False)
class Flow:
    """A flow that has begun; made by `FlowNetwork.start`."""

    finished: Callable[[], None]
    index: int = -1
    """Where its numbers are; -1: it is over."""
    carried: float = 0.0
    """When it is over: the bytes that it has carried."""

    @property
    def is_over(self) -> bool:
        return self.index < 0


@dataclass(slots=True, eq=False)
class Many:
    """Whose flows are known by their places, see `FlowNetwork.start_many`."""

    finished: Callable[[Ints, Floats], None]
    """Called with the names of those that have ended in a microsecond, and the bytes that each has carried."""


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
        self._capacities: list[float] = []  # the same, for who wants to know one
        self._users: Ints = np.zeros(0, np.int64)  # of each link: flows that use it
        self._carried: Floats = np.zeros(0)  # of each link: bytes, by flows that are over
        self._places = 0  # that have been used
        self._free: list[int] = []  # ... by flows that are over
        self._owner: Owners = np.full(16, None, object)  # of each flow
        self._name: Ints = np.zeros(16, np.int64)  # by which its owner knows it
        self._serial: Ints = np.zeros(16, np.int64)  # flows that end in the same microsecond end in this order
        self._first_entry: Ints = np.zeros(16, np.int64)
        self._links: Ints = np.zeros(16, np.int64)  # how many it uses
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
        self._capacities.append(rate_mbps * BYTES_PER_US)
        self._users = np.append(self._users, 0)
        self._carried = np.append(self._carried, 0.0)
        return len(self.delay_us) - 1

    def rate_mbps(self, link: int) -> float:
        return self._capacities[link] / BYTES_PER_US

    def capacity(self, links: Ints) -> Floats:
        """float64[links]: rates of some links, bytes in a microsecond."""
        found: Floats = self._capacity[links]
        return found

    def set_rate(self, link: int, rate_mbps: float) -> None:
        """From now on the link has this rate; 0: nothing gets through."""
        self._advance()
        self._capacity[link] = self._capacities[link] = rate_mbps * BYTES_PER_US
        self.changes += 1
        if self._users[link]:
            self._unsolved = True
            self._settle_soon()

    def transmission_us(self, link: int, size: float) -> float:
        """How long so many bytes are on a link that nobody else uses."""
        capacity = self._capacities[link]
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
        path: Ints = np.asarray(links, np.int64)
        factors: Floats = np.ones(len(path)) if weights is None else np.asarray(weights, np.float64)
        flow = Flow(finished)
        counts = np.array([len(path)])
        (flow.index,) = self._begin(flow, np.zeros(1, np.int64), counts, path, factors, np.array([size]), cap).tolist()
        return flow

    def start_many(self, owner: Many, names: Ints, paths: Ints, sizes: Floats) -> Ints:
        """Flows begin.

        Args:
            names: int64[flows], by which the owner knows them.
            paths: int64[flows, links]: the links of each, at least one; -1: no more.
            sizes: float64[flows], bytes.

        Returns: int64[flows], their places, which are theirs until they are over.
        """
        used = paths >= 0
        links = paths[used]
        return self._begin(owner, names, used.sum(1), links, np.ones(len(links)), sizes, float("inf"))

    def stop(self, flow: Flow) -> float:
        """Ends a flow before its time; `finished` is not called. Returns: the bytes that it has not carried."""
        if flow.is_over:
            return 0.0
        self._advance()
        left = float(self._left[flow.index])
        self._remove(np.array([flow.index]))
        self._settle_soon()
        return left

    def stop_many(self, places: Ints) -> None:
        """Ends flows that are not over."""
        if len(places):
            self._advance()
            self._remove(places)
            self._settle_soon()

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

    def carried_at(self, place: int) -> float:
        """Bytes that the flow at a place has carried so far."""
        left = float(self._left[place]) - float(self._rate[place]) * (self.clock.now_us - self._at_us)
        return float(self._size[place]) - max(0.0, left)

    def carried_by(self, places: Ints) -> Floats:
        """float64[flows]: bytes that flows which are not over have carried so far."""
        left = self._left[places] - self._rate[places] * (self.clock.now_us - self._at_us)
        carried: Floats = self._size[places] - np.maximum(0.0, left)
        return carried

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

    def rates(self, places: Ints) -> Floats:
        """float64[flows]: the same of flows which are not over."""
        found: Floats = self._rate[places]
        return found

    def settle(self) -> None:
        """Works out at once what has changed in this microsecond, for who wants to know rates now."""
        self._advance()
        if self._unsolved:
            self._solve()

    # --- places -------------------------------------------------------------------------------------------------------

    def _begin(
        self,
        owner: "Flow | Many",
        names: Ints,
        counts: Ints,
        links: Ints,
        weights: Floats,
        sizes: Floats,
        cap: float,
    ) -> Ints:
        """Flows begin. Args: counts: links of each; links, weights: those of the first one, then of the next.

        Returns: their places.
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
            self._rate[places] = self._alone(counts, links, weights, cap)  # nobody else notices
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
        """Forgets the entries of flows that are over; doubles what is left if that is not enough."""
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
        """Flows are over. Returns: float64[flows]: the bytes that they have carried."""
        carried: Floats = self._size[places] - self._left[places]
        counts = self._links[places]
        before = np.cumsum(counts) - counts
        entries = np.arange(counts.sum()) + np.repeat(self._first_entry[places] - before, counts)
        links = self._entry_link[entries]
        np.add.at(self._carried, links, self._entry_weight[entries] * np.repeat(carried, counts))
        # whom one of them leaves a link to will be faster
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
        """Puts the next end of a flow on the clock."""
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
        """Ends what is done."""
        if self._next_us != when_us:
            return  # something has changed since
        self._next_us = None
        self._advance()
        many = self._places
        ended = np.flatnonzero(self._active[:many] & (self._left[:many] <= DONE_BYTES))
        ended = ended[np.argsort(self._serial[ended])]
        owners, names = self._owner[ended], self._name[ended]
        carried = self._remove(ended)
        self._settle_soon()
        for owner in dict.fromkeys(owners.tolist()):  # in the order of the first that each has
            if isinstance(owner, Flow):
                owner.finished()
            else:
                its = owners == owner
                owner.finished(names[its], carried[its])

    # --- shares -------------------------------------------------------------------------------------------------------

    def _alone(self, counts: Ints, links: Ints, weights: Floats, cap: float) -> Floats:
        """float64[flows]: their rates, where no link has another flow."""
        if len(links) == 0:
            return np.full(len(counts), min(cap, UNBOUNDED))
        first = np.cumsum(counts) - counts
        slowest: Floats = np.minimum.reduceat(self._capacity[links] / weights, first)
        return np.minimum(cap, slowest)

    def _solve(self) -> None:
        """Works out all rates."""
        self._unsolved = False
        many = self._places
        at = slice(0, self._entries)
        live = self._entry_weight[at] > 0
        flow, link, weight = self._entry_flow[at][live], self._entry_link[at][live], self._entry_weight[at][live]
        self._rate[:many] = fair_rates(flow, link, weight, self._capacity, self._cap[:many])
        for index in np.flatnonzero(self._active[:many] & (np.bincount(flow, minlength=many) == 0)).tolist():
            self._rate[index] = min(float(self._cap[index]), UNBOUNDED)  # it uses no link
