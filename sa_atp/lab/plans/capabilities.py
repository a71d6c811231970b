"""Settings of a plan that only some backends support, and the simulated backend's choice of packets or flows."""

import dataclasses
from collections.abc import Sequence

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import join, short
from sa_atp.lab import policies
from sa_atp.lab.plans.plan import TABLES, V1MODEL, Plan
from sa_atp.lab.policies.policy import BACKENDS
from sa_atp.protocol.packets.spec import MOST_RANKS, WIDE_BUILDS
from sa_atp.switches.artefacts import most_contributions

WITHOUT = {
    "local": "the local backend has no links, and",
    "sim": "the simulator",
    "mininet": "the mininet backend",
}
INSTEAD = {"switch.program": "--switch embedded, or "}  # what would do beside another backend, by key
MOST_SWITCHED_RACKS = 16  # with packets: every leaf needs a port of the spine


def too_many_for_packets(plan: Plan) -> str | None:
    """The reason that packets cannot carry a plan's sums; None: they can."""
    workers, micro_batches = plan.topology.workers, plan.job.micro_batches
    if workers > MOST_RANKS:
        return f"topology.workers = {workers}: a job has at most {MOST_RANKS} ranks"
    if plan.contributions > plan.contribution_bits:
        most = plan.switch.contributions or most_contributions(plan.lanes)
        return (
            f"topology.workers = {workers} with job.micro_batches = {micro_batches} makes {plan.contributions} "
            f"contributions; at most {most} fit in the bitmap with switch.lanes = {plan.lanes}{_wider(plan, most)}"
        )
    if plan.topology.kind == "two-level" and plan.topology.racks > MOST_SWITCHED_RACKS:
        return f"topology.racks = {plan.topology.racks}: a spine has ports for {MOST_SWITCHED_RACKS} leaves"
    return None


def _wider(plan: Plan, most: int) -> str:
    """A note on builds with wider bitmaps, if there are any."""
    found = [f"{n} with {lanes}" for lanes, n in WIDE_BUILDS if n >= plan.contributions and n > most]
    return f" ({join(found)})" if found and plan.switch.program in V1MODEL else ""


def network_of(plan: Plan, policy: str) -> str:
    """The network on which the simulated backend runs a policy: "packets" or "flows"."""
    if plan.sim.network != "auto":
        return plan.sim.network
    on_server = policies.find(policy).family is policies.Family.PARAMETERS
    return "flows" if on_server or too_many_for_packets(plan) else "packets"


def why_flows(plan: Plan) -> str | None:
    """A sentence on policies that run as flows in virtual time because packets cannot carry them; None: there are none."""
    reason = too_many_for_packets(plan)
    names = [name for name in plan.run.policies if policies.find(name).family is not policies.Family.PARAMETERS]
    if plan.run.backend != "sim" or plan.sim.network != "auto" or reason is None or not names:
        return None
    return f"{join(names)} run{'s' if len(names) == 1 else ''} as flows, without packets (docs/flow-model.md): {reason}"


def check_settings(plan: Plan, backend: str) -> None:
    """Raises: UserError: the plan has a setting that the backend does not run (`only_on`, `values_only_on` in plan.py)."""
    for policy in plan.run.policies:
        _check_runs(f"run.policies = {policy!r}", policies.find(policy).backends, backend)
    for name in TABLES:
        table = getattr(plan, name)
        for field in dataclasses.fields(table):
            value = getattr(table, field.name)
            on = field.metadata.get("only_on", BACKENDS) if value != field.default else BACKENDS
            if isinstance(value, str):
                on = field.metadata.get("values_only_on", {}).get(value, on)
            key = f"{name}.{field.name}"
            _check_runs(f"{key} = {short(value)}", on, backend, INSTEAD.get(key, ""))


def _check_runs(setting: str, on: Sequence[str], backend: str, instead: str = "") -> None:
    """Args: on: backends that run it; instead: what else would do."""
    if backend not in on:
        raise UserError(f"{WITHOUT[backend]} cannot do {setting}: use {instead}--backend {' or '.join(on)}")
