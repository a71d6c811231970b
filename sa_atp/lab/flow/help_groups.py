"""The parameter server's side of help, with the ledger of real jobs. (protocol section 10)

A ledger scans all workers of a job for each decision, which suits jobs that fit a packet's bitmap. Larger jobs are divided
into groups of workers below one leaf, each with a ledger of its own; workers help each other within a group.
"""

from collections.abc import Iterator, Sequence

from sa_atp.net.loop.compiled import plan_kernels
from sa_atp.protocol.help.ledger import Ledger
from sa_atp.protocol.help.plan import PLAIN
from sa_atp.protocol.help.seats import Seats
from sa_atp.protocol.log.event import nobody
from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.packets.control import CutOff, Seated, Taken, TakeSeat
from sa_atp.protocol.packets.help_messages import Assignment, WorkReport
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, MOST_CONTRIBUTIONS, MOST_RANKS, UDP_PORT
from sa_atp.protocol.packets.status_messages import JobCounters
from sa_atp.protocol.server import work_requests
from sa_atp.protocol.server.job import Job, Member

MOST = 16  # workers of a group; larger groups would not find more to help with

Question = WorkReport | TakeSeat
Answer = Assignment | Seated | Taken


class _Book(Job):
    """The part of a job from which requests for work are answered: its ledger, and the leaf of each worker."""

    def __init__(
        self, ranks: Sequence[int], micro_batches: int, grade: HelpGrade, leaves: Sequence[Sequence[int]]
    ) -> None:
        # without the parts that packets need, such as a store of sums, whose bitmaps have the width of a build
        self.world_size = len(ranks)
        self.micro_batches = micro_batches
        kernels = PLAIN if grade is HelpGrade.NONE else plan_kernels()
        self.ledger = Ledger(len(ranks), micro_batches, grade, kernels)
        self.seats = 0
        place = {rank: n for n, rank in enumerate(ranks)}
        here = [frozenset(place[rank] for rank in leaf if rank in place) for leaf in leaves]
        self.attach(tuple(leaf for leaf in here if leaf) if leaves else None)
        self.stats = JobCounters()
        self.log = nobody


class Group:
    """A group of workers and its ledger, which knows them by their places in the group.

    Bitmaps in messages are of the group's contributions: the whole job may have more than a message can name.
    """

    def __init__(self, ranks: Sequence[int], whole: ContributionMap, book: _Book) -> None:
        self.ranks = ranks
        self.book = book
        self.members = [Member(n, ("", UDP_PORT), 0, 0) for n in range(len(ranks))]
        self.bits = whole.summed_below(ranks)
        """The group's contributions, as bits of the whole job."""
        self._map = ContributionMap(len(ranks), whole.micro_batches)

    def bits_here(self, bits: int) -> int:
        """Translates a bitmap of the whole job to one of the group."""
        width = self._map.micro_batches
        own = (1 << width) - 1
        return sum((bits >> rank * width & own) << place * width for place, rank in enumerate(self.ranks))

    def micro_batches_of(self, bits: int) -> dict[int, list[int]]:
        """Finds the micro-batches in one of the group's bitmaps. Returns: for each rank, ascending."""
        return {self.ranks[place]: found for place, found in self._map.micro_batches_of(bits).items()}


class HelpGroups:
    """The groups of a job."""

    def __init__(
        self,
        job: ContributionMap,
        grade: HelpGrade,
        leaves: Sequence[Sequence[int]],
        cut_off: CutOff | None = None,
    ) -> None:
        """Args: leaves: the ranks below each leaf; empty: there is one switch. cut_off: when a step's seats close."""
        self._levels = 2 if leaves else 1
        self._seats = Seats(job.seats, cut_off)
        all_ranks = range(job.world_size)
        if job.world_size <= MOST_RANKS and job.contributions <= MOST_CONTRIBUTIONS:
            parts: list[Sequence[int]] = [all_ranks]
        else:
            size = max(1, min(MOST, CONTRIBUTION_BITS // job.micro_batches))
            parts = [leaf[n : n + size] for leaf in leaves or [all_ranks] for n in range(0, len(leaf), size)]
        self._groups = [Group(ranks, job, _Book(ranks, job.micro_batches, grade, leaves)) for ranks in parts]
        self._place = {rank: (group, n) for group in self._groups for n, rank in enumerate(group.ranks)}

    @property
    def count(self) -> int:
        return len(self._groups)

    def group_of(self, rank: int) -> Group:
        """The group that a rank belongs to."""
        return self._place[rank][0]

    def concerns(self, rank: int, bits: int) -> bool:
        """Whether a bitmap has contributions of the rank's group."""
        return self.count == 1 or bool(bits & self._place[rank][0].bits)

    def answer(self, rank: int, request: Question, now_us: int) -> Answer:
        """Answers a worker's request as the parameter server does."""
        if isinstance(request, TakeSeat):
            return self._seats.take(request.step, rank, now_us) or Taken()
        group, place = self._place[rank]
        return work_requests.answer(group.book, group.members[place], 0, request, now_us, levels=self._levels)

    def unasked(self, rank: int) -> Iterator[tuple[int, Assignment]]:
        """Takes the ledger's assignments to workers that have not reported just now, each with the worker's rank.

        Args: rank: the worker whose report was just answered.
        """
        group, _ = self._place[rank]
        while group.book.ledger.unasked:
            place, told = group.book.ledger.unasked.popleft()
            yield group.ranks[place], told

    def counted(self) -> dict[str, int]:
        """The parameter server's counters of help."""
        books = [group.book for group in self._groups]
        return {
            "helped_micro_batches": sum(book.ledger.lots.helped_micro_batches for book in books),
            "backups": sum(book.ledger.lots.backups for book in books),
            "questions": sum(book.stats.questions for book in books),
        }
