"""The settings of `sa-atp bench help`: combinations of links, delays, losses and stragglers.

Each is a plan for the simulator, given as changes to `BASE`. Gradients have a model's sizes and random values, so that
times follow from the seed alone, on every machine, and rows are quick.
"""

import random
from dataclasses import dataclass

from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import Plan
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS
from sa_atp.switches.artefacts import most_contributions

# The demo's plan with another model, whose gradient has as many values as the demo's.
BASE = """
[run]
seed = 1
steps = 14
policies = ["atp", "sa-atp"]
backend = "sim"
[topology]
workers = 4
[job]
model = "resnet-50"
model_scale = 0.0015
batch_size = 64
micro_batches = 16
compute_us_per_sample = 3000
[straggler]
pattern = "constant"
workers = [3]
slowdown = 4.0
"""
LANES = 256  # default of plans
MICRO_BATCH_US = 12_000  # compute time on a normal device in BASE
DRAWN_EVERY = 4  # in drawn settings every fourth step has a pause, from step 2 on
REPETITIONS = 3  # of drawn settings with losses or reordering
HOPS_TO_SERVER_AND_BACK = 4  # links that a request and its answer cross


@dataclass(frozen=True, slots=True)
class HelpSetting:
    """A row of the table."""

    name: str
    changes: tuple[str, ...]
    """KEY=VALUE, as for --set."""

    @property
    def plan(self) -> Plan:
        return plan_files.parse(BASE, self.name, self.changes)


NOBODY = ("straggler.pattern=none",)
RANDOM = ("straggler.pattern=random",)
PAUSE = ("straggler.pattern=pause", "straggler.every=4")
ROUND_TRIPS = (0.1, 0.3, 1.0, 3.0, 10.0, 20.0)  # in micro-batches of a normal device

_WHO: dict[str, tuple[str, ...]] = {"one slow": (), "nobody slow": NOBODY, "random": RANDOM, "pause": PAUSE}
_WHERE: dict[str, tuple[str, ...]] = {
    "10G": (),
    "10G, loss 1 %": ("network.loss=0.01",),
    "10G, loss 5 %": ("network.loss=0.05",),
    "1G, reordering 2 %, jitter 1 ms": ("topology.link_mbps=1000", "network.reorder=0.02", "network.jitter_us=1000"),
    "100M": ("topology.link_mbps=100",),
    "100M, loss 1 %": ("topology.link_mbps=100", "network.loss=0.01"),
    "100M, 20 ms a link": ("topology.link_mbps=100", "topology.delay_us=20000"),
    "20M": ("topology.link_mbps=20",),
}
_FEWER = ("job.model_scale=0.0002", "run.steps=10")  # for settings with many workers, which do not study links
_LINKS = ("topology.link_mbps=20", "topology.delay_us=0", "job.model_scale=0.002", "job.batch_size=16",
          "job.micro_batches=8", "run.steps=24")  # fmt: skip

_PAUSES = ("topology.workers=6", "topology.link_mbps=1000", "job.micro_batches=8", "run.steps=24",
           "straggler.pattern=random-pause", "straggler.pause_range=[3, 3]")  # fmt: skip


def table() -> list[HelpSetting]:
    """The rows of the committed table, in order."""
    rows = [
        HelpSetting(f"{where}, {who}", changes + slow)
        for where, changes in _WHERE.items()
        for who, slow in _WHO.items()
    ]
    rows += [
        HelpSetting(
            f"round trip of {times:g} micro-batches, {who}", (f"topology.delay_us={_delay_us(times)}", *_WHO[who])
        )
        for times in ROUND_TRIPS
        for who in ("one slow", "nobody slow", "random")
    ]
    for workers, slow in ((8, "[7]"), (16, "[15]"), (32, "[31]"), (64, "[63]")):
        # 8 workers fit a bitmap of 64 bits; more workers have as many pieces each as the widest build has bits for
        most = CONTRIBUTION_BITS if workers <= 8 else most_contributions(LANES)
        size = (
            f"topology.workers={workers}",
            f"job.micro_batches={most // workers}",
            f"straggler.workers={slow}",
            *_FEWER,
        )
        rows += [
            HelpSetting(f"{workers} workers, {who}", size + _WHO[who]) for who in ("one slow", "nobody slow", "random")
        ]
    rows += [
        HelpSetting(
            f"6 workers, each pauses in {chance:.0%} of its steps", (*_PAUSES, f"straggler.probability={chance}")
        )
        for chance in (0.16, 0.32)
    ]
    rows += [
        HelpSetting("one pauses for 8 s, no work can be cancelled",
                ("topology.link_mbps=100", "job.micro_batches=1", "help.cancels=false", "run.steps=60",
                 "straggler.pattern=pause", "straggler.every=40", "straggler.pause_s=8")),
        HelpSetting("one 1.3 times slower", ("straggler.slowdown=1.3",)),
        HelpSetting("one 2 times slower", ("straggler.slowdown=2",)),
        HelpSetting("one 8 times slower", ("straggler.slowdown=8",)),
        HelpSetting("20M, devices up to a tenth apart",
                ("topology.link_mbps=20", "job.speeds=[1, 0.9, 0.97, 1]", *NOBODY)),
        HelpSetting("two of four slow", ("straggler.workers=[2, 3]",)),
        HelpSetting("clone, one slow", ("help.grade=clone",)),
        HelpSetting("clone, nobody slow", ("help.grade=clone", *NOBODY)),
        HelpSetting("64 slots, one slow", ("switch.slots=64",)),
        HelpSetting("64 slots, nobody slow", ("switch.slots=64", *NOBODY)),
        HelpSetting("heterogeneous links, nobody slow", (*_LINKS, "topology.worker_mbps=[20, 20, 10, 5]", *NOBODY)),
        HelpSetting("heterogeneous links, the one at 5M slow", (*_LINKS, "topology.worker_mbps=[20, 20, 10, 5]")),
        HelpSetting("heterogeneous links, the one at 20M slow",
                (*_LINKS, "topology.worker_mbps=[20, 20, 10, 5]", "straggler.workers=[0]")),
        HelpSetting("20M, other traffic takes three quarters of one link up, 2 ms a link",
                ("topology.link_mbps=20", "topology.delay_us=2000", "job.model_scale=0.004", "job.batch_size=16",
                 "job.micro_batches=8", "run.steps=24", "straggler.by=congestion")),
        HelpSetting("two racks, one slow", ("topology.kind=two-level", "topology.link_mbps=100")),
        HelpSetting("two racks, nobody slow", ("topology.kind=two-level", "topology.link_mbps=100", *NOBODY)),
        HelpSetting("two racks, trunks of 20M, one slow",
                ("topology.kind=two-level", "topology.link_mbps=100", "topology.trunk_mbps=20")),
        HelpSetting("two racks, trunks of 20M, nobody slow",
                ("topology.kind=two-level", "topology.link_mbps=100", "topology.trunk_mbps=20", *NOBODY)),
        HelpSetting("two racks, pause", ("topology.kind=two-level", "topology.link_mbps=100", *PAUSE)),
        HelpSetting("two racks, loss 1 %, one slow",
                ("topology.kind=two-level", "topology.link_mbps=100", "network.loss=0.01")),
    ]  # fmt: skip
    return rows


def _delay_us(micro_batches: float) -> int:
    """Delay of a link such that a round trip to the parameter server takes so many micro-batches."""
    return round(micro_batches * MICRO_BATCH_US / HOPS_TO_SERVER_AND_BACK)


def draw_settings(count: int, seed: int) -> list[HelpSetting]:
    """Random settings, a function of the seed."""
    return [_draw(number, random.Random(f"{seed}/{number}")) for number in range(count)]


def _draw(number: int, rng: random.Random) -> HelpSetting:
    workers = rng.choice((2, 3, 4, 4, 6, 8, 16))
    micro_batches = rng.choice([m for m in (1, 2, 4, 8, 16, 32) if m * workers <= CONTRIBUTION_BITS])
    per_batch = 32
    changes = [
        f"run.seed={rng.randrange(1 << 16)}",
        "run.steps=12",
        f"topology.workers={workers}",
        f"topology.link_mbps={10 ** rng.uniform(1.3, 4):.0f}",
        f"topology.delay_us={10 ** rng.uniform(0.5, 4.3):.0f}",
        f"network.loss={rng.choice((0, 0, 0, 0.001, 0.01, 0.03))}",
        f"network.reorder={rng.choice((0, 0, 0.02))}",
        f"job.batch_size={per_batch}",
        f"job.micro_batches={micro_batches}",
        f"job.compute_us_per_sample={10 ** rng.uniform(2.5, 4):.0f}",
        f"job.model_scale={10 ** rng.uniform(-3.7, -2.5):.5f}",
        f"straggler.pattern={rng.choice(('none', 'constant', 'constant', 'random', 'pause'))}",
        f"straggler.workers={sorted(rng.sample(range(workers), rng.choice((1, 1, 2)) if workers > 2 else 1))}",
        f"straggler.slowdown={rng.uniform(1.1, 6):.2f}",
        "straggler.pause_s=0.3",
        f"straggler.every={DRAWN_EVERY}",
        f"help.grade={rng.choice(('steal', 'steal', 'steal', 'clone'))}",
    ]
    kind = rng.choice(("alike", "alike", "links", "racks"))
    if kind == "links":
        link = float(changes[3].partition("=")[2])
        changes.append(f"topology.worker_mbps={[round(link / rng.choice((1, 1, 2, 4)), 1) for _ in range(workers)]}")
    if kind == "racks":
        changes += ["topology.kind=two-level", "topology.racks=2"]
    # Steps count from the first pause on, so that each pause counts with all its effects on later steps. If counting began
    # after a pause, it would count the benefit of work left over from it, but not its cost.
    pauses = "straggler.pattern=pause" in changes
    changes.append(f"run.warm_up={DRAWN_EVERY // 2 if pauses else DRAWN_EVERY}")
    if "network.loss=0" not in changes or "network.reorder=0" not in changes:
        changes.append(f"run.repetitions={REPETITIONS}")  # repetitions differ in their losses alone
    return HelpSetting(f"drawn {number}", tuple(changes))
