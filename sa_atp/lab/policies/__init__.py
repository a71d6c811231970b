"""The registry of policies: one file each, found automatically. docs/policies.md describes them.

Plans, reports and documents take names, titles, colours and keys from here.
"""

import contextlib
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import join
from sa_atp.lab.policies.policy import Family, ParameterPolicy, PeerPolicy, PlanTables, Policy, SwitchPolicy
from sa_atp.steps.step import StepRunner

__all__ = [
    "Family",
    "ParameterPolicy",
    "PeerPolicy",
    "PlanTables",
    "Policy",
    "StepRunner",
    "SwitchPolicy",
    "find",
    "names",
    "parameter_policy",
    "registered",
    "settings",
    "switch_policy",
    "title",
]

_policies: dict[str, Policy] = {}


def names() -> tuple[str, ...]:
    """The names of all policies, in the order of lists and documents."""
    return tuple(_policies)


def find(name: str) -> Policy:
    """A policy by its name. Raises: UserError."""
    if name not in _policies:
        raise UserError(f"policy {name!r}: expected one of {', '.join(map(repr, _policies))}")
    return _policies[name]


def switch_policy(name: str) -> SwitchPolicy:
    """A synchronous policy by its name. Raises: UserError."""
    found = find(name)
    if not isinstance(found, SwitchPolicy):
        others = [p.name for p in _policies.values() if isinstance(p, SwitchPolicy)]
        raise UserError(f"policy {name!r} has no sums; expected one of {', '.join(map(repr, others))}")
    return found


def parameter_policy(name: str) -> ParameterPolicy:
    """A policy with parameters on a server, by its name. Raises: UserError."""
    found = find(name)
    if not isinstance(found, ParameterPolicy):
        others = [p.name for p in _policies.values() if isinstance(p, ParameterPolicy)]
        raise UserError(f"policy {name!r} has no server of parameters; expected one of {', '.join(map(repr, others))}")
    return found


def title(name: str) -> str:
    """The title of a policy in reports; of an unknown one, its name."""
    return _policies[name].title if name in _policies else name


def colours() -> dict[str, str]:
    """The colour of each policy in all figures."""
    return {name: policy.colour for name, policy in _policies.items()}


def settings() -> Mapping[str, type[Any]]:
    """The policies' own tables in plans, by name, with the dataclass of each."""
    found = {(p.table or p.name): p.settings for p in _policies.values() if p.settings is not None}
    return MappingProxyType(found)


def tables_of(wanted: tuple[str, ...]) -> list[str]:
    """The policies' own tables of these policies. Args: wanted: names; unknown ones have no table."""
    found = [p for name, p in _policies.items() if name in wanted and p.settings is not None]
    return list(dict.fromkeys(p.table or p.name for p in found))


@contextlib.contextmanager
def registered(policy: Policy) -> Iterator[Policy]:
    """Adds a policy for the duration of the block."""
    _add(policy)
    try:
        yield policy
    finally:
        del _policies[policy.name]


def _add(policy: Policy) -> None:
    """Adds a policy. Raises: ValueError: another policy has its name or its colour."""
    same = [p.name for p in _policies.values() if p.name == policy.name or p.colour == policy.colour]
    if same:
        raise ValueError(f"the policy {policy.name!r} has the name or the colour of {join(same)}")
    _policies[policy.name] = policy
    ordered = sorted(_policies.values(), key=lambda p: (p.place, p.name))
    _policies.clear()
    _policies.update((p.name, p) for p in ordered)


def _load() -> None:
    """Loads the policies of these two packages: the lists POLICIES of their modules."""
    for package in (__name__, "sa_atp.lab.parameters.policies"):
        folder = __path__ if package == __name__ else importlib.import_module(package).__path__
        for module in pkgutil.iter_modules(folder):
            for policy in getattr(importlib.import_module(f"{package}.{module.name}"), "POLICIES", ()):
                _add(policy)


_load()
