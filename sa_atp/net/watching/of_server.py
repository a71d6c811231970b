"""The state of a parameter server, from its connection."""

import os
from collections.abc import Sequence

from msgspec.structs import asdict

from sa_atp.net.sockets.addresses import sources_of
from sa_atp.net.watching import door
from sa_atp.net.watching.states import JobState, RankState, ServerState
from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.lateness_messages import RankLateness
from sa_atp.protocol.server.diagnosis import diagnose
from sa_atp.protocol.server.job import Job
from sa_atp.protocol.server.job_status import JobStatus, status_of
from sa_atp.protocol.server.server import ParameterServer

NEVER_LATE = RankLateness(0, 0, 0, 0, 0, 0, 0)


def of_server(server: ParameterServer, address: Address, switches: Sequence[str], now_us: int) -> ServerState:
    """Args: address: where it listens; switches: P4Runtime addresses. Called in its loop."""
    members = [member.address for job in server.jobs.values() for member in job.members.values()]
    return ServerState(
        address="{}:{}".format(*address),
        reached=["{}:{}".format(*each) for each in sources_of(address, members) if each != address],
        process=os.getpid(),
        parent=door.parent(),
        switches=list(switches),
        slots=server.settings.slots if switches else 0,
        malformed=server.malformed,
        foreign=server.foreign,
        jobs=[of_job(job, now_us) for job in server.jobs.values()],
    )


def of_job(job: Job, now_us: int) -> JobState:
    lateness = job.lateness.told()
    ledger = {"helped_micro_batches": job.ledger.lots.helped_micro_batches, "backups": job.ledger.lots.backups}
    return of_status(
        status_of(job, now_us),
        slots=job.slot_count,
        late={each.rank: each for each in lateness.ranks},
        sums=lateness.sums,
        slow=lateness.verdict if lateness.slow else "",
        counters={**asdict(job.stats), **ledger},
    )


def of_status(
    job: JobStatus,
    *,
    slots: int = 0,
    late: dict[int, RankLateness] | None = None,
    sums: int = 0,
    slow: str = "",
    counters: dict[str, int] | None = None,
) -> JobState:
    """The state of a job, from what a parameter server describes to anyone, and what only itself knows."""
    diagnosis = diagnose(job)
    return JobState(
        name=job.name,
        number=job.number,
        epoch=job.epoch,
        state=job.state.value,
        world_size=job.world_size,
        micro_batches=job.micro_batches,
        slots=slots,
        verdict=diagnosis.verdict,
        is_stuck=diagnosis.stuck,
        waited_for=list(diagnosis.ranks),
        missing=list(job.missing),
        sums=sums,
        slow=slow,
        ranks=_ranks(job, late or {}),
        counters=counters or {},
    )


def _ranks(job: JobStatus, late: dict[int, RankLateness]) -> list[RankState]:
    known = ContributionMap(job.world_size, job.micro_batches, job.seats)
    found = []
    for member in job.members:
        of = late.get(member.rank, NEVER_LATE)
        found.append(
            RankState(
                rank=member.rank,
                address="{}:{}".format(*member.address),
                heard_ms=member.heard_ms,
                still_ms=member.still_ms,
                is_waiting=member.waiting,
                has_left=member.left,
                owes=(known.bits_of(member.rank) & ~member.given).bit_count() if member.waiting else 0,
                late=of.late,
                last=of.last,
                late_us=of.late_us,
                late_computing_us=of.computing_us,
                late_sending_us=of.sending_us,
                waited_us=of.waited_us,
            )
        )
    return found
