"""Requirements of Mininet runs on the machine, with a one-line error for each that is missing."""

import os
import re
import subprocess
from functools import cache

from sa_atp.basics import needs
from sa_atp.basics.errors import MissingPartError
from sa_atp.lab.backends.mininet import trial
from sa_atp.lab.backends.mininet.layout import NetworkLayout
from sa_atp.net.sockets import namespace

PROGRAMS = ("mnexec", "ip", "tc", "ifconfig")
TRAFFIC = ("iperf3",)
BMV2 = "simple_switch_grpc"


def require(layout: NetworkLayout, *, switch: str = "embedded", traffic: bool = False) -> None:
    """Checks the requirements of a network. Args: traffic: whether background traffic is used. Raises: MissingPartError."""
    if os.geteuid() != 0:
        raise MissingPartError("Mininet makes network namespaces: run it as root (sudo), or use --backend local")
    needs.require("Mininet runs need", *PROGRAMS, *(TRAFFIC if traffic else ()))
    needs.require_modules("Mininet runs need the Python module", "mininet")
    if found := _problem(layout.queues(joins=joins(switch))):
        raise MissingPartError(f"Mininet cannot build this network here: {found}")
    if switch == "bmv2" and needs.find(BMV2) is None:
        raise MissingPartError(
            f"BMv2 is not installed: {BMV2} is neither on PATH nor in $SA_ATP_BMV2 (p4lang's packages or images have it); "
            "--switch embedded runs the same program"
        )


@cache
def has_netem() -> bool:
    """Whether the kernel can delay and lose packets by itself."""
    return _can("sh", "-c", "ip link set lo up && tc qdisc add dev lo root netem delay 1ms")


def joins(switch: str) -> bool:
    """Whether a switch takes super-packets of several datagrams (see net/sockets/offload.py): BMv2 does not, and packet
    sockets since Linux 6.2.
    """
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return switch == "embedded" and numbers is not None and (int(numbers[1]), int(numbers[2])) >= (6, 2)


_problem = cache(trial.problem)  # a plan is checked before its network is built


def _can(*command: str) -> bool:
    """Whether a command succeeds in a network namespace of its own."""
    try:
        return subprocess.run(namespace.inside(*command), capture_output=True, check=False, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
