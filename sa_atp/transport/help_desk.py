"""Answers workers' questions about whose work is whose: the parameter server's side of help. (protocol section 10)"""

from sa_atp.spec import CONTRIBUTION_BITS
from sa_atp.transport.job import Job, Member
from sa_atp.transport.serial import serial_distance
from sa_atp.wire.messages import Body, integer

QUESTIONS = ("claim", "ask", "idle")


def answer(job: Job, member: Member, number: int, body: Body, now_us: int, *, levels: int) -> Body:
    """Args: number: of the request, 0 if it is none; levels: switches that aggregate on the way. Raises: MalformedError."""
    late = member.helping is not None and number > 0 and serial_distance(member.helping, number) < 0
    reply = _decide(job, member.rank, body, now_us, late=late)
    if late:
        return reply
    member.helping = number or member.helping
    if levels > 1:
        shared = job.ledger.shared(body["step"])
        reply["past_leaf"] = not job.below_leaf_of(member.rank).isdisjoint(shared)
    return reply


def _decide(job: Job, rank: int, body: Body, now_us: int, *, late: bool) -> Body:
    """Args: late: it was lost, and its sender has asked something else since: what it says is not true any more."""
    step = integer(body, "step", 0, 1 << 40)
    took_us = integer(body, "took_us", 0, 1 << 40)
    if body["type"] == "idle":
        if not late:
            job.ledger.idle(step, rank, took_us, now_us)
        return {"type": "idle"}
    if body["type"] == "claim":
        micro_batch = integer(body, "micro_batch", 0, job.micro_batches - 1)
        granted = not late and job.ledger.claim(step, rank, micro_batch, took_us, now_us)
        return {"type": "granted" if granted else "taken"}
    missing = integer(body, "missing", 0, (1 << CONTRIBUTION_BITS) - 1)
    busy_us = integer(body, "busy_us", 0, 1 << 40)
    outlook = None
    if "send_us" in body:
        outlook = integer(body, "pending", 0, 1000) / 1000, integer(body, "send_us", 0, 1 << 40)
    work = None if late else job.ledger.ask(step, rank, missing, took_us, busy_us, now_us, outlook)
    if work is None:
        return {"type": "nothing"}
    return {"type": "work", "shard": work.shard, "micro_batches": list(work.micro_batches), "backup": work.backup}
