"""What a run shows, in sentences. Each is worked out from the records; none is taken for granted."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sa_atp import policies
from sa_atp.policies import Family
from sa_atp.report import stats
from sa_atp.report.stats import PolicyStats
from sa_atp.report.text import digits, duration, factor, in_words, percent, plural, policy_name, situation
from sa_atp.testbed.records import RunResult
from sa_atp.words import join

SAME = 0.01  # differences of mean iteration time below one per cent are not worth a claim
BUSY = 0.5  # of the cores: what devices take beyond that, they often wait for
CHANCE = 0.1  # so far apart have single runs been on a machine with few cores, where there was no difference


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that a reader must know before trusting the numbers."""

    level: Literal["wrong", "doubt"]
    """wrong: a result is bad. doubt: it may be good, but say so."""
    text: str


def headline(result: RunResult, found: Sequence[PolicyStats]) -> PolicyStats | None:
    """The policy to compare with the baseline in titles: the first that reports are about (SA-ATP), or else the fastest;
    None if nothing is to compare.
    """
    base = stats.baseline(result, found)
    others = [each for each in found if base is not None and each is not base and each.mean_s is not None]
    subject = subject_of(each.policy for each in others)
    named = [each for each in others if each.policy == subject]
    return min(named or others, key=lambda each: each.mean_s or 0.0, default=None)


def subject_of(names: Iterable[str]) -> str | None:
    """The first of some policies that reports are about; None: there is none among them."""
    return next((name for name in names if name in policies.names() and policies.find(name).is_subject), None)


def iteration_time(result: RunResult) -> str:
    """SA-ATP: 68 % shorter iterations than ATP with one worker 4× slower."""
    found = stats.policies(result)
    base, other = stats.baseline(result, found), headline(result, found)
    if base is None or not base.mean_s:
        return _alone(result, found)
    if other is None or other.mean_s is None:
        return f"{policy_name(base.policy)}: {duration(base.mean_s)} per iteration {situation(result)}"
    reduction = 1 - other.mean_s / base.mean_s
    name, than = policy_name(other.policy), policy_name(base.policy)
    if is_unclear(base, other):
        return f"No clear difference in iteration time between {name} and {than} {situation(result)}"
    if abs(reduction) < SAME:
        return f"{name}: iterations as long as those of {than} {situation(result)}"
    word = "shorter" if reduction > 0 else "longer"
    return f"{name}: {percent(abs(reduction))} {word} iterations than {than} {situation(result)}"


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
    base, other = stats.baseline(result, found), headline(result, found)
    shown = [each for each in (base, other) if each is not None] or found[:1]
    times = [each.time_to_accuracy_s(target) for each in shown]
    names = [policy_name(each.policy) for each in shown]
    if all(time is None for time in times):
        who = f"{names[0]} did not reach" if len(shown) == 1 else f"Neither {names[0]} nor {names[1]} reached"
        return f"{who} {goal} in {plural(result.plan.run.steps, 'step')}"
    if len(shown) == 1:
        return f"{names[0]} reaches {goal} after {duration(times[0])}"
    before, after = times
    if before is None or after is None:
        reached = 1 if before is None else 0
        return f"{names[reached]} reaches {goal} after {duration(times[reached])}, {names[1 - reached]} does not"
    if not before or not after or abs(before / after - 1) < 0.05:
        return f"{names[1]} reaches {goal} as soon as {names[0]}: after {duration(after)} and {duration(before)}"
    sooner, later = (1, 0) if after < before else (0, 1)
    ratio = factor((times[later] or 0.0) / (times[sooner] or 1.0))
    return (
        f"{names[sooner]} reaches {goal} {ratio} sooner than {names[later]}: "
        f"after {duration(times[sooner])} instead of {duration(times[later])}"
    )


def same_training(result: RunResult) -> str:
    """Whether the policies trained the same model, step for step; nothing if there is only one."""
    losses: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for run in result.runs:
        for each in run.evaluations:
            losses[run.repetition, run.job, each.step].append(each.loss)
    shared = [found for found in losses.values() if len(found) > 1]
    if not shared:
        return ""
    apart = max(max(found) - min(found) for found in shared)
    if apart < 1e-6:
        return "Step for step, the held-out loss is the same under every policy; only the clock differs."
    return f"Step for step, the policies' held-out losses differ by up to {digits(apart, 2)}."


def device_speed(result: RunResult) -> str:
    """What the times are times of."""
    per_sample = result.plan.job.compute_us_per_sample
    if result.devices == "simulated":
        return "Devices and network are simulated: all times are virtual, and the same for the same seed." + _by_flows(
            result
        )
    if result.devices == "cpu":
        share = result.plan.job.cpu_share
        return (
            f"Devices are CPUs: each gradient is really computed, and then CPU time is used up until a host with "
            f"{share:g} of a core has taken {duration(per_sample / 1e6, short=True)} per sample. Slow hosts have less."
        )
    if result.devices == "real":
        return "Device speed is not emulated: compute times are those of this machine, which the workers share."
    return (
        "Device speed is emulated: each gradient is really computed, then its worker waits until "
        f"{duration(per_sample / 1e6, short=True)} per sample, times its slow-down, have passed."
    )


def _by_flows(result: RunResult) -> str:
    """Which policies were simulated without packets."""
    networks = result.manifest.get("networks") or {}
    found = [policy_name(policy) for policy, network in networks.items() if network == "flows"]
    if not found:
        return ""
    whose = "" if len(found) == len(networks) else f" of {join(found)}"
    return f" The network{whose} is one of flows, without packets (docs/flow-model.md)."


def remarks(result: RunResult, summary: dict[str, Any]) -> list[Remark]:
    """What is wrong or doubtful about a run, the worst first."""
    wrong, doubt = [], []
    names = {policy: policy_name(policy) for policy in summary["policies"]}
    for policy, each in summary["policies"].items():
        if each["sums_wrong"]:
            wrong.append(
                f"{names[policy]}: {each['sums_wrong']:,} of {plural(each['sums_checked'], 'sum')} were WRONG. "
                "The gradients that were applied are not the sums they should be; do not use these results."
            )
        elif not each["sums_checked"]:
            only = (result.manifest.get("networks") or {}).get(policy) == "flows"
            why = " Only the sizes of gradients were on their way." if only else ""
            doubt.append(f"{names[policy]}: no sum was checked.{why}")
        if not each["iterations"]:
            wrong.append(f"{names[policy]}: not a single iteration was recorded.")
        elif each["iterations_counted"] == each["iterations"] and result.plan.run.warm_up:
            doubt.append(f"{names[policy]}: no steps beyond the warm-up, so that its steps count as well.")
        ratio = each["ratio_to_fluid_bound"]
        if ratio is not None and ratio < 0.98:
            doubt.append(f"{names[policy]}: faster than the fluid bound, {_why_faster(policy)}")
        expected = result.plan.run.steps * result.plan.run.repetitions * result.plan.job.jobs
        if 0 < each["iterations"] < expected:
            doubt.append(f"{names[policy]}: {each['iterations']} of {expected} iterations were recorded.")
    doubt += _busy(result) + _of_chance(result, summary)
    missing = [policy_name(policy) for policy in result.plan.run.policies if policy not in summary["policies"]]
    if missing:
        doubt.append(f"No data of {join(missing)}.")
    program = result.manifest.get("program") or {}
    if program.get("made_from_these_sources") is False:
        doubt.append(
            f"The compiled P4 program {program.get('name')} is older than its sources: what was changed in p4src did not "
            "run. scripts/compile makes it anew."
        )
    if str(result.manifest.get("commit") or "").endswith("+changes"):
        doubt.append("The source tree had changes that were not committed: the commit alone does not repeat this run.")
    return [Remark("wrong", text) for text in wrong] + [Remark("doubt", text) for text in doubt]


def _why_faster(policy: str) -> str:
    if policies.find(policy).family is Family.PARAMETERS:
        return "as a short run can be: it ends before slow workers have pushed what they are at. More steps tell more."
    return "which cannot be; the emulation is off."


def _busy(result: RunResult) -> list[str]:
    """Emulated devices share this machine's cores: where they want most of them, pieces of work are late by chance."""
    cores = result.manifest.get("cpus")
    if result.devices != "emulated" or not isinstance(cores, int):
        return []
    by_repetition: dict[tuple[str, int], float] = defaultdict(float)
    for run in result.runs:
        by_repetition[run.policy, run.repetition] += run.device_cores  # of all jobs at once
    wanted = max(by_repetition.values(), default=0.0)
    if wanted <= BUSY * cores:
        return []
    return [
        f"While all emulated devices compute they want {digits(wanted, 2)} of this machine's {plural(cores, 'core')}, and "
        "the network needs some as well: pieces of work are late by chance, and times are those of a busy machine. A "
        "larger job.compute_us_per_sample, or a smaller model, leaves room."
    ]


def _of_chance(result: RunResult, summary: dict[str, Any]) -> list[str]:
    """A small difference between two single runs, in real time, may come of whatever else the machine did."""
    found = [r for r in summary["comparison"]["iteration_time_reduction"].values() if r is not None]
    if result.devices == "simulated" or summary["repetitions"] > 1 or not any(abs(r) < CHANCE for r in found):
        return []
    return [
        f"One repetition: a difference of less than {percent(CHANCE)} may be chance. --set run.repetitions=10 shows its "
        "spread."
    ]


def what_ran(result: RunResult) -> str:
    """4 workers, star topology, local backend, embedded switch with 2048 lanes, emulated devices, 40 steps"""
    topology, repetitions = result.plan.topology, result.plan.run.repetitions
    devices = {"emulated": "emulated devices, ", "cpu": "hosts with CPU quotas, "}.get(result.devices, "")
    again = f", {in_words(repetitions)} repetitions" if repetitions > 1 else ""
    jobs = f"{in_words(result.plan.job.jobs)} jobs of " if result.plan.job.jobs > 1 else ""
    return (
        f"{jobs}{plural(topology.workers, 'worker')}, {topology.kind} topology, {result.backend} backend, "
        f"{result.switch} switch with {result.plan.lanes} lanes, {devices}{plural(result.plan.run.steps, 'step')}{again}"
    )


def _alone(result: RunResult, found: Sequence[PolicyStats]) -> str:
    shown = [f"{policy_name(each.policy)} {duration(each.mean_s)}" for each in found if each.mean_s is not None]
    return f"Iteration time {situation(result)}: {join(shown)}" if shown else "No iterations were recorded"


def is_unclear(base: PolicyStats, other: PolicyStats) -> bool:
    """Whether repetitions, where there are several, leave it open which of the two is faster."""
    interval = stats.interval95(stats.reductions(base, other))
    if interval is None or not interval[0] <= 0 <= interval[1]:
        return False
    return max(-interval[0], interval[1]) >= SAME  # else they are known to be alike
