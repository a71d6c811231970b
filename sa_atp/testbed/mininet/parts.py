"""What Mininet runs need of the machine, and one clear line where it is not there."""

import importlib.util
import os
import re
import shutil
import subprocess
from functools import cache

from sa_atp.errors import MissingPartError

# program: Debian's package
PROGRAMS = {"mnexec": "mininet", "ip": "iproute2", "tc": "iproute2", "ethtool": "ethtool", "ifconfig": "net-tools"}
BMV2 = "simple_switch_grpc"


def require(*, switch: str = "embedded", traffic: bool = False) -> None:
    """Args: traffic: background traffic is wanted. Raises: MissingPartError: what is missing, and how to get it."""
    if os.geteuid() != 0:
        raise MissingPartError("Mininet makes network namespaces: run it as root (sudo), or use --backend local")
    wanted = dict(PROGRAMS)
    if traffic:
        wanted["iperf3"] = "iperf3"
    missing = [name for name in wanted if shutil.which(name) is None]
    if missing:
        packages = " ".join(sorted({wanted[name] for name in missing}))
        raise MissingPartError(f"Mininet runs need {', '.join(missing)}: apt-get install {packages}")
    if importlib.util.find_spec("mininet") is None:
        raise MissingPartError("Mininet's Python module is not installed here: pip install 'sa_atp[mininet]'")
    if not _can("unshare", "-n", "true"):
        raise MissingPartError(
            "the kernel refuses a new network namespace: Mininet runs need a machine that allows them"
        )
    if switch == "bmv2" and shutil.which(BMV2) is None:
        raise MissingPartError(
            f"BMv2 is not installed: {BMV2} is not on PATH (p4lang's packages or images have it); "
            "--switch embedded runs the same program"
        )


@cache
def has_netem() -> bool:
    """Whether the kernel can delay and lose packets by itself."""
    return _can("unshare", "-n", "sh", "-c", "ip link set lo up && tc qdisc add dev lo root netem delay 1ms")


@cache
def has_super_packets() -> bool:
    """Whether a packet socket can take and give several datagrams as one packet (see net/offload.py): Linux 6.2."""
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (6, 2)


def _can(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
