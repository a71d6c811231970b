"""A worker on the flow network: the counterpart of `simulator.sim_worker.SimWorker`, which uses packets."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.lab.flow.fabric import SERVER
from sa_atp.lab.flow.help_groups import Question
from sa_atp.lab.flow.job import FlowJob, FlowOperation
from sa_atp.lab.flow.network import BYTES_PER_US
from sa_atp.lab.flow.stream import FlowStream
from sa_atp.lab.flow.sums import Total
from sa_atp.net.helping import Helping, StepWork
from sa_atp.net.loop.send_pacer import AHEAD_US, LEAST_BYTES
from sa_atp.net.session import Asking
from sa_atp.protocol.help.lots import LONGEST_POLL_US
from sa_atp.protocol.help.progress import SendProgress
from sa_atp.protocol.job.requests import SMOOTHING
from sa_atp.protocol.packets.control import Reply, Request
from sa_atp.protocol.packets.help_messages import Assignment
from sa_atp.protocol.packets.spec import HEADER_BYTES

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class FlowSum:
    """A sum in progress; see steps.effects.PendingSum."""

    operation: FlowOperation
    future: "Future[Values]"
    missing_bits: int | None = None
    progress: SendProgress | None = None
    overtaken: bool = False
    """Always False: in this model a worker learns of a sum at once."""
    sending: tuple[tuple[int, int], ...] = ()
    sent_share: float = 0.0
    """Share of the worker's contribution that `sending` covers: 0 or 1 in this model."""
    own: list[FlowStream] | None = None
    """The worker's streams, in the order in which they began."""

    @property
    def finished(self) -> Total | None:
        """The sum, once complete; None: it is not added up (`JobSettings.sizes_only`)."""
        return self.operation.total


class _Helping(Helping):
    """A rank's side of help, within its group.

    While the sum waits only for other groups, the ledger has no work: an offer waits until its own group holds the sum up.
    """

    def __init__(self, worker: "FlowWorker", answer_us: Callable[[], int]) -> None:
        super().__init__(worker.membership, worker.ask, worker.now_us, answer_us)
        self._worker = worker
        self._group = worker.job.help.group_of(worker.rank)
        self.micro_batches_of = self._group.micro_batches_of

    def offer(self, work: StepWork, missing: int, *, busy_us: int, progress: SendProgress | None) -> None:
        help_, rank = self._worker.job.help, self._worker.rank
        if not busy_us and not help_.concerns(rank, missing):
            work.is_offering = work.has_offered = True
            self._worker.when_missing(lambda lacks, sent: self._offer(work, lacks, 0, sent))
        else:
            self._offer(work, missing, busy_us, progress)

    def _offer(self, work: StepWork, missing: int, busy_us: int, progress: SendProgress | None) -> None:
        work.offer(self._group.bits_here(missing), busy_us=busy_us, progress=progress)


class FlowWorker(Asking):
    """A worker on the flow network; implements `steps.effects.Host`."""

    def __init__(self, job: FlowJob, rank: int) -> None:
        self.job = job
        self.rank = rank
        self.membership = job.membership(rank)
        self._fabric = job.fabric
        self._clock = job.fabric.clock
        self._network = job.fabric.network
        self._begun = 0
        self._sums: dict[int, FlowSum] = {}
        self._past_leaf = False  # a helper from another rack contributes for a worker below our leaf
        self._step = -1  # the latest step of which this worker has asked
        self._below_bits = self.membership.leaf_bits
        self._up = self._fabric.path(rank, SERVER)
        self._down = self._fabric.path(SERVER, rank)
        self._answer_us = 0  # response time of the parameter server, smoothed as in requests.py
        self.helping: Helping = _Helping(self, lambda: self._answer_us)
        job.assigned[rank] = self.helping.on_assigned

    # --- the Host of a step ---------------------------------------------------------------------------------------------

    def now_us(self) -> int:
        return self._clock.now_us

    def begin(self, values: int, key: object = "gradient") -> FlowSum:
        operation = self.job.begin(self.rank, self._begun, values, key)
        self._begun += 1
        sum_ = self._sums[operation.index] = FlowSum(operation, Future(), own=[])
        return sum_

    def contribute(self, sum_: FlowSum, parts: Sequence[Values], bits: int, *, on_behalf: bool) -> None:
        if sum_.future.done() or sum_.own is None:
            return
        below = bits & ~self._below_bits == 0 and not self.membership.seats  # the leaf sums it
        if sum_.operation.adds:
            self.job.keep(sum_.operation, self._by_contribution(parts, bits))
        past_leaf = self.membership.levels > 1 and (self._past_leaf or not below)
        sum_.own.append(sum_.operation.aggregation.contribute(self.rank, bits, past_leaf=past_leaf))

    def probe(self, sum_: FlowSum) -> None:
        """Probes the switch's slot of the oldest missing fragment; see `Collectives.probe`."""
        if sum_.future.done():
            return
        written = self._written_bytes(sum_)

        def asked() -> None:
            missing = self._missing(sum_)

            def answered() -> None:
                if missing and not sum_.future.done():
                    self._note(sum_, missing, written)

            self._fabric.message(self._down[1:], HEADER_BYTES, answered)

        self._fabric.message(self._up[:-1], HEADER_BYTES, asked, behind_us=self._behind_us())

    def ask(self, question: Request, understand: Callable[[Reply | None], T]) -> "Future[T]":
        """Sends a request to the parameter server. Requests have priority over data (protocol section 9)."""
        assert isinstance(question, Question)
        future: Future[T] = Future()
        job = self.job
        asked_us = self._clock.now_us
        if question.step > self._step:
            self._step, self._past_leaf = question.step, False

        def asked() -> None:
            reply = job.help.answer(self.rank, question, self._clock.now_us)
            job.assign(self.rank)

            def answered() -> None:
                if isinstance(reply, Assignment) and reply.bypass_leaf is not None and question.step == self._step:
                    self._set_past_leaf(reply.bypass_leaf)
                elapsed_us = max(1, self._clock.now_us - asked_us)
                self._answer_us += (elapsed_us - self._answer_us) // SMOOTHING if self._answer_us else elapsed_us
                future.set_result(understand(reply))

            self._fabric.message(self._down, job.message_bytes(reply), answered)

        self._fabric.message(self._up, job.message_bytes(question), asked)
        return future

    # --- what arrives -------------------------------------------------------------------------------------------------

    def on_sum(self, operation: FlowOperation) -> None:
        """The whole sum has arrived."""
        sum_ = self._sums.pop(operation.index)
        if sum_.own:
            sum_.sending, sum_.sent_share = tuple(sum_.own[0].sending), 1.0
        total = operation.total
        nothing = np.broadcast_to(np.float32(0), operation.values)
        sum_.future.set_result(nothing if total is None else total.values)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _by_contribution(self, parts: Sequence[Values], bits: int) -> dict[int, Values]:
        first = (bits & -bits).bit_length() - 1
        if len(parts) == 1:
            return {first: parts[0]}  # one array is already the sum of its contributions
        numbers = [c for c in range(first, bits.bit_length()) if bits >> c & 1]
        return dict(zip(numbers, parts, strict=True))

    def _set_past_leaf(self, begun: bool) -> None:
        if begun and not self._past_leaf:
            for sum_ in self._sums.values():
                sum_.operation.aggregation.pass_leaf(self.rank)
        self._past_leaf = begun

    @property
    def _ahead_bytes(self) -> float:
        """The most that the worker writes ahead of its link, see net.loop.send_pacer."""
        return max(float(LEAST_BYTES), AHEAD_US * self._network.rate_mbps(self._up[0]) * BYTES_PER_US)

    def _behind_us(self) -> float:
        """Time to send the data already written, which a probe has to wait for."""
        ahead = self._ahead_bytes
        open_ = [sum_.operation.aggregation for sum_ in self._sums.values() if sum_.own]
        waits = sum(aggregation.progress.backlog_bytes(self.rank, ahead) for aggregation in open_)
        return self._network.transmission_us(self._up[0], min(waits, ahead)) if waits else 0.0

    def _missing(self, sum_: FlowSum) -> int:
        """Bitmap of contributions that the switch lacks for our oldest fragment; 0 if our own are among them."""
        aggregation = sum_.operation.aggregation
        missing = aggregation.progress.missing_for(self.rank)
        own = sum_.own
        return missing if own and not any(stream.bits & missing for stream in own) else 0

    def _note(self, sum_: FlowSum, missing: int, written: float) -> None:
        """Records what a sum lacks, and our progress in it. Args: written: see `_progress`."""
        sum_.missing_bits = missing
        sum_.progress = self._progress(sum_, written).since(sum_.progress)

    def when_missing(self, then: Callable[[int, SendProgress | None], None]) -> None:
        """Waits until a sum in progress lacks what our group contributes; for ever, if the sums end first.

        Args: then: called with the contributions that it lacks, and our progress in it.
        """
        sums = list(self._sums.values())

        def look() -> None:
            under_way = [sum_ for sum_ in sums if not sum_.future.done()]
            missing = [self._missing(sum_) for sum_ in under_way]
            lacking = [(sum_, bits) for sum_, bits in zip(under_way, missing, strict=True) if bits]
            held_up = [(sum_, bits) for sum_, bits in lacking if self.job.help.concerns(self.rank, bits)]
            if held_up:
                for sum_, bits in lacking:
                    self._note(sum_, bits, self._written_bytes(sum_))
                sum_, bits = held_up[0]
                then(bits, sum_.progress)
            elif under_way:
                self._clock.at(self._clock.now_us + LONGEST_POLL_US, look)

        self._clock.at(self._clock.now_us + LONGEST_POLL_US, look)

    def _written_bytes(self, sum_: FlowSum) -> float:
        """Position up to which our first contribution is written."""
        if not sum_.own:
            return 0.0
        aggregation = sum_.operation.aggregation
        sent = aggregation.progress.sent(sum_.own[0])
        return min(aggregation.size, sent + aggregation.progress.backlog_bytes(self.rank, self._ahead_bytes))

    def _progress(self, sum_: FlowSum, written: float) -> SendProgress:
        """Our progress, as the answer to a probe shows it. Args: written: position written before the probe."""
        aggregation = sum_.operation.aggregation
        since_us = self._clock.now_us - sum_.own[0].begun_us if sum_.own else 0
        send_us = int(since_us * aggregation.size / written) if written > aggregation.size / 8 else 0
        return SendProgress(min(1.0, 1 - aggregation.progress.received_by(self.rank) / aggregation.size), send_us)
