"""A rank's side of help: what it holds of its own shard, its work for others, and its reports to the parameter server.

Two threads call this: the one that computes takes micro-batches, and the connection's takes assignments. No call blocks.
(protocol section 10.2)
"""

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from statistics import median_low
from typing import Any, NamedTuple, TypeVar

from sa_atp.protocol.help.belief import Forecast
from sa_atp.protocol.help.progress import SendProgress
from sa_atp.protocol.help.projection import LEAST_SENDING_US
from sa_atp.protocol.help.rules import Rule
from sa_atp.protocol.help.share import Share
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.packets.control import Reply, Request
from sa_atp.protocol.packets.help_messages import Assignment, Offer, WorkReport

T = TypeVar("T")
Ask = Callable[[Request, Callable[[Reply | None], Any]], "Future[Any]"]
STEPS_KEPT = 4  # steps whose work is kept: leaders may be ahead of a straggler whose work they do
SLOWER = 1.5  # a rank whose micro-batches take this many times as long as in the last step tells the server at once
RECENT = 3  # micro-batches in the reported mean: on a busy host one takes longer, and the next one less
EARLY = Rule(
    "sending early", "What is computed leaves before an answer that takes longer than a piece, and than sending."
)
UNDECIDED_US = 12_000  # until the next offer, if this one was not decided on
MARGIN = 1.25  # round trips before the held micro-batches run out, at which the next report asks for more


class Work(NamedTuple):
    """Micro-batches that a rank is given to compute as a helper."""

    shard: int
    micro_batches: tuple[int, ...]
    """In the order in which they are to be computed."""
    is_copy: bool
    """Their owner holds them, too, but is silent."""


class StepWork:
    """A rank's work in one step: what it holds of its own shard, and what it is given of others'; see `Helping.work`."""

    def __init__(self, helping: "Helping", step: int, limit: int) -> None:
        """Args: limit: how many micro-batches of its own shard it holds at the beginning."""
        self.step = step
        self.news: Future[None] = Future()
        """Is done, and replaced, when the parameter server has said something about the step."""
        self.is_offering = False
        """Whether an offer to compute for others is not answered yet."""
        self.has_offered = False
        """Whether this rank has offered to compute for others in this step."""
        self._helping = helping
        self._lock = helping.lock
        self._share = Share(helping.micro_batches, limit)
        self._newest = 0  # number of the newest report: what older ones' answers say of our own shard is ignored
        self._asked = False  # whether the newest report is unanswered
        self._confirmed = limit  # how many micro-batches the rank held when the newest report was answered
        self._is_done = False  # whether it has computed all that it held, and gets no more
        # whether the parameter server knows what this rank holds, and how slow it is
        self._is_known = limit >= helping.micro_batches and not helping.was_cut_off
        self._was_unlike = False  # whether this rank has reported in this step that it is slower, or faster
        self._since_us: int | None = None  # when the current micro-batch was begun; None: it is done
        self._works: deque[Work] = deque()  # given, and not taken
        self._given = 0  # contributions of others that it was given in this step, as a bitmap
        self._offer_at_us = 0  # when to offer again, by the newest answer to an offer, or the newest call

    # --- our own shard --------------------------------------------------------------------------------------------------

    def take(self) -> int | None:
        """Begins the next micro-batch of our own shard, and asks for more before none is left.

        Returns: its number; None if the rank may not compute another one, or not yet.
        """
        with self._lock:
            if self._helping.is_unlike and not self._was_unlike:
                # the server does not know it yet, and may be about to give the next micro-batches to others
                self._was_unlike, self._is_known = True, False
                if self._helping.is_slower:
                    self._share.give_back(self._reserve())
            found = self._share.take()
            if found is not None:
                self._since_us = self._helping.now_us()
            reserve_us = MARGIN * self._helping.answer_us()
            soon = self._share.left * self._helping.micro_batch_us <= reserve_us
            wants = not self._is_known or (soon and self._wants_more and not self._asked)
            if wants:
                self._report()
        return found

    def finish_micro_batch(self) -> None:
        """Notes that the current micro-batch is computed."""
        with self._lock:
            self._since_us = None

    def may_get_more(self) -> bool:
        """Whether it may still get micro-batches of its own shard; asks for more, if it has begun all that it holds."""
        with self._lock:
            # micro-batches that were given back would be lost if the server did not know of it, so its answer is awaited
            if self._share.left == 0 and not self._wants_more and self._share.limit >= self._confirmed:
                return False
            if self._share.left == 0 and not self._asked:
                self._report()
            return True

    @property
    def left_us(self) -> int:
        """The time that the held micro-batches which have not been begun will take."""
        return self._share.left * self._helping.micro_batch_us

    def report_done(self) -> None:
        """Reports that this rank has computed all that it held of its own shard."""
        with self._lock:
            self._helping.idle_in, self._is_done = self.step, True
            self._report()

    def _revoke(self, held: int) -> None:
        """Gives back the micro-batches that this rank need not hold, and reports its progress.

        Args: held: how many the server believes that this rank holds. If this rank has reported fewer, the server had not
            received the newest report yet, which is then the answer.
        """
        if self._asked and self._share.limit < held:
            return
        # before the first micro-batch, its begin is unknown, unless this rank only waits for the last step's sum
        keeps = self._share.begun or self._helping.waits_for_sum_before(self.step)
        self._share.give_back(self._reserve() if keeps else 0)
        self._report()

    def _reserve(self) -> int:
        """How many micro-batches this rank needs to stay busy until an answer can arrive."""
        at_it_us = 0 if self._since_us is None else self._helping.now_us() - self._since_us
        each_us = max(self._helping.micro_batch_us, at_it_us)
        left_us = 0 if self._since_us is None else each_us - at_it_us
        return max(0, round((MARGIN * self._helping.answer_us() - left_us) / each_us))

    @property
    def _wants_more(self) -> bool:
        return not self._share.over and not self._share.is_whole

    # --- others' work -----------------------------------------------------------------------------------------------------

    def take_given(self) -> Work | None:
        """Takes the next work that this rank was given as a helper. Returns: None: there is none."""
        with self._lock:
            work = self._works.popleft() if self._works else None
            if work is not None:
                self._helping.helps_rank = None if work.shard == self._helping.rank else work.shard
            return work

    @property
    def given(self) -> tuple[Work, ...]:
        """Work that this rank was given as a helper and has not taken, in order."""
        with self._lock:
            return tuple(self._works)

    @property
    def offers_again_in_us(self) -> int:
        """After how long to offer again."""
        return max(0, self._offer_at_us - self._helping.now_us())

    def offer(self, missing: int, *, busy_us: int, progress: SendProgress | None) -> None:
        """Offers to compute for others. (protocol section 10.3)

        Args:
            missing: contributions that the sums lack, as a bitmap.
            busy_us: how long this rank is still busy with other work.
            progress: how far its own fragments are, where that is known.
        """
        with self._lock:
            self.is_offering = self.has_offered = True
            pending = None if progress is None else math.floor(1000 * progress.pending)
            self._report(Offer(missing=missing, busy_us=busy_us, pending=pending, given=self._given))

    # --- what the parameter server is told, and says ---------------------------------------------------------------------

    def _report(self, offer: Offer | None = None) -> None:
        """Sends a report, under the lock: the server takes the one that it is sent last for the newest."""
        self._newest += 1
        self._asked = self._is_known = True
        number, share = self._newest, self._share
        since_us = None if self._since_us is None else self._helping.now_us() - self._since_us
        said = WorkReport(
            begun=share.begun,
            held=share.limit,
            since_us=since_us,
            done=self._is_done,
            offer=offer,
            **self._helping.report(self.step),
        )
        self._helping.ask(said, lambda reply: self._answered(number, reply, has_offered=offer is not None))

    def _answered(self, number: int, reply: Reply | None, *, has_offered: bool) -> None:
        """Takes the reply to a report; None: none came before the step was over."""
        with self._lock:
            if has_offered:
                self.is_offering = False
            if not isinstance(reply, Assignment):
                reply = Assignment(step=self.step, over=True, again_us=UNDECIDED_US)
            if number == self._newest:  # else a newer one has been sent, and may hold less
                self._asked = False
                self._share.grant(reply.until or 0, reply.over)
                self._confirmed = self._share.limit
            self._take(reply, is_newest_word=has_offered)
        self._tell()

    def on_assigned(self, told: Assignment) -> None:
        """Takes what the parameter server says by itself."""
        with self._lock:
            if told.revokes is not None:
                self._revoke(told.revokes)
            self._take(told)
        self._tell()

    def _take(self, told: Assignment, *, is_newest_word: bool = False) -> None:
        """Takes work. What was sent twice, because the first message was late, counts once.

        Args: is_newest_word: whether what it says of further work counts even if there is nothing new.
        """
        helping = self._helping
        if self.step != helping.step:
            return
        new = (told.work | told.copies) & ~self._given
        self._given |= new
        for bits, is_copy in ((told.work & new, False), (told.copies & new, True)):
            for shard, numbers in helping.micro_batches_of(bits).items():
                # the last one first, as it is farthest from what the owner is at
                self._works.append(Work(shard, tuple(numbers if is_copy else numbers[::-1]), is_copy))
                helping.helped += 0 if shard == helping.rank else len(numbers)
        if is_newest_word and not self._works:
            helping.helps_rank = None
        if new or is_newest_word:
            self._offer_at_us = helping.now_us() + told.again_us

    def _tell(self) -> None:
        with self._lock:
            news, self.news = self.news, Future()
        news.set_result(None)


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
        self.step = -1
        """The number of the present step."""
        self.idle_in = -1
        """The last step in which this rank was idle before the sum was there."""
        self._began_us = now_us()
        self._took_us: list[int] = []  # of each micro-batch of this step
        self._reported = 0  # how many of these have been reported
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
        self.helps_rank: int | None = None
        """The rank whose micro-batches this rank was last given to compute, until it asks again; None: nobody's."""
        self.helped = 0
        """Micro-batches of other ranks that this rank was given to compute."""
        self.rank = membership.rank
        self.micro_batches_of = membership.map.micro_batches_of
        """Finds the micro-batches in a message's bitmap, by rank."""
        self._works: dict[int, StepWork] = {}  # by step

    def begin_step(self) -> int:
        """Begins a step. Returns: its number in questions, which the connection counts: it is the same on every rank, as
        all do the same steps, and new even if a program repeats its own step numbers.
        """
        with self.lock:
            self.step += 1
            self._began_us = self.now_us()
            self.helps_rank = None
            if self.step > 0:
                took_us = self._took_us or [self.micro_batch_us]
                self._usual.note(median_low(took_us))
                self._longest.note(max(took_us))
            self._untold_us += self._took_us[self._reported :]
            self._took_us, self._reported = [], 0
            self.may_cross, self._crossed = self._crossed, False
            return self.step

    def work(self, step: int) -> StepWork:
        """The rank's work in a step. Args: step: from `begin_step`."""
        with self.lock:
            if step not in self._works:
                self._works[step] = StepWork(self, step, self._hold)
                for old in [s for s in self._works if s <= step - STEPS_KEPT]:
                    del self._works[old]
            return self._works[step]

    def on_assigned(self, told: Assignment) -> None:
        """Takes what the parameter server says though this rank has not asked; called in the connection's thread."""
        with self.lock:
            work = self.work(told.step) if told.step >= self.step else None
        if work is not None:
            work.on_assigned(told)

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
        return 0 < self.idle_in == step - 1 == self.step and self._sent_us < LEAST_SENDING_US

    @property
    @EARLY.or_else(False)
    def should_not_wait(self) -> bool:
        """Whether an answer takes longer than sending what is computed, and than computing a piece more of it."""
        return max(self._sent_us, self.micro_batch_us) < self.answer_us()

    def report(self, step: int) -> dict[str, int]:
        """What a report says of the rank itself; marks the micro-batches in it as reported."""
        with self.lock:
            new = len(self._took_us) - self._reported
            # those of this step alone, if there are any: a worker that is slow all at once must not look half as slow
            took = self._took_us[-max(new, RECENT) :] if new else self._untold_us
            self._reported, self._untold_us = len(self._took_us), []
            self.was_cut_off = False
            # 0: this rank is not in this step
            spent_us = max(1, self.now_us() - self._began_us) if step == self.step else 0
        return {
            "step": step,
            "took_us": sum(took) // len(took) if took else 0,
            "spent_us": spent_us,
            "answer_us": self.answer_us(),
            "sent_us": self._sent_us,
            "weight": self.weight,
        }

    def ask(self, said: WorkReport, understand: Callable[[Reply | None], T]) -> "Future[T]":
        """Sends a report, and takes the advice for coming steps from the answer."""

        def heard(reply: Reply | None) -> T:
            if isinstance(reply, Assignment):
                with self.lock:
                    self._hold, self.helps = min(reply.hold, self.micro_batches), reply.helps
                    if reply.bypass_leaf:
                        self.may_cross = self._crossed = True
            return understand(reply)

        return self._ask(said, heard)

    def offer(self, work: StepWork, missing: int, *, busy_us: int, progress: SendProgress | None) -> None:
        """See `StepWork.offer`."""
        work.offer(missing, busy_us=busy_us, progress=progress)
