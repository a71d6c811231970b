"""A worker's share: the micro-batches of its own shard that it may begin without asking. (protocol section 10.2)

It holds the first `limit`, and has begun the first `begun` of them. Only the owner lowers the limit, never below
`begun`; only an answer of the parameter server raises it. So the server can give away, without asking, every
micro-batch beyond the limit that it was last told.
"""


class Share:
    def __init__(self, micro_batches: int, limit: int) -> None:
        """Args: limit: how many it holds at the beginning."""
        self.micro_batches = micro_batches
        self.limit = min(limit, micro_batches)
        self.begun = 0
        self.over = False
        """Nothing more will be granted: the rest goes to helpers."""

    @property
    def left(self) -> int:
        """How many it holds and has not begun."""
        return self.limit - self.begun

    @property
    def is_whole(self) -> bool:
        """Whether it holds the whole shard, and need not ask for more."""
        return self.limit == self.micro_batches

    def take(self) -> int | None:
        """Begins the next micro-batch, and returns its number; None: it does not hold another."""
        if self.begun >= self.limit:
            return None
        self.begun += 1
        return self.begun - 1

    def give_back(self, reserve: int) -> None:
        """Gives up what it has not begun, but for `reserve` micro-batches."""
        self.limit = min(self.limit, self.begun + reserve)

    def grant(self, until: int, over: bool) -> None:
        """Takes the server's answer to the newest report.

        Args: until: the new limit. over: nothing more will be granted.
        """
        self.limit = max(self.limit, min(until, self.micro_batches))
        self.over = over
