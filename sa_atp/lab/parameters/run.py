"""The check of every update, in runs of policies whose parameters are on a server."""

import queue
import threading
from hashlib import blake2b
from typing import Any

from sa_atp.basics.arrays import Values
from sa_atp.lab.parameters.rules.replay import Replay
from sa_atp.lab.parameters.rules.rules import Rules
from sa_atp.lab.parameters.rules.server import Snapshot, Taken


def digest(update: Values) -> str:
    """By which the pusher and the server name the same update."""
    return blake2b(update.tobytes(), digest_size=8).hexdigest()


class UpdateChecker:
    """Replays each update that the server has taken, and compares the parameters bit for bit."""

    def __init__(self, rules: Rules, initial: Values) -> None:
        terms = rules.terms
        self.taken: list[tuple[int, int, str, int]] = []
        """(number, rank, digest, staleness) of each update, in order."""
        self.wrong: list[int] = []
        """Numbers of updates after which the parameters were not those of the replay, or with a task that was there."""
        self._replay = Replay(
            initial, rule=rules.rule, rate=rules.rate, world_size=terms.world_size, micro_batches=terms.micro_batches
        )

    def take(self, taken: Taken) -> None:
        is_new = self._replay.take(taken.clock, taken.tasks, taken.update)
        if not is_new or self._replay.values.tobytes() != taken.values.tobytes():
            self.wrong.append(taken.number)
        self.taken.append((taken.number, taken.rank, digest(taken.update), taken.staleness))


class CheckingThread:
    """The same in a thread of its own, so that nobody waits for it."""

    def __init__(self, checker: UpdateChecker) -> None:
        self._checker = checker
        self._work: queue.SimpleQueue[Taken | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sa-atp-checker", daemon=True)
        self._thread.start()

    def take(self, taken: Taken) -> None:
        self._work.put(taken)

    def finish(self) -> None:
        """Waits until all is checked. May be called again."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (taken := self._work.get()) is not None:
            self._checker.take(taken)


def describe_server(checker: UpdateChecker, snapshots: list[Snapshot]) -> dict[str, Any]:
    """What the server of a job has to tell, as JSON-able data."""
    return {
        "ends_us": [snapshot.at_us for snapshot in snapshots],
        "taken": checker.taken,
        "wrong": checker.wrong,
    }
