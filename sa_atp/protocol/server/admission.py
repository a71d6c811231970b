"""Admits ranks to jobs, and has the control plane install jobs on switches. (protocol section 7.1)

A rank repeats its Join until it gets a welcome or a final refusal. When all ranks of a job have asked, an event has the
control plane install the job; when that is done, the ranks get their welcome.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from sa_atp.protocol.help.plan import PLAIN, Kernels
from sa_atp.protocol.job.errors import describe_ranks
from sa_atp.protocol.job.membership import GONE_US
from sa_atp.protocol.job.terms import difference
from sa_atp.protocol.log.event import Log, of_nobody, place
from sa_atp.protocol.log.server_events import (
    Dropped,
    InstallAsked,
    Installed,
    InstallRefused,
    Joined,
    Removed,
    TurnedAway,
)
from sa_atp.protocol.numbers.scattered import cut_of
from sa_atp.protocol.packets.control import JOIN_BYTES, Failure, Join, Refused, Waiting, Welcome, least_bytes, plain
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.fitting import fitted
from sa_atp.protocol.packets.message_fields import Results
from sa_atp.protocol.packets.mtu import IP_UDP_BYTES, needed_mtu
from sa_atp.protocol.server.job import Job, Member, State
from sa_atp.protocol.server.registry import MAX_JOBS, OVER, Registry
from sa_atp.protocol.server.server_events import Admit, HostLeaf, Retire, ServerEvent, ServerSettings

JOIN_MTU = IP_UDP_BYTES + JOIN_BYTES
MOST_DIFFERS = 250  # characters of the reason of a refusal, as told to the other ranks
MOST_UNUSABLE = 256  # leaves that are remembered
MOST_WAITING = 32  # jobs that have not begun, in which one host may wait


class Admission:
    """Decides about each Join. Shares the server's queue of events."""

    def __init__(
        self,
        settings: ServerSettings,
        random_bits: Callable[[int], int],
        events: deque[ServerEvent],
        fail: Callable[[Job, str, Sequence[int], str], None],
        log_of: Callable[[str], Log] = of_nobody,
        plan_kernels: Kernels = PLAIN,
    ) -> None:
        """Args: fail: called with a job that fails, the reason, the ranks concerned, and details for people."""
        self._settings = settings
        self._registry = Registry(
            lanes=settings.lanes,
            contribution_bits=settings.contribution_bits,
            slots=settings.slots,
            slots_per_job=settings.slots_per_job,
            random_bits=random_bits,
            log_of=log_of,
            plan_kernels=plan_kernels,
        )
        self._events = events
        self.has_bare_results = True
        """Whether the switches' programs can leave the values out of results. (section 5.9)"""
        self._unusable: dict[HostLeaf, None] = {}  # leaves that could not take a job, the oldest first
        self._fail = fail

    @property
    def jobs(self) -> dict[int, Job]:
        """Jobs by number."""
        return self._registry.jobs

    def join(
        self, asked: Join, address: Address, now_us: int, *, room: int = JOIN_BYTES
    ) -> Welcome | Waiting | Refused | Failure:
        """Answers a Join. Args: room: bytes of the question, which the answer must not exceed."""
        if room < least_bytes(asked):
            return Refused(reason=f"a question to join must have {least_bytes(asked)} bytes")
        lanes = self._settings.lanes
        needed = needed_mtu(lanes, self._settings.contribution_bits)
        if needed > asked.mtu:
            return Refused(
                reason=f"packets of {lanes} lanes are {needed} bytes long, and the way from "
                f"{describe_ranks([asked.rank])} carries {asked.mtu}: raise the MTU of its interface, or use fewer lanes"
            )
        if asked.results is not Results.TO_ALL and (problem := self._cannot_scatter(asked.world_size)) is not None:
            return Refused(reason=f"results = {asked.results.value!r}: {problem}")
        bits, sharers = self._settings.contribution_bits, asked.seats or asked.world_size
        if sharers * asked.micro_batches > bits:
            return Refused(
                reason=f"{sharers} times {asked.micro_batches} contributions are more than the {bits} that the switches' "
                f"program has bits for: at most {bits // sharers} each, or start switch and server with --contributions"
            )
        job = self._registry.named(asked.name)
        if (job is None or job.state in OVER) and self._waiting_from(address[0], now_us) >= MOST_WAITING:
            return _not_yet(
                asked, f"{MOST_WAITING} jobs with ranks at {address[0]} have not begun yet, and more must wait"
            )
        job = job or self._registry.add(asked.name, asked)
        if job is None:
            return _not_yet(asked, f"the parameter server has {MAX_JOBS} jobs already")
        failure = job.missed_failure(asked.incarnation)
        if failure is not None:
            return failure
        if job.is_late(asked.incarnation):
            return Failure(reason="restarted")
        rank = asked.rank
        problem = difference(asked, rank, job.terms, sorted(job.members))
        if problem is not None:
            if job.state is State.RUNNING and not job.is_anybody_there(now_us):
                self._fail(job, "restarted", (), f"{describe_ranks([rank])} has begun the job anew: connect anew")
            if job.state not in OVER:
                reason = f"job {asked.name!r}: {problem}"
                if rank not in job.members:
                    job.differs = rank, plain(reason, MOST_DIFFERS)
                job.log(TurnedAway(rank, reason))
                return Refused(reason=plain(reason))
            job.adopt(asked)
            job.next_epoch()
        if job.differs is not None and job.differs[0] == rank:
            job.differs = None
        member = job.members.get(rank)
        if member is not None and member.incarnation == asked.incarnation:
            member.heard_us = now_us
            if job.state is State.RUNNING:
                welcome = job.welcome(
                    rank, self._settings.switch_address, self._settings.alive_every_us,
                    may_scatter=self._settings.aggregates and self._cannot_scatter(job.world_size) is None,
                )  # fmt: skip
                if not fitted(welcome, room):
                    return _too_narrow(asked)
                member.is_welcomed = True
                return welcome
        elif member is not None and job.state not in OVER and member.keeps_its_place(address, now_us):
            return Waiting(missing=job.missing, occupied=f"{member.address[0]}:{member.address[1]}")
        elif job.state in (State.RUNNING, State.ADMITTING):
            self._fail(job, "restarted", (rank,), f"{describe_ranks([rank])} joined again: connect anew")
        if job.state in OVER:
            job.next_epoch()
        if job.state is State.GATHERING:
            job.members[rank] = Member(
                rank=rank, address=address, incarnation=asked.incarnation, heard_us=now_us, moved_us=now_us,
                leaf=None if asked.leaf is None else HostLeaf(address[0], asked.leaf.down, asked.leaf.grpc),
            )  # fmt: skip
            job.log(Joined(rank, job.epoch, place(address), job.missing))
            if not job.missing:
                job.state = State.ADMITTING
                job.log(InstallAsked(job.epoch, job.slot_base, job.slot_count))
                self._events.append(self._admission(job))
        differs = None if job.differs is None else job.differs[1]
        return Waiting(missing=job.missing, refusal=job.refusal, differs=differs)

    def _cannot_scatter(self, ranks: int) -> str | None:
        """Why results cannot be scattered among so many ranks; None: they can."""
        quota = self._registry.quota
        if not self.has_bare_results:
            return "the program of a switch cannot leave the values out of them"
        if cut_of(ranks, quota) is None:
            return (
                f"{ranks} ranks need {1 << ranks.bit_length()} slots for that, and a job has {quota}: "
                "start the server with more --slots-per-job"
            )
        return None

    def _admission(self, job: Job) -> Admit:
        """The job as it is to be installed, of which this also decides by which leaves on hosts its ranks send."""
        leaves = self._leaves_for(job)
        job.by_leaf = frozenset(rank for ranks in leaves.values() for rank in ranks)
        job.levels = 0 if not self._settings.aggregates else 2 if leaves else self._settings.levels
        return Admit(
            number=job.number,
            epoch=job.epoch,
            addresses={member.rank: member.address for member in job.members.values()},
            map=job.map,
            slot_base=job.slot_base,
            slot_count=job.slot_count,
            leaves=leaves,
            results=job.results,
        )

    def _leaves_for(self, job: Job) -> dict[HostLeaf, tuple[int, ...]]:
        """The leaves on hosts with at least two ranks of a job below them, where the switches above are a single root."""
        if not self._settings.aggregates or self._settings.levels != 1 or job.seats:
            return {}
        ranks: dict[HostLeaf, tuple[int, ...]] = {}
        for rank, member in sorted(job.members.items()):
            if member.leaf is not None and member.leaf not in self._unusable:
                ranks[member.leaf] = (*ranks.get(member.leaf, ()), rank)
        return {leaf: below for leaf, below in ranks.items() if len(below) > 1}

    def _waiting_from(self, ip: str, now_us: int) -> int:
        """In how many jobs a host has ranks that have recently asked to join, and sent nothing else since."""

        def waits(m: Member) -> bool:
            return m.address[0] == ip and not m.has_spoken and now_us - m.heard_us < GONE_US

        return sum(any(map(waits, job.members.values())) for job in self.jobs.values() if job.state not in OVER)

    def note_answer(self, asked: Join, address: Address, spare_bytes: int) -> None:
        """Notes that a Join was answered. Args: spare_bytes: by which the answer was shorter."""
        job = self._registry.named(asked.name)
        member = None if job is None else job.member_at(address)
        if member is not None:
            member.spare_bytes = spare_bytes

    def drop(self, job: Job, ranks: Collection[int], why: str) -> None:
        """Drops ranks that no longer ask to join, before the job runs. Args: why: the reason, for the log."""
        job.log(Dropped(sorted(ranks), why))
        if job.state is State.ADMITTING:
            job.log(Removed(job.epoch))
            self._events.append(Retire(job.number, job.epoch))
        job.drop(ranks)

    # --- the control plane --------------------------------------------------------------------------------------------

    def on_admitted(self, event: Admit, now_us: int, leaves: Iterable[Iterable[int]] | None) -> None:
        """See ParameterServer.on_admitted."""
        job = self.jobs[event.number]
        if job.state is not State.ADMITTING or job.epoch != event.epoch:
            return
        job.attach(None if leaves is None else tuple(frozenset(leaf) for leaf in leaves))
        job.state = State.RUNNING
        job.lateness.begin(now_us)
        job.log(Installed(job.epoch, None if job.leaves is None else [sorted(leaf) for leaf in job.leaves]))
        job.refusal = None
        for member in job.members.values():
            member.heard_us = now_us

    def on_refused(self, event: Admit, reason: str, leaf: HostLeaf | None) -> None:
        """See ParameterServer.on_refused."""
        if leaf is not None:
            self._unusable[leaf] = None
            for oldest in list(self._unusable)[:-MOST_UNUSABLE]:
                del self._unusable[oldest]
        job = self.jobs[event.number]
        if job.state is not State.ADMITTING or job.epoch != event.epoch:
            return
        job.refusal = f"the switch cannot take the job: {plain(reason)}"
        job.log(InstallRefused(job.epoch, reason))
        self._fail(job, "refused", (), job.refusal)


def _too_narrow(asked: Join) -> Refused:
    return Refused(reason=f"the way from {describe_ranks([asked.rank])} carries {asked.mtu} bytes: expected {JOIN_MTU}")


def _not_yet(asked: Join, reason: str) -> Waiting:
    """Puts off a Join without remembering it."""
    return Waiting(missing=list(range(asked.world_size)), refusal=reason)
