"""Packets per second through a switch's real interfaces.

    udp   the embedded switch with UDP virtual ports, over loopback
    veth  embedded switch or BMv2 on veth pairs, in a network namespace of its own

`python -m sa_atp.lab.bench.switch.io REQUEST` measures one of them and prints one line of JSON. When it ends, namespace and
interfaces disappear with it.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sa_atp.basics import needs
from sa_atp.basics.errors import MissingPartError, SaAtpError
from sa_atp.lab.bench.switch.request import SwitchRequest
from sa_atp.net.sockets import namespace


def measure(request: SwitchRequest) -> dict[str, Any]:
    """Runs this module in a process of its own. Returns: pps, window. Raises: MissingPartError, SaAtpError."""
    command = [sys.executable, "-m", "sa_atp.lab.bench.switch.io", json.dumps(dataclasses.asdict(request))]
    done = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise SaAtpError(
            f"measuring {request.target} over {request.link} ended with status {done.returncode}"
        ) from None
    if "missing" in answer:
        raise MissingPartError(answer["missing"])
    if "error" in answer:
        raise SaAtpError(answer["error"])
    return answer


def main(text: str) -> None:
    request = SwitchRequest(**json.loads(text))
    try:
        if request.link == "veth":
            namespace.enter()
            needs.require("veth pairs need", "ip")
        from sa_atp.lab.bench.switch import (
            links as switch_links,  # imported late: NumPy starts threads, after which no user namespace can be made
        )

        with tempfile.TemporaryDirectory(prefix="sa-atp-bench-") as folder:
            answer = switch_links.measure(request, Path(folder))
    except MissingPartError as error:
        answer = {"missing": str(error)}
    except SaAtpError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
