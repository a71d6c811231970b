"""How many fragments may be on their way: one window for the network, one for the slots. (protocol section 5.2)

Both count fragments, and each bounds something else: the network window what may still be on its way to the switch, the
slot window what may be held there until the last worker has sent.

  network   grows by one for each fragment that is known to have left the network until the first sign of a queue (slow
            start), then by one a round trip; shrinks in proportion to the share of results and answers that carried a
            congestion mark (DCTCP, RFC 8257); and by half where losses come with signs of a queue.
  slots     how many slots this job tries to hold at once; halves in a round trip in which results collided, which means
            that others want the same slots, and grows by one a round trip without collisions.

Losses alone are no sign of congestion: lossy links lose packets however few there are. So what is lost shrinks the window
only as far as the path was slower than it is when it is empty (after TCP Westwood), unless there were marks as well, or so
much is lost that no link can be meant.
"""

from collections.abc import Sequence
from typing import Literal

from sa_atp.protocol.log.event import Log, nobody
from sa_atp.protocol.log.rank_events import WindowChanged

INITIAL_WINDOW = 64
MIN_WINDOW = 4
MIN_SLOTS = 2
LEAST_UNMARKED = 16  # what losses leave where there are no marks: half of what may queue in a switch without one
MARK_GAIN = 1 / 16  # weight of the newest round in the estimate of the marked share (RFC 8257, section 4.2)
MOST_LOST = 1 / 5  # a larger share of what is sent is lost by queues, not by links


class Window:
    def __init__(self, slot_count: int, log: Log = nobody) -> None:
        self._log = log
        self.slot_count = slot_count
        self.network = float(min(INITIAL_WINDOW, slot_count))
        self.slots = float(slot_count)
        self._threshold = float("inf")
        self._marked_share = 1.0
        self._lost_share = 0.0
        self._round_ends_us = 0
        self._heard = self._marked = self._collided = self._left = self._lost = 0
        self._has_shrunk = False  # by losses, in this round

    # --- for kernels (steady_kernels.py) ------------------------------------------------------------------------------

    def counted(self) -> tuple[int, ...]:
        """The round that is under way: its end, and what was heard, marked, collided, left and lost; whether it shrank."""
        return (
            self._round_ends_us, self._heard, self._marked, self._collided, self._left, self._lost, int(self._has_shrunk),
        )  # fmt: skip

    def sizes(self) -> tuple[float, ...]:
        return self.network, self.slots, self._threshold, self._marked_share, self._lost_share

    def set_counted(self, counted: Sequence[int], sizes: Sequence[float]) -> None:
        """Args: as `counted` and `sizes` gave them, after what has happened since."""
        self._round_ends_us, self._heard, self._marked, self._collided, self._left, self._lost, shrunk = counted
        self._has_shrunk = bool(shrunk)
        before, is_less = (self.network, self.slots), sizes[0] < self.network or sizes[1] < self.slots
        self.network, self.slots, self._threshold, self._marked_share, self._lost_share = sizes
        if is_less:
            self._tell("stream", *before)

    @property
    def limit(self) -> int:
        """The smaller one."""
        return int(min(self.network, self.slots))

    def on_results(
        self, results: int, marked: int, collided: int, now_us: int, round_trip_us: int, left: int | None = None
    ) -> None:
        """Results came in; `marked` of them carried a congestion mark, `collided` were finished by the server.

        Args: left: fragments that are known by them not to be in the network any more; None: as many as results.
        """
        self._collided += collided
        if not collided:
            self.slots = min(self.slots + results / self.slots, float(self.slot_count))
        self.on_left(results if left is None else left, results, marked, now_us, round_trip_us)

    def on_left(self, left: int, heard: int, marked: int, now_us: int, round_trip_us: int) -> None:
        """So many fragments have left the network, says somebody; `marked` of the `heard` packets had a mark.

        Args: heard: packets, or what they speak for.
        """
        self._heard += heard
        self._marked += marked
        self._left += left
        if self.network < self._threshold and not marked:
            self.network += left
        elif not marked:
            self.network += left / self.network
        if marked:
            self.on_queue()
        self.network = min(self.network, float(self.slot_count))
        if now_us >= self._round_ends_us:
            self._end_round(now_us + round_trip_us)

    def on_queue(self) -> None:
        """There is a queue, says a mark, or the time that answers take: slow start is over at once."""
        is_news, self._threshold = self._threshold == float("inf"), min(self._threshold, self.network)
        if is_news:
            self._tell("queue", self.network, self.slots)

    def on_loss(self, lost: int, empty_share: float, now_us: int, round_trip_us: int) -> None:
        """Fragments were lost; shrinks once a round trip.

        Args: empty_share: round trip of the empty path, as a share of that of now.
        """
        self._lost += lost
        if self._has_shrunk:
            return
        floor = float(MIN_WINDOW)
        if not self._marked and self._lost_share < MOST_LOST:
            # what the path carries without a queue; as much again is no reason to go slower
            floor = max(2 * empty_share * self.network, LEAST_UNMARKED)
        if self.network > floor:
            self._has_shrunk = True
            self._round_ends_us = max(self._round_ends_us, now_us + round_trip_us)
            before, self.network = self.network, max(self.network / 2, floor)
            self._threshold = self.network
            self._tell("loss", before, self.slots)

    def _end_round(self, next_end_us: int) -> None:
        if self._heard:
            share = self._marked / self._heard
            self._marked_share += MARK_GAIN * (share - self._marked_share)
        if self._left + self._lost:
            share = min(1.0, self._lost / max(1, self._left))
            self._lost_share += MARK_GAIN * (share - self._lost_share)
        if self._marked and not self._has_shrunk:
            before, self.network = self.network, max(self.network * (1 - self._marked_share / 2), MIN_WINDOW)
            self._threshold = self.network
            self._tell("mark", before, self.slots)
        if self._collided:
            before, self.slots = self.slots, max(self.slots / 2, MIN_SLOTS)
            self._tell("collision", self.network, before)
        self._heard = self._marked = self._collided = self._left = self._lost = 0
        self._has_shrunk = False
        self._round_ends_us = next_end_us

    def _tell(self, why: Literal["loss", "mark", "collision", "queue", "stream"], network: float, slots: float) -> None:
        """Args: as they were before."""
        self._log(WindowChanged(why, int(self.network), int(self.slots), int(network), int(slots)))
