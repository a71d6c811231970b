"""Help in one step of a run: the parameter server's projections from its log of decisions, beside the run's records.

The ledger projects when each worker will have computed what it has (protocol section 10.3), and logs that with each of its
answers (docs/log.md). All times are milliseconds since the first worker began the step.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import meant
from sa_atp.lab.report import stats
from sa_atp.lab.runs.records import Interval, PolicyRun, RunResult
from sa_atp.lab.runs.tasks import job_name
from sa_atp.net.logs import reading
from sa_atp.net.logs.writing import folder_of
from sa_atp.protocol.help import plan
from sa_atp.protocol.help.believing import NEVER_US
from sa_atp.protocol.help.plan import Machine
from sa_atp.protocol.log.event import Event
from sa_atp.protocol.log.server_events import Decided, Told
from sa_atp.protocol.packets.contributions import ContributionMap

MICRO_BATCH = re.compile(r"shard (\d+), micro-batch (\d+)(, cancelled)?")
LOGGED = "repeat the run with --log"
KEPT_BY_ITSELF = "log"  # folder of logs in that of a run (`sa-atp run --log` without a folder)


_OF_HELP = Decided | Told


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer of the ledger, a revocation, or a call."""

    at_ms: float
    rank: int
    """The rank that asked, that is called, or from which work is taken back."""
    asked: Literal["claim", "offer", "idle", "revocation", "call"]
    begun: int
    """Micro-batches of its own shard that it had begun."""
    held: int
    """Micro-batches of its own shard that it holds after the answer."""
    shard: int | None
    """The shard of which it was given work; None: it was given none of another shard."""
    micro_batches: tuple[int, ...]
    is_backup: bool
    ends_own: bool
    """Whether it gets no more of its own shard."""
    done_ms: float
    """Time at which the rank should have computed all that it has; NaN for a revocation or a call."""
    step_end_ms: float
    """When the sum should be complete, if micro-batches that are held stay where they are, and free ones go to the workers
    that finish them first; NaN for a revocation or a call, as below.
    """
    plan_end_ms: float
    """When it would be complete by the best plan for all that is not begun (`protocol.help.plan`)."""


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of a worker's time in which it did one thing, or should have."""

    kind: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class HelpOfRank:
    """A worker's part of the step."""

    rank: int
    micro_batch_ms: float
    """Time for a micro-batch that the ledger believed in at its first answer; 0: none was known."""
    computed: int
    """Micro-batches of its own shard that it computed before others did."""
    helped: int
    """Micro-batches of other shards that it computed before others did."""
    in_vain: int
    """Micro-batches that another worker had computed before, or that were cancelled."""
    revoked: int
    """How often it was asked to give back work."""
    first_done_ms: float
    """When it should have computed what it had, at the ledger's first answer in the step."""
    done_ms: float
    """The estimate at the last answer that it was given before it was done."""
    real_ms: float
    """When it had computed its last micro-batch that was not cancelled."""
    projected: tuple[Span, ...]
    """Its work as projected at the answers that it was given: `compute` and `help`."""
    real: tuple[Span, ...]
    """Its activities, as recorded."""


@dataclass(frozen=True, slots=True)
class HelpOfShard:
    """The workers that computed a shard's micro-batches."""

    shard: int
    computed_by: dict[int, list[int]]
    """The micro-batches that each rank was the first to compute, by rank."""
    copied_by: dict[int, list[int]]
    """The micro-batches that each rank computed as well, later, by rank."""


@dataclass(frozen=True, slots=True)
class HelpStep:
    """Help in one step."""

    policy: str
    repetition: int
    step: int
    end_ms: float
    """When the first worker had the sum."""
    ranks: tuple[HelpOfRank, ...]
    shards: tuple[HelpOfShard, ...]
    decisions: tuple[Decision, ...]


def explain(
    result: RunResult, folder: Path, step: int, policy: str | None, repetition: int, log: Path | None
) -> HelpStep:
    """Puts a step together from a run's records and its log.

    Args:
        folder: of the run.
        policy: None: the first one with help.
        log: folder with the run's logs; None: the one in the run's folder.

    Raises: UserError: there is no such step, or no log of it.
    """
    run = _run(result, policy, repetition)
    records = [i for i in run.intervals if i.step == step]
    if not records:
        known = sorted({i.step for i in run.intervals})
        which = f"expected one from {known[0]} to {known[-1]}" if known else "no activities were recorded"
        raise UserError(f"step {step}: the run of {run.policy} has no such step: {which}")
    events = _events(result, run, log or folder / KEPT_BY_ITSELF, step)
    start_us = min(i.start_us for i in records)
    began_us = run.origin_us + start_us
    job = result.plan.job
    bits = ContributionMap(result.plan.topology.workers, job.micro_batches)
    decisions = tuple(_decisions(events, began_us, bits))
    answers = [(at_us, event) for at_us, event in events if isinstance(event, Decided) and not event.late]
    if not answers:
        raise UserError(f"step {step}: no worker asked for help or for more work in it, so there is nothing to explain")
    ends_us = [i.end_us for i in records]
    ends_s = [i.end_s for i in run.iterations if i.step == step and not math.isnan(i.end_s)]
    return HelpStep(
        policy=run.policy,
        repetition=repetition,
        step=step,
        end_ms=(min(ends_s) * 1e6 - start_us if ends_s else max(ends_us) - start_us) / 1000,
        ranks=tuple(
            _rank(rank, decisions, answers, records, began_us, start_us) for rank in sorted({i.worker for i in records})
        ),
        shards=tuple(_shards(records)),
        decisions=decisions,
    )


def _run(result: RunResult, policy: str | None, repetition: int) -> PolicyRun:
    helped = [run for run in result.runs if run.help.get("questions")]
    names = list(dict.fromkeys(run.policy for run in helped))
    if not names:
        raise UserError("no policy of this run has help: there is nothing to explain")
    if policy is not None and policy not in names:
        raise UserError(f"--policy {policy}: expected one with help: {', '.join(names)}{meant(policy, names)}")
    found = [run for run in helped if run.policy == (policy or names[0])]
    chosen = next((run for run in found if run.repetition == repetition), None)
    if chosen is None:
        raise UserError(f"--repetition {repetition}: expected one from 0 to {len(found) - 1}")
    return chosen


def _events(result: RunResult, run: PolicyRun, log: Path, step: int) -> list[tuple[int, Event]]:
    """The parameter server's events about help in a step, in the order of time."""
    folder = log / folder_of(job_name(run.policy, run.repetition * result.plan.job.jobs + run.job))
    paths = sorted(folder.glob("parameter-server*.jsonl"))
    if not paths:
        raise UserError(f"{folder}: there is no log of the parameter server, which says what it believed: {LOGGED}")
    logs = [event for path in paths for event in reading.read(path).events]
    found = [(at_us, event) for at_us, event in logs if isinstance(event, _OF_HELP) and event.step == step]
    if any(isinstance(event, Decided) and event.each_us and not event.answer_us for _, event in found):
        raise UserError(f"{folder}: a log of an earlier release, which has no projections: {LOGGED}")
    return sorted(found, key=lambda each: each[0])


def _decisions(events: Sequence[tuple[int, Event]], began_us: int, bits: ContributionMap) -> Iterator[Decision]:
    """Args: bits: of the job."""
    for at_us, event in events:
        at_ms = (at_us - began_us) / 1000
        if not isinstance(event, _OF_HELP):
            continue
        works = _given(event, bits) or [(None, (), False)]
        if isinstance(event, Told):
            asked: Literal["revocation", "call"] = "call" if event.revokes is None else "revocation"
            for work in works:
                yield Decision(at_ms, event.rank, asked, 0, event.revokes or 0, *work, False, *[math.nan] * 3)
        elif not event.late and event.done_us:
            for shard, micro_batches, is_backup in works:
                yield Decision(
                    at_ms=at_ms,
                    rank=event.rank,
                    asked=event.asked,
                    begun=event.all_begun[event.rank],
                    held=event.all_held[event.rank],
                    shard=shard,
                    micro_batches=micro_batches,
                    is_backup=is_backup,
                    ends_own=bool(event.over),
                    done_ms=(event.done_us[event.rank] - began_us) / 1000,
                    step_end_ms=(_step_end_us(event, at_us) - began_us) / 1000,
                    plan_end_ms=(_plan_end_us(event, at_us) - began_us) / 1000,
                )


def _given(event: Decided | Told, bits: ContributionMap) -> list[tuple[int | None, tuple[int, ...], bool]]:
    """Returns the work that a rank is given, shard by shard: its micro-batches, and whether these are copies."""
    return [
        (shard, tuple(micro_batches), is_backup)
        for found, is_backup in ((event.work, False), (event.copies, True))
        for shard, micro_batches in bits.micro_batches_of(int(found or "0", 16)).items()
    ]


def _step_end_us(event: Decided, now_us: int) -> float:
    """When the sum should be complete: work that is held by its holders, and free work by whoever finishes it first."""
    return plan.make(
        [
            Machine(
                free_us=max(now_us, done_us),
                unit_us=each_us or NEVER_US,
                loose=free,
                link_us=link_us,
                link_free_us=done_us,
            )
            for done_us, each_us, free, link_us in zip(
                event.done_us, event.each_us, event.free, event.link_us, strict=True
            )
        ]
    ).end_us


def _plan_end_us(event: Decided, now_us: int) -> float:
    """When the sum would be complete by the best plan, if owners are asked now for what they have not begun."""
    machines = []
    for rank, (done_us, each_us, held) in enumerate(zip(event.done_us, event.each_us, event.all_held, strict=True)):
        # it has gone on since its last report
        left = min(held - event.all_begun[rank], max(0, done_us - now_us) // each_us) if each_us else 0
        machines.append(
            Machine(
                free_us=done_us - left * each_us,
                unit_us=each_us or NEVER_US,
                held=left,
                open=event.free[rank],
                told_us=now_us + event.answer_us[rank] // 2,
                release_us=now_us + event.answer_us[rank],
                link_us=event.link_us[rank],
            )
        )
    return plan.make(machines).end_us or _step_end_us(event, now_us)  # 0: there is nothing left to plan


def _rank(
    rank: int,
    decisions: Sequence[Decision],
    answers: Sequence[tuple[int, Decided]],
    records: Sequence[Interval],
    began_us: int,
    start_us: int,
) -> HelpOfRank:
    """Args: began_us: when the step began, by the log's clock; start_us: the same, by that of the records."""
    mine = [i for i in records if i.worker == rank]
    first = answers[0][1]
    works = [(i, found) for i in mine if (found := MICRO_BATCH.fullmatch(i.label))]
    done = [i for i, found in works if not found[3]]
    counted = [shard for shard, pieces in _pieces(records).items() for ranks in pieces.values() if ranks[0] == rank]
    told = [d for d in decisions if d.rank == rank and d.asked not in ("revocation", "call")]
    real_ms = (max((i.end_us for i in done), default=min(i.start_us for i in mine)) - start_us) / 1000
    before = [d for d in told if d.at_ms < real_ms] or told[:1]
    first_done_ms = (first.done_us[rank] - began_us) / 1000
    begins_ms = (min(i.start_us for i in mine) - start_us) / 1000
    return HelpOfRank(
        rank=rank,
        micro_batch_ms=first.each_us[rank] / 1000,
        computed=counted.count(rank),
        helped=len(counted) - counted.count(rank),
        in_vain=len(works) - len(counted),
        revoked=sum(d.rank == rank and d.asked == "revocation" for d in decisions),
        first_done_ms=first_done_ms,
        done_ms=before[-1].done_ms if before else first_done_ms,
        real_ms=real_ms,
        projected=tuple(_projected(rank, told, begins_ms, first_done_ms)),
        real=tuple(Span(i.kind, (i.start_us - start_us) / 1000, (i.end_us - start_us) / 1000) for i in mine),
    )


def _projected(rank: int, told: Sequence[Decision], begins_ms: float, done_ms: float) -> list[Span]:
    """A worker's work as projected at the answers that it was given; less work shortens what was projected before."""
    found = [Span("compute", begins_ms, max(begins_ms, done_ms))]
    for decision in told:
        until_ms = found[-1].end_ms if found else begins_ms
        if decision.shard is not None:
            kind = "compute" if decision.shard == rank else "help"
            found.append(Span(kind, max(until_ms, decision.at_ms), max(until_ms, decision.at_ms, decision.done_ms)))
        elif decision.asked == "claim":
            while found and found[-1].start_ms >= decision.done_ms > begins_ms:
                found.pop()
            start_ms = found.pop().start_ms if found else begins_ms
            found.append(Span("compute", start_ms, max(start_ms, decision.done_ms)))
    return [span for span in found if span.end_ms > span.start_ms]


def _pieces(records: Sequence[Interval]) -> dict[int, dict[int, list[int]]]:
    """By shard and micro-batch, the ranks that computed it, the first one first: of several at the same time its owner,
    else the lowest (as in `runs.collect`).
    """
    works = [(i, found) for i in records if (found := MICRO_BATCH.fullmatch(i.label)) and not found[3]]
    done = sorted((int(found[1]), int(found[2]), i.end_us, int(found[1]) != i.worker, i.worker) for i, found in works)
    pieces: dict[int, dict[int, list[int]]] = {}
    for shard, m, _, _, rank in done:
        pieces.setdefault(shard, {}).setdefault(m, []).append(rank)
    return pieces


def _shards(records: Sequence[Interval]) -> Iterator[HelpOfShard]:
    for shard, pieces in _pieces(records).items():
        computed = stats.grouped((ranks[0], m) for m, ranks in pieces.items())
        copied = stats.grouped((rank, m) for m, ranks in pieces.items() for rank in ranks[1:])
        yield HelpOfShard(shard, computed, copied)
