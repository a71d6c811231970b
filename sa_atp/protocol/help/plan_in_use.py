"""A plan from which answers are taken. (protocol section 10.3)"""

from dataclasses import dataclass


@dataclass(slots=True)
class PlanInUse:
    """A plan, less what has been handed out since it was made."""

    end_us: float
    """When the last contribution should have left."""
    until_us: float
    """Until when the plan is good."""
    precise_us: float
    """How exact it is."""
    until: list[int]
    """By rank: how many pieces of its own shard it should do in all, from the first on."""
    parts: list[dict[int, int]]
    """By rank: how many pieces of each shard it should still be given as a helper."""
    wanted: list[int]
    """Shards of which owners hold pieces that others should do."""
    spared_us: list[int]
    """By shard: when others may begin its pieces."""
    done_us: list[float]
    """By rank: when it should be done with its own part, and with what it was handed."""

    def hand_out(self, rank: int, shard: int, pieces: int, done_us: int) -> None:
        """Counts off pieces that a helper is given. Args: done_us: when it should be done with them."""
        left = self.parts[rank].pop(shard) - pieces
        if left > 0:
            self.parts[rank][shard] = left
        self.done_us[rank] = done_us
