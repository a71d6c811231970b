"""Python packages and programs: each is really imported, or run, in a process of its own."""

import platform
import shutil
import sys
from dataclasses import dataclass

from sa_atp.doctor.finding import Finding, attempt

OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """code: Python that uses the package and prints its version."""

    name: str
    code: str
    how: str


def _version_of(distribution: str) -> str:
    return f"from importlib.metadata import version; print(version({distribution!r}))"


_BASE = "pip install sa_atp (scripts/demo does)"
PACKAGES = (
    Package(name="numpy", code=f"import numpy; numpy.zeros(1) + 1; {_version_of('numpy')}", how=_BASE),
    Package(
        name="numba", how=_BASE,
        code=f"import numba; f = numba.njit(lambda x: x + 1); assert f(1) == 2; {_version_of('numba')}",
    ),
    Package(
        name="grpc", how=_BASE,
        code=f"import grpc; grpc.insecure_channel('localhost:1').close(); {_version_of('grpcio')}",
    ),
    Package(
        name="p4runtime", how=_BASE + "; p4runtime 1.4.1 needs protobuf < 3.21",
        code=f"from p4.v1 import p4runtime_pb2 as p; p.Entity().SerializeToString(); {_version_of('p4runtime')}",
    ),
    Package(name="p4runtime-shell", code=f"import p4runtime_sh.shell; {_version_of('p4runtime-shell')}", how=_BASE),
    Package(name="scapy", code=f"import scapy.layers.inet; {_version_of('scapy')}", how=_BASE),
    Package(name="rich", code=f"import rich.table; {_version_of('rich')}", how=_BASE),
    Package(
        name="scikit-learn", how="pip install 'sa_atp[torch]'",
        code=f"import sklearn.datasets; {_version_of('scikit-learn')}",
    ),
    Package(
        name="matplotlib", how="pip install 'sa_atp[report]'",
        code=f"import matplotlib; matplotlib.use('Agg'); import matplotlib.pyplot; {_version_of('matplotlib')}",
    ),
    Package(name="mininet", code=f"import mininet.net; {_version_of('mininet')}", how="pip install 'sa_atp[mininet]'"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """arguments: what makes it say its version, or prove that it runs, with status 0."""

    name: str
    arguments: tuple[str, ...]
    how: str
    said: bool = True
    """Its last line is worth showing."""


_P4LANG = "the p4lang packages (https://github.com/p4lang/p4c) or images (docker: p4lang/p4c) have it"
PROGRAMS = (
    Program(name="mnexec", arguments=("-v",), how="apt-get install mininet"),
    Program(name="ip", arguments=("-V",), how="apt-get install iproute2"),
    Program(name="tc", arguments=("-V",), how="apt-get install iproute2"),
    Program(name="ifconfig", arguments=("--version",), how="apt-get install net-tools", said=False),
    Program(name="ethtool", arguments=("--version",), how="apt-get install ethtool"),
    Program(name="iperf3", arguments=("--version",), how="apt-get install iperf3", said=False),
    Program(name="ping", arguments=("-V",), how="apt-get install iputils-ping"),
    Program(name="p4c-bm2-ss", arguments=("--version",), how=_P4LANG),
    Program(name="simple_switch_grpc", arguments=("--version",), how=_P4LANG.replace("p4c", "behavioral-model")),
)


def python() -> Finding:
    version = platform.python_version()
    return Finding(
        name="python",
        ok=sys.version_info >= OLDEST_PYTHON,
        detail=f"{version} at {sys.executable}",
        how="apt-get install python3 python3-venv, of Debian 12 or newer",
    )


def package(wanted: Package) -> Finding:
    ok, said = attempt([sys.executable, "-W", "ignore", "-c", wanted.code])
    return Finding(name=wanted.name, ok=ok, detail=said, how=wanted.how)


def program(wanted: Program) -> Finding:
    path = shutil.which(wanted.name)
    if path is None:
        return Finding(name=wanted.name, ok=False, detail="not on PATH", how=wanted.how)
    ok, said = attempt([path, *wanted.arguments], timeout_s=20.0)
    return Finding(
        name=wanted.name, ok=ok, detail=f"{path} ({said})" if wanted.said or not ok else path, how=wanted.how
    )


def torch() -> list[Finding]:
    """PyTorch, and the GPUs that it can use: both from one import, which takes seconds. Nothing here needs a GPU."""
    code = (
        "import torch; assert torch.ones(2).sum() == 2; n = torch.cuda.device_count(); "
        "print(torch.__version__, *(torch.cuda.get_device_name(i) for i in range(n)), sep='|')"
    )
    ok, said = attempt([sys.executable, "-W", "ignore", "-c", code])
    how = "pip install torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu"
    version, *gpus = said.split("|") if ok else [said]
    return [
        Finding(name="torch", ok=ok, detail=version, how=how),
        Finding(
            name="gpu", ok=bool(gpus), detail=", ".join(gpus) or "none that PyTorch can use",
            how="not needed: training runs on the CPU",
        ),
    ]  # fmt: skip
