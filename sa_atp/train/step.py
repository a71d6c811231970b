"""One synchronous step of one worker: compute, contribute, help, take the sum. (protocol section 10)

ATP is the same step without help. Under SA-ATP a worker claims its micro-batches one by one while it computes them, and
when it has contributed and waits, it looks at what the switch holds, asks for work, and contributes that as well.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sa_atp.net.clock import now_us
from sa_atp.net.communicator import Communicator, Sum
from sa_atp.train.device import Cancelled, Device
from sa_atp.wire.messages import Body

POLL_S = 0.003  # between two questions of a leader that was told there is nothing to do
LOOK_S = 0.002  # how long a leader waits for the switch to say what is missing


class Workload(Protocol):
    """What is trained; every worker has the same."""

    values: int
    micro_batch_size: int

    def gradient(self, step: int, shard: int, micro_batch: int) -> tuple[np.ndarray, float]: ...
    def apply(self, gradient: np.ndarray) -> None: ...


@dataclass(slots=True)
class Activity:
    """A stretch of time, in the clock's microseconds."""

    kind: str
    start_us: int
    end_us: int
    label: str = ""


@dataclass(slots=True)
class StepRecord:
    """What one worker did in one step."""

    step: int
    start_us: int
    end_us: int = 0
    activities: list[Activity] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    micro_batches: int = 0
    helped: int = 0
    computed: list[tuple[int, int, np.ndarray]] = field(default_factory=list)
    """(shard, micro-batch, gradient) of everything that it contributed."""

    def seconds(self, *kinds: str) -> float:
        return sum(a.end_us - a.start_us for a in self.activities if a.kind in kinds) / 1e6


class Stepper:
    """Runs steps on one communicator."""

    def __init__(
        self,
        comm: Communicator,
        workload: Workload,
        device: Device,
        *,
        helps: bool,
        patience: float,
        pause_us: Callable[[int], int] = lambda step: 0,
    ) -> None:
        """Args:
        helps: claim micro-batches, and help when waiting.
        patience: share of its own compute time that a leader waits before it offers help.
        pause_us: how long to stop in the middle of a step.
        """
        self.comm = comm
        self.workload = workload
        self.device = device
        self.helps = helps
        self.patience = patience
        self.pause_us = pause_us
        self.rank = comm.membership.rank
        self.micro_batches = comm.membership.micro_batches
        self.reduced = np.empty(workload.values, np.float32)
        self._took_us = 0  # how long the last micro-batch took, told with the next question

    def run(self, step: int) -> tuple[StepRecord, Sum]:
        """One step, up to and including the optimiser. Raises: TransportError."""
        record = StepRecord(step, now_us())
        sum_ = self.comm.begin(self.workload.values, key="gradient", out=self.reduced)
        self._own_shard(step, sum_, record)
        contributed_us = now_us()
        if self.helps:
            self._help(step, sum_, record)
        sum_.future.result()
        self.workload.apply(self.reduced)
        record.end_us = now_us()
        self._account(record, contributed_us, sum_.sent_us)
        return record, sum_

    # --- own work -------------------------------------------------------------------------------------------------------

    def _own_shard(self, step: int, sum_: Sum, record: StepRecord) -> None:
        parts: list[np.ndarray] = []
        bits = 0
        pause_at = self.micro_batches // 2 if self.pause_us(step) else -1
        for m in range(self.micro_batches):
            if sum_.future.done():
                break  # others have done it all
            claim = self._claim(step, m) if self.helps else None
            if m == pause_at:
                self._pause(step, record)
            gradient = self._compute(step, self.rank, m, record, "compute", _refusal(claim))
            if gradient is None or (claim is not None and not _granted(claim)):
                break
            parts.append(gradient)
            record.computed.append((self.rank, m, gradient))
            record.micro_batches += 1
            bits |= self.comm.membership.bit(self.rank, m)
        if parts:
            self.comm.contribute(sum_, parts, bits)

    def _claim(self, step: int, micro_batch: int) -> "Future[Body | None]":
        body: Body = {"type": "claim", "step": step, "micro_batch": micro_batch, "took_us": self._took_us}
        self._took_us = 0
        return self.comm.ask(body)

    def _pause(self, step: int, record: StepRecord) -> None:
        start = now_us()
        time.sleep(self.pause_us(step) / 1e6)
        record.activities.append(Activity("pause", start, now_us()))

    # --- other workers' work --------------------------------------------------------------------------------------------

    def _help(self, step: int, sum_: Sum, record: StepRecord) -> None:
        """Until the sum is there: what is missing, who has work, compute it, contribute it."""
        own_us = sum(a.end_us - a.start_us for a in record.activities if a.kind == "compute")
        if _done_within(sum_, self.patience * own_us / 1e6):
            return
        parts: list[np.ndarray] = []
        bits = 0
        while not sum_.future.done():
            work = self._ask_for_work(step, sum_)
            if work is None:
                if parts:
                    self.comm.contribute(sum_, parts, bits, on_behalf=True)
                    parts, bits = [], 0
                _done_within(sum_, POLL_S)
                continue
            shard, micro_batches = work
            for m in micro_batches:
                gradient = self._compute(step, shard, m, record, "help", sum_.future)
                if gradient is None:
                    return  # the sum came first
                parts.append(gradient)
                record.computed.append((shard, m, gradient))
                record.helped += shard != self.rank
                bits |= self.comm.membership.bit(shard, m)

    def _ask_for_work(self, step: int, sum_: Sum) -> tuple[int, list[int]] | None:
        self.comm.look(sum_)
        _done_within(sum_, LOOK_S if sum_.missing_bits is None else 0)
        missing = sum_.missing_bits
        if missing is None:
            missing = self.comm.membership.fan_in & ~self.comm.membership.bits_of(self.rank)
        body: Body = {"type": "ask", "step": step, "missing": missing, "took_us": self._took_us}
        self._took_us = 0
        reply = self.comm.ask(body).result()
        if reply is None or reply.get("type") != "work":
            return None
        return int(reply["shard"]), [int(m) for m in reply["micro_batches"]]

    # --- common -----------------------------------------------------------------------------------------------------------

    def _compute(
        self,
        step: int,
        shard: int,
        micro_batch: int,
        record: StepRecord,
        kind: str,
        stop: "Future[None] | Future[np.ndarray] | None",
    ) -> np.ndarray | None:
        """One micro-batch's gradient; None if it was stopped because nobody needs it."""
        start = now_us()
        label = f"shard {shard}, micro-batch {micro_batch}"
        try:
            gradient, loss = self.device.run(
                self.workload.micro_batch_size, lambda: self.workload.gradient(step, shard, micro_batch), stop
            )
        except Cancelled:
            record.activities.append(Activity(kind, start, now_us(), label + ", cancelled"))
            return None
        end = now_us()
        self._took_us = end - start
        record.activities.append(Activity(kind, start, end, label))
        record.losses.append(loss)
        found: np.ndarray = gradient
        return found

    def _account(self, record: StepRecord, contributed_us: int, sent_us: int) -> None:
        """What is left of the step's time was sending or waiting."""
        busy = sorted((a for a in record.activities if a.start_us >= contributed_us), key=lambda a: a.start_us)
        at = contributed_us
        sent_us = min(sent_us, busy[0].start_us if busy else record.end_us)
        if sent_us > at:
            record.activities.append(Activity("send", at, sent_us))
            at = sent_us
        for activity in busy:
            if activity.start_us > at:
                record.activities.append(Activity("wait", at, activity.start_us))
            at = activity.end_us
        if record.end_us > at:
            record.activities.append(Activity("wait", at, record.end_us))


def _granted(claim: "Future[Body | None]") -> bool:
    """Whether a claim was granted; one that got no answer in time counts as granted nothing."""
    reply = claim.result()
    return reply is not None and reply.get("type") == "granted"


def _refusal(claim: "Future[Body | None] | None") -> "Future[None] | None":
    """A future that is done as soon as the claim is refused, and only then."""
    if claim is None:
        return None
    refused: Future[None] = Future()

    def check(reply: "Future[Body | None]") -> None:
        if reply.exception() is not None or not _granted(reply):
            refused.set_result(None)

    claim.add_done_callback(check)
    return refused


def _done_within(sum_: Sum, seconds: float) -> bool:
    """Waits for a sum, at most so long; True if it is there (or has failed)."""
    try:
        sum_.future.exception(timeout=seconds)
    except TimeoutError:
        return False
    return True
