"""Makes the records of a run from the workers' raw records, and checks every sum."""

from collections import defaultdict
from collections.abc import Container
from typing import Any

from sa_atp.lab import policies
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.runs.records import Evaluation, Interval, Iteration, PolicyRun
from sa_atp.lab.runs.tasks import straggler_pattern
from sa_atp.steps.fingerprint import MASK64


def collect(plan: Plan, policy: str, repetition: int, workers: list[dict[str, Any]], job: int = 0) -> PolicyRun:
    """Makes the records of a run. Args: workers: what `worker_process.train` returned on each, by rank."""
    kind = policies.find(policy)
    origin_us = min(record["start_us"] for worker in workers for record in worker["records"])
    run = PolicyRun(policy, repetition, job=job, origin_us=origin_us)
    first = _first(workers)
    for worker in workers:
        for record in worker["records"]:
            if record["is_finished"] or record["pieces"] or record["dropped"]:
                run.iterations.append(_iteration(worker["rank"], record, first, origin_us, plan.job.batch_size))
            for activity, start, end, label in record["activities"]:
                run.intervals.append(
                    Interval(worker["rank"], record["step"], activity, start - origin_us, end - origin_us, label)
                )
    evaluated = workers[0]["evaluations"]
    if kind.family is policies.Family.PARAMETERS:
        server = workers[0]["parameters"]
        evaluated, ends_us = server["evaluations"], dict(enumerate(server["ends_us"]))
        run.step_ends_s = [(end_us - origin_us) / 1e6 for end_us in ends_us.values()]
        run.sums_checked, run.sums_wrong = check_updates(workers, server)
    else:
        # all workers have the same weights after a step, so evaluations of rank 0 hold even if it was late
        ends_us = {step: min(r["end_us"] for r in records) for step, records in _by_step(workers).items()}
    run.evaluations = [
        Evaluation(step, (ends_us[step] - origin_us) / 1e6, loss, accuracy) for step, loss, accuracy in evaluated
    ]
    if kind.family is policies.Family.PEERS:  # sums of floats
        run.sums_checked, run.sums_wrong = check_agreement(workers)
        if isinstance(kind, policies.PeerPolicy) and kind.peer is not None:
            counted = ("fragments_sent", "sent"), ("retransmitted", "retransmitted")
            run.fragments = {name: sum(w["stats"][of] for w in workers) for of, name in counted}
    elif kind.family is policies.Family.SWITCH:
        run.sums_checked, run.sums_wrong = check_sums(workers, _contributions(plan, kind))
        run.fragments = _fragments(workers)
        run.shares_memory = _shares(workers)
    run.help = _help(run.iterations, workers)
    run.device_cores = sum(worker.get("device_cores", 0.0) for worker in workers)
    pattern = straggler_pattern(plan)
    shard_us = plan.job.shard_us * kind.shards(plan) / plan.topology.workers
    steps = range(min(plan.run.warm_up, plan.run.steps - 1), plan.run.steps)
    gains = [kind.most_gain(plan, rank) for rank in range(plan.topology.workers)]
    bounds_us = [pattern.fluid_bound_us(step, shard_us, gains.__getitem__) for step in steps]
    run.fluid_bound_s = sum(bounds_us) / len(steps) / 1e6
    return run


def _by_step(workers: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """All workers' records of each step."""
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for worker in workers:
        for record in worker["records"]:
            found[record["step"]].append(record)
    return found


def _first(workers: list[dict[str, Any]]) -> dict[tuple[int, int, int], tuple[int, bool, int]]:
    """The worker that first computed each contributed micro-batch: with clones and backups several may have, and only one
    counts. Of equal times the shard's owner counts, else the lowest rank.

    Returns: (step, shard, micro-batch): (time in microseconds, whether the shard is another worker's, rank).
    """
    found: dict[tuple[int, int, int], tuple[int, bool, int]] = {}
    for worker in workers:
        for record in worker["records"]:
            for step, shard, micro_batch, end_us in record["pieces"]:
                mine = end_us, shard != worker["rank"], worker["rank"]
                found[step, shard, micro_batch] = min(found.get((step, shard, micro_batch), mine), mine)
    return found


def _iteration(
    rank: int,
    record: dict[str, Any],
    first: dict[tuple[int, int, int], tuple[int, bool, int]],
    origin_us: int,
    batch_size: int,
) -> Iteration:
    """Args: first: see _first."""
    counted = [
        shard
        for step, shard, micro_batch, end_us in record["pieces"]
        if first[step, shard, micro_batch] == (end_us, shard != rank, rank)
    ]
    seconds: dict[str, float] = defaultdict(float)
    until = 0
    for kind, start, end, _ in record["activities"]:  # time in which several tasks are computed counts once
        seconds[kind] += max(0, end - max(start, until)) / 1e6
        until = max(until, end)
    total = (record["end_us"] - record["start_us"]) / 1e6
    compute, help_, send = seconds["compute"] + seconds["pause"], seconds["help"], seconds["send"]
    return Iteration(
        step=record["step"],
        worker=rank,
        compute_s=compute,
        help_s=help_,
        send_s=send,
        wait_s=max(0.0, total - compute - help_ - send),
        iteration_s=total,
        loss=float("nan") if record["loss"] is None else record["loss"],
        slowdown=record["slowdown"],
        micro_batches=sum(shard == rank for shard in counted),
        helped=sum(shard != rank for shard in counted),
        end_s=(record["end_us"] - origin_us) / 1e6,
        samples=batch_size if record.get("samples") is None else record["samples"],
        unused=len(record["pieces"]) - len(counted) + record["dropped"],
        is_finished=record["is_finished"],
    )


def _contributions(plan: Plan, kind: policies.Policy) -> range:
    """The possible numbers of contributions in a sum."""
    least = kind.shards(plan)
    most = plan.topology.workers if kind.shards_vary else least
    step = plan.job.micro_batches
    return range(least * step, most * step + 1, step)


def check_sums(workers: list[dict[str, Any]], contributions: Container[int]) -> tuple[int, int]:
    """Compares every worker's sum of every step with the sum of the contributions that are said to be in it.

    If several workers computed a contribution (clones, backups), their results have to be equal.

    Args: contributions: the possible numbers of contributions in a sum.
    Returns: number of sums checked, and number of wrong ones.
    """
    parts: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
    contradictory: set[int] = set()
    for worker in workers:
        for step, shard, micro_batch, hashed in worker["contributed"]:
            if parts[step].setdefault((shard, micro_batch), hashed) != hashed:
                contradictory.add(step)
    checked = wrong = 0
    for worker in workers:
        for step, hashed in worker["sums"]:
            checked += 1
            whole = len(parts[step]) in contributions and step not in contradictory
            wrong += not whole or sum(parts[step].values()) & MASK64 != hashed
    return checked, wrong


def check_updates(workers: list[dict[str, Any]], server: dict[str, Any]) -> tuple[int, int]:
    """Checks every update of parameters: the server applied what the worker pushed, and the replay agrees.

    Returns: number of updates checked, and number of wrong ones.
    """
    pushed = {number: (worker["rank"], name) for worker in workers for number, name in worker["pushed"]}
    wrong = set(server["wrong"])
    for number, rank, name, _ in server["taken"]:
        if pushed.pop(number, None) != (rank, name):
            wrong.add(number)
    return len(server["taken"]), len(wrong | pushed.keys())


def check_agreement(workers: list[dict[str, Any]]) -> tuple[int, int]:
    """Checks sums of floats, which depend on the order of addition: they are those of a reference if there is one, and else
    the same on all workers.

    Returns: number of sums checked, and number of wrong ones.
    """
    right = dict(workers[0].get("references", workers[0]["sums"]))
    sums = [(step, hashed) for worker in workers for step, hashed in worker["sums"]]
    return len(sums), sum(right.get(step) != hashed for step, hashed in sums)


def _shares(workers: list[dict[str, Any]]) -> bool:
    """Whether all workers shared memory with the switch."""
    return all(worker.get("shares_memory", False) for worker in workers)


def _fragments(workers: list[dict[str, Any]]) -> dict[str, int]:
    server, first = workers[0]["server"] or {}, workers[0]["stats"]
    at_ps = int(server.get("finished_here", 0))
    return {
        "sent": sum(w["stats"]["fragments_sent"] for w in workers),
        "retransmitted": sum(w["stats"]["retransmitted"] for w in workers),
        "on_behalf": sum(w["stats"]["on_behalf"] for w in workers),
        "in_switch": max(first["results"] - at_ps, 0),  # each rank gets each sum once
        "at_ps": at_ps,
        "collisions": int(server.get("added", 0)),
    }


def _help(iterations: list[Iteration], workers: list[dict[str, Any]]) -> dict[str, int]:
    return {
        "helped_steps": len({each.step for each in iterations if each.helped}),
        "micro_batches": sum(each.helped for each in iterations),
        "unused": sum(each.unused for each in iterations),
        "backups": int((workers[0].get("server") or {}).get("backups", 0)),
        "questions": int((workers[0].get("server") or {}).get("questions", 0)),
    }
