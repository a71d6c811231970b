"""The findings of a run in sentences, each derived from the records."""

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
from sa_atp.lab.report.text import digits, duration, in_words, number, percent, plural, policy_name, situation
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
    base, other = stats.baseline(result, found), headline(result, found)
    how = comparing.iterations(result, base, other) if base is not None and other is not None else None
    if base is None or other is None or how is None:
        return _alone(result, found)
    than = policy_name(base.policy)
    unclear = {
        "same": f"iterations as long as {than}'s",
        "unclear": f"no clear difference in iteration time from {than}",
    }
    said = unclear.get(how.verdict, f"{how.in_words()} iterations than {than}")
    return f"{policy_name(other.policy)}: {said}{_of_fewer_samples(result, base, other)} {situation(result)}"


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
    """Time in a step: waiting 56 % with ATP, 3 % with SA-ATP."""
    found = [(policy_name(each.policy), each.shares()) for each in stats.policies(result)]
    waiting = [f"{percent(shares['wait'])} with {name}" for name, shares in found if shares]
    return f"Time in a step: waiting {', '.join(waiting)}"


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
