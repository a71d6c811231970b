"""What all operations of a connection have under way, counted where it changes.

Nobody has to go through the operations to know, however many there are. Transmissions are numbered in the order in which
they leave. They stay in that order on the way to the switch, so whatever shows that one of them has arrived shows that
those before it are not in the network any more: they have arrived, or they are lost. (protocol section 5.2)
"""

from dataclasses import dataclass


@dataclass(slots=True)
class UnderWay:
    in_flight: int = 0
    """Fragments of ours that have been sent, and neither answered nor given up."""
    missing: int = 0
    """Fragments of open operations whose sum is not known."""
    sent: int = 0
    """Transmissions so far, which is the number of the newest."""
    out: int = 0
    """The newest of which is known that it is not in the network any more."""

    @property
    def in_network(self) -> int:
        """Fragments that may still be on their way to the switch, and that somebody waits for."""
        return min(self.sent - self.out, self.in_flight)

    def has_left(self, number: int) -> int:
        """A transmission has left the network, and with it all before. Returns: of how many that is news."""
        news = max(0, number - self.out)
        self.out += news
        return news
