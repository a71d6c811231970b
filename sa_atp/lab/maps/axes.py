"""The axes of a map: a key of plans, or a named quantity, such as the severity of the straggler, that sets keys."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.inputs import parse_toml
from sa_atp.basics.words import join, meant
from sa_atp.lab.flow.fabric import FRAME_BYTES
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.report import sweep
from sa_atp.lab.runs.tasks import make_workload
from sa_atp.lab.simulator.network import WIRE_OVERHEAD_BYTES
from sa_atp.protocol.numbers.fragments import plan_of
from sa_atp.protocol.packets.header import size_of
from sa_atp.protocol.packets.spec import Kind

MOST_VALUES = 32

Overrides = dict[str, Any]
Change = Callable[[Plan, Any], Overrides]
"""The keys that a value changes in a plan. Raises: UserError: the plan has no such quantity."""


@dataclass(frozen=True, slots=True)
class _Named:
    title: str
    change: Change
    values: tuple[float, ...]
    """If the user names none."""
    place: int
    """Changes are made in this order: one may depend on keys that another has changed."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis, and its values in the order of the picture."""

    name: str
    """A key of plans, or one of NAMED."""
    values: tuple[Any, ...]

    def title(self, plan: Plan) -> str:
        """The label of the axis in a map of a plan."""
        if self.name in NAMED:
            return SEVERITIES.get(plan.straggler.pattern if self.name == "severity" else "", NAMED[self.name].title)
        known = sweep.KEYS.get(self.name)
        return f"{known} ({self.name})" if known else self.name

    @property
    def place(self) -> int:
        """The place of its change among those of a plan's axes."""
        return NAMED[self.name].place if self.name in NAMED else 0

    def label(self, value: Any) -> str:
        """The label of a value."""
        return sweep.label(value, "network.loss" if self.name == "loss" else self.name)

    def changed(self, plan: Plan, value: Any, path: str) -> Plan:
        """The plan with one of the values. Args: path: the plan's. Raises: UserError."""
        at = f", {self.name} = {value!r}"
        if self.name not in NAMED:
            return plan_files.changed(plan, {self.name: value}, path, at)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{path}{at}: expected a number")
        try:
            overrides = NAMED[self.name].change(plan, value)
        except UserError as error:
            raise UserError(f"{path}{at}: {error}") from None
        return plan_files.changed(plan, overrides, path, at)


def parse(said: str | Mapping[str, Iterable[Any]], option: str) -> Axis:
    """Reads an axis.

    Args:
        said: `NAME=VALUE,VALUE,...`, the values as TOML has them; the NAME of a named axis alone, which has values of its
            own; or a mapping of the one name to its values.
        option: the name of the argument, for messages.

    Raises: UserError.
    """
    if isinstance(said, Mapping):
        if len(said) != 1:
            raise UserError(
                f'{option} = {dict(said)!r}: expected one name and its values, such as {{"severity": [1, 2]}}'
            )
        ((name, given),) = said.items()
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise UserError(f"{option}: {name} = {given!r}: expected several values, in a list")
        values = [plan_files.as_in_toml(value) for value in given]
    else:
        name, equals, text = said.partition("=")
        values = _values(text, option, said) if equals else list(NAMED[name].values) if name in NAMED else []
    table, dot, key = name.partition(".")
    if name not in NAMED and not (table and dot and key):
        raise UserError(
            f"{option} {name}: expected a key of plans, like topology.workers, or one of {join(NAMED)}"
            f"{meant(name, NAMED)}"
        )
    if not 2 <= len(values) <= MOST_VALUES:
        raise UserError(f"{option} {name}: {len(values)} values: expected 2 to {MOST_VALUES}, for example {name}=1,2,4")
    if any(value in values[:n] for n, value in enumerate(values)):
        raise UserError(f"{option} {name}: a value is there twice")
    return Axis(name, tuple(values))


def _values(text: str, option: str, said: str) -> list[Any]:
    try:
        return list(parse_toml(f"x = [{text}]", option)["x"])
    except UserError:
        words = [word.strip() for word in text.split(",")]  # bare words are strings
    if not all(word.replace("-", "").replace("+", "").isalnum() for word in words):
        raise UserError(f"{option} {said}: expected NAME=VALUE,VALUE,..., with values as in a plan file")
    return words


def placed(plan: Plan, at: Iterable[tuple[Axis, Any]], path: str) -> Plan:
    """The plan of a point. Args: at: the axes, each with its value; path: the plan's. Raises: UserError."""
    for axis, value in sorted(at, key=lambda each: each[0].place):
        plan = axis.changed(plan, value, path)
    return plan


# --- named axes: each sets several keys -------------------------------------------------------------------------------


def _severity(plan: Plan, value: float) -> Overrides:
    """The slow-down of a straggler, or its mean; pauses in iterations; of contended links the share that is taken."""
    straggler = plan.straggler
    if straggler.pattern == "constant":
        return {"straggler.slowdown": value}
    if straggler.pattern == "contention":
        return {"straggler.share": 1.0 / max(value, 1.0)}
    if straggler.pattern == "random":
        return {"straggler.slowdown_range": _scaled(straggler.slowdown_range, value - 1, over=1.0)}
    if straggler.pattern == "random-pause":
        return {"straggler.pause_range": _scaled(straggler.pause_range, value)}
    if straggler.pattern == "pause":
        return {"straggler.pause_s": value * plan.job.shard_us / 1e6}
    raise UserError(
        f"straggler.pattern = {straggler.pattern!r} has no severity: expected constant, random, pause, random-pause or "
        "contention"
    )


def _scaled(span: tuple[float, ...], mean: float, *, over: float = 0.0) -> list[float]:
    """A range whose mean, above `over`, is another one, and whose ends are in the same proportion."""
    middle = sum(span) / 2 - over
    if mean < 0 or middle <= 0:
        raise UserError(f"expected {over:g} or more, and a range of the plan above {over:g}")
    return [over + (end - over) * mean / middle for end in span]


def _static(plan: Plan, share: float) -> Overrides:
    """Divides the time that the straggler of a step loses between one worker, slow in all steps, and another in each."""
    straggler = plan.straggler
    if straggler.pattern != "random" or plan.job.speeds:
        raise UserError('expected a plan with straggler.pattern = "random", and without job.speeds')
    if not 0 <= share <= 1:
        raise UserError("expected a share of 0 to 1")
    lost = sum(straggler.slowdown_range) / 2 - 1
    speeds = [1.0] * (plan.topology.workers - 1) + [1 / (1 + share * lost)]
    span = _scaled(straggler.slowdown_range, (1 - share) * lost, over=1.0) if lost else [1.0, 1.0]
    return {"job.speeds": speeds, "straggler.slowdown_range": span}


def _workers(plan: Plan, count: float) -> Overrides:
    """Another number of workers: lists of speeds and links are repeated, and slow workers stay below the number."""
    if not isinstance(count, int) or count < 1:
        raise UserError("expected a whole number of workers")
    found: Overrides = {"topology.workers": count}
    found |= {
        key: [of[n % len(of)] for n in range(count)]
        for key, of in (("job.speeds", plan.job.speeds), ("topology.worker_mbps", plan.topology.worker_mbps))
        if of
    }
    slow = list(dict.fromkeys(min(worker, count - 1) for worker in plan.straggler.workers))
    return found | {"straggler.workers": slow}


def _compute_to_send(plan: Plan, ratio: float) -> Overrides:
    """Another rate of all links, with which a shard takes so many times as long to compute as its gradient to send."""
    if ratio <= 0 or plan.topology.worker_mbps:
        raise UserError("expected more than 0, and a plan without topology.worker_mbps")
    if not plan.job.shard_us:
        raise UserError("expected a plan in which computing takes time")
    return {"topology.link_mbps": gradient_bits(plan) * ratio / plan.job.shard_us}


def gradient_bits(plan: Plan) -> int:
    """Bits of one worker's gradient on the wire, with all headers and gaps."""
    values = make_workload(plan, 0).values
    packet = size_of(Kind.DATA, plan.lanes, plan.contribution_bits) + FRAME_BYTES + WIRE_OVERHEAD_BYTES
    return 8 * plan_of(values, plan.lanes, plan.contribution_bits).data_fragments * packet


def _loss(plan: Plan, share: float) -> Overrides:
    return {"network.loss": share}


def _slots(plan: Plan, count: float) -> Overrides:
    """Another number of slots of the switch, for this project's protocol and for SwitchML's, if it runs."""
    theirs = {"switchml.slots": count} if "switchml" in plan.run.policies else {}
    return {"switch.slots": count} | theirs


SEVERITIES = {
    "pause": "severity: length of a pause, in iterations",
    "random-pause": "severity: mean length of a pause, in iterations",
    "contention": "severity: slow-down of a link in a spell",
}
"""Titles of the axis `severity` by pattern, where it is not the slow-down of a worker."""
NAMED = {
    "workers": _Named("number of workers", _workers, (3, 4, 6, 8, 10, 12, 14, 16), 1),
    "severity": _Named("severity: slow-down of the straggler", _severity, (1, 1.5, 2, 3, 4, 6, 8, 12), 2),
    "static": _Named("share of the slowness that is static", _static, (0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1), 3),
    "loss": _Named("packets lost by each link", _loss, (0, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.02, 0.05), 4),
    "compute-to-send": _Named("computing time over sending time", _compute_to_send, (0.25, 0.5, 1, 2, 4, 8, 16, 32), 5),
    "slots": _Named("slots of the switch", _slots, (4, 8, 16, 32, 64, 128, 256, 512), 6),
}
