"""A rank's side of help: what it holds of its own shard, what it tells the parameter server, and what it is told.

Two threads meet here: that in which a rank computes, which begins its micro-batches, and that of its connection, which
gives up what is revoked. No call blocks. (protocol section 10.2)
"""

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from statistics import median_low
from typing import Any, TypeVar

from sa_atp.protocol.help.progress import SendProgress
from sa_atp.protocol.help.projection import LEAST_SENDING_US
from sa_atp.protocol.help.share import Share
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.packets.control import Reply, Request
from sa_atp.protocol.packets.help_messages import AboutHelp, Claim, Granted, Idle, Nothing, Offer, Work

T = TypeVar("T")
Ask = Callable[[Request, Callable[[Reply | None], Any]], "Future[Any]"]
STEPS_KEPT = 4  # whose shards are remembered: leaders may be ahead of a straggler whose work they do
SLOWER = 1.5  # times as long as in the step before: that nobody can know who is not told
RECENT = 3  # micro-batches of which the mean is told: on a busy host one takes long, and the next one less for it
MARGIN = 1.25  # a claim leaves so many round trips before what is held runs out


class OwnShard:
    """A rank's own shard in one step; made by `Helping.own_shard`."""

    def __init__(self, helping: "Helping", step: int, limit: int) -> None:
        self.step = step
        self._helping = helping
        self._lock = helping.lock
        self._share = Share(helping.micro_batches, limit)
        self._newest = 0  # the number of the newest claim: only its answer counts
        self._asked = False  # whether that one is not answered yet
        # whether the parameter server knows what we hold, and how slow we are
        self._told = limit >= helping.micro_batches and not helping.was_cut_off
        self._was_slower = False  # whether we have said so in this step
        self._since_us: int | None = None  # when the last one that was begun was begun; None: it is done
        self._waiting: Future[None] | None = None

    def take(self) -> int | None:
        """Begins the next micro-batch; None: it is not ours, or not yet. Asks for more before there is none left."""
        with self._lock:
            if self._told and self._helping.is_slower and not self._was_slower:
                # nobody knows it yet: others may be about to do what we would begin
                self._was_slower, self._told = True, False
                self._share.give_back(self._reserve())
            found = self._share.take()
            if found is not None:
                self._since_us = self._helping.now_us()
            reserve_us = MARGIN * self._helping.answer_us()
            soon = self._share.left * self._helping.micro_batch_us <= reserve_us
            wants = not self._asked and (not self._told or (soon and self._wants_more))
            claim = self._claim() if wants else None
        self._send(claim)
        return found

    def done(self) -> None:
        """The micro-batch that was begun last is computed."""
        with self._lock:
            self._since_us = None

    def more(self) -> "Future[None] | None":
        """A future that is done when there may be another one to take; None: there will be none."""
        with self._lock:
            # what we have given back is lost unless the parameter server knows of it: so its answer is waited for
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
        """For how long it will be at what it holds and has not begun."""
        return self._share.left * self._helping.micro_batch_us

    def revoke(self, held: int) -> None:
        """The parameter server wants to know how far we are, and to have what we need not hold.

        Args: held: what it thinks that we hold. It asked so before it had heard our newest claim, if that says less.
        """
        with self._lock:
            if self._asked and self._share.limit < held:
                return
            # where nothing has been begun nobody knows when that will be, unless only the sum of the step before is awaited
            keeps = self._share.begun or self._helping.waits_for_sum_before(self.step)
            self._share.give_back(self._reserve() if keeps else 0)
            claim = self._claim()
        self._send(claim)

    def _reserve(self) -> int:
        """How many it needs to have something to do until an answer can be there."""
        at_it_us = 0 if self._since_us is None else self._helping.now_us() - self._since_us
        each_us = max(self._helping.micro_batch_us, at_it_us)
        left_us = 0 if self._since_us is None else each_us - at_it_us
        return max(0, round((MARGIN * self._helping.answer_us() - left_us) / each_us))

    @property
    def _wants_more(self) -> bool:
        return not self._share.over and not self._share.is_whole

    def _claim(self) -> "tuple[int, Claim]":
        """Its number, and what is said."""
        self._newest += 1
        self._asked = self._told = True
        since_us = None if self._since_us is None else self._helping.now_us() - self._since_us
        told = self._helping.told(self.step)
        return self._newest, Claim(begun=self._share.begun, held=self._share.limit, since_us=since_us, **told)

    def _send(self, numbered: "tuple[int, Claim] | None") -> None:
        if numbered is not None:
            number, claim = numbered
            self._helping.ask(claim, lambda reply: self._answered(number, reply))

    def _answered(self, number: int, reply: Reply | None) -> None:
        """Args: reply: to claim `number`; None: it did not come before the step was over."""
        with self._lock:
            if number != self._newest:
                return  # we have told something else since, and may hold less
            self._asked = False
            if isinstance(reply, Granted):
                self._share.grant(reply.until, reply.over)
            else:
                self._share.grant(0, over=True)
            waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


class Helping:
    def __init__(
        self, membership: Membership, ask: Ask, now_us: Callable[[], int], answer_us: Callable[[], int]
    ) -> None:
        """Args:
        ask: puts a question to the parameter server, from any thread; the future's result is what `understand` makes of
            the answer, in the connection's thread.
        answer_us: how long answers to questions take to come; 0: not known.
        """
        self.micro_batches = membership.micro_batches
        self.micro_batch_us = 1
        """How long the last one took."""
        self.helps = False
        """There will be something to do for others; as we were last told."""
        self.lock = threading.RLock()
        self.now_us = now_us
        self.answer_us = answer_us
        self._ask = ask
        self._hold = self.micro_batches
        self._next_step = 0
        self._idle_in = -1  # the last step in which we had computed what we held, and the sum was not there
        self._began_us = now_us()
        self._took_us: list[int] = []  # each, in this step
        self._told = 0  # how many of these have been told
        self._untold_us: list[int] = []  # those of the steps before that were not told in time
        self._usual_us = 0  # how long one took in the step before; 0: not known
        self._longest_us = 0  # ... and the longest of them
        self._sent_us = 0
        self.weight = 1
        """How much work one of our micro-batches is, where shards differ; in a unit that all ranks have."""
        self.may_cross = False
        """Help may come from other racks: it did in this step or the one before."""
        self._crossed = False  # in this step
        self.copied = 0
        """Contributions of ours in this step that somebody else backs up and should have sent, as a bitmap."""
        self.was_cut_off = False
        """Others have done what we were at, and it is not known how slow we are."""
        self.answered_us = now_us()
        """When the answer to the newest offer came."""
        self._shards: dict[int, OwnShard] = {}

    def begin_step(self) -> int:
        """A number for the questions of a step: counted by the connection, so that it is the same on every rank, since all
        do the same steps, and new however often a program gives a step the same number.
        """
        with self.lock:
            self._next_step += 1
            self._began_us = self.now_us()
            took_us = self._took_us or [self.micro_batch_us]
            self._usual_us, self._longest_us = (median_low(took_us), max(took_us)) if self._next_step > 1 else (0, 0)
            self._untold_us += self._took_us[self._told :]
            self._took_us, self._told = [], 0
            self.may_cross, self._crossed = self._crossed, False
            self.copied = 0
            return self._next_step - 1

    def own_shard(self, step: int) -> OwnShard:
        """What we hold of our own shard. Args: step: from begin_step."""
        with self.lock:
            if step not in self._shards:
                self._shards[step] = OwnShard(self, step, self._hold)
                for old in [s for s in self._shards if s <= step - STEPS_KEPT]:
                    del self._shards[old]
            return self._shards[step]

    def on_revoked(self, step: int, held: int) -> None:
        """The parameter server says `revoke`; called in the connection's thread."""
        with self.lock:
            is_over = step < self._next_step - 1
        if not is_over:
            self.own_shard(step).revoke(held)

    def took(self, elapsed_us: int, *, cut_off: bool = False) -> None:
        """How long a micro-batch took; told with the next question.

        Args: cut_off: it was not done after that. Then the next step begins with saying so.
        """
        with self.lock:
            self.micro_batch_us = max(1, elapsed_us)
            self._took_us.append(self.micro_batch_us)
            self.was_cut_off |= cut_off

    def sent(self, elapsed_us: int) -> None:
        """How long our contribution to a sum took to leave."""
        self._sent_us = elapsed_us

    @property
    def sent_us(self) -> int:
        """How long our contribution took to leave when that was last known; 0: never."""
        return self._sent_us

    @property
    def is_slower(self) -> bool:
        """Whether micro-batches take much longer than in the step before: than most, and than any of them, since on a busy
        host single ones do.
        """
        return 0 < SLOWER * self._usual_us < self.micro_batch_us > self._longest_us

    def waits_for_sum_before(self, step: int) -> bool:
        """Whether we are done with the step before this one but for its sum, which does not come down a slow link: then it
        is here soon. In the first step nobody knows what the link is.
        """
        return 0 < self._idle_in == step - 1 == self._next_step - 1 and self._sent_us < LEAST_SENDING_US

    @property
    def should_not_wait(self) -> bool:
        """Whether an answer takes longer than sending what it may add something to: each lot is sent as a whole."""
        return self._sent_us < self.answer_us()

    def told(self, step: int) -> dict[str, int]:
        """What is said with every question."""
        with self.lock:
            new = len(self._took_us) - self._told
            took = self._untold_us + self._took_us[self._told :]
            if new and not self._untold_us:
                took = self._took_us[-max(new, RECENT) :]
            self._told, self._untold_us = len(self._took_us), []
            self.was_cut_off = False
            # 0 says that we are not in this step
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
        """Asks, and takes from the answer what concerns steps to come."""

        def heard(reply: Reply | None) -> T:
            if isinstance(reply, AboutHelp):
                with self.lock:
                    self._hold, self.helps = min(reply.hold, self.micro_batches), reply.helps
                    if reply.bypass_leaf:
                        self.may_cross = self._crossed = True
                    if question.step == self._next_step - 1:
                        self.copied |= reply.copied
            return understand(reply)

        return self._ask(question, heard)

    def offer(
        self, step: int, missing: int, *, busy_us: int, progress: SendProgress | None
    ) -> "Future[Work | Nothing]":
        """What may I compute for others? (protocol section 10.3)

        Args:
            step: from begin_step.
            missing: contributions that the sums lack, as a bitmap.
            busy_us: for how long we are still at what we have to do before.
            progress: how far our own fragments are, where that is known.
        """
        question = Offer(
            missing=missing,
            busy_us=busy_us,
            pending=None if progress is None else math.floor(1000 * progress.pending),
            **self.told(step),
        )

        def understand(reply: Reply | None) -> Work | Nothing:
            with self.lock:
                if step == self._next_step - 1:
                    self.answered_us = self.now_us()
            return reply if isinstance(reply, Work | Nothing) else Nothing()

        return self.ask(question, understand)

    def idle(self, step: int) -> "Future[None]":
        """Says that we have computed what we held; with two levels the answer decides which way our data goes."""
        with self.lock:
            self._idle_in = step
        return self.ask(Idle(**self.told(step)), lambda reply: None)
