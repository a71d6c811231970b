"""What a test needs of the machine: `@pytest.mark.needs("ip", "root")`. Where it lacks something, it skips and says so.

A need is a program that sa_atp/basics/needs.py declares, a Python module of its OPTIONAL, or one of ABILITIES.
"""

import importlib.util
import os
import subprocess
from collections.abc import Callable
from functools import cache

import pytest

from sa_atp.basics import needs
from sa_atp.lab.backends.mininet import parts
from sa_atp.net.sockets import namespace


def _is_root() -> str | None:
    return None if os.geteuid() == 0 else "this user is not root: run the tests as root"


def _is_ordinary() -> str | None:
    return "this user is root: run the tests as another" if os.geteuid() == 0 else None


@cache
def _has_namespaces() -> str | None:
    done = subprocess.run(namespace.inside("true"), capture_output=True, text=True, check=False, timeout=60)
    return done.stderr.strip() if done.returncode else None


def _has_torchft() -> str | None:
    if os.environ.get("SA_ATP_TORCHFT"):
        return None
    return (
        "SA_ATP_TORCHFT does not name the Python of an environment with torchft: docs/pytorch.md says how to make one"
    )


ABILITIES: dict[str, Callable[[], str | None]] = {
    "root": _is_root,
    "an ordinary user": _is_ordinary,
    "namespaces": _has_namespaces,
    "torchft": _has_torchft,
}


def lack(name: str) -> str | None:
    """Why a need is not met here, and how it could be; None if it is. Raises: KeyError: there is no such need."""
    if name in ABILITIES:
        return ABILITIES[name]()
    if name in needs.OPTIONAL:
        distribution = needs.OPTIONAL[name][0]
        if importlib.util.find_spec(name) is not None:
            odds = needs.at_odds(distribution) if distribution in needs.APART else None
            return ": ".join(odds) if odds else None
        return f"{distribution} is not installed: {needs.how_to_install(distribution)}"
    return None if needs.find(name) else f"{name} is not on this machine: {needs.PROGRAMS[name].how}"


MININET = pytest.mark.needs("root", *parts.PROGRAMS, "mininet", "namespaces")
VETH = pytest.mark.needs("namespaces", "ip")
BMV2 = pytest.mark.needs("simple_switch_grpc")
BMV2_STF = pytest.mark.needs("simple_switch_grpc", "simple_switch_CLI")
