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

INITIAL_WINDOW = 64
MIN_WINDOW = 4
MIN_SLOTS = 2
LEAST_UNMARKED = 16  # what losses leave where there are no marks: half of what may queue in a switch without one
MARK_GAIN = 1 / 16  # weight of the newest round in the estimate of the marked share (RFC 8257, section 4.2)
MOST_LOST = 1 / 5  # a larger share of what is sent is lost by queues, not by links


def on_results(
    window: "Window", results: int, marked: int, collided: int, now_us: int, round_trip_us: int, left: int | None = None
) -> None:
    """Results came in; `marked` of them carried a congestion mark, `collided` were finished by the server.

    Args: left: fragments that are known by them not to be in the network any more; None: as many as results.
    """
    window.collided += collided
    if not collided:
        window.slots = min(window.slots + results / window.slots, float(window.most))
    on_left(window, results if left is None else left, results, marked, now_us, round_trip_us)


def on_left(window: "Window", left: int, heard: int, marked: int, now_us: int, round_trip_us: int) -> None:
    """Takes news that fragments have left the network; `marked` of the `heard` packets that said so had a mark.

    Args: heard: packets, or what they speak for.
    """
    window.heard += heard
    window.marked += marked
    window.left += left
    if window.network < window.threshold and not marked:
        window.network += left
    elif not marked:
        window.network += left / window.network
    if marked:
        on_queue(window)
    window.network = min(window.network, float(window.most))
    if now_us >= window.round_ends_us:
        _end_round(window, now_us + round_trip_us)


def on_queue(window: "Window") -> None:
    """A mark, or the time that answers take, shows a queue: slow start is over at once."""
    window.threshold = min(window.threshold, window.network)


def on_loss(window: "Window", lost: int, empty_share: float, now_us: int, round_trip_us: int) -> None:
    """Fragments were lost; shrinks once a round trip.

    Args: empty_share: round trip of the empty path, as a share of that of now.
    """
    window.lost += lost
    if window.has_shrunk:
        return
    floor = float(MIN_WINDOW)
    if not window.marked and window.lost_share < MOST_LOST:
        # what the path carries without a queue; as much again is no reason to go slower
        floor = max(2 * empty_share * window.network, LEAST_UNMARKED)
    if window.network > floor:
        window.has_shrunk = True
        window.round_ends_us = max(window.round_ends_us, now_us + round_trip_us)
        window.network = window.threshold = max(window.network / 2, floor)


def _end_round(window: "Window", next_end_us: int) -> None:
    if window.heard:
        share = window.marked / window.heard
        window.marked_share += MARK_GAIN * (share - window.marked_share)
    if window.left + window.lost:
        share = min(1.0, window.lost / max(1, window.left))
        window.lost_share += MARK_GAIN * (share - window.lost_share)
    if window.marked and not window.has_shrunk:
        window.network = max(window.network * (1 - window.marked_share / 2), MIN_WINDOW)
        window.threshold = window.network
    if window.collided:
        window.slots = max(window.slots / 2, MIN_SLOTS)
    window.heard = window.marked = window.collided = window.left = window.lost = 0
    window.has_shrunk = False
    window.round_ends_us = next_end_us


class Window:
    """The windows of one connection: a record class (records.py), whose rules are the functions above."""

    network: float
    slots: float
    threshold: float
    """Slow start ends when the network window is as large."""
    marked_share: float
    lost_share: float
    """Estimates, of what is heard and of what is sent."""
    slot_count: int
    most: int
    """Neither window is ever larger: the slots, or what fits where results wait for this rank."""
    round_ends_us: int
    heard: int
    marked: int
    collided: int
    left: int
    lost: int
    """Counts of the round that is under way, as the rules were told."""
    has_shrunk: bool
    """Whether losses have made it smaller in this round."""

    def __init__(self, slot_count: int) -> None:
        self.slot_count = self.most = slot_count
        self.network = float(min(INITIAL_WINDOW, slot_count))
        self.slots = float(slot_count)
        self.threshold = float("inf")
        self.marked_share, self.lost_share = 1.0, 0.0
        self.round_ends_us = self.heard = self.marked = self.collided = self.left = self.lost = 0
        self.has_shrunk = False

    def hold(self, most: int) -> None:
        """Makes both windows no larger than this from now on; the slots are a limit in any case."""
        self.most = max(MIN_WINDOW, min(most, self.slot_count))
        self.network, self.slots = min(self.network, float(self.most)), min(self.slots, float(self.most))

    @property
    def limit(self) -> int:
        """The smaller one."""
        return int(min(self.network, self.slots))

    on_results, on_left, on_queue, on_loss = on_results, on_left, on_queue, on_loss
