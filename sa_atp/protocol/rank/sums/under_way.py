"""Counts of the fragments that all operations of a connection have under way, kept where they change.

Nobody has to go through the operations to know, however many there are. Transmissions are numbered in the order in which
they leave. They stay in that order on the way to the switch, so whatever shows that one of them has arrived shows that
those before it are not in the network any more: they have arrived, or they are lost. (protocol section 5.2)
"""

from dataclasses import dataclass


def in_network(under_way: "UnderWay") -> int:
    """Fragments that may still be on their way to the switch, and that somebody waits for."""
    return min(under_way.sent - under_way.out, under_way.in_flight)


def acknowledge_up_to(under_way: "UnderWay", number: int) -> int:
    """A transmission has left the network, and with it all before. Returns: of how many that is news."""
    news = max(0, number - under_way.out)
    under_way.out += news
    return news


def gather_at_most(under_way: "UnderWay") -> int:
    """How many results may wait for us: a part of what is under way, so that the network does not run dry, and of what is
    missing, so that the end does not come late.
    """
    return min(under_way.in_flight // 2, under_way.missing // 8)


@dataclass(slots=True)
class UnderWay:
    """A record class (records.py)."""

    in_flight: int = 0
    """Fragments of ours that have been sent, and neither answered nor given up."""
    missing: int = 0
    """Fragments of open operations whose sum is not known."""
    sent: int = 0
    """Transmissions so far, which is the number of the newest."""
    out: int = 0
    """The newest of which is known that it is not in the network any more."""

    acknowledge_up_to = acknowledge_up_to

    @property
    def in_network(self) -> int:
        return in_network(self)
