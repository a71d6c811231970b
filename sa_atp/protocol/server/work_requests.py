"""Answers workers' reports with the work that the ledger has for them. (protocol section 10)"""

from collections.abc import Iterator

from msgspec.structs import replace

from sa_atp.protocol.help.believing import LEAST_POLL_US, free_us
from sa_atp.protocol.job.serial import serial_distance
from sa_atp.protocol.log import help_fields
from sa_atp.protocol.log.event import nobody
from sa_atp.protocol.log.server_events import Decided, Told
from sa_atp.protocol.packets.control import MalformedError, encode
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.help_messages import Assignment, WorkReport
from sa_atp.protocol.server.job import Job, Member


def answer(job: Job, member: Member, number: int, said: WorkReport, now_us: int, *, levels: int) -> Assignment:
    """The ledger's answer to a report.

    Args: number: of the request; 0: it is no request. levels: switches that aggregate on the way.
    Raises: MalformedError.
    """
    job.stats.questions += 1
    if said.held > job.micro_batches:
        raise MalformedError(f"held must be an integer from 0 to {job.micro_batches}")
    late = member.helping is not None and number > 0 and serial_distance(member.helping, number) < 0
    if late:
        # the sender has said something newer since, so only its speed still counts, which it reports only once
        job.ledger.note_overtaken(member.rank, said)
        reply = Assignment(step=said.step, until=said.held, again_us=LEAST_POLL_US)
    else:
        member.helping = number or member.helping
        reply = job.ledger.report(member.rank, said, now_us)
    if job.log is not nobody:  # what is believed takes time to write down
        job.log(_as_event(job, member.rank, said, reply, now_us, late=late))
    hold, helps = job.ledger.advice(member.rank)
    is_crossed = not job.below_leaf_of(member.rank).isdisjoint(job.ledger.crossed(said.step)) if levels > 1 else None
    return replace(reply, hold=hold, helps=helps, bypass_leaf=is_crossed)


def unasked(job: Job) -> Iterator[Burst]:
    """Datagrams with what the ledger has decided for workers that have not asked just now."""
    while job.ledger.unasked:
        rank, told = job.ledger.unasked.popleft()
        job.log(Told(told.step, rank, **help_fields.of_assignment(told)))
        message = encode(told, request=0, job=job.number, epoch=job.epoch, reply=True)
        yield Burst.of(job.members[rank].address, message)


def _as_event(job: Job, rank: int, said: WorkReport, answer: Assignment, now_us: int, *, late: bool) -> Decided:
    beliefs = job.ledger.beliefs(said.step)
    return Decided(
        said.step,
        rank,
        help_fields.kind(said),
        late,
        each_us=[int(b.each_us) * b.is_measured for b in beliefs],
        all_begun=[b.begun for b in beliefs],
        all_held=[b.held for b in beliefs],
        free=[b.free for b in beliefs],
        done_us=[free_us(b, now_us) for b in beliefs],
        link_us=[b.link_us for b in beliefs],
        answer_us=[b.answer_us for b in beliefs],
        **help_fields.of_report(said),
        **help_fields.of_assignment(answer),
    )
