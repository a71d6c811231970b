"""A worker's connection with futures for sums and for the parameter server's answers.

It has no thread, socket or clock: `net.Communicator` adds a thread, and the simulator's workers simulated time.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

import numpy as np

from sa_atp.basics.arrays import Addends, ByteRows, Integers, Values
from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.net.helping import Helping
from sa_atp.protocol.help.progress import SendProgress
from sa_atp.protocol.job.errors import TransportError
from sa_atp.protocol.numbers.quantise import largest, poisoned
from sa_atp.protocol.numbers.scaling import SUM_LIMIT
from sa_atp.protocol.packets.control import Reply, Request, Seated, Taken, TakeSeat, decode_request, encode
from sa_atp.protocol.packets.help_messages import Assignment, WorkReport
from sa_atp.protocol.packets.lateness_messages import AskLateness, JobLateness
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.status_messages import AskStats, JobStats
from sa_atp.protocol.rank.events import Answer, Assigned, Failed, OperationDone, WaitingFor
from sa_atp.protocol.rank.sums.operation import Operation
from sa_atp.protocol.rank.worker import Worker

T = TypeVar("T")
ProgramQuestion = (
    WorkReport | TakeSeat | AskStats | AskLateness
)  # what they may ask; everything else the connection says by itself
WORD_BYTES = 4  # of a lane
MOST_FRAGMENTS = 1 << 29  # of data in one operation: the order of sequence numbers that are farther apart is ambiguous


@dataclass(slots=True)
class Sum:
    """A sum under way."""

    values: int
    future: "Future[Any]"
    out: Addends
    """float32[values]: receives the sum; where results are scattered, this rank's part of it. Of whole numbers, int32."""
    scale: float = 1.0
    """A factor by which the sum is multiplied; all ranks must state the same."""
    measured: bool = True
    """Whether the sum counts when ranks are compared, to find out which was slow."""
    operation: int = -1
    """Number of its operation in the job; -1 until it has been started."""
    missing_bits: int | None = None
    """Contributions that were missing when the switch was last asked; None: it has not been asked."""
    progress: SendProgress | None = None
    """How far its fragments were at that time."""
    overtaken: bool = False
    """Whether helpers have contributed this rank's part, so that the sum completes without it. Known in jobs with help."""
    sending: tuple[tuple[int, int], ...] = ()
    """After it is done: the intervals in which this rank's first contribution left; without retransmissions, and without
    waiting for the window."""
    sent_share: float = 1.0
    """After it is done: the share of that contribution which has left."""
    finished: Operation | None = None
    """After it is done: the sums as integers (`finished.integers()`)."""
    whole: bool = False
    """Whether its values are whole numbers, int32."""
    gathers: tuple[str, int] | None = None
    """A name of the parts' type and the bytes of a part, if it is an all-gather, whose `out` is uint8[ranks, bytes]."""
    session: "Session | None" = field(default=None, repr=False)
    """The session that began it, the only one that can contribute to it."""
    is_over: bool = False
    """Whether its future is done."""
    array: Any = None
    """The future's result, if that is not `out`."""
    write_back: Callable[[Any], None] | None = None
    """Writes the sum into `array`, where that does not share memory with `out`."""

    def complete(self) -> None:
        self.is_over = True
        self.future.set_result(self.out if self.array is None else self.array)

    def fail(self, error: Exception) -> None:
        self.is_over = True
        self.future.set_exception(error)


def future_of(sum_: Sum | None, nothing: Any) -> "Future[Any]":
    """A sum's future. Args: nothing: the result, which is there already, if there is no sum because the array is empty."""
    if sum_ is not None:
        return sum_.future
    found: Future[Any] = Future()
    found.set_result(nothing)
    return found


class Asking(ABC):
    """The questions of a rank to the parameter server; the answers are futures."""

    helping: Helping
    """This rank's side of help."""

    @abstractmethod
    def ask(self, question: Request, understand: Callable[[Reply | None], T]) -> "Future[T]":
        """Asks until an answer comes; `understand` makes the future's result of it, or of None if none came in time."""

    def take_seat(self, step: int) -> "Future[Seated | Taken | None]":
        """Asks for a seat in this step's sum. Result: None if no answer came in time. (protocol section 10.6)

        Args: step: from `Helping.begin_step`.
        """
        return self.ask(TakeSeat(step=step), lambda reply: reply if isinstance(reply, Seated | Taken) else None)

    def job_stats(self) -> "Future[JobStats | None]":
        """Asks for the parameter server's counters of the job."""
        return self.ask(AskStats(), lambda reply: reply if isinstance(reply, JobStats) else None)

    def lateness(self) -> "Future[JobLateness | None]":
        """Asks which ranks were slow, as far as the parameter server knows. (protocol section 7.7)"""
        return self.ask(AskLateness(), lambda reply: reply if isinstance(reply, JobLateness) else None)


class Session:
    """Sums and questions over one connection. One thread calls it, and calls `serve` after each turn of the connection."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.membership, self._collectives = worker.membership, worker.collectives
        self.assigned: Callable[[Assignment], None] = lambda told: None
        """Called when the parameter server takes work back from this rank, or gives it some that it did not ask for."""
        self._own_bits = self.membership.bits_of(self.membership.rank)
        self._sums: dict[int, Sum] = {}
        self._questions: dict[int, tuple[Future[Any], Callable[[Reply | None], Any]]] = {}

    # --- sums ---------------------------------------------------------------------------------------------------------

    def new_sum(
        self,
        values: int,
        future: "Future[Any]",
        *,
        out: Addends | None = None,
        scale: float = 1.0,
        measured: bool = True,
        whole: bool = False,
    ) -> Sum:
        """Makes a sum, without starting it. Called from any thread.

        Args: whole: whether it is of whole numbers; see Collectives.begin.
        Raises: UserError: nothing to sum, more than MOST_FRAGMENTS, or an `out` that cannot take the sum.
        """
        values = _whole("values", values)
        if values < 1:
            raise UserError("an array to sum must have at least one value")
        most = MOST_FRAGMENTS * self.membership.lanes
        if values > most:
            raise UserError(f"an array of {values} values is too long for one sum: expected at most {most}")
        kept = self.membership.kept_values(values)
        if whole and (self.membership.scatters or scale != 1.0):
            raise UserError("a sum of whole numbers has no scale, and goes to all ranks")
        kind = np.dtype(np.int32 if whole else np.float32)
        if out is None:
            out = np.empty(kept, kind)
        elif out.dtype != kind or out.shape != (kept,) or not out.flags.writeable:
            raise UserError(
                f"where a sum goes must be a {kind} array of {plural(kept, 'value')} that can be written to"
            )
        return Sum(values, future, out, scale, measured and not self.membership.seats, session=self, whole=whole)

    def new_gather(
        self, kind: str, size: int, future: "Future[Any]", *, out: ByteRows | None = None, measured: bool = True
    ) -> Sum:
        """Makes an all-gather, without starting it. Called from any thread.

        Args:
        kind: a name of the parts' type; all ranks must say the same. size: bytes of each rank's part, 1 or more.
        out: uint8[ranks, size], contiguous; default: a new array.

        Raises: UserError: the job's contributions are not those of its ranks, or the parts are too long.
        """
        member = self.membership
        if member.seats or member.scatters or member.help_grade is not HelpGrade.NONE:
            raise UserError("all_gather is for jobs without help and seats, whose results go to all ranks")
        words = -(-size // WORD_BYTES)
        most = MOST_FRAGMENTS // member.world_size * member.lanes
        if words > most:
            raise UserError(
                f"a part of {size} bytes is too long for one all_gather: expected at most {most * WORD_BYTES}"
            )
        if out is None:
            out = np.empty((member.world_size, size), np.uint8)
        return Sum(words, future, out, measured=measured, session=self, whole=True, gathers=(kind, size))

    def check_contribution(self, sum_: Sum, parts: Sequence[Addends], bits: int, *, on_behalf: bool) -> int:
        """Checks a contribution. Returns: its bits, as an int. Called from any thread.

        Raises: UserError: it cannot be added, or the ranks would wait for one another for ever.
        """
        if sum_.session is not self:
            raise UserError("a sum takes contributions through the connection that began it only")
        member = self.membership
        bits = _whole("bits", bits)
        if not 0 < bits <= member.fan_in:
            raise UserError(
                f"bits = {bits:#x}: expected one or more of the job's {plural(member.contributions, 'contribution')}, "
                f"{member.fan_in:#x} in all"
            )
        own = self._own_bits
        if bits & ~own and not on_behalf and not member.seats:
            raise UserError(
                f"bits = {bits:#x}: rank {member.rank}'s own contributions are {own:#x}, others' need on_behalf=True"
            )
        count = bits.bit_count()
        if len(parts) not in (1, count):
            raise UserError(
                f"{plural(len(parts), 'array')} for the {plural(count, 'contribution')} of bits = {bits:#x}: expected "
                + ("1" if count == 1 else f"{count}, or 1 that is the sum of all")
            )
        kind = sum_.out.dtype
        for part in parts:
            if not isinstance(part, np.ndarray) or (
                part.dtype != kind or part.shape != (sum_.values,) or not part.flags.c_contiguous
            ):
                raise UserError(f"a contribution must be a contiguous {kind} array of {plural(sum_.values, 'value')}")
            if sum_.whole and poisoned(largest(part)):
                raise UserError(f"a whole number of {largest(part)} in a contribution: expected less than {SUM_LIMIT}")
        return bits

    def begin(self, sum_: Sum, key: object | None, now_us: int, own: Values | None = None) -> None:
        """Starts a sum. Args: key: see Collectives.begin; own: this rank's contribution, if it is there already."""
        self._begin(sum_, lambda: self._collectives.begin(sum_.values, key, now_us, sum_.scale, whole=sum_.whole))
        if own is not None and not sum_.is_over:
            self._collectives.contribute(sum_.operation, (own,), self._own_bits, now_us)

    def begin_gather(self, sum_: Sum, now_us: int, own: Integers | None = None) -> None:
        """Starts an all-gather. Args: own: this rank's part, if it is there already; see `contribute_part`."""
        self._begin(sum_, lambda: self._collectives.begin_gather(sum_.values, sum_.gathers, now_us))
        if own is not None:
            self.contribute_part(sum_, own, now_us)

    def contribute_part(self, sum_: Sum, part: Integers, now_us: int) -> None:
        """Contributes this rank's part to an all-gather, unless that is over.

        Args: part: int32[sum_.values]: the bytes of the part, as words_of_bytes makes them.
        """
        if not sum_.is_over:
            self._collectives.contribute_part(sum_.operation, part, now_us)

    def _begin(self, sum_: Sum, begin: Callable[[], int]) -> None:
        if self.worker.error is not None:
            sum_.fail(self.worker.error)
            return
        try:
            sum_.operation = begin()
        except Exception as problem:
            sum_.fail(problem)
            raise
        self._sums[sum_.operation] = sum_

    def contribute(self, sum_: Sum, parts: Sequence[Addends], bits: int, now_us: int, *, on_behalf: bool) -> None:
        """Adds values to a sum that is not over. Args: see Collectives.contribute."""
        if not sum_.is_over:
            self._collectives.contribute(sum_.operation, parts, bits, now_us, on_behalf=on_behalf)

    def probe(self, sum_: Sum) -> None:
        """Asks the switch what it holds of a sum; the answer appears in `sum_.missing_bits`."""
        if not sum_.is_over:
            self._collectives.probe(sum_.operation)

    # --- questions ----------------------------------------------------------------------------------------------------

    @staticmethod
    def check_question(question: Request) -> None:
        """Raises: UserError: a program may not ask this, or it cannot be sent. Called from any thread."""
        if not isinstance(question, ProgramQuestion):
            allowed = ", ".join(kind.__name__ for kind in get_args(ProgramQuestion))
            raise UserError(f"a program cannot ask {type(question).__name__}: expected one of {allowed}")
        try:
            decode_request(encode(question, request=0))
        except (TypeError, ValueError, OverflowError) as problem:
            raise UserError(f"{type(question).__name__}: {problem}") from None

    def ask(
        self,
        question: Request,
        understand: Callable[[Reply | None], T],
        future: "Future[T]",
        now_us: int,
    ) -> None:
        """See `Asking.ask`; completes the caller's future."""
        if self.worker.error is not None:
            future.set_exception(self.worker.error)
            return
        self._questions[self.worker.server.ask(question, now_us)] = (future, understand)

    def leave(self, future: "Future[None]", now_us: int) -> None:
        """Tells the server that this worker will contribute no more; the future is done when it knows, or is lost."""
        self._questions[self.worker.server.leave(now_us)] = (future, lambda reply: None)

    # --- events of the connection -------------------------------------------------------------------------------------

    def serve(self, now_us: int) -> None:
        """Completes futures of sums and questions that are done."""
        while (event := self.worker.next_event()) is not None:
            match event:
                case OperationDone(operation):
                    self._finish(self._sums.pop(operation), now_us)
                case WaitingFor():
                    if event.operation in self._sums:
                        waiting = self._sums[event.operation]
                        waiting.missing_bits = event.missing_bits
                        waiting.progress = event.progress.since(waiting.progress)
                case Answer(number, reply):
                    if number in self._questions:
                        future, understand = self._questions.pop(number)
                        future.set_result(understand(reply))
                case Assigned(assignment):
                    self.assigned(assignment)
                case Failed(error):
                    self.fail(error)
        if self.membership.help_grade is not HelpGrade.NONE:
            for operation in self._collectives.overtaken():
                if operation in self._sums:
                    self._sums[operation].overtaken = True

    def _finish(self, sum_: Sum, now_us: int) -> None:
        try:
            sum_.sending = self._collectives.sending(sum_.operation)
            if sum_.measured:
                self._collectives.note_wait(sum_.operation, sum_.sending, now_us)
            sum_.sent_share = self._collectives.sent_share(sum_.operation)
            sum_.finished = self._collectives.take(sum_.operation, sum_.out, sum_.scale)
            if sum_.write_back is not None:
                sum_.write_back(sum_.out)
        except Exception as problem:  # other sums are not affected
            sum_.fail(problem)
            return
        sum_.complete()

    def fail(self, error: TransportError) -> None:
        """Fails all futures that are not done."""
        for sum_ in list(self._sums.values()):
            sum_.fail(error)
        self._sums.clear()
        for future, _ in list(self._questions.values()):
            future.set_exception(error)
        self._questions.clear()


def _whole(name: str, value: int) -> int:
    """An integer of any kind, such as NumPy's. Raises: UserError."""
    try:
        return operator.index(value)
    except TypeError:
        raise UserError(f"{name} = {value!r}: expected a whole number") from None
