"""The papers' headlines (main claims), and the plans that test them here, in virtual time.

The details of the papers' clusters, models and stragglers are not public. So each headline is tested with several plans,
from gentle to harsh, and the spread over them is part of the answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import Plan
from sa_atp.switches import artefacts

Tables = Mapping[str, Mapping[str, Any]]

TARGET = 0.8
"""Held-out accuracy that ends a training."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A plan without policies and seed."""

    name: str
    tables: Tables
    tuned: bool = False
    """Whether the learning rate is tuned for each policy, by the rule of runs.tuning."""

    @property
    def key(self) -> str:
        """Identifies a setting within a headline: two settings may have one name and different models."""
        return f"{self.name}, {self.tables['job']['model']}"

    def plan(self, policies: Sequence[str], seed: int, steps: int | None = None) -> Plan:
        """The plan with these policies and seed. Args: steps: in place of those of the setting. Raises: UserError."""
        run = {**self.tables.get("run", {}), "policies": list(policies), "seed": seed, "backend": "sim"}
        if steps is not None:
            run["steps"] = steps
        return plan_files.parse_tables({**self.tables, "run": run}, f"reproduce, {self.name}")


@dataclass(frozen=True, slots=True)
class Claim:
    """A paper's claim about one policy against another."""

    policy: str
    baseline: str
    paper: float | None
    """1 - time / time of the baseline, or with `is_speedup` time of the baseline / time; None: no public number."""
    quantity: str
    """iteration: mean time of a step. accuracy: time until the held-out accuracy reaches TARGET."""
    settings: tuple[Setting, ...]
    is_speedup: bool = False
    up_to: bool = False
    """Whether the paper says "up to"."""


@dataclass(frozen=True, slots=True)
class Headline:
    name: str
    title: str
    source: str
    says: str
    """A paraphrase of the paper's claim."""
    claims: tuple[Claim, ...]
    differs: tuple[str, ...] = field(default=())
    """Sentences on differences from the paper, and on its unknowns."""


SWITCH = {"lanes": 256, "slots": 1024}
SIZES: dict[str, Mapping[str, Any]] = {
    "run": {"steps": 40, "warm_up": 3},
    "switch": SWITCH,
    "topology": {"workers": 4},
    "job": {"model": "resnet-50", "model_scale": 0.0004, "batch_size": 64, "micro_batches": 16,
            "compute_us_per_sample": 1000},
    "sim": {"network": "flows"},
}  # fmt: skip
"""Gradients of ResNet-50's shapes, scaled to 41 kB, without training: the time of a step does not depend on values."""
DIGITS: dict[str, Mapping[str, Any]] = {
    **SIZES,
    "run": {"steps": 24, "warm_up": 3, "target_accuracy": TARGET},
    "job": {"model": "digits-cnn", "batch_size": 32, "micro_batches": 8, "compute_us_per_sample": 1000},
}
"""A small CNN is really trained on scikit-learn's handwritten digits, 128 samples a step."""


def constant(slowdown: float) -> dict[str, Any]:
    return {"pattern": "constant", "workers": [3], "slowdown": slowdown}


RANDOM = {"pattern": "random", "slowdown_range": [2.0, 8.0]}
GENTLE = {"pattern": "random", "slowdown_range": [1.0, 3.0]}


def pauses(probability: float) -> dict[str, Any]:
    return {"pattern": "random-pause", "probability": probability, "pause_range": [0.5, 2.0]}


def with_(base: Tables, **tables: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Tables with some keys replaced."""
    return {**base, **{name: {**base.get(name, {}), **table} for name, table in tables.items()}}


def sa_atp() -> Headline:
    iteration = (
        *(Setting(f"one of 4 workers always {s:g} times slower", with_(SIZES, straggler=constant(s))) for s in (2, 3, 4)),
        Setting("another one of 4 in each step, 1 to 3 times slower", with_(SIZES, straggler=GENTLE)),
        Setting("another one of 4 in each step, 2 to 8 times slower", with_(SIZES, straggler=RANDOM)),
        Setting("another one of 8 in each step, 2 to 8 times slower",
                with_(SIZES, straggler=RANDOM, topology={"workers": 8}, job={"micro_batches": 8})),
        Setting("each of 4 pauses with 16 %, for 0.5 to 2 iterations", with_(SIZES, straggler=pauses(0.16))),
        Setting("one of 4 workers always 4 times slower, slow links",
                with_(SIZES, straggler=constant(4), topology={"link_mbps": 10.2})),
    )  # fmt: skip
    training = (
        *(Setting(f"one of 4 workers always {s:g} times slower", with_(DIGITS, straggler=constant(s))) for s in (2, 4)),
        Setting("another one of 4 in each step, 1 to 3 times slower", with_(DIGITS, straggler=GENTLE)),
        Setting("another one of 4 in each step, 2 to 8 times slower", with_(DIGITS, straggler=RANDOM)),
    )
    return Headline(
        "sa-atp",
        "SA-ATP",
        "straggler-aware in-network aggregation on top of ATP (its abstract)",
        "Iteration time up to 57 % shorter, and training up to 1.8 times faster, than with ATP.",
        (
            Claim("sa-atp", "atp", 0.57, "iteration", iteration, up_to=True),
            Claim("sa-atp", "atp", 1.8, "accuracy", training, is_speedup=True, up_to=True),
        ),
        (
            "On *slow links* sending a gradient takes half as long as computing it (10.2 Mbit/s for 41 kB, 64 ms); on the "
            "others, of 10 Gbit/s, it takes almost no time.",
            "The paper's models, cluster and stragglers are not public beyond the abstract; those here are ours.",
            'Help is by micro-batches (`help.grade = "steal"`), this project\'s refinement; cloning a whole shard, as we '
            "read the abstract, is `clone`.",
            "With both policies each update has the same samples and the same sums bit for bit, so the speed-up of "
            "training is that of its steps.",
        ),
    )  # fmt: skip


FALCON = {"flexrr": 0.6183, "sync-opt": 0.5519, "consgd": 0.3892, "dynsgd": 0.2368}


def falcon() -> Headline:
    settings = (
        Setting("one of 4 workers always 4 times slower", with_(DIGITS, straggler=constant(4)), tuned=True),
        Setting("another one of 4 in each step, 2 to 8 times slower", with_(DIGITS, straggler=RANDOM), tuned=True),
    )
    return Headline(
        "falcon",
        "Falcon",
        "Zhou et al., IEEE Transactions on Computers 2021 (its abstract)",
        "Convergence time 61.83, 55.19, 38.92 and 23.68 % shorter than with FlexRR, Sync-opt, ConSGD and DynSGD.",
        tuple(Claim("falcon", other, paper, "accuracy", settings) for other, paper in FALCON.items()),
        (
            f"Convergence is held-out accuracy of {100 * TARGET:g} % on scikit-learn's digits, with a small CNN and four "
            "workers; the paper's models, data and cluster are not public beyond the abstract.",
            "Each policy has the learning rate that reaches the accuracy soonest (`sa_atp/lab/runs/tuning.py`), found with "
            "a separate seed.",
            "Sync-opt runs through the switch, with momentum in the workers' optimisers; parameters on a server have plain "
            "SGD. So Sync-opt needs fewer steps here than with a common optimiser.",
            "A clock is one mini-batch and one update. In Jiang et al. a clock has many local updates, with which ConSGD "
            "and DynSGD differ more from SSP.",
        ),
    )


def boa() -> Headline:
    tables = plan_files.load(artefacts.plan_file(Path("boa"))).as_dict()
    base = {name: dict(tables[name]) for name in ("topology", "switch", "job", "straggler", "help")}
    base["job"] |= {"model": "resnet-50", "model_scale": 0.0004}
    base |= {"run": {"steps": 26, "warm_up": 10}, "sim": {"network": "flows"}}
    settings = (
        Setting("devices of three types", with_(base, straggler={"pattern": "none"})),
        Setting("another one in each step, 2 to 8 times slower", with_(base, job={"speeds": []})),
        Setting("both", base),
    )
    return Headline(
        "boa",
        "BOA",
        "batch orchestration for heterogeneous clusters (its abstract)",
        "Batch sizes from a min-max integer program reduce the cost of both static and dynamic stragglers, with three "
        "types of device.",
        tuple(Claim(policy, "atp", None, "iteration", settings) for policy in ("boa", "sa-atp", "sa-atp+boa")),
        (
            "The abstract has no number to compare with; the results show which policy helps against which kind of "
            "straggler.",
            "Six workers, two of each of three types (speeds 1, 0.5, 0.2): `topologies/boa.toml`, with gradients of "
            "ResNet-50's shapes, scaled. The first ten steps, in which speeds are measured, do not count.",
            "A dynamic straggler is drawn anew for each step here, so it cannot be predicted. Batch sizes can follow a "
            "straggler that stays slow for a while.",
        ),
    )  # fmt: skip


def trio_ml() -> Headline:
    settings = tuple(
        Setting(
            f"each of {workers} workers pauses with {100 * p:g} %, for 0.5 to 2 iterations",
            with_(SIZES, straggler=pauses(p), topology={"workers": workers}, job={"micro_batches": 8}),
        )
        for workers in (4, 6)
        for p in (0.04, 0.08, 0.16)
    )
    return Headline(
        "trio-ml",
        "Trio-ML",
        "Yang et al., SIGCOMM 2022",
        "Training up to 1.8 times faster when workers pause at random.",
        tuple(
            Claim(policy, "atp", 1.8, "iteration", settings, is_speedup=True, up_to=True)
            for policy in ("sa-atp", "sync-opt")
        ),
        (
            "Trio-ML's switch gives up on a late worker and leaves its gradient out. SA-ATP leaves nothing out: helpers "
            "compute it, so sums are complete, and a pause costs the helpers' time.",
            "Here Sync-opt with one backup worker is the policy that leaves a gradient out, one worker's in each step. Its "
            "bound counts only the others' work.",
            "Trio-ML is measured beside SwitchML on real servers; here the baseline is ATP, which also waits for all "
            "workers.",
        ),
    )


def headlines() -> tuple[Headline, ...]:
    return (sa_atp(), falcon(), boa(), trio_ml())
