"""Answers workers' questions about help from the ledger. (protocol section 10)"""

from collections.abc import Iterator

from msgspec.structs import replace

from sa_atp.protocol.help.believing import free_us
from sa_atp.protocol.help.ledger import Assigned, WorkerReport
from sa_atp.protocol.job.serial import serial_distance
from sa_atp.protocol.log import help_fields
from sa_atp.protocol.log.event import nobody
from sa_atp.protocol.log.server_events import Decided, RevokeAsked, WorkCalled
from sa_atp.protocol.packets.control import MalformedError, encode
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.help_messages import (
    Call,
    Claim,
    Granted,
    HelpAnswer,
    Idle,
    Noted,
    Nothing,
    Offer,
    Revoke,
    Work,
)
from sa_atp.protocol.server.job import Job, Member

WorkRequest = Claim | Offer | Idle


def answer(job: Job, member: Member, number: int, request: WorkRequest, now_us: int, *, levels: int) -> HelpAnswer:
    """The ledger's answer to a question about help.

    Args: number: of the request; 0: it is no request. levels: switches that aggregate on the way.
    Raises: MalformedError.
    """
    job.stats.questions += 1
    if isinstance(request, Claim) and request.held > job.micro_batches:
        raise MalformedError(f"held must be an integer from 0 to {job.micro_batches}")
    late = member.helping is not None and number > 0 and serial_distance(member.helping, number) < 0
    if late:
        # the sender has asked something newer since, so only its speed still counts, which it reports only once
        job.ledger.note_overtaken(request.step, member.rank, _report(request))
        reply = _nothing(request)
    else:
        member.helping = number or member.helping
        reply = _decide(job, member.rank, request, now_us)
    if job.log is not nobody:  # what is believed takes time to write down
        job.log(_as_event(job, member.rank, request, reply, now_us, late=late))
    hold, helps = job.ledger.advice(member.rank)
    reply = replace(reply, hold=hold, helps=helps)
    if levels > 1:
        crossed = job.ledger.crossed(request.step)
        return replace(reply, bypass_leaf=not job.below_leaf_of(member.rank).isdisjoint(crossed))
    return reply


def unasked(job: Job) -> Iterator[Burst]:
    """Datagrams with the revocations and calls that the ledger has decided on."""
    while job.ledger.to_revoke:
        rank, step, held = job.ledger.to_revoke.popleft()
        job.log(RevokeAsked(step, rank, held))
        yield _to(job, rank, Revoke(step=step, held=held))
    while job.ledger.lots.to_call:
        rank, work = job.ledger.lots.to_call.popleft()
        job.log(WorkCalled(work.step, rank, work.shard, list(work.micro_batches), work.backup or None))
        yield _to(job, rank, call(work))


def call(work: Assigned) -> Call:
    """The message that gives work to a worker that has not asked just now."""
    return Call(
        step=work.step,
        shard=work.shard,
        micro_batches=list(work.micro_batches),
        backup=work.backup,
        again_us=work.again_us,
    )


def _to(job: Job, rank: int, message: Revoke | Call) -> Burst:
    return Burst.of(job.members[rank].address, encode(message, request=0, job=job.number, epoch=job.epoch, reply=True))


def _as_event(job: Job, rank: int, asked: WorkRequest, answer: HelpAnswer, now_us: int, *, late: bool) -> Decided:
    said = help_fields.of_question(asked) | help_fields.of_answer(answer)
    beliefs = job.ledger.beliefs(asked.step)
    return Decided(
        asked.step,
        rank,
        help_fields.kind(asked),
        help_fields.kind(answer),
        late,
        each_us=[int(b.each_us) * b.is_measured for b in beliefs],
        all_begun=[b.begun for b in beliefs],
        all_held=[b.held for b in beliefs],
        free=[b.free for b in beliefs],
        done_us=[free_us(b, now_us) for b in beliefs],
        link_us=[b.link_us for b in beliefs],
        answer_us=[b.answer_us for b in beliefs],
        **said,
    )


def _nothing(request: WorkRequest) -> HelpAnswer:
    match request:
        case Idle():
            return Noted()
        case Claim(held=held):
            return Granted(until=held)
        case Offer():
            return Nothing()


def _report(request: WorkRequest) -> WorkerReport:
    return WorkerReport(request.took_us, request.spent_us, request.answer_us, request.sent_us, request.weight)


def _decide(job: Job, rank: int, request: WorkRequest, now_us: int) -> HelpAnswer:
    report = _report(request)
    match request:
        case Idle():
            job.ledger.idle(request.step, rank, report, now_us)
            return Noted()
        case Claim():
            until, over = job.ledger.claim(
                request.step, rank, request.begun, request.held, request.since_us, report, now_us
            )
            return Granted(until=until, over=over)
        case Offer():
            pending = None if request.pending is None else request.pending / 1000
            work = job.ledger.ask(
                request.step, rank, request.missing, report, request.busy_us, now_us, pending, request.given
            )
            if work is None:
                return Nothing(again_us=job.ledger.ask_again_us(request.step, rank, now_us))
            return Work(
                shard=work.shard,
                micro_batches=list(work.micro_batches),
                backup=work.backup,
                again_us=work.again_us,
            )
