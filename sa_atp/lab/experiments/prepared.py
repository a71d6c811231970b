"""Prepares plans to be run: finds them by name, applies overrides, and sets backend and switch."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.inputs import read_text
from sa_atp.basics.words import one_of
from sa_atp.lab import policies as known_policies
from sa_atp.lab.plans import plan_files, sweep, used
from sa_atp.lab.plans.capabilities import why_flows
from sa_atp.lab.plans.plan import SWITCHES, Plan, placed
from sa_atp.lab.plans.plan_files import Overrides
from sa_atp.lab.policies.policy import BACKENDS, Policy
from sa_atp.switches import artefacts

NAME = "plan"  # stands for the path of a plan that was made in Python


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked plan, and its origin."""

    plan: Plan
    path: str
    """The path of its file; for a plan that was made in Python, `NAME`."""
    name: str
    """The plan's name, for names of folders."""
    command: tuple[str, ...]
    """A command line that runs the plan again, for the manifest; empty: there is none."""
    overridden: tuple[str, ...] = ()
    """The keys that have other values than in its file."""

    def remarks(self, *varied: str) -> list[str]:
        """What is to be known before a plan runs: each key that has no effect (used.remarks), and why it runs as flows.

        Args: varied: keys that have further values than the plan's.
        """
        found = used.remarks(self.plan, self.overridden, (*varied, self.plan.sweep.key))
        points = sweep.points(self.plan, self.path) if self.plan.sweep.key else ()
        reasons = [why_flows(plan) for plan in [point.plan for point in points] or [self.plan]]
        return [*found, *dict.fromkeys(filter(None, reasons))]


PlanLike = str | Path | Plan | Prepared
"""The name of one of the project's plans, a path, or the plan itself."""


def prepare(
    plan: PlanLike,
    overrides: Overrides = (),
    *,
    backend: str = "auto",
    switch: str = "auto",
    policies: Iterable[str | Policy | type[Policy]] | None = None,
    command: Iterable[str] = (),
) -> Prepared:
    """Reads and checks a plan.

    Args:
        backend, switch: "auto": the plan's.
        policies: the policies to compare, in place of the plan's: names, or policies of the caller, which are registered.
        command: the command line of the user; default: the equivalent one.

    Raises: UserError.
    """
    _one_of("backend", backend, BACKENDS)
    _one_of("switch", switch, SWITCHES)
    if policies is not None:
        wanted = {"run.policies": [_named(policy) for policy in _listed(policies)]}
        overrides = _with(overrides, wanted)
    said = plan_files.overridden(overrides)
    if isinstance(plan, Prepared):
        said = (*plan.overridden, *said)
        found = plan_files.changed(plan.plan, overrides, plan.path) if overrides else plan.plan
        again = (*plan.command, *_options(overrides, backend, switch)) if plan.command else ()
        return Prepared(placed(found, backend, switch), plan.path, plan.name, tuple(command) or again, said)
    if isinstance(plan, Plan):
        return Prepared(placed(_checked(plan, overrides), backend, switch), NAME, NAME, tuple(command), said)
    if not isinstance(plan, str | Path):
        raise UserError(f"plan = {plan!r}: expected a plan's name, a path of a plan file, or a Plan")
    path = artefacts.plan_file(Path(plan))
    found = plan_files.load(path, overrides)
    again = ("sa-atp", "run", str(plan), *_options(overrides, backend, switch))
    return Prepared(placed(found, backend, switch), str(path), Path(plan).stem, tuple(command) or again, said)


def plans() -> dict[str, str]:
    """The project's own plans: name and description."""
    return {name: _first_paragraph(read_text(path)) for name, path in artefacts.plan_files().items()}


def _first_paragraph(text: str) -> str:
    """The first paragraph of the comment at the top of a plan file."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("# "):
            break
        lines.append(line.removeprefix("# "))
    return " ".join(lines)


def _checked(plan: Plan, overrides: Overrides) -> Plan:
    try:
        return plan_files.changed(plan, overrides, NAME)
    except (TypeError, AttributeError) as error:
        raise UserError(f"{NAME}: a table is not of its class, as RunPlan is for `run` ({error})") from None


def _listed(policies: Any) -> list[Any]:
    if isinstance(policies, str) or not isinstance(policies, Iterable):
        raise UserError(f'policies = {policies!r}: expected a list, such as ["atp", "sa-atp"]')
    return list(policies)


def _named(policy: Any) -> Any:
    """Returns the name of a policy, and registers the policy if it is the caller's own."""
    if isinstance(policy, Policy) or (isinstance(policy, type) and issubclass(policy, Policy)):
        return known_policies.register(policy).name
    return policy


def _with(overrides: Overrides, more: Mapping[str, Any]) -> Overrides:
    if isinstance(overrides, Mapping):
        return {**overrides, **more}
    return [*overrides, *(f"{key}={json.dumps(value)}" for key, value in more.items())] if overrides else more


def _one_of(what: str, value: str, allowed: Iterable[str]) -> None:
    if value not in ("auto", *allowed):
        raise UserError(f"{what} = {value!r}: {one_of(value, ('auto', *allowed))}")


def _options(overrides: Overrides, backend: str, switch: str) -> list[str]:
    """The equivalent options of the command line."""
    texts = (
        overrides
        if not isinstance(overrides, Mapping)
        else [f"{key}={json.dumps(plan_files.as_in_toml(value))}" for key, value in overrides.items()]
    )
    words = [word for text in texts for word in ("--set", text)]
    for option, value in (("--backend", backend), ("--switch", switch)):
        words += [option, value] if value != "auto" else []
    return words
