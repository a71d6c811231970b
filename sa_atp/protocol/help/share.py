"""A worker's hold on its own shard in one step: which micro-batches are its own without asking. (protocol section 10.2)

Its own are the first `limit`, of which it has begun the first `begun`. Only its owner lowers the limit, never below what it
has begun; only an answer of the parameter server raises it. So what is beyond the limit that the server was last told is
nobody's, and can be given to somebody else without asking the owner.
"""


class Share:
    def __init__(self, micro_batches: int, limit: int) -> None:
        """Args: limit: how many are its own from the beginning."""
        self.micro_batches = micro_batches
        self.limit = min(limit, micro_batches)
        self.begun = 0
        self.over = False
        """Nothing more will be granted: the rest is others'."""

    @property
    def left(self) -> int:
        """Its own that it has not begun."""
        return self.limit - self.begun

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing to ask for."""
        return self.limit == self.micro_batches

    def take(self) -> int | None:
        """Begins the next micro-batch; None: the next one is not its own."""
        if self.begun >= self.limit:
            return None
        self.begun += 1
        return self.begun - 1

    def give_back(self, reserve: int) -> None:
        """Leaves what it has not begun to others, but for so many that it keeps."""
        self.limit = min(self.limit, self.begun + reserve)

    def grant(self, until: int, over: bool) -> None:
        """Args: until: the server's answer to what it was last told; over: it was the last one."""
        self.limit = max(self.limit, min(until, self.micro_batches))
        self.over = over
