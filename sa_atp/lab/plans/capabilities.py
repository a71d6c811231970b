"""Settings of a plan that only some backends support, and the simulated backend's choice of packets or flows."""

from collections.abc import Mapping

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import join
from sa_atp.lab import policies
from sa_atp.lab.plans.plan import V1MODEL, Plan
from sa_atp.protocol.packets.spec import MOST_RANKS, WIDE_BUILDS
from sa_atp.switches.artefacts import most_contributions

ONLY_BACKEND = {"bmv2": "mininet", "tofino-model": "sim", "tofino2-model": "sim"}  # the only backend of some switches
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


def only_links(plan: Plan) -> str | None:
    """The first setting of a plan that needs emulated or simulated links, as "table.key = value"; None: there is none."""
    contended = plan.straggler.pattern if plan.straggler.pattern == "contention" else None
    wanted = {
        "topology.worker_mbps": plan.topology.worker_mbps,
        "topology.trunk_mbps": plan.topology.trunk_mbps,
        "straggler.pattern": contended,
        "straggler.by": plan.straggler.by if plan.straggler.by == "congestion" else None,
    }
    return _first(wanted)


def check_switch(plan: Plan, backend: str) -> None:
    """Raises: UserError: the backend does not run the plan's switch."""
    only = ONLY_BACKEND.get(plan.switch.program, backend)
    if only != backend:
        raise UserError(
            f"the backend {backend} does not run the switch {plan.switch.program}: use --switch embedded, "
            f"or --backend {only}"
        )


def only_mininet(plan: Plan) -> str | None:
    """The first setting of a plan that only an emulated network can give, as for `only_links`."""
    wanted = {
        "run.policies": [p for p in plan.run.policies if policies.find(p).backends == ("mininet",)],
        "topology.kind": plan.topology.kind if plan.topology.kind in ("dumbbell", "file") else None,
        "job.jobs": plan.job.jobs if plan.job.jobs > 1 else None,
        "job.device": plan.job.device if plan.job.device != "emulated" else None,
        "straggler.by": plan.straggler.by if plan.straggler.by not in ("device", "congestion") else None,
        "traffic": plan.traffic if plan.traffic.is_wanted else None,
        "switch.pcap": plan.switch.pcap,
    }
    return _first(wanted)


def _first(wanted: Mapping[str, object]) -> str | None:
    return next((f"{key} = {value!r}" for key, value in wanted.items() if value), None)
