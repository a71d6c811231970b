"""The check of every update in runs of policies with parameters on a server."""

from hashlib import blake2b
from typing import Any

from sa_atp.basics.arrays import Values
from sa_atp.lab.parameters.rules.replay import Replay
from sa_atp.lab.parameters.rules.rules import Rules
from sa_atp.lab.parameters.rules.server import Snapshot, TakenUpdate


def digest(update: Values) -> str:
    """The digest by which a worker and the server identify an update."""
    return blake2b(update.tobytes(), digest_size=8).hexdigest()


class UpdateChecker:
    """Replays each update that the server applied, and compares the parameters bit for bit."""

    def __init__(self, rules: Rules, initial: Values) -> None:
        terms = rules.terms
        self.taken: list[tuple[int, int, str, int]] = []
        """(number, rank, digest, staleness) of each update, in order."""
        self.wrong: list[int] = []
        """Numbers of wrong updates: the parameters after them differ from the replay's, or a task was pushed before."""
        self._replay = Replay(
            initial, rule=rules.rule, rate=rules.rate, world_size=terms.world_size, micro_batches=terms.micro_batches
        )

    def take(self, taken: TakenUpdate) -> None:
        is_new = self._replay.take(taken.clock, taken.tasks, taken.update)
        if not is_new or self._replay.values.tobytes() != taken.values.tobytes():
            self.wrong.append(taken.number)
        self.taken.append((taken.number, taken.rank, digest(taken.update), taken.staleness))


def describe_server(checker: UpdateChecker, snapshots: list[Snapshot]) -> dict[str, Any]:
    """The server's records of a job as JSON-able data."""
    return {
        "ends_us": [snapshot.at_us for snapshot in snapshots],
        "taken": checker.taken,
        "wrong": checker.wrong,
    }
