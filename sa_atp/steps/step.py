"""One synchronous step of one worker: compute, contribute, help, take the sum. (protocol section 10)

ATP is the same step without help. Under SA-ATP a worker gives up micro-batches that others could do sooner. When it has
contributed and waits, it probes the switch, offers to work, and contributes the results of helping as well.

The step is a generator that yields effects (effects.py), so that it runs in real and in virtual time alike.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.net.helping import StepWork, Work
from sa_atp.net.promise import add_inline_callback, first_of
from sa_atp.protocol.batches.deal import Deal
from sa_atp.protocol.help.projection import LEAST_SENDING_US, LINKS, WRITTEN_AHEAD_US
from sa_atp.protocol.help.rules import Rule
from sa_atp.steps.effects import Compute, Host, PendingSum, Steps, Wait, Workload, computed, paused
from sa_atp.steps.step_record import Activity, Piece, StepRecord, account

WEIGHT_OF_A_SAMPLE = 100  # units of work, where shards differ; a micro-batch may have a fraction of a sample on average
LEAST_SENT = 1 / 8  # of a contribution, to estimate how long all of it takes to leave
OFFER_AHEAD = 1.25  # times that an answer takes, before a worker is free, at which it offers to work
AHEAD = Rule("offers ahead", "A worker that is likely to get work offers to work before it is done with its own.")
SKIPPING = Rule(
    "skipping", "Who may be steps behind waits for a sum before it computes, and takes what others have done."
)


Lot = dict[int, Values]
"""Computed gradients that leave together, by contribution bit."""


class Stepper:
    def __init__(
        self,
        host: Host,
        workload: Workload,
        *,
        helps: bool,
        patience: float,
        pause_us: Callable[[int], int] = lambda step: 0,
        cancels: bool = True,
    ) -> None:
        """Args:
        helps: whether to give up micro-batches to others, and to help when waiting.
        patience: share of its own compute time that a leader waits before it offers help.
        pause_us: for how long to stop in the middle of a step.
        cancels: whether a micro-batch ends at once when the sum is there; else it runs to its end.
        """
        self.host = host
        self.workload = workload
        self.helps = helps
        self.patience = patience
        self.pause_us = pause_us
        self.cancels = cancels
        self.rank = host.membership.rank
        self.micro_batches = host.membership.micro_batches
        self._number = -1  # of the step, as the parameter server counts: see Helping.begin_step
        self._typical_us = 1
        self.deal: Deal | None = None
        """The samples of each micro-batch of the step; None: all micro-batches have the same size."""
        self._contributed_us = 0  # when our own contribution of the step was on its way; 0: it is not
        self._help_from_us = 0  # when to begin to offer help in the step
        self._may_be_behind = False  # others may be steps ahead, because they did not wait for our last contribution

    def run(self, step: int) -> Steps:
        """See StepRunner."""
        record = StepRecord(step, self.host.now_us())
        self._number = self.host.helping.begin_step()
        self.host.helping.weight = self._weight(self.rank)
        sum_ = self.host.begin(self.workload.values)
        arrived_us: list[int] = []
        add_inline_callback(sum_.future, lambda _: arrived_us.append(self.host.now_us()))
        self._contributed_us = 0
        is_overtaken = yield from self._check_overtaken(sum_)
        if not self.helps:
            yield from self._compute_alone(step, sum_, record)
        elif not is_overtaken:
            yield from self._compute_and_help(step, sum_, record)
        contributed_us = self._contributed_us or self.host.now_us()
        yield Wait(sum_.future)
        unseen_us = self.host.now_us() - min(arrived_us, default=self.host.now_us())
        self._may_be_behind = is_overtaken or unseen_us > self.host.helping.answer_us() > 0
        self._note_sent(sum_)
        self.workload.apply(sum_.future.result())
        record.end_us = self.host.now_us()
        account(record, contributed_us, sum_.sending)
        return record, sum_

    @SKIPPING.or_else(())
    def _check_overtaken(self, sum_: PendingSum) -> Steps:
        """Whether others have done our part of this step before we begin it: then we take the sum, and compute nothing.

        Some work cannot be stopped, such as one long call. A worker that has seen the last sum later than an answer
        takes may be steps behind: it first waits for this step's sum, for as long as two answers take. (protocol
        section 10.1)
        """
        if self.helps and self._may_be_behind and not sum_.overtaken:
            yield Wait(sum_.future, 2 * self.host.helping.answer_us())
        return self.helps and (sum_.overtaken or sum_.future.done())

    def _note_sent(self, sum_: PendingSum) -> None:
        """Notes how long our contribution kept our link, or the slots, busy; slots take a round trip for each quota."""
        if sum_.sent_share < LEAST_SENT:
            return
        helping, progress = self.host.helping, sum_.progress
        written_us = round(sum(end - start for start, end in sum_.sending) / sum_.sent_share)
        member = self.host.membership
        slots_us = round((self.workload.values / member.lanes / member.slot_count - 1) * helping.answer_us())
        if progress is not None and progress.send_us:
            # packets that were written ahead left later, as the answer shows; but it may be late for other reasons
            there_us = progress.send_us - helping.answer_us()
            helping.record_sending(max(1, written_us, slots_us, min(there_us, written_us + WRITTEN_AHEAD_US)))
        elif max(written_us, slots_us) > WRITTEN_AHEAD_US:
            helping.record_sending(max(written_us, slots_us))

    # --- work ---------------------------------------------------------------------------------------------------------

    def _compute_alone(self, step: int, sum_: PendingSum, record: StepRecord) -> Steps:
        """Computes our shard, and contributes it."""
        parts: Lot = {}
        for m in range(self.micro_batches):
            if sum_.future.done():  # it has failed
                break
            yield from self._pause(step, m, record)
            parts[self._bit(m)] = yield from self._compute(step, self.rank, m, record, None)
        self._contribute(sum_, parts, on_behalf=False)

    def _compute_and_help(self, step: int, sum_: PendingSum, record: StepRecord) -> Steps:
        """Computes what we hold of our own shard, and what we are given of others', and contributes it, until the sum is
        there.
        """
        work = self.host.helping.work(self._number)
        own: Lot = {}
        # computed for others and not sent yet: first what our leaf sums, then what it does not; each backup by itself,
        # because its owner may send the same
        lots: list[Lot] = [{}, {}]
        while not sum_.future.done():  # done: others have done all of it
            news = work.news
            m = None if self._contributed_us else work.take()
            if m is not None:
                yield from self._pause(step, m, record)
                if self._should_offer_ahead(work):
                    self._offer(work, sum_, busy_us=work.left_us + self._typical_us + self._busy_us(work.given))
                gradient = yield from self._compute(step, self.rank, m, record, sum_.future)
                if gradient is None:
                    self._note_cut_off(record.activities[-1])
                    return
                work.finish_micro_batch()
                own[self._bit(m)] = gradient
            elif not self._contributed_us and not work.may_get_more():
                self._contribute_own(work, sum_, record, own, lots)
            elif (given := work.take_given()) is not None:
                # an offer now brings the next work while this is computed
                if self._contributed_us and not work.is_offering and not work.offers_again_in_us:
                    self._offer(work, sum_, busy_us=self._busy_us((given, *work.given)))
                yield from self._do(step, sum_, record, given, lots)
            elif not self._contributed_us or work.is_offering or news.done():
                if self.host.helping.should_not_wait:
                    self._send(sum_, own, lots)
                yield Wait(first_of(news, sum_.future))  # an answer may be stuck behind the data of a congested link
            else:
                self._send(sum_, own, lots)
                again_us = max(work.offers_again_in_us, self._help_from_us - self.host.now_us())
                if again_us <= 0 or not (yield Wait(first_of(news, sum_.future), again_us)):
                    if work.has_offered:
                        self.host.probe(sum_)
                    self._offer(work, sum_, busy_us=self._busy_us(work.given))

    def _contribute_own(self, work: StepWork, sum_: PendingSum, record: StepRecord, own: Lot, lots: list[Lot]) -> None:
        """Contributes what we have computed of our own shard; or leaves it to the lot that it leaves with."""
        if record.micro_batches:
            work.report_done()  # ahead of the data, so that others know that any delay is the link's
        if work.has_offered and self._leaves_with_help(work):
            lots[0].update(own)
            own.clear()
        self._send(sum_, own, [])
        if not work.has_offered or self.host.membership.levels > 1:  # the ledger must learn what leaves hold
            self.host.probe(sum_)
        self._contributed_us = self._help_from_us = self.host.now_us()
        if not work.has_offered:
            own_us = sum(a.end_us - a.start_us for a in record.activities if a.kind == "compute")
            self._help_from_us += int(self.patience * own_us)

    def _send(self, sum_: PendingSum, own: Lot, lots: list[Lot]) -> None:
        """Contributes what is computed, of our own shard and of others'."""
        self._contribute(sum_, own, on_behalf=False)
        for lot in lots:
            self._contribute(sum_, lot, on_behalf=True)
            lot.clear()
        own.clear()
        del lots[2:]

    def _pause(self, step: int, micro_batch: int, record: StepRecord) -> Steps:
        """Stops for a while in the middle of our shard, where an experiment wants it."""
        empty = 0 if self.deal is None else self.deal.empty(self.rank)  # micro-batches without samples come first
        pause_us = self.pause_us(step)
        if pause_us and micro_batch == (empty + self.micro_batches) // 2:
            yield from paused(pause_us, record, self.host.now_us)

    def _bit(self, micro_batch: int) -> int:
        return self.host.membership.bit(self.rank, micro_batch)

    @LINKS.or_else(False)
    def _leaves_with_help(self, work: StepWork) -> bool:
        """Whether our own contribution waits for the lot that we were given. On a slow link two contributions take
        twice as long, and the sum waits for the second one.
        """
        given, member = work.given, self.host.membership
        if not given or given[0].is_copy or self.host.helping.sent_us < LEAST_SENDING_US:
            return False
        return self._is_summed_below(given[0]) and (member.levels <= 1 or not self.host.helping.may_cross)

    def _is_summed_below(self, given: Work) -> bool:
        """Whether our work for others is summed at the same switch as our own: with one level, or below our leaf."""
        member = self.host.membership
        below = member.leaf_bits | member.bits_of(member.rank)
        return member.levels <= 1 or not member.bits_of(given.shard) & ~below

    def _contribute(self, sum_: PendingSum, lot: Lot, *, on_behalf: bool) -> None:
        """Adds what was computed, if anything was, to a sum."""
        if lot:
            bits = sorted(lot)
            self.host.contribute(sum_, [lot[bit] for bit in bits], sum(bits), on_behalf=on_behalf)

    @AHEAD.or_else(False)
    def _should_offer_ahead(self, work: StepWork) -> bool:
        """Whether to offer now, because the ledger will have work for us, and its answer takes until we are free."""
        helping = self.host.helping
        if work.is_offering or work.offers_again_in_us:
            return False
        if work.left_us and not helping.has_measured:
            return False  # it may be slow in this step
        return helping.helps and not helping.is_slower and work.left_us <= OFFER_AHEAD * helping.answer_us()

    def _weight(self, shard: int) -> int:
        """Work in a micro-batch of a shard, in a unit common to all workers."""
        return 1 if self.deal is None else max(1, round(WEIGHT_OF_A_SAMPLE * self.deal.piece_size(shard)))

    def _scaled_us(self, us: int, shard: int, to_shard: int) -> int:
        """Scales the time of a micro-batch of one shard to that of one of another shard."""
        return us if self.deal is None else round(us * self._weight(to_shard) / self._weight(shard))

    # --- other workers' work ------------------------------------------------------------------------------------------

    def _do(self, step: int, sum_: PendingSum, record: StepRecord, given: Work, lots: list[Lot]) -> Steps:
        """Computes work for others, as long as the sum is not there."""
        lot = lots[0 if self._is_summed_below(given) else 1]
        if given.is_copy:
            lots.append(lot := {})
        for m in given.micro_batches:
            gradient = yield from self._compute(step, given.shard, m, record, sum_.future)
            if gradient is None:
                return  # the sum came first
            lot[self.host.membership.bit(given.shard, m)] = gradient

    def _busy_us(self, given: Sequence[Work]) -> int:
        """How long work for others will take."""
        return sum(len(work.micro_batches) * self._scaled_us(self._typical_us, self.rank, work.shard) for work in given)

    def _offer(self, work: StepWork, sum_: PendingSum, busy_us: int) -> None:
        missing = sum_.missing_bits
        if missing is None:
            missing = self.host.membership.fan_in & ~self.host.membership.bits_of(self.rank)
        self.host.helping.offer(work, missing, busy_us=busy_us, progress=sum_.progress)

    # --- common -------------------------------------------------------------------------------------------------------

    def _compute(
        self, step: int, shard: int, micro_batch: int, record: StepRecord, stop: "Future[Any] | None"
    ) -> Steps:
        """Computes one micro-batch's gradient; None: it was stopped, because the sum is there. Records the time as help
        only if the shard is not our own.
        """
        samples = None if self.deal is None else self.deal.samples(shard, micro_batch)
        if samples is not None and not samples:
            return self._note_computed(record, shard, micro_batch, np.zeros(self.workload.values, np.float32))
        if stop is not None and not self.cancels:
            if stop.done():
                return None
            stop = None
        gradient = yield from computed(
            Compute(step, shard, micro_batch, stop, samples=samples), record, self.host.now_us, self.rank
        )
        if gradient is None:
            return None
        done = record.activities[-1]
        self._note_duration(self._scaled_us(done.end_us - done.start_us, shard, self.rank))
        return self._note_computed(record, shard, micro_batch, gradient)

    def _note_computed(self, record: StepRecord, shard: int, micro_batch: int, gradient: Values) -> Values:
        record.computed.append((shard, micro_batch, gradient))
        record.pieces.append(Piece(record.step, shard, micro_batch, self.host.now_us()))
        record.micro_batches += shard == self.rank
        record.helped += shard != self.rank
        return gradient

    def _note_cut_off(self, work: Activity) -> None:
        """Notes that the sum cut off a micro-batch of our own shard. If that had already taken longer than usual, the
        ledger is told, so that it need not find out anew in every step.
        """
        if work.end_us - work.start_us > self._typical_us:
            self._note_duration(work.end_us - work.start_us, cut_off=True)

    def _note_duration(self, elapsed_us: int, *, cut_off: bool = False) -> None:
        self._typical_us = max(1, elapsed_us)
        self.host.helping.record_micro_batch(self._typical_us, cut_off=cut_off)
