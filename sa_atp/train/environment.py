"""A program's place in a job, and its settings, as far as the environment and the process group say them."""

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.train.groups import GROUP

# Settings that may come from the environment, with the variable, the type and the default of each.
_VARIABLES: dict[str, tuple[str, type, Any]] = {
    "job": ("SA_ATP_JOB", str, "default"),
    "help": ("SA_ATP_HELP", str, "none"),
    "micro_batches": ("SA_ATP_MICRO_BATCHES", int, 1),
    "bits": ("SA_ATP_BITS", int, 32),
    "join_timeout_s": ("SA_ATP_JOIN_TIMEOUT_S", float, 60.0),
    "operation_timeout_s": ("SA_ATP_OPERATION_TIMEOUT_S", float, 60.0),
    "server_timeout_s": ("SA_ATP_SERVER_TIMEOUT_S", float, 10.0),
}


def settings_of_environment(given: Mapping[str, Any]) -> dict[str, Any]:
    """Reads settings of a SaAtpState from variables, or takes their defaults where variables are not set.

    Args: given: settings that the program gives, whose variables are not read.
    Raises: UserError: a variable is not a number.
    """
    return {name: _from_environment(*variable) for name, variable in _VARIABLES.items() if name not in given}


def choice(variable: str) -> str:
    """Reads a choice from a variable: auto (also if it is not set), always or never. Raises: UserError: another word."""
    how = os.environ.get(variable, "auto")
    if how not in ("auto", "always", "never"):
        raise UserError(f"{variable} = {how}: expected auto, always or never")
    return how


def has_group() -> bool:
    """Whether the program has a default process group."""
    return dist.is_available() and dist.is_initialized()


def place_in_job(
    rank: int | None,
    world_size: int | None,
    process_group: dist.ProcessGroup | None,
    job: str,
    *,
    is_group_stated: bool,
) -> tuple[int, int]:
    """Returns a program's rank in its job, and the number of ranks.

    Args:
        rank, world_size: what the program says; None: as the process group or the environment say.
        process_group: of the ranks in the job; None: the default one, if there is one.
        job: its name.
        is_group_stated: whether the terms of the job say which ranks are in it.

    Raises: UserError: nothing says the place, or two things say different ones.
    """
    if process_group is not None or (rank is None and has_group()):
        place = dist.get_rank(process_group), dist.get_world_size(process_group)
        for name, said, found in zip(("rank", "world_size"), (rank, world_size), place, strict=True):
            if said not in (None, found):
                raise UserError(f"{name} = {said}, but it is {found} in the process group: leave it out")
    else:
        place = (
            rank if rank is not None else _number("SA_ATP_RANK", "RANK"),
            world_size if world_size is not None else _number("SA_ATP_WORLD_SIZE", "WORLD_SIZE"),
        )
        processes = dist.get_world_size() if has_group() else int(_from_environment("WORLD_SIZE", int, 0))
        if place[1] < processes and not is_group_stated:
            raise UserError(
                f"world_size = {place[1]}, but the program has {processes} processes, and nothing says which of them "
                f"are in job {job!r}: pass process_group=..., or a name that no other group's job has and "
                f'agree={{"{GROUP}": "the same text for these ranks alone"}}'
            )
    expected = os.environ.get("SA_ATP_WORLD_SIZE")
    if world_size is None and process_group is None and expected and expected != str(place[1]):
        raise UserError(f"SA_ATP_WORLD_SIZE = {expected}, but the process group has {plural(place[1], 'rank')}")
    return place


def _from_environment(variable: str, kind: type, default: Any) -> Any:
    value = os.environ.get(variable)
    if not value:
        return default
    with contextlib.suppress(ValueError):
        return kind(value)
    raise UserError(f"{variable} = {value!r}: expected {'a whole number' if kind is int else 'a number'}")


def _number(*variables: str) -> int:
    for variable in variables:
        if os.environ.get(variable):
            return int(_from_environment(variable, int, 0))
    raise UserError(
        f"neither a process group nor {' or '.join(variables)} says which rank this is: start it with torchrun, "
        "or call torch.distributed.init_process_group first"
    )
