"""The records of a run, from which alone reports are made."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sa_atp.lab.plans.plan import Plan, with_lanes

IntervalKind = Literal["compute", "help", "send", "wait", "pause", "between"]
"""between: the worker is in no step. Reports add these intervals (`report.drawing.gaps`); run.json has only the others."""


if TYPE_CHECKING:
    Number = float
else:

    class Number(float):
        """A float of a record. It is a type of its own because JSON has no NaN and no infinities (see `report.archive`)."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of one worker's time. Times are microseconds since the policy's first step began."""

    worker: int
    step: int
    kind: IntervalKind
    start_us: int
    end_us: int
    label: str = ""
    """For help: the micro-batch, as "shard 3, micro-batch 7"; cancelled work ends with ", cancelled"."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """One step of one worker, in seconds. The four parts add up to iteration_s.

    For the step time of the job see `report.stats.step_ends_s`.
    """

    step: int
    """Number of the step, from 0 on."""
    worker: int
    """Rank of the worker."""
    compute_s: Number
    """Time spent on its own micro-batches."""
    help_s: Number
    """Time spent on other workers' micro-batches."""
    send_s: Number
    """Time of the first transmission of its contribution. Retransmissions count as waiting, and so do fragments that the
    window holds back until others have sent."""
    wait_s: Number
    """Time spent waiting: for claims, for others, for the sum, and for a core; with Gloo, sending is included."""
    iteration_s: Number
    """Time from the moment when it began the step until it had applied the sum."""
    loss: Number
    """Mean training loss of the samples that this worker computed; NaN if it computed none."""
    slowdown: Number
    """Emulated slow-down of its device in this step."""
    micro_batches: int
    """Micro-batches that it contributed of its own shard, as the first that computed them. Over all workers these and
    `helped` add up to all micro-batches of a step; with parameters on a server, of the whole run."""
    helped: int
    """Micro-batches that it contributed of other shards, likewise."""
    end_s: Number = math.nan
    """When it had applied the sum, since the policy's first step began; NaN in runs of older releases."""
    samples: int = 0
    """Samples of its shard; 0: not recorded."""
    unused: int = 0
    """Micro-batches that it computed in vain: another worker was faster (backups, clones), or the step or the job ended
    without them."""
    is_finished: bool = True
    """Whether it finished the step: with parameters on a server, the job may end before."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Held-out loss and accuracy after a step (all workers have the same weights)."""

    step: int
    time_s: Number
    """When the first worker had applied the step's sum, since the first step began."""
    loss: Number
    accuracy: Number


@dataclass(slots=True)
class PolicyRun:
    """One repetition of one policy."""

    policy: str
    """Name of the policy."""
    repetition: int
    """Number of the repetition, from 0 on."""
    iterations: list[Iteration] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    sums_checked: int = 0
    """Sums of gradients that were compared with their contributions."""
    sums_wrong: int = 0
    fragments: dict[str, int] = field(default_factory=dict)
    """sent, retransmitted, in_switch (sums completed by the switch), at_ps (by the parameter server), collisions. Empty:
    not counted."""
    help: dict[str, int] = field(default_factory=dict)
    """helped_steps (steps with help), micro_batches (contributed by helpers), unused (computed in vain by any worker),
    backups, questions (to the ledger)."""
    fluid_bound_s: Number = 0.0
    """Mean over steps of total work over total speed: no assignment of work can be faster."""
    job: int = 0
    """Number of the job, if several ran concurrently."""
    step_ends_s: list[Number] = field(default_factory=list)
    """For policies whose workers have their own pace: when the parameters contained the samples of another step, in
    seconds since the first worker began. Empty: a step ends when the first worker has its sum."""
    streams: dict[str, Number] = field(default_factory=dict)
    """For each link between switches ("leaf1-s1"), the copies of a step's fragments that went up it, mean over steps: the
    bytes counted by its interface over those of one worker's contribution. With aggregation in the rack it is 1."""
    device_cores: Number = 0.0
    """Cores of this machine that all emulated devices of the job use while they compute; 0: nothing is computed."""
    shares_memory: bool = False
    """Whether all workers shared memory with the switch, so that no packets crossed the machine's network stack."""
    origin_us: int = 0
    """Time of the connections' clock when the first step began; all other times count from there."""


@dataclass(slots=True)
class RunResult:
    """The result of `sa-atp run`."""

    plan: Plan
    plan_path: str
    backend: str
    switch: str
    manifest: dict[str, Any]
    """Versions, seeds, kernel, commit, command line: all that is needed to repeat the run."""
    runs: list[PolicyRun] = field(default_factory=list)

    @property
    def plan_as_run(self) -> Plan:
        """The plan with its actual number of lanes in place of 0: `plan` keeps what was said, so that it can be changed."""
        return with_lanes(self.plan, self.manifest.get("lanes", 0))

    @property
    def devices(self) -> Literal["simulated", "cpu", "emulated", "real"]:
        """The kind of devices, which says what the times mean.

        simulated: virtual time. emulated: this machine computed, and then each worker waited until its device would have
        finished. cpu: hosts with CPU quotas. real: this machine at its own speed.
        """
        if self.backend == "sim":
            return "simulated"
        if self.plan.job.device == "cpu":
            return "cpu"
        return "emulated" if self.plan.job.compute_us_per_sample else "real"
