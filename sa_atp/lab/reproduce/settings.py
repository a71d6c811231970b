"""The papers' headlines (main claims), and the plans that test them here, in virtual time.

The details of the papers' clusters, models and stragglers are not public. So each headline is tested with several plans,
from gentle to harsh, and the spread over them is part of the answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sa_atp.basics.words import join
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import Plan
from sa_atp.steps.parallel import MEASURED
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
    """iteration: mean time of a step. sample: that over the samples of an update. accuracy: time until the held-out
    accuracy reaches TARGET.
    """
    settings: tuple[Setting, ...]
    is_speedup: bool = False
    up_to: bool = False
    """Whether the paper says "up to"."""
    at_best: bool = False
    """Whether to compare also with the baseline with its best fixed number of micro-batches at a time (job.parallel)."""
    said_by: str = ""
    """The publication, if not the headline's own, whose figures imply `paper`. The runs are those of another claim."""


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
EP4DDL = {"flexrr": 0.5746, "consgd": 0.248, "falcon": 0.115}
"""How much shorter training is with EP4DDL than with these, by its abstract."""


def implied(baseline: str) -> float:
    """How much shorter Falcon's training was than a baseline's in EP4DDL's experiments, as its own figures imply."""
    return 1 - (1 - EP4DDL[baseline]) / (1 - EP4DDL["falcon"])


def falcon() -> Headline:
    base = with_(DIGITS, job={"momentum": 0.0, "parallel_gain": list(MEASURED)})
    settings = (
        Setting("one of 4 workers always 4 times slower", with_(base, straggler=constant(4)), tuned=True),
        Setting("another one of 4 in each step, 2 to 8 times slower", with_(base, straggler=RANDOM), tuned=True),
    )
    gains = join(f"{gain:g}" for gain in MEASURED)
    return Headline(
        "falcon",
        "Falcon",
        "Zhou et al., IEEE Transactions on Computers 2021 (its abstract), doi 10.1109/TC.2020.2974461",
        "Convergence time by up to 61.83, 55.19, 38.92 and 23.68 % shorter than with FlexRR, Sync-opt, ConSGD and DynSGD.",
        (
            *(
                Claim("falcon", other, paper, "accuracy", settings, up_to=True, at_best=True)
                for other, paper in FALCON.items()
            ),
            *(
                Claim("falcon", other, implied(other), "accuracy", settings, at_best=True, said_by="EP4DDL")
                for other in ("flexrr", "consgd")
            ),
        ),
        (
            f"Convergence is held-out accuracy of {100 * TARGET:g} % on scikit-learn's digits, with a small CNN and four "
            "workers; the paper's models, data and cluster are not public beyond the abstract.",
            "Each policy has the learning rate that reaches the accuracy soonest (`sa_atp/lab/runs/tuning.py`), found with "
            "a separate seed.",
            "All policies have plain SGD, without momentum, so that they differ in nothing but their own rules.",
            f"Devices compute several micro-batches at a time: with 1, 2, 4 and 8 they do {gains} times as many in a time "
            "(`job.parallel_gain`, measured by `sa-atp bench parallel` on two cores). Falcon controls how many each worker "
            "computes; the others compute one at a time, as published. *At its best* a baseline computes 1, 2, 4 or 8 at "
            "a time, whichever reaches the accuracy soonest with the tuning seed. The gap between the two columns is the "
            "device's; the second is Falcon's own.",
            "EP4DDL (doi 10.1007/s11227-022-04466-8) reports training times 57.46, 24.8 and 11.5 % shorter than with "
            "FlexRR, ConSGD and Falcon. If these figures are of one experiment, Falcon was "
            f"{100 * implied('flexrr'):.1f} % shorter there than FlexRR, and {100 * implied('consgd'):.1f} % than ConSGD.",
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


SPEEDS = {"GTX 1080": 1.0, "GTX 1060": 0.49, "Quadro M2000": 0.2}
"""Relative single-precision rates of the GPUs (8.9, 4.4 and 1.8 TFLOPS, by their vendor)."""


def boa_thesis() -> Headline:
    def mix(*counts: int) -> Setting:
        speeds = [speed for speed, count in zip(SPEEDS.values(), counts, strict=True) for _ in range(count)]
        named = join(f"{count} {name}" for name, count in zip(SPEEDS, counts, strict=True))
        return Setting(
            named,
            with_(SIZES, topology={"workers": 8}, job={"micro_batches": 8, "speeds": speeds}, run={"warm_up": 10},
                  straggler={"pattern": "none"}, **{"sync-opt": {"backups": 1}}),
        )  # fmt: skip

    return Headline(
        "boa-thesis",
        "BOA, 8 GPUs",
        "E. Yang, master's thesis, KAIST 2018",
        "23 % better than synchronous SGD with one backup worker, on 8 GPUs of three types, with ResNet.",
        (Claim("boa", "sync-opt", 0.23, "sample", (mix(6, 1, 1), mix(5, 2, 1), mix(4, 3, 1), mix(3, 3, 2))),),
        (
            "How many GPUs of each type there were, and which quantity was 23 % better, is not public. Here it is the time "
            "over the samples in an update, since Sync-opt's updates leave a shard out.",
            "Devices have the relative single-precision rates of the GPUs (1, 0.49, 0.2), and gradients ResNet-50's "
            "shapes, scaled. The first ten steps, in which speeds are measured, do not count.",
            "With one GPU of the slowest type the backup worker takes its place, and a step waits for the second slowest "
            "type; with two of them it waits for the slowest.",
        ),
    )


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
    return (sa_atp(), falcon(), boa(), boa_thesis(), trio_ml())
