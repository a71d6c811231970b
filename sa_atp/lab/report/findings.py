"""The findings of a run in sentences, each derived from the records."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sa_atp.basics.words import join
from sa_atp.lab import policies
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.policies import Family
from sa_atp.lab.report import comparing, stats
from sa_atp.lab.report.comparing import CHANCE
from sa_atp.lab.report.stats import PolicyStats
from sa_atp.lab.report.text import digits, duration, factor, in_words, number, percent, plural, policy_name, situation
from sa_atp.lab.runs.records import RunResult

OPPOSITE = 0.02  # a median that differs by less says nothing against the mean
BUSY = 0.5  # share of the cores; emulated devices that want more are often late


@dataclass(frozen=True, slots=True)
class Remark:
    """A warning about the numbers of a run."""

    level: Literal["wrong", "doubt"]
    """wrong: a result is bad. doubt: a result may be inaccurate."""
    text: str


def headline(result: RunResult, found: Sequence[PolicyStats]) -> PolicyStats | None:
    """The policy to compare with the baseline in titles: the fastest other one; None: there is nothing to compare."""
    base = stats.baseline(result, found)
    return comparing.fastest([each for each in found if base is not None and each is not base])


def iteration_time(result: RunResult) -> str:
    """SA-ATP: 68 % shorter iterations than ATP with one worker 4× slower."""
    found = [each for each in stats.policies(result) if each.mean_s is not None]
    base, best = stats.baseline(result, found), comparing.fastest(found)
    if base is None or not base.mean_s or best is None:
        return _alone(result, found)
    if len(found) == 1:
        return f"{policy_name(base.policy)}: {duration(base.mean_s)} per iteration {situation(result)}"
    rivals = [each for each in comparing.rivals(result, best, found) if each is not base]
    if best is base:
        if rivals:
            return _baseline_has_rivals(result, base, rivals, len(found))
        return _baseline_is_best(result, base, found)
    # against the baseline, as in the table
    how = comparing.iterations(result, base, best)
    assert how is not None
    if not how.is_clear:
        return _baseline_has_rivals(result, base, [best, *rivals], len(found))
    near = [policy_name(each.policy) for each in rivals]
    also = f"; those of {join(near)} are not clearly longer" if near else ""
    return (
        f"{policy_name(best.policy)}: {how.in_words()} iterations than {policy_name(base.policy)}"
        f"{_of_fewer_samples(result, base, best)} {situation(result)}{also}"
    )


def _baseline_has_rivals(result: RunResult, base: PolicyStats, others: Sequence[PolicyStats], count: int) -> str:
    """The title if the baseline is not clearly slower than the fastest.

    Args: others: further policies that are not; count: number of all policies.
    """
    names = join([policy_name(each.policy) for each in (*others, base)])
    compared = [comparing.iterations(result, base, each) for each in others]
    if any(how is not None and how.verdict == "unclear" for how in compared):
        found = f"No clear difference in iteration time between {names} {situation(result)}"
    else:
        found = f"{names}: iterations of the same length {situation(result)}"
    return found if len(others) + 1 == count else f"{found}; all others take longer"


def _baseline_is_best(result: RunResult, base: PolicyStats, found: Sequence[PolicyStats]) -> str:
    """The title if the baseline is clearly faster than all others."""
    other = comparing.fastest([each for each in found if each is not base])
    how = comparing.iterations(result, base, other) if other is not None else None
    assert other is not None
    assert how is not None
    name, than, fewer = policy_name(other.policy), policy_name(base.policy), _of_fewer_samples(result, base, other)
    if len(found) == 2:
        return f"{name}: {how.in_words()} iterations than {than}{fewer} {situation(result)}"
    return (
        f"{than}: the shortest iterations of {in_words(len(found))} policies {situation(result)}; those of the next, "
        f"{name}, are {how.in_words()}{fewer.removesuffix(',')}"
    )


def _of_fewer_samples(result: RunResult, base: PolicyStats, other: PolicyStats) -> str:
    """A note if iterations of the two policies differ in their number of samples."""
    mine, theirs = (samples_of(each, result.plan) for each in (other, base))
    return f", of {number(mine)} samples in place of {number(theirs)}," if mine and theirs and mine != theirs else ""


def samples_of(policy: PolicyStats, plan: Plan) -> int | None:
    """Number of samples in an update, the mean if it varies; None: this release does not know the policy."""
    if policy.policy not in policies.names():
        return None
    kind = policies.find(policy.policy)
    if kind.shards_vary:
        contributed = sum(each.own + each.helped for each in policy.workers())
        return round(contributed * plan.job.batch_size / plan.job.micro_batches)
    return kind.shards(plan) * plan.job.batch_size


def who_did_what(result: RunResult) -> str:
    """Workers wait 56 % of the time with ATP, 3 % with SA-ATP."""
    found = stats.policies(result)
    base, other = stats.baseline(result, found), headline(result, found)
    shown = [each for each in (base, other) if each is not None and each.shares()]
    if not shown:
        return "What each worker did"
    who = "Workers wait" if result.plan.topology.workers > 1 else "The worker waits"
    first, *rest = [(percent(each.shares()["wait"]), policy_name(each.policy)) for each in shown]
    sentence = f"{who} {first[0]} of the time with {first[1]}"
    return ", ".join([sentence, *(f"{share} with {name}" for share, name in rest)])


def training(result: RunResult) -> str:
    """SA-ATP reaches 90 % accuracy 3.1× sooner than ATP: after 1.9 s instead of 5.8 s."""
    found = [each for each in stats.policies(result) if any(run.evaluations for run in each.runs)]
    target = result.plan.run.target_accuracy
    goal = f"{percent(target)} accuracy"
    if not found:
        return "Training loss over time"
    times = {each.policy: time for each in found if (time := each.time_to_accuracy_s(target)) is not None}
    if not times:
        return _nobody_reached(result, found, goal)
    best = min((each for each in found if each.policy in times), key=lambda each: times[each.policy])
    others = [each for each in found if each is not best]
    base = next((each for each in others if each.policy == result.plan.run.policies[0]), None)
    # against the baseline, or against the next policy if the baseline is the best or missing
    other = base or min(others, key=lambda each: times.get(each.policy, math.inf), default=None)
    name, after = policy_name(best.policy), duration(times[best.policy])
    if other is None:
        return f"{name} reaches {goal} after {after}"
    than = policy_name(other.policy)
    if other.policy not in times:
        missed = "no other policy does" if len(times) == 1 and len(others) > 1 else f"{than} does not"
        return f"{name} reaches {goal} after {after}, {missed}{_not_always(other, target)}"
    how = comparing.training_times(result, *(each.reached_s(target) for each in (other, best)))
    both = f"after {after} and {duration(times[other.policy])}"
    if times[best.policy] == times[other.policy] or (how is not None and not how.is_clear):
        order = "not clearly sooner than" if how is not None and how.verdict == "unclear" else "as soon as"
        return f"{name} reaches {goal} {order} {than}: {both}"
    ratio = f"{factor(times[other.policy] / times[best.policy])} " if times[best.policy] else ""
    return f"{name} reaches {goal} {ratio}sooner than {than}: after {after} instead of {duration(times[other.policy])}"


def _nobody_reached(result: RunResult, found: Sequence[PolicyStats], goal: str) -> str:
    names = [policy_name(each.policy) for each in found]
    few = {1: f"{names[0]} did not reach", 2: f"Neither {names[0]} nor {names[-1]} reached"}
    who = few.get(len(names), f"None of {in_words(len(names))} policies reached")
    sometimes = any(each.reached_s(result.plan.run.target_accuracy) for each in found)
    return f"{who} {goal} in {plural(result.plan.run.steps, 'step')}{' in all repetitions' if sometimes else ''}"


def _not_always(policy: PolicyStats, target: float) -> str:
    """A note on a policy without a mean time that reached the target in some repetitions."""
    return " in all repetitions" if policy.reached_s(target) else ""


def same_training(result: RunResult) -> str:
    """Whether the policies trained the same model, step for step; empty if there is only one."""
    losses: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    evaluated = set()
    for run in result.runs:
        for each in run.evaluations:
            losses[run.repetition, run.job, each.step].append(each.loss)
            evaluated.add(run.policy)
    shared = [found for found in losses.values() if len(found) > 1]
    if not shared or len(evaluated) < 2:
        return ""
    # NaN is infinitely far from a number, and equal to NaN
    finite = [[loss for loss in found if math.isfinite(loss)] for found in shared]
    if any(0 < len(numbers) < len(found) for numbers, found in zip(finite, shared, strict=True)):
        return "Some of the policies' held-out losses are NaN or infinite: there, training has diverged."
    apart = max((max(numbers) - min(numbers) for numbers in finite if numbers), default=0.0)
    if apart < 1e-6:
        who = "both policies" if len(evaluated) == 2 else f"all {in_words(len(evaluated))} policies"
        return f"Step for step, the held-out loss is the same under {who}; only the clock differs."
    return f"Step for step, the policies' held-out losses differ by up to {digits(apart, 2)}."


def device_speed(result: RunResult) -> str:
    """How the speed of devices is emulated, and so what the times mean."""
    per_sample = result.plan.job.compute_us_per_sample
    if result.devices == "simulated":
        return "Devices and network are simulated: all times are virtual, and the same for the same seed." + _by_flows(
            result
        )
    if result.devices == "cpu":
        share = result.plan.job.cpu_share
        return (
            f"Devices are CPUs: each gradient is really computed, and then the worker burns CPU time until a host with "
            f"{share:g} of a core has taken {duration(per_sample / 1e6, short=True)} per sample. Slow hosts have less."
        )
    if result.devices == "real":
        return "Device speed is not emulated: compute times are those of this machine, which the workers share."
    return (
        "Device speed is emulated: each gradient is really computed, then its worker waits until "
        f"{duration(per_sample / 1e6, short=True)} per sample, times its slow-down, have passed."
    )


def _by_flows(result: RunResult) -> str:
    """A note on the policies that were simulated with flows instead of packets."""
    networks = result.manifest.get("networks") or {}
    found = [policy_name(policy) for policy, network in networks.items() if network == "flows"]
    if not found:
        return ""
    whose = "" if len(found) == len(networks) else f" of {join(found)}"
    return f" The network{whose} is simulated as flows, without packets (docs/flow-model.md)."


def remarks(result: RunResult, summary: dict[str, Any]) -> list[Remark]:
    """Warnings about a run, the worst first."""
    wrong, doubt = [], []
    names = {policy: policy_name(policy) for policy in summary["policies"]}
    for policy, each in summary["policies"].items():
        if each["sums_wrong"]:
            wrong.append(
                f"{names[policy]}: {each['sums_wrong']:,} of {plural(each['sums_checked'], 'sum')} were WRONG. "
                "Wrong gradients were applied; do not use these results."
            )
        elif not each["sums_checked"]:
            only = (result.manifest.get("networks") or {}).get(policy) == "flows"
            why = " Only sizes of gradients were simulated, without values." if only else ""
            doubt.append(f"{names[policy]}: no sum was checked.{why}")
        if not each["iterations"]:
            wrong.append(f"{names[policy]}: no iteration was recorded.")
        elif each["iterations_counted"] == each["iterations"] and result.plan.run.warm_up:
            doubt.append(f"{names[policy]}: no steps after the warm-up, so the warm-up counts.")
        ratio = each["ratio_to_fluid_bound"]
        if ratio is not None and ratio < 0.98:
            doubt.append(f"{names[policy]}: faster than the fluid bound, {_why_faster(policy)}")
        expected = result.plan.run.steps * result.plan.run.repetitions * result.plan.job.jobs
        if 0 < each["iterations"] < expected:
            doubt.append(f"{names[policy]}: {each['iterations']} of {expected} iterations were recorded.")
    doubt += _of_medians(summary) + _busy(result) + _of_chance(result)
    missing = [policy_name(policy) for policy in result.plan.run.policies if policy not in summary["policies"]]
    if missing:
        doubt.append(f"No data of {join(missing)}.")
    program = result.manifest.get("program") or {}
    if program.get("made_from_these_sources") is False:
        doubt.append(
            f"The compiled P4 program {program.get('name')} differs from its sources: p4src, or its own files, were "
            "changed after it was compiled. scripts/compile compiles it again."
        )
    if str(result.manifest.get("commit") or "").endswith("+changes"):
        doubt.append("The source tree had uncommitted changes: the commit alone does not reproduce this run.")
    return [Remark("wrong", text) for text in wrong] + [Remark("doubt", text) for text in doubt]


def _of_medians(summary: dict[str, Any]) -> list[str]:
    """A warning for each policy whose median iteration says the opposite of its mean, which the titles go by."""
    compared = summary["comparison"]
    baseline, found = compared["baseline"], []
    for policy, verdict in compared["verdict"].items():
        if verdict not in ("shorter", "longer"):
            continue
        mine, theirs = (summary["policies"][each]["iteration_time_s"]["p50"] for each in (policy, baseline))
        if not mine or not theirs:
            continue
        reduction = 1 - mine / theirs
        if abs(reduction) >= OPPOSITE and (reduction > 0) != (verdict == "shorter"):
            opposite = "longer" if verdict == "shorter" else "shorter"
            found.append(
                f"{policy_name(policy)}: its mean iteration is {verdict} than {policy_name(baseline)}'s, but its median "
                f"is {percent(abs(reduction))} {opposite}: few iterations decide the mean."
            )
    return found


def _why_faster(policy: str) -> str:
    if policy in policies.names() and policies.find(policy).family is Family.PARAMETERS:
        return "as a short run can be: it ends before slow workers have pushed their last updates. Use more steps."
    return "which is impossible: the emulation was inaccurate."


def _busy(result: RunResult) -> list[str]:
    """A warning if emulated devices want so many of the machine's cores that their work is late at random."""
    cores = result.manifest.get("cpus")
    if result.devices != "emulated" or not isinstance(cores, int):
        return []
    by_repetition: dict[tuple[str, int], float] = defaultdict(float)
    for run in result.runs:
        by_repetition[run.policy, run.repetition] += run.device_cores  # concurrent jobs add up
    wanted = max(by_repetition.values(), default=0.0)
    if wanted <= BUSY * cores:
        return []
    return [
        f"When all emulated devices compute, they need {digits(wanted, 2)} of this machine's {plural(cores, 'core')}, and "
        "the network needs some as well: compute is late at random, and times are those of a busy machine. A larger "
        "job.compute_us_per_sample or a smaller model helps."
    ]


def _of_chance(result: RunResult) -> list[str]:
    """A warning that a small difference between single runs may be chance."""
    found = stats.policies(result)
    base = stats.baseline(result, found)
    compared = [comparing.iterations(result, base, each) for each in found if base is not None and each is not base]
    if not any(how is not None and how.verdict == "unclear" and abs(how.reduction) < CHANCE for how in compared):
        return []
    if any(len(each.repetition_means_s()) > 1 for each in found):
        return []  # their spread is shown
    return [
        f"One repetition: a difference of less than {percent(CHANCE)} may be chance. --set run.repetitions=10 shows its "
        "spread."
    ]


def what_ran(result: RunResult) -> str:
    """Describes a run, as "4 workers, star topology, local backend, embedded switch with 2048 lanes, ..., 40 steps"."""
    topology, repetitions = result.plan.topology, result.plan.run.repetitions
    devices = {"emulated": "emulated devices, ", "cpu": "hosts with CPU quotas, "}.get(result.devices, "")
    again = f", {in_words(repetitions)} repetitions" if repetitions > 1 else ""
    shares = ", by shared memory" if any(run.shares_memory for run in result.runs) else ""
    jobs = f"{in_words(result.plan.job.jobs)} jobs of " if result.plan.job.jobs > 1 else ""
    networks = (result.manifest.get("networks") or {}).values()
    bits = result.plan.job.bits
    halved = f", gradients of {bits} bits" if bits != 32 else ""
    switch = f"{result.switch} switch with {result.plan_as_run.lanes} lanes{halved}{shares}"
    if networks and set(networks) == {"flows"}:
        switch = "flows in place of packets"
    return (
        f"{jobs}{plural(topology.workers, 'worker')}, {topology.kind} topology, {result.backend} backend, "
        f"{switch}, {devices}{plural(result.plan.run.steps, 'step')}{again}"
    )


def _alone(result: RunResult, found: Sequence[PolicyStats]) -> str:
    shown = [f"{policy_name(each.policy)} {duration(each.mean_s)}" for each in found if each.mean_s is not None]
    return f"Iteration time {situation(result)}: {join(shown)}" if shown else "No iterations were recorded"
