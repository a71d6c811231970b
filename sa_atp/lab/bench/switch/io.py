"""Packets per second through a switch's real interfaces.

    udp   the embedded switch with UDP virtual ports, over loopback
    veth  embedded switch or BMv2 on veth pairs, in a network namespace of its own

Each measurement has a process of its own. When that ends, namespace and interfaces disappear with it.
"""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from sa_atp.basics import needs
from sa_atp.lab.bench.switch.request import SwitchRequest
from sa_atp.lab.runs.point_process import outcome
from sa_atp.lab.runs.processes import Group
from sa_atp.net.sockets import namespace

TIMEOUT_S = 600.0  # the first start compiles the program


def measure(request: SwitchRequest) -> dict[str, Any]:
    """Measures in a fresh process. Returns: pps, window, ... Raises: MissingPartError, SaAtpError."""
    name = f"measuring {request.target} over {request.link}"
    found: dict[str, Any] = in_a_process(name, "io:run", dataclasses.asdict(request))
    return found


def in_a_process(name: str, work: str, arguments: dict[str, Any]) -> Any:
    """Calls a function of sa_atp/lab/bench/switch in a fresh process.

    Args: work: "module:function". Raises: what the function raises; SaAtpError: the process ended without an answer.
    """
    with tempfile.TemporaryDirectory(prefix="sa-atp-bench-") as folder, Group() as group:
        process = group.start(name, ["sa_atp.lab.runs.point_process"], Path(folder, "log"))
        process.tell({"work": f"{__package__}.{work}", "arguments": arguments})
        return outcome(process.answer(TIMEOUT_S))


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """Measures in this process. Raises: MissingPartError, SaAtpError."""
    request = SwitchRequest(**arguments)
    if request.link == "veth":
        namespace.enter()
        needs.require("veth pairs need", "ip")
    from sa_atp.lab.bench.switch import (
        links as switch_links,  # imported late: NumPy starts threads, after which no user namespace can be made
    )

    with tempfile.TemporaryDirectory(prefix="sa-atp-bench-") as folder:
        return switch_links.measure(request, Path(folder))
