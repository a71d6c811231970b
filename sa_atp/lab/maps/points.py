"""The runs of a map: each policy with each seed at each point, as tasks that can run anywhere."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.lab import policies
from sa_atp.lab.backends import runner
from sa_atp.lab.experiments.prepared import Prepared
from sa_atp.lab.maps.axes import NAMED, Axis, placed
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import TABLES, Plan, SweepPlan
from sa_atp.lab.plans.used import check_axis, why_unused
from sa_atp.lab.reproduce.points import WORK
from sa_atp.lab.runs.points import Point

MOST_SEEDS = 100

Key = tuple[int, int, str, int]
"""Number of the value on x, on y, policy, seed."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A map that is asked for."""

    prepared: Prepared
    """The plan, with the policies to compare; the first one is the baseline."""
    x: Axis
    y: Axis
    seeds: int
    """Number of seeds, from the plan's on."""
    quantity: str
    """iteration: mean time of a step. accuracy: time until the held-out accuracy reaches run.target_accuracy."""

    def __post_init__(self) -> None:
        """Raises: UserError."""
        if self.x.name == self.y.name:
            raise UserError(f"--y {self.y.name}: expected another axis than --x")
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise UserError(f"--seeds {self.seeds}: expected 1 to {MOST_SEEDS}")
        plan = self.prepared.plan
        if self.quantity == "accuracy" and plan.job.model != "digits-cnn":
            raise UserError(f"{self.prepared.path}: job.model = {plan.job.model!r} is not trained: it has no accuracy")
        if len(plan.run.policies) < 2:
            raise UserError(f"{self.prepared.path}: run.policies: expected two or more, which a map compares")

    @property
    def numbers_of_seeds(self) -> list[int]:
        return [self.prepared.plan.run.seed + n for n in range(self.seeds)]

    def tasks(self) -> dict[Key, Point]:
        """All runs. Raises: UserError: a point's plan is none, or cannot be run."""
        plans = list(self._plans())
        for axis in (self.x, self.y):
            if axis.name not in NAMED:
                effective = [plan for _, _, plan in plans if not why_unused(plan, axis.name)]
                check_axis(effective[0] if effective else plans[0][2], axis.name, self.prepared.path)
        on_packets = any(plan.sim.network == "packets" or not plan.network.is_perfect for _, _, plan in plans)
        network = "packets" if on_packets else "flows"
        found = {}
        for x, y, plan in plans:
            for policy in plan.run.policies:
                for seed in self.numbers_of_seeds:
                    tables = _tables(plan, policy, seed, network)
                    at = f"{self.x.name} = {self.x.values[x]}, {self.y.name} = {self.y.values[y]}"
                    name = f"{at}: {policy}, seed {seed}"
                    if seed == plan.run.seed:
                        checked = plan_files.parse_tables(tables, f"{self.prepared.path}, {at}")
                        runner.check(checked, self.prepared.path)
                    arguments = {"plan": tables, "where": f"{self.prepared.path}, {at}"}
                    found[x, y, policy, seed] = Point(name, WORK, arguments)
        return found

    def _plans(self) -> Iterator[tuple[int, int, Plan]]:
        plan, where = self.prepared.plan, self.prepared.path
        run = dataclasses.replace(plan.run, backend="sim", repetitions=1)
        plan = dataclasses.replace(plan, run=run, sweep=SweepPlan())
        for y, of_y in enumerate(self.y.values):
            for x, of_x in enumerate(self.x.values):
                yield x, y, placed(plan, ((self.x, of_x), (self.y, of_y)), where)


def _tables(plan: Plan, policy: str, seed: int, network: str) -> dict[str, Any]:
    """The plan of one policy, without other policies' tables: a task does not depend on what else is compared."""
    kept = {*TABLES, *policies.tables_of((policy,))}
    tables = {name: dict(table) for name, table in plan.as_dict().items() if name in kept}
    tables["run"] |= {"policies": [policy], "seed": seed}
    tables["sim"] |= {"network": network}
    return tables


def others_of(plan: Plan, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The policies whose update does not have all shards: (shards in it, or the fewest, workers)."""
    workers = plan.topology.workers
    return {
        name: (policies.find(name).shards(plan), workers)
        for name in names
        if policies.find(name).shards(plan) < workers
    }
