"""The commands of the project, what each needs, and which would run here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sa_atp.basics import needs
from sa_atp.doctor.finding import Finding

_CORE = ("python", "kernel", "limits", "numpy", "numba", "grpc", "p4runtime", "p4 programs", "cache", "udp loopback")
_TRAINING = ("torch", "scikit-learn", "matplotlib", "rich")
_VETH = ("ip", "namespaces", "veth")
_MININET = (
    "root",
    "mininet",
    "mnexec",
    "ip",
    "tc",
    "ifconfig",
    "packet sockets",
    "mininet nodes",
)

DEMO = "sa-atp run demo (--backend local)"
NEEDS: Mapping[str, tuple[str, ...]] = {
    DEMO: (*_CORE, *_TRAINING),
    "sa-atp run --backend sim": ("python", "limits", "numpy", "numba", "p4 programs", "cache", *_TRAINING),
    "sa-atp run --backend mininet": (*_CORE, *_TRAINING, *_MININET),
    "sa-atp run --backend mininet --switch bmv2": (*_CORE, *_TRAINING, *_MININET, "simple_switch_grpc"),
    "sa-atp up, sa-atp bench allreduce": _CORE,
    "sa-atp bench allreduce --against gloo": (*_CORE, "torch"),
    "sa-atp switch with --udp ports": _CORE,
    "sa-atp switch with interfaces": (*_CORE, "packet sockets"),
    "sa-atp deploy, sa-atp job": ("python", "numpy", "grpc", "p4runtime", "p4 programs"),
    "sa-atp stf, sa-atp bench switch": _CORE,
    "sa-atp bench switch, over veth pairs": (*_CORE, *_VETH),
    "sa-atp bench switch --against bmv2": (*_CORE, *_VETH, "simple_switch_grpc"),
    "sa-atp stf --target bmv2": (*_CORE, "simple_switch_grpc", "simple_switch_CLI"),
    "sa-atp stf --target tofino-model": (*_CORE, "p4runtime", "tofino_test_harness"),
    "sa-atp stf --target tofino2-model": (*_CORE, "p4runtime", "jbay_test_harness"),
    "p4runtime-shell": ("p4runtime-shell",),
    "sa-atp dissect": ("python", "numpy", "scapy"),
}
IN_A_CHECKOUT: Mapping[str, tuple[str, ...]] = {
    "scripts/demo": NEEDS[DEMO],
    "scripts/compile": ("p4c-bm2-ss",),
    "scripts/tofino compile": ("p4c-barefoot", "bfas"),
    "docker compose up": ("docker",),
}
"""Commands of a checkout, which a wheel does not have."""


def offered() -> Mapping[str, tuple[str, ...]]:
    """The commands that this installation has, and what each needs."""
    return NEEDS if needs.checkout() is None else {**IN_A_CHECKOUT, **NEEDS}


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    name: str
    missing: tuple[str, ...]
    """Names of findings; empty if the command would run."""


def commands(findings: Iterable[Finding]) -> list[Command]:
    good = {finding.name for finding in findings if finding.ok}
    return [
        Command(name=name, missing=tuple(part for part in parts if part not in good))
        for name, parts in offered().items()
    ]
