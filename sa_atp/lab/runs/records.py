"""What a run leaves behind, as data: the report is drawn from this and from nothing else."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from sa_atp.lab.plans.plan import Plan

IntervalKind = Literal["compute", "help", "send", "wait", "pause", "between"]
"""between: the worker is in no step. Reports find these intervals (`report.gaps`); run.json has those of steps."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of one worker's time. Times are microseconds since the policy's first step began."""

    worker: int
    step: int
    kind: IntervalKind
    start_us: int
    end_us: int
    label: str = ""
    """For help: whose micro-batch, "shard 3, micro-batch 7"; cancelled work says so."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """One step as one worker experienced it, in seconds. The four parts make up iteration_s.

    How long the job took for a step is another question: see `report.stats.step_ends_s`.
    """

    step: int
    worker: int
    compute_s: float
    """Time spent on its own micro-batches."""
    help_s: float
    """Time spent on other workers' micro-batches."""
    send_s: float
    """While its contribution left for the first time. What is sent again is sent while it waits; and so is what can only
    leave when others have sent."""
    wait_s: float
    """For claims, for others, for the sum, and for a turn on a core; with Gloo, which does not tell them apart, sending
    too."""
    iteration_s: float
    loss: float
    """Mean training loss of the samples that this worker computed; NaN if it computed none."""
    slowdown: float
    """Emulated slow-down of its device in this step."""
    micro_batches: int
    """Micro-batches of its own shard that it contributed: those that it was the first to have computed. Over all workers
    these and `helped` add up to all micro-batches of a step, each counted once. Where parameters are on a server workers
    compute those of other steps, too, and they add up over the whole run."""
    helped: int
    """Micro-batches of other shards that it contributed, likewise."""
    end_s: float = math.nan
    """When it had the sum and had applied it, since the policy's first step began; NaN in runs of releases that did not
    write it down."""
    samples: int = 0
    """Of its shard; 0 where that was not written down."""
    unused: int = 0
    """Micro-batches that it computed for nothing: another worker had them before (backups, clones), or the step's sum, or
    the job, was over without them."""
    is_finished: bool = True
    """Whether it got to the end of the step: where parameters are on a server, the job may be over before."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Held-out loss and accuracy after a step (all workers have the same weights)."""

    step: int
    time_s: float
    """When the first worker had the step's sum and had applied it, since the first step began."""
    loss: float
    accuracy: float


@dataclass(slots=True)
class PolicyRun:
    """One repetition of one policy."""

    policy: str
    repetition: int
    iterations: list[Iteration] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    sums_checked: int = 0
    """Sums of gradients that were compared with the contributions they should consist of."""
    sums_wrong: int = 0
    fragments: dict[str, int] = field(default_factory=dict)
    """sent, retransmitted, in_switch (sums completed by the switch), at_ps (by the parameter server), collisions. Empty
    where nothing counted them."""
    help: dict[str, int] = field(default_factory=dict)
    """helped_steps (steps in which somebody helped), micro_batches (contributed by helpers), unused (computed for nothing,
    by whomever), backups, questions (to the ledger)."""
    fluid_bound_s: float = 0.0
    """Mean over steps of total work over total speed: no assignment of work can be faster."""
    job: int = 0
    """Which one, where several ran at once."""
    step_ends_s: list[float] = field(default_factory=list)
    """Of policies whose workers go on at their own pace: when a step's worth of samples more was in the parameters, in
    seconds since the first worker began. Empty: a step ends when the first worker has its sum."""
    streams: dict[str, float] = field(default_factory=dict)
    """For each link between switches ("leaf1-s1"), how many times a step's fragments went up it, mean over steps: the
    bytes that its interface counted over those of one worker's contribution. A rack that aggregates needs one."""
    device_cores: float = 0.0
    """How many of this machine's cores all emulated devices of the job take while they compute; 0: none really did."""
    origin_us: int = 0
    """What the connections' clock showed when the first step began, from which all other times are counted."""


@dataclass(slots=True)
class RunResult:
    """Everything that `sa-atp run` has to tell."""

    plan: Plan
    plan_path: str
    backend: str
    switch: str
    manifest: dict[str, Any]
    """Versions, seeds, kernel, commit, command line: what is needed to repeat the run."""
    runs: list[PolicyRun] = field(default_factory=list)

    @property
    def devices(self) -> Literal["simulated", "cpu", "emulated", "real"]:
        """What computed, and so what the times are times of.

        simulated: nothing but the clock. emulated: this machine, and then each worker waited until its device would have
        been done. cpu: hosts with CPU quotas. real: this machine, as fast as it was.
        """
        if self.backend == "sim":
            return "simulated"
        if self.plan.job.device == "cpu":
            return "cpu"
        return "emulated" if self.plan.job.compute_us_per_sample else "real"
