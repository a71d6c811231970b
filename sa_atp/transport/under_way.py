"""What all operations of a connection have under way, counted where it changes.

Nobody has to go through the operations to know, however many there are.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class UnderWay:
    in_flight: int = 0
    """Fragments of ours that have been sent, and neither answered nor given up."""
    missing: int = 0
    """Fragments of open operations whose sum is not known."""
