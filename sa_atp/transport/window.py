"""How many fragments may be on their way: one window for the network, one for the slots. (protocol section 5.2)

Both count fragments and both bound what is sent; the smaller one rules.

  network   grows by one for each result until the first mark (slow start), then by one a round trip; shrinks in
            proportion to the share of results that carried a congestion mark (DCTCP, RFC 8257), and by half on loss.
  slots     how many slots this job tries to hold at once; halves in a round trip in which results collided, which means
            that others want the same slots, and grows by one a round trip without collisions.
"""

INITIAL_WINDOW = 64
MIN_WINDOW = 4
MIN_SLOTS = 2
MARK_GAIN = 1 / 16  # weight of the newest round in the estimate of the marked share (RFC 8257, section 4.2)


class Window:
    def __init__(self, slot_count: int) -> None:
        self.slot_count = slot_count
        self.network = float(min(INITIAL_WINDOW, slot_count))
        self.slots = float(slot_count)
        self._threshold = float("inf")
        self._marked_share = 1.0
        self._round_ends_us = 0
        self._results = self._marked = self._collided = 0
        self._lost = False

    @property
    def limit(self) -> int:
        return int(min(self.network, self.slots))

    def on_results(self, results: int, marked: int, collided: int, now_us: int, round_trip_us: int) -> None:
        """Results came in; `marked` of them carried a congestion mark, `collided` were finished by the server."""
        self._results += results
        self._marked += marked
        self._collided += collided
        if self.network < self._threshold and not marked:
            self.network += results
        elif not marked:
            self.network += results / self.network
        if not collided:
            self.slots += results / self.slots
        if marked and self.network < self._threshold:
            self._threshold = self.network  # the first mark ends slow start at once
        self.network = min(self.network, float(self.slot_count))
        self.slots = min(self.slots, float(self.slot_count))
        if now_us >= self._round_ends_us:
            self._end_round(now_us + round_trip_us)

    def on_loss(self, now_us: int, round_trip_us: int) -> None:
        """Fragments were lost; counts once a round trip."""
        if self._lost:
            return
        self._lost = True
        self._round_ends_us = max(self._round_ends_us, now_us + round_trip_us)
        self.network = max(self.network / 2, MIN_WINDOW)
        self._threshold = self.network

    def _end_round(self, next_end_us: int) -> None:
        if self._results:
            share = self._marked / self._results
            self._marked_share += MARK_GAIN * (share - self._marked_share)
        if self._marked and not self._lost:
            self.network = max(self.network * (1 - self._marked_share / 2), MIN_WINDOW)
            self._threshold = self.network
        if self._collided:
            self.slots = max(self.slots / 2, MIN_SLOTS)
        self._results = self._marked = self._collided = 0
        self._lost = False
        self._round_ends_us = next_end_us
