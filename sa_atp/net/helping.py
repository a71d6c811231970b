"""A rank's side of help: its claim on its own shard, and what it and the parameter server tell each other.

Two threads call this: the one that computes begins micro-batches, and the connection's gives up revoked ones. No call
blocks. (protocol section 10.2)
"""

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from statistics import median_low
from typing import Any, TypeVar

from msgspec.structs import replace

from sa_atp.protocol.help.belief import Forecast
from sa_atp.protocol.help.progress import SendProgress
from sa_atp.protocol.help.projection import LEAST_SENDING_US
from sa_atp.protocol.help.rules import Rule
from sa_atp.protocol.help.share import Share
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.packets.control import Reply, Request
from sa_atp.protocol.packets.help_messages import AboutHelp, Call, Claim, Granted, Idle, Nothing, Offer, Work

T = TypeVar("T")
Ask = Callable[[Request, Callable[[Reply | None], Any]], "Future[Any]"]
STEPS_KEPT = 4  # steps whose shards are kept: leaders may be ahead of a straggler whose work they do
SLOWER = 1.5  # a rank whose micro-batches take this many times as long as in the last step tells the server at once
RECENT = 3  # micro-batches in the reported mean: on a busy host one takes longer, and the next one less
EARLY = Rule(
    "sending early", "What is computed leaves before an answer that takes longer than a piece, and than sending."
)
MARGIN = 1.25  # round trips before the held micro-batches run out, at which the next claim is sent


class OwnShard:
    """A rank's own shard in one step; made by `Helping.own_shard`."""

    def __init__(self, helping: "Helping", step: int, limit: int) -> None:
        self.step = step
        self._helping = helping
        self._lock = helping.lock
        self._share = Share(helping.micro_batches, limit)
        self._newest = 0  # number of the newest claim: answers to older ones are ignored
        self._asked = False  # whether the newest claim is unanswered
        # whether the parameter server knows what this rank holds, and how slow it is
        self._told = limit >= helping.micro_batches and not helping.was_cut_off
        self._was_unlike = False  # whether this rank has reported in this step that it is slower, or faster
        self._since_us: int | None = None  # when the current micro-batch was begun; None: it is done
        self._waiting: Future[None] | None = None

    def take(self) -> int | None:
        """Begins the next micro-batch, and claims more before none is left.

        Returns: its number; None if the rank may not compute another one, or not yet.
        """
        with self._lock:
            if self._helping.is_unlike and not self._was_unlike:
                # the server does not know it yet, and may be about to give the next micro-batches to others
                self._was_unlike, self._told = True, False
                if self._helping.is_slower:
                    self._share.give_back(self._reserve())
            found = self._share.take()
            if found is not None:
                self._since_us = self._helping.now_us()
            reserve_us = MARGIN * self._helping.answer_us()
            soon = self._share.left * self._helping.micro_batch_us <= reserve_us
            wants = not self._told or (soon and self._wants_more and not self._asked)
            claim = self._claim() if wants else None
        self._send(claim)
        return found

    def finish_micro_batch(self) -> None:
        """Notes that the current micro-batch is computed."""
        with self._lock:
            self._since_us = None

    def request_more(self) -> "Future[None] | None":
        """Claims more micro-batches, if none is left to take.

        Returns: a future that is done when `take` may have another one; None if there will be none in this step.
        """
        with self._lock:
            # micro-batches that were given back would be lost if the server did not know of it, so its answer is awaited
            if self._share.left == 0 and not self._wants_more and (self._share.is_whole or not self._asked):
                return None
            found = self._waiting = Future()
            if self._share.left > 0:
                found.set_result(None)
            claim = None if self._asked or self._share.left > 0 else self._claim()
        self._send(claim)
        return found

    @property
    def left_us(self) -> int:
        """The time that the held micro-batches which have not been begun will take."""
        return self._share.left * self._helping.micro_batch_us

    def revoke(self, held: int) -> None:
        """Gives back the micro-batches that this rank need not hold, and reports its progress with a new claim.

        Args: held: how many the server believes that this rank holds. If this rank has claimed fewer, the server had not
            received the newest claim yet, which is then the answer.
        """
        with self._lock:
            if self._asked and self._share.limit < held:
                return
            # before the first micro-batch, its begin is unknown, unless this rank only waits for the last step's sum
            keeps = self._share.begun or self._helping.waits_for_sum_before(self.step)
            self._share.give_back(self._reserve() if keeps else 0)
            claim = self._claim()
        self._send(claim)

    def _reserve(self) -> int:
        """How many micro-batches this rank needs to stay busy until an answer can arrive."""
        at_it_us = 0 if self._since_us is None else self._helping.now_us() - self._since_us
        each_us = max(self._helping.micro_batch_us, at_it_us)
        left_us = 0 if self._since_us is None else each_us - at_it_us
        return max(0, round((MARGIN * self._helping.answer_us() - left_us) / each_us))

    @property
    def _wants_more(self) -> bool:
        return not self._share.over and not self._share.is_whole

    def _claim(self) -> "tuple[int, Claim]":
        """The next claim, and its number."""
        self._newest += 1
        self._asked = self._told = True
        since_us = None if self._since_us is None else self._helping.now_us() - self._since_us
        told = self._helping.report(self.step)
        return self._newest, Claim(begun=self._share.begun, held=self._share.limit, since_us=since_us, **told)

    def _send(self, numbered: "tuple[int, Claim] | None") -> None:
        if numbered is not None:
            number, claim = numbered
            self._helping.ask(claim, lambda reply: self._answered(number, reply))

    def _answered(self, number: int, reply: Reply | None) -> None:
        """Takes the reply to a claim; None: none came before the step was over."""
        with self._lock:
            if number != self._newest:
                return  # a newer claim has been sent, and may hold less
            self._asked = False
            if isinstance(reply, Granted):
                self._share.grant(reply.until, reply.over)
            else:
                self._share.grant(0, over=True)
            waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


class Helping:
    """A rank's side of help over all steps."""

    def __init__(
        self, membership: Membership, ask: Ask, now_us: Callable[[], int], answer_us: Callable[[], int]
    ) -> None:
        """Args:
        ask: sends a question to the parameter server, from any thread; `understand` makes the future's result of the
            reply, in the connection's thread.
        answer_us: how long the server's answers take; 0: not known.
        """
        self.micro_batches = membership.micro_batches
        self.micro_batch_us = 1
        """How long the last micro-batch took."""
        self.helps = False
        """Whether there will be work to do for others, by the server's last answer."""
        self.lock = threading.RLock()
        self.now_us = now_us
        self.answer_us = answer_us
        self._ask = ask
        self._hold = self.micro_batches
        self._next_step = 0
        self._idle_in = -1  # the last step in which this rank was idle before the sum was there
        self._began_us = now_us()
        self._took_us: list[int] = []  # of each micro-batch of this step
        self._told = 0  # how many of these have been reported
        self._untold_us: list[int] = []  # of micro-batches of earlier steps that were not reported in time
        self._usual = Forecast()  # of a micro-batch, as the ledger makes it
        self._longest = Forecast()  # of the longest one in a step
        self._sent_us = 0
        self.weight = 1
        """How much work one of this rank's micro-batches is, where shards differ; in a unit that all ranks share."""
        self.may_cross = False
        """Whether help may come from other racks: it did in this step or the one before."""
        self._crossed = False  # in this step
        self.was_cut_off = False
        """Whether others have computed this rank's current micro-batch first, so that its speed is not known."""
        self.ask_at_us = now_us()
        """When to offer again, by the newest answer to an offer, or the newest call."""
        self.has_work: Future[None] = Future()
        """Is done as soon as `take_work` has some."""
        self._works: deque[Work] = deque()  # given, and not taken
        self._given: set[tuple[int, int]] = set()  # (shard, micro-batch) of work in this step
        self.helps_rank: int | None = None
        """The rank whose micro-batches this rank was last given to compute, until it asks again; None: nobody's."""
        self.helped = 0
        """Micro-batches of other ranks that this rank was given to compute."""
        self._membership = membership
        self._rank = membership.rank
        self._shards: dict[int, OwnShard] = {}

    def begin_step(self) -> int:
        """Begins a step. Returns: its number in questions, which the connection counts: it is the same on every rank, as
        all do the same steps, and new even if a program repeats its own step numbers.
        """
        with self.lock:
            self._next_step += 1
            self._began_us = self.now_us()
            self.helps_rank = None
            if self._next_step > 1:
                took_us = self._took_us or [self.micro_batch_us]
                self._usual.note(median_low(took_us))
                self._longest.note(max(took_us))
            self._untold_us += self._took_us[self._told :]
            self._took_us, self._told = [], 0
            self.may_cross, self._crossed = self._crossed, False
            self._given.clear()
            self._works.clear()
            self.has_work = Future()
            return self._next_step - 1

    def own_shard(self, step: int) -> OwnShard:
        """The rank's own shard in a step. Args: step: from `begin_step`."""
        with self.lock:
            if step not in self._shards:
                self._shards[step] = OwnShard(self, step, self._hold)
                for old in [s for s in self._shards if s <= step - STEPS_KEPT]:
                    del self._shards[old]
            return self._shards[step]

    def on_revoked(self, step: int, held: int) -> None:
        """Handles the parameter server's `revoke`; called in the connection's thread."""
        with self.lock:
            is_over = step < self._next_step - 1
        if not is_over:
            self.own_shard(step).revoke(held)

    def record_micro_batch(self, elapsed_us: int, *, cut_off: bool = False) -> None:
        """Records how long a micro-batch took; the next question reports it.

        Args: cut_off: it was not finished in that time; the next step then begins with a report.
        """
        with self.lock:
            self.micro_batch_us = max(1, elapsed_us)
            self._took_us.append(self.micro_batch_us)
            self.was_cut_off |= cut_off

    def record_sending(self, elapsed_us: int) -> None:
        """Records how long this rank's contribution to a sum took to leave."""
        self._sent_us = elapsed_us

    @property
    def sent_us(self) -> int:
        """How long this rank's last contribution took to leave; 0: not known."""
        return self._sent_us

    @property
    def is_slower(self) -> bool:
        """Whether the last micro-batch took much longer than is usual in most recent steps, and longer than each of
        theirs: on a busy host, single ones take long.
        """
        usual_us, longest_us = self._usual.mean_us or 0, self._longest.mean_us or 0
        return self.has_measured and 0 < SLOWER * usual_us < self.micro_batch_us > longest_us

    @property
    def is_unlike(self) -> bool:
        """Whether this rank's speed in this step is not the one that the ledger expects."""
        return self.is_slower or (self.has_measured and SLOWER * self.micro_batch_us < (self._usual.mean_us or 0))

    @property
    def has_measured(self) -> bool:
        """Whether this rank has computed a micro-batch in this step."""
        return bool(self._took_us)

    def waits_for_sum_before(self, step: int) -> bool:
        """Whether only the sum of the step before is missing, and the link is not slow, so that the sum comes soon. In the
        first step the link's speed is not known.
        """
        return 0 < self._idle_in == step - 1 == self._next_step - 1 and self._sent_us < LEAST_SENDING_US

    @property
    @EARLY.or_else(False)
    def should_not_wait(self) -> bool:
        """Whether an answer takes longer than sending what is computed, and than computing a piece more of it."""
        return max(self._sent_us, self.micro_batch_us) < self.answer_us()

    def report(self, step: int) -> dict[str, int]:
        """The fields that every question has; marks the micro-batches in them as reported."""
        with self.lock:
            new = len(self._took_us) - self._told
            # those of this step alone, if there are any: a worker that is slow all at once must not look half as slow
            took = self._took_us[-max(new, RECENT) :] if new else self._untold_us
            self._told, self._untold_us = len(self._took_us), []
            self.was_cut_off = False
            # 0: this rank is not in this step
            spent_us = max(1, self.now_us() - self._began_us) if step == self._next_step - 1 else 0
        return {
            "step": step,
            "took_us": sum(took) // len(took) if took else 0,
            "spent_us": spent_us,
            "answer_us": self.answer_us(),
            "sent_us": self._sent_us,
            "weight": self.weight,
        }

    def ask(self, question: Claim | Offer | Idle, understand: Callable[[Reply | None], T]) -> "Future[T]":
        """Sends a question, and takes the advice for coming steps from the answer."""

        def heard(reply: Reply | None) -> T:
            if isinstance(reply, AboutHelp):
                with self.lock:
                    self._hold, self.helps = min(reply.hold, self.micro_batches), reply.helps
                    if reply.bypass_leaf:
                        self.may_cross = self._crossed = True
            return understand(reply)

        return self._ask(question, heard)

    def offer(
        self, step: int, missing: int, *, busy_us: int, progress: SendProgress | None
    ) -> "Future[Work | Nothing]":
        """Offers to compute for others. Returns: the work, or nothing. (protocol section 10.3)

        Args:
            step: from begin_step.
            missing: contributions that the sums lack, as a bitmap.
            busy_us: how long this rank is still busy with other work.
            progress: how far its own fragments are, where that is known.
        """
        with self.lock:
            question = Offer(
                missing=missing,
                busy_us=busy_us,
                pending=None if progress is None else math.floor(1000 * progress.pending),
                given=self._bits_given(),
                **self.report(step),
            )

        def understand(reply: Reply | None) -> Work | Nothing:
            answer = reply if isinstance(reply, Work | Nothing) else Nothing()
            self._take_answer(step, answer)
            return answer

        return self.ask(question, understand)

    def on_called(self, call: Call) -> None:
        """Handles the parameter server's `call`; called in the connection's thread."""
        work = Work(shard=call.shard, micro_batches=call.micro_batches, backup=call.backup, again_us=call.again_us)
        self._take_answer(call.step, work, is_new=False)

    def _take_answer(self, step: int, answer: Work | Nothing, *, is_new: bool = True) -> None:
        """Takes the answer to an offer, or a call. Work that was sent twice, because the first message was late, counts
        once.

        Args: is_new: whether what it says of further work is the newest word even if this rank has that work.
        """
        with self.lock:
            if step != self._next_step - 1:
                return
            new: list[int] = []
            if isinstance(answer, Work):
                new = [m for m in answer.micro_batches if (answer.shard, m) not in self._given]
                self._given.update((answer.shard, m) for m in new)
                self.helped += 0 if answer.shard == self._rank else len(new)
            if new and isinstance(answer, Work):
                self._works.append(replace(answer, micro_batches=new))
            elif isinstance(answer, Nothing) and not self._works:
                self.helps_rank = None
            if new or is_new:
                self.ask_at_us = self.now_us() + answer.again_us
            has_work = self.has_work if new and not self.has_work.done() else None
        if has_work is not None:
            has_work.set_result(None)

    def take_work(self) -> Work | None:
        """Takes the next work that this rank was given as a helper. Returns: None: there is none."""
        with self.lock:
            if not self._works:
                return None
            work = self._works.popleft()
            if not self._works:
                self.has_work = Future()
            self.helps_rank = None if work.shard == self._rank else work.shard
            return work

    @property
    def works(self) -> tuple[Work, ...]:
        """Work that this rank was given as a helper and has not taken, in order."""
        with self.lock:
            return tuple(self._works)

    def _bits_given(self) -> int:
        return sum(self._membership.bit(shard, m) for shard, m in self._given)

    def report_idle(self, step: int) -> "Future[None]":
        """Reports that this rank has computed all that it held."""
        with self.lock:
            self._idle_in = step
        return self.ask(Idle(**self.report(step)), lambda reply: None)
