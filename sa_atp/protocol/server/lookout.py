"""Finds ranks that have fallen silent, or whose processes have ended. (section 7.4)"""

from collections.abc import Callable, Collection, Mapping, Sequence

from sa_atp.protocol.job.membership import GONE_US, SIGNS_MISSED
from sa_atp.protocol.job.standstill import stood_still_us
from sa_atp.protocol.log.rank_events import StoodStill
from sa_atp.protocol.log.server_events import Doubted
from sa_atp.protocol.packets.control import Progress, encode
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.server.job import Job, Member, State
from sa_atp.protocol.server.outbox import Outbox
from sa_atp.protocol.server.registry import OVER
from sa_atp.protocol.server.server_events import ServerSettings

ENDED = "process ended, or connection closed"


class Lookout:
    """Looks at all jobs as often as members give signs of life."""

    def __init__(
        self,
        settings: ServerSettings,
        jobs: Mapping[int, Job],
        out: Outbox,
        give_up: Callable[[Job, Sequence[int], str], None],
    ) -> None:
        """Args: jobs: all, by number. give_up: called with a job, its ranks that are gone, and why."""
        self._settings = settings
        self._jobs = jobs
        self._out = out
        self._give_up = give_up
        self._next_check_us: int | None = None
        self.doubts = False
        """Whether some rank was silent for longer than usual at the last look."""

    def begin(self, now_us: int) -> None:
        """Starts the timer, because there is a job."""
        if self._next_check_us is None or self._next_check_us < now_us:
            self._next_check_us = now_us + self._settings.alive_every_us

    def next_timer_us(self) -> int | None:
        live = any(job.state not in OVER for job in self._jobs.values())
        return self._next_check_us if live else None

    def look_at_clock(self, now_us: int) -> None:
        """Discounts time in which this process did not run, before any silence is judged."""
        stood_us = stood_still_us(self.next_timer_us(), now_us)
        if stood_us:
            self._next_check_us = now_us
            for job in self._jobs.values():
                job.log(StoodStill(stood_us))
                job.discount_standstill(stood_us, now_us)

    def handle_timer(self, now_us: int) -> None:
        """Gives up ranks that have been silent for too long, and probes the hosts of doubted ones."""
        self.look_at_clock(now_us)
        if self._next_check_us is None or now_us < self._next_check_us:
            return
        self._next_check_us = now_us + self._settings.alive_every_us
        self.doubts = False
        for job in self._jobs.values():
            if job.state in OVER:
                continue
            bound_us = self._settings.dead_after_us if job.state is State.RUNNING else GONE_US
            silent = [m.rank for m in job.members.values() if m.left_at is None and now_us - m.heard_us > bound_us]
            if silent:
                self._give_up(job, silent, f"not heard of for {bound_us / 1e6:.1f} s")
                continue
            doubted = [m for m in job.members.values() if self._is_doubted(m, now_us)]
            if doubted:
                self.doubts = True
                job.log(Doubted([member.rank for member in doubted]))
                self._ask_hosts(job, doubted)

    def ports_closed(self, addresses: Collection[Address], now_us: int) -> None:
        """Gives up doubted ranks whose hosts report their ports closed."""
        self.look_at_clock(now_us)
        for job in self._jobs.values():
            ended = [m.rank for m in job.members.values() if m.address in addresses and self._is_doubted(m, now_us)]
            if ended and job.state not in OVER:
                self._give_up(job, ended, ENDED)

    def is_silent(self, member: Member, now_us: int) -> bool:
        """Whether a member of a running job has been silent for too long."""
        return now_us - member.heard_us > self._settings.dead_after_us

    def _is_doubted(self, member: Member, now_us: int) -> bool:
        """Whether a member has been silent for so long that it may have ended."""
        return member.left_at is None and now_us - member.heard_us > SIGNS_MISSED * self._settings.alive_every_us

    def _ask_hosts(self, job: Job, doubted: Sequence[Member]) -> None:
        """Sends a message that needs no answer: if the process has ended, its host refuses it by ICMP."""
        said = Progress(passed=job.sums.oldest_seq, ahead=job.ahead)
        packet = encode(said, request=0, job=job.number, epoch=job.epoch, reply=True)
        for member in doubted:
            # the address of a rank that has not spoken may be forged: it gets no more bytes than it has sent
            if member.has_spoken or member.spare_bytes >= len(packet):
                member.spare_bytes -= len(packet)
                self._out.append(Burst.of(member.address, packet))
