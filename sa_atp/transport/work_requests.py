"""Answers workers' questions about whose work is whose: the parameter server's side of help. (protocol section 10)"""

from msgspec.structs import replace

from sa_atp.straggler.ledger import SendProgress
from sa_atp.transport.job import Job, Member
from sa_atp.transport.serial import serial_distance
from sa_atp.wire.control import Claim, Granted, HelpAnswer, Idle, MalformedError, Noted, Nothing, Offer, Taken, Work

WorkRequest = Claim | Offer | Idle


def answer(job: Job, member: Member, number: int, request: WorkRequest, now_us: int, *, levels: int) -> HelpAnswer:
    """Args: number: of the request, 0 if it is none; levels: switches that aggregate on the way. Raises: MalformedError."""
    job.stats.questions += 1
    late = member.helping is not None and number > 0 and serial_distance(member.helping, number) < 0
    reply = _decide(job, member.rank, request, now_us, late=late)
    if late:
        return reply
    member.helping = number or member.helping
    if levels > 1:
        shared = job.ledger.shared(request.step)
        return replace(reply, bypass_leaf=not job.below_leaf_of(member.rank).isdisjoint(shared))
    return reply


def _decide(job: Job, rank: int, request: WorkRequest, now_us: int, *, late: bool) -> HelpAnswer:
    """Args: late: it was lost, and its sender has asked something else since: what it says is not true any more."""
    match request:
        case Idle():
            if not late:
                job.ledger.idle(request.step, rank, request.took_us, now_us)
            return Noted()
        case Claim(micro_batch=micro_batch):
            if micro_batch >= job.micro_batches:
                raise MalformedError(f"micro_batch must be an integer from 0 to {job.micro_batches - 1}")
            granted = not late and job.ledger.claim(
                request.step, rank, micro_batch, request.took_us, now_us, weight=request.weight
            )
            return Granted() if granted else Taken()
        case Offer():
            progress = None
            if request.pending is not None and request.send_us is not None:
                progress = SendProgress(request.pending / 1000, request.send_us)
            work = None
            if not late:
                work = job.ledger.ask(
                    request.step, rank, request.missing, request.took_us, request.busy_us, now_us, progress
                )
            if work is None:
                return Nothing()
            return Work(shard=work.shard, micro_batches=list(work.micro_batches), backup=work.backup)
