"""Python packages and programs: each is really imported, or run, in a process of its own."""

import platform
import sys
from dataclasses import dataclass

from sa_atp.basics import needs
from sa_atp.doctor.finding import Finding, attempt, remedy

OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A distribution's name, and Python code that uses it and prints its version."""

    name: str
    code: str
    finding: str = ""
    """The name of its finding (default: that of the distribution)."""


def _version_of(distribution: str) -> str:
    return f"from importlib.metadata import version; print(version({distribution!r}))"


PACKAGES = (
    Package(name="numpy", code=f"import numpy; numpy.zeros(1) + 1; {_version_of('numpy')}"),
    Package(
        name="numba",
        code=f"import numba; f = numba.njit(lambda x: x + 1); assert f(1) == 2; {_version_of('numba')}",
    ),
    Package(
        name="grpcio",
        finding="grpc",
        code=f"import grpc; grpc.insecure_channel('localhost:1').close(); {_version_of('grpcio')}",
    ),
    Package(
        name="protobuf",
        finding="p4runtime",
        code="from sa_atp.switches.p4runtime.messages import p4runtime_pb2 as p; p.Entity().SerializeToString(); "
        "from google.protobuf import __version__ as v; print(f'messages, by protobuf {v}')",
    ),
    Package(name="p4runtime-shell", code=f"import p4runtime_sh.shell; {_version_of('p4runtime-shell')}"),
    Package(name="scapy", code=f"import scapy.layers.inet; {_version_of('scapy')}"),
    Package(name="rich", code=f"import rich.table; {_version_of('rich')}"),
    Package(name="scikit-learn", code=f"import sklearn.datasets; {_version_of('scikit-learn')}"),
    Package(
        name="matplotlib",
        code=f"import matplotlib; matplotlib.use('Agg'); import matplotlib.pyplot; {_version_of('matplotlib')}",
    ),
    Package(name="jinja2", code=f"import jinja2; {_version_of('jinja2')}"),
    Package(name="mininet", code=f"import mininet.net; {_version_of('mininet')}"),
)

PROGRAMS = tuple(program for program in needs.PROGRAMS.values() if not program.essential)
# called only by scripts and tests of a checkout
CHECKOUT_ONLY = ("p4c-bm2-ss", "p4c-barefoot", "bfas", "shellcheck", "chromium", "zsh", "fish", "docker")
WITHOUT_VERSION_LINE = ("ifconfig", "iperf3", "shellcheck", "simple_switch_CLI")  # programs that print no version last


def python() -> Finding:
    version = platform.python_version()
    return Finding(
        name="python",
        ok=sys.version_info >= OLDEST_PYTHON,
        detail=f"{version} at {sys.executable}",
        how="apt-get install python3 python3-venv, of Debian 12 or newer",
    )


def programs() -> list[needs.Program]:
    """The programs that this installation may call."""
    return [each for each in PROGRAMS if needs.checkout() is not None or each.name not in CHECKOUT_ONLY]


def package(wanted: Package) -> Finding:
    """Tries a package. If it fails, versions that do not go together explain it better than its error."""
    ok, said = attempt([sys.executable, "-W", "ignore", "-c", wanted.code], tells_shortage=True)
    odds = None if ok else needs.at_odds(wanted.name)
    said, how = odds or (said, remedy(said, needs.how_to_install(wanted.name)))
    return Finding(name=wanted.finding or wanted.name, ok=ok, detail=said, how=how)


def program(wanted: needs.Program) -> Finding:
    path = needs.find(wanted.name)
    if path is None:
        return Finding(name=wanted.name, ok=False, detail=f"not on PATH, for {wanted.use}", how=wanted.how)
    ok, said = attempt([str(path), *wanted.version], timeout_s=20.0) if wanted.version else (True, "")
    tells = not ok or (wanted.version and wanted.name not in WITHOUT_VERSION_LINE)
    return Finding(
        name=wanted.name, ok=ok, detail=f"{path} ({said})" if tells else str(path), how=remedy(said, wanted.how)
    )


def torch() -> list[Finding]:
    """PyTorch, and the GPUs that it can use: both from one import, which takes seconds. Nothing here needs a GPU."""
    code = (
        "import torch; assert torch.ones(2).sum() == 2; n = torch.cuda.device_count(); "
        "print(torch.__version__, *(torch.cuda.get_device_name(i) for i in range(n)), sep='|')"
    )
    ok, said = attempt([sys.executable, "-W", "ignore", "-c", code], tells_shortage=True)
    version, *gpus = said.split("|") if ok else [said]
    return [
        Finding(name="torch", ok=ok, detail=version, how=remedy(said, needs.how_to_install("torch"))),
        Finding(
            name="gpu", ok=bool(gpus), detail=", ".join(gpus) or "none that PyTorch can use",
            how="not needed: training runs on the CPU",
        ),
    ]  # fmt: skip
