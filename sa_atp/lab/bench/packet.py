"""`sa-atp bench packet`: the time of one packet, by stations of its path.

It measures on loopback, twice: in a stream, where hundreds of packets share each call, as CPU time over packets; and alone,
as wall time of a sum of one packet.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sa_atp.basics import terminal
from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.lab.bench import allreduce
from sa_atp.lab.bench.all_reduce_options import tensor_bytes
from sa_atp.lab.bench.cluster import AllReduceRequest
from sa_atp.lab.bench.switch.switch import measure_pipeline
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, LANE_BUILDS

ALONE_SUMS = 2000
PIPELINE_PACKETS = 200_000
WHAT = {
    "transmit": "worker: select fragments",
    "fill": "worker: float32 to integers, header",
    "send": "worker: to the kernel, to the switch's socket",
    "switch in the kernel": "switch: from the kernel, and to every socket",
    "switch": "switch: loop and P4 program",
    "receive": "worker: from the kernel",
    "sort": "worker: classify packets",
    "take": "worker: check, and store integers",
    "rules": "worker: update windows and state",
    "dequantise": "worker: integers to float32",
    "server in the kernel": "parameter server: from the kernel",
    "server": "parameter server: store a copy",
}
"""Labels of the stations, in the order of a packet's path."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="ranks (default: %(default)s)")
    parser.add_argument("--mbytes", type=float, default=64.0, metavar="M",
                        help="size of the stream's tensor in megabytes, 10^6 bytes (default: %(default)s)")  # fmt: skip
    parser.add_argument("--iterations", type=int, default=5, metavar="K", help="sums to measure (default: %(default)s)")
    parser.add_argument("--lanes", type=int, choices=LANE_BUILDS, default=256, help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Raises: UserError, MissingPartError, SaAtpError."""
    size = tensor_bytes(options)
    found = measure(options.workers, size, options.iterations, options.lanes)
    if options.json:
        print(json.dumps(found))
    else:
        _print(found)
    return 1 if found["sums_wrong"] else 0


def measure(workers: int, size: int, iterations: int, lanes: int, sums_alone: int = ALONE_SUMS) -> dict[str, Any]:
    """Nanoseconds at each station of WHAT: `stream_ns` per packet, `alone_ns` per sum of one packet. Raises: SaAtpError.

    Args: size: size of the stream's tensor, in bytes.
    """
    if size < 4 * lanes:
        raise UserError(f"--mbytes {size / 1e6:g}: expected at least one packet, {4 * lanes / 1e6:g}")
    stream = _measure(AllReduceRequest(workers=workers, bytes=size, iterations=iterations, lanes=lanes, stations=True))
    alone = _measure(
        AllReduceRequest(workers=workers, bytes=4 * lanes, iterations=sums_alone, lanes=lanes, stations=True)
    )
    packets = -(-size // (4 * lanes))
    a_packet = size / packets  # converts seconds per gigabyte of a worker to nanoseconds per packet
    services = stream["cpu_s_per_gbyte_by_process"]
    where = {name: ns / (workers * iterations * packets) for name, ns in stream["stations"]["cpu_ns"].items()}
    for name, process in (("switch", "switch"), ("server", "parameter server")):
        # the server gets one copy for the packets of all workers
        share = a_packet * (workers if name == "server" else 1)
        where[f"{name} in the kernel"] = services[process]["kernel_s"] * share
        where[name] = services[process]["own_s"] * share
    waited = {name: ns / (workers * sums_alone) for name, ns in alone["stations"]["wall_ns"].items()}
    return {
        "workers": workers,
        "bytes": size,
        "iterations": iterations,
        "lanes": lanes,
        "stream_ns": {name: where[name] for name in WHAT},
        "pipeline_ns": 1e9 / measure_pipeline((lanes, CONTRIBUTION_BITS), PIPELINE_PACKETS),
        "alone_ns": {name: waited[name] for name in WHAT if name in waited},
        "alone_p50_ns": 1e6 * alone["p50_ms"],
        "sums_wrong": stream["sums_wrong"] + alone["sums_wrong"],
    }


def _measure(request: AllReduceRequest) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="sa-atp-bench-") as folder, allreduce.local(request, Path(folder)) as made:
        return allreduce.measure(made, request, None, Path(folder))


def lines(found: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Rows of the table: station, nanoseconds per packet in a stream, nanoseconds alone."""
    for name, what in WHAT.items():
        alone = found["alone_ns"].get(name)
        yield what, f"{found['stream_ns'][name]:.0f}", "" if alone is None else f"{alone:.0f}"
        if name == "switch":
            yield "  of it the P4 program", f"{found['pipeline_ns']:.0f}", ""
    elsewhere = found["alone_p50_ns"] - sum(found["alone_ns"].values())
    yield "elsewhere: switch, wake-ups, other workers", "", f"{elsewhere:.0f}"
    yield "a sum of one packet, p50", "", f"{found['alone_p50_ns']:.0f}"


def _print(found: dict[str, Any]) -> None:
    table = terminal.table([""], ("in a stream", "alone"))
    for row in lines(found):
        table.add_row(*row)
    console = terminal.console()
    console.print(
        f"One packet of {found['lanes']} values, {plural(found['workers'], 'worker')}; the stream: "
        f"{plural(found['iterations'], 'sum')} of {found['bytes'] / 1e6:g} MB; loopback; nanoseconds"
    )
    terminal.print_table(console, table)
    console.print(f"wrong sums: {found['sums_wrong']}")
