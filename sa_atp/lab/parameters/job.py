"""One job on a server of parameters: its rules, its workers' streams, and the check of its updates."""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.lab import policies
from sa_atp.lab.parameters.frames import ParamsFrame, pack
from sa_atp.lab.parameters.rules.messages import SERVER, JoinTraining, Open, Outgoing, Push, Transfer
from sa_atp.lab.parameters.rules.server import ParamsServer, Snapshot, TakenUpdate
from sa_atp.lab.parameters.update_checker import UpdateChecker, describe_server
from sa_atp.lab.runs.tasks import plan_of
from sa_atp.net.clock import now_us

MOST_VALUES = 1 << 28  # parameters of a job: 1 GB

Outbox = queue.SimpleQueue[Iterator[bytes] | None]
"""Frames to send on a stream, in order; None ends the stream."""


class ParamsJob:
    def __init__(self, opening: Open) -> None:
        """Raises: UserError."""
        if opening.values > MOST_VALUES:
            raise UserError(f"{opening.values} parameters: a job may have at most {MOST_VALUES}")
        plan = plan_of({"plan": opening.plan})
        self.rules = policies.parameter_policy(opening.policy).rules(plan)
        self.snapshots: list[Snapshot] = []
        self.checker: UpdateChecker | None = None
        self._opening = opening
        # in a thread of its own, so that no worker waits for the check of its update
        self._checking = ThreadPoolExecutor(1, thread_name_prefix="sa-atp-checker")
        self._checks: list[Future[None]] = []
        self._server = ParamsServer(self.rules, taken=self._check, reached=self.snapshots.append)
        self._lock = threading.Lock()
        self._streams: dict[int, Outbox] = {}

    def limit(self, message: Any) -> int:
        """The largest payload of a message to this job, in bytes."""
        if isinstance(message, JoinTraining | Push):
            return 4 * self._opening.values
        if isinstance(message, Transfer):
            return self._opening.sample_bytes * min(len(message.tasks), self.rules.terms.tasks_of_clock)
        return 0

    def connect(self, rank: int) -> Outbox:
        """Adds a rank's stream. Returns: the frames to send on it.

        Raises: UserError: the job has no such rank, the rank is connected already, or the job is over.
        """
        with self._lock:
            if not 0 <= rank < self.rules.terms.world_size:
                raise UserError(f"rank {rank}: the job has {plural(self.rules.terms.world_size, 'worker')}")
            if rank in self._streams:
                raise UserError(f"rank {rank} is connected already")
            if self._server.is_over:
                raise UserError(self._server.failure or "the job is over")
            self._streams[rank] = queue.SimpleQueue()
            return self._streams[rank]

    def receive(self, rank: int, frame: ParamsFrame) -> None:
        """Takes a frame from the stream of a rank."""
        with self._lock:
            if frame.peer != SERVER:
                refused = self._server.forward(rank, frame.peer, frame.message)
                if not refused and frame.peer in self._streams:
                    self._streams[frame.peer].put(pack(rank, frame.message, frame.payload))
                return self._send(refused)
            values = frame.values
            says = self._server.receive(rank, frame.message, values, now_us())
            if self.checker is None and self._server.store is not None and values is not None:
                self.checker = UpdateChecker(self.rules, values)
            return self._send(says)

    def disconnect(self, rank: int) -> None:
        """Ends a rank's stream once the frames that wait for it are sent, and fails the job if it is not over."""
        with self._lock:
            self._send(self._server.remove_worker(rank, "its connection has ended"))
            self._streams[rank].put(None)

    def fail(self, rank: int, reason: str) -> None:
        """Ends the job and tells all workers, this rank included, why."""
        with self._lock:
            self._send(self._server.fail(f"rank {rank}: {reason}"))

    def result(self) -> dict[str, Any]:
        """The server's records, after all updates are checked. Raises: UserError: the job is not over, or failed."""
        with self._lock:
            if not self._server.is_over or self._server.failure or self.checker is None:
                raise UserError(self._server.failure or "the job is not over")
        for check in self._checks:
            check.result()
        return describe_server(self.checker, self.snapshots)

    def end(self) -> None:
        """Ends the checking thread; no call follows."""
        self._checking.shutdown()

    def _check(self, taken: TakenUpdate) -> None:
        assert self.checker is not None
        self._checks.append(self._checking.submit(self.checker.take, taken))

    def _send(self, says: list[Outgoing]) -> None:
        for each in says:
            if each.to in self._streams:
                self._streams[each.to].put(pack(SERVER, each.message, each.values))
