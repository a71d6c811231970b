"""The registry of policies: one file each, found automatically. docs/policies.md describes them.

Plans, reports and documents take names, titles, colours and keys from here. A user's own policies are registered, or named
in the environment variable SA_ATP_POLICIES: files or modules, with commas between them. Processes that are started from
here inherit it, and so know the same policies.
"""

import contextlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import join, one_of
from sa_atp.lab.peers.peer import Peer
from sa_atp.lab.policies.policy import Family, ParameterPolicy, PeerPolicy, PlanTables, Policy, SwitchPolicy
from sa_atp.steps.effects import StepRunner

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
    "only_here",
    "parameter_policy",
    "peer_policy",
    "peers",
    "register",
    "registered",
    "settings",
    "switch_policy",
    "title",
]

Kind = TypeVar("Kind", bound=Policy)
OWN = "SA_ATP_POLICIES"

_policies: dict[str, Policy] = {}
# by name of each policy of a user: its item in OWN; "" if only this process has it
_sources: dict[str, str] = {}
# items of OWN that are loaded at the first use: a user's file may import this package, which is not complete before
_not_loaded: list[str] = []


def _known() -> dict[str, Policy]:
    """All policies, by name. Raises: UserError: a policy that OWN names cannot be loaded."""
    while _not_loaded:
        _load_own(_not_loaded.pop(0))
    return _policies


def names() -> tuple[str, ...]:
    """The names of all policies, in the order of lists and documents."""
    return tuple(_known())


def find(name: str) -> Policy:
    """A policy by its name. Raises: UserError."""
    if name not in _known():
        raise UserError(f"policy {name!r}: {one_of(name, _known())}")
    return _known()[name]


def switch_policy(name: str) -> SwitchPolicy:
    """A synchronous policy by its name. Raises: UserError."""
    return _of_kind(name, SwitchPolicy, "no sums")


def parameter_policy(name: str) -> ParameterPolicy:
    """A policy with parameters on a server, by its name. Raises: UserError."""
    return _of_kind(name, ParameterPolicy, "no server of parameters")  # type: ignore[type-abstract]  # none is made


def peer_policy(name: str) -> PeerPolicy:
    """A policy whose sums are another protocol's or a library's, by its name. Raises: UserError."""
    return _of_kind(name, PeerPolicy, "this project's sums, or none")


def peers() -> dict[str, Peer]:
    """The protocols that have a switch program of their own, by the policy's name."""
    return {p.name: p.peer for p in _known().values() if isinstance(p, PeerPolicy) and p.peer is not None}


def _of_kind(name: str, kind: type[Kind], otherwise: str) -> Kind:
    """A policy of a kind. Args: otherwise: what a policy of another kind has."""
    found = find(name)
    if not isinstance(found, kind):
        others = [p.name for p in _known().values() if isinstance(p, kind)]
        raise UserError(f"policy {name!r} has {otherwise}; {one_of(name, others)}")
    return found


def title(name: str) -> str:
    """The title of a policy in reports; of an unknown one, its name."""
    return _known()[name].title if name in _known() else name


def colours() -> dict[str, str]:
    """The colour of each policy in all figures."""
    return {name: policy.colour for name, policy in _known().items()}


def settings() -> Mapping[str, type[Any]]:
    """The policies' own tables in plans, by name, with the dataclass of each."""
    found = {(p.table or p.name): p.settings for p in _known().values() if p.settings is not None}
    return MappingProxyType(found)


def tables_of(wanted: tuple[str, ...]) -> list[str]:
    """Returns the plan tables that some policies have of their own. Args: wanted: their names; unknown ones have none."""
    found = [p for name, p in _known().items() if name in wanted and p.settings is not None]
    return list(dict.fromkeys(p.table or p.name for p in found))


@contextlib.contextmanager
def registered(policy: Policy) -> Iterator[Policy]:
    """Adds a policy for the duration of the block."""
    _add(policy)
    try:
        yield policy
    finally:
        del _policies[policy.name]


# --- a user's own -----------------------------------------------------------------------------------------------------


def register(policy: Policy | type[Policy]) -> Policy:
    """Adds a policy of the user's own; one of the same name that was registered before is replaced.

    Args: policy: an instance without state, or a class of which one is made. Other processes of a run have it if it is
        defined in a file, or a module, that can be imported.

    Raises: UserError: it is not complete, or a policy of the project has its name or its colour.
    """
    made = _instance(policy)
    _known()  # its own name may be among those that are not loaded
    try:
        _add(made, replaces=made.name in _sources)
    except ValueError as error:
        raise UserError(str(error)) from None
    _keep(made.name, _source(made))
    return made


def forget(name: str) -> None:
    """Removes a registered policy. Raises: UserError: no policy of this name was registered."""
    if name not in _sources:
        raise UserError(f"policy {name!r}: expected one that was registered: {join(list(_sources)) or 'none was'}")
    del _policies[name]
    _keep(name, None)


def only_here(wanted: Iterable[str]) -> list[str]:
    """The policies, of these, that other processes cannot import: those that a notebook or the program itself defines."""
    return [name for name in wanted if _sources.get(name) == ""]


def _keep(name: str, source: str | None) -> None:
    """Records the origin of a policy, for this process and those that it starts. Args: source: None: it is removed."""
    if source is None:
        del _sources[name]
    else:
        _sources[name] = source
    items = dict.fromkeys(filter(None, _sources.values()))
    if items:
        os.environ[OWN] = ",".join(items)
    else:
        os.environ.pop(OWN, None)


def _instance(policy: Any) -> Policy:
    """Raises: UserError."""
    kind = policy if isinstance(policy, type) else type(policy)
    if not issubclass(kind, Policy):
        raise UserError(f"{policy!r} is no policy: expected a class derived from SwitchPolicy, or an instance of one")
    needed = [name for name in inspect.get_annotations(Policy) if not hasattr(Policy, name)]
    missing = [name for name in needed if not hasattr(kind, name)]
    missing += sorted(getattr(kind, "__abstractmethods__", ()))
    if missing:
        raise UserError(f"the policy {kind.__name__} has no {join(missing)}")
    try:
        made: Policy = policy() if isinstance(policy, type) else policy
    except TypeError as error:
        raise UserError(f"the policy {kind.__name__} cannot be made: {error}: give an instance") from None
    return made


def _source(policy: Policy) -> str:
    """The file or module from which another process can import a policy; "": there is none."""
    kind = type(policy)
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None or kind.__module__ == "__main__":
        return ""
    place = kind.__module__ if "." in kind.__module__ else str(Path(file).resolve())
    if set(place) & {",", ":"}:  # these separate items
        return ""
    if policy in getattr(module, "POLICIES", ()):
        return place
    is_plain = getattr(module, kind.__qualname__, None) is kind and not getattr(policy, "__dict__", None)
    return f"{place}:{kind.__qualname__}" if is_plain else ""


def _load_own(item: str) -> None:
    """Loads policies. Args: item: a file or module that has POLICIES, or FILE:CLASS, or MODULE:CLASS. Raises: UserError."""
    place, _, name = item.partition(":")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        found = [getattr(module, name)] if name else list(module.POLICIES)
    except (ImportError, OSError, AttributeError) as error:
        raise UserError(f"{OWN}: {item}: no policies can be had from there: {error}") from None
    for policy in found:
        if (name := getattr(policy, "name", "")) not in _sources:
            made = _instance(policy)
            try:
                _add(made)
            except ValueError as error:
                raise UserError(f"{OWN}: {item}: {error}") from None
            _sources[name] = item


def _from_file(path: Path) -> ModuleType:
    """A module of its own name, whatever folder it is in."""
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path.resolve()):
        return loaded
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


# --- loading ----------------------------------------------------------------------------------------------------------


def _add(policy: Policy, *, replaces: bool = False) -> None:
    """Adds a policy. Args: replaces: the one of the same name. Raises: ValueError: another has its name or its colour."""
    others = [p for p in _policies.values() if not (replaces and p.name == policy.name)]
    if policy.name in (p.name for p in others):
        raise ValueError(f"the policy {policy.name!r} has the name of another one")
    same = [p.name for p in others if p.colour == policy.colour]
    if same:
        raise ValueError(f"the policy {policy.name!r} has the colour of {join(same)}, {policy.colour}")
    ordered = sorted([*others, policy], key=lambda p: (p.place, p.name))
    _policies.clear()
    _policies.update((p.name, p) for p in ordered)


def _load() -> None:
    """Loads the policies of these two packages: the lists POLICIES of their modules."""
    for package in (__name__, "sa_atp.lab.parameters.policies"):
        folder = __path__ if package == __name__ else importlib.import_module(package).__path__
        for module in pkgutil.iter_modules(folder):
            for policy in getattr(importlib.import_module(f"{package}.{module.name}"), "POLICIES", ()):
                _add(policy)
    _not_loaded.extend(filter(None, (part.strip() for part in os.environ.get(OWN, "").split(","))))


_load()
