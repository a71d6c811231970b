"""`sa-atp bench switch`: packets per second of the P4 program, alone and through real interfaces."""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from typing import Any

from rich.table import Column, Table

from sa_atp.basics import terminal
from sa_atp.basics.errors import MissingPartError, UserError
from sa_atp.lab.bench.switch.io import in_a_process
from sa_atp.lab.bench.switch.io import measure as measure_io
from sa_atp.lab.bench.switch.request import SwitchRequest
from sa_atp.lab.bench.switch.traffic import PASSES, WORKERS
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, LANE_BUILDS
from sa_atp.switches import artefacts

OF_INTERFACES = ("cpu_us_per_packet", "kernel_us_per_packet", "waiting_us_per_packet", "window")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lanes", type=int, choices=LANE_BUILDS, default=64, help="(default: %(default)s)")
    parser.add_argument("--contributions", type=int, default=CONTRIBUTION_BITS, metavar="N",
                        help="least width of the program's bitmap (default: %(default)s)")  # fmt: skip
    parser.add_argument("--packets", type=int, default=400_000, metavar="N",
                        help="contributions to send (default: %(default)s); slow targets stop earlier")  # fmt: skip
    parser.add_argument("--cores", type=int, default=1, metavar="N",
                        help=f"cores of the embedded switch, at most {WORKERS} (default: %(default)s)")  # fmt: skip
    parser.add_argument("--against", choices=("bmv2",), help="measure BMv2 as well, over the same interfaces")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Raises: UserError, MissingPartError, SaAtpError."""
    from sa_atp.lab.runs import bmv2

    if options.packets < 1:
        raise UserError(f"--packets {options.packets}: expected at least 1")
    if not 1 <= options.cores <= WORKERS:
        raise UserError(f"--cores {options.cores}: expected 1 to {WORKERS}, one for each worker's port at most")
    if options.against == "bmv2":
        bmv2.require("simple_switch_grpc")
    contributions = artefacts.wide_enough(options.lanes, options.contributions)
    artefacts.program(
        options.lanes, contributions
    )  # warnings about the program appear here, not only in a process's log
    found = measure(
        (options.lanes, contributions), options.packets, cores=options.cores, with_bmv2=options.against == "bmv2"
    )
    if options.json:
        print(json.dumps(found))
    else:
        _print(found)
    return 0


def measure(build: tuple[int, int], packets: int, *, cores: int = 1, with_bmv2: bool) -> dict[str, Any]:
    """The object that --json prints. Args: build: lanes and contributions; cores: of the embedded switch.

    io_pps is measured over veth pairs, as for BMv2, if they can be made, else over UDP virtual ports; io_interface says
    which. Raises: MissingPartError, SaAtpError.
    """
    from sa_atp.lab.bench.switch import memory as switch_memory

    busy_before = _busy()
    passes = {number: switch_memory.passes(build, number, packets) for number in (1, cores)}
    rates: dict[int, list[float]] = {number: [] for number in passes}

    def measure_memory() -> None:
        """Makes one pass: they stand apart, because a machine may be slow for longer than all of them take."""
        for number, each in passes.items():
            rates[number].append(next(each))

    _say("pipeline alone, now and after each of what follows")
    measure_memory()
    _say("loading: with an empty cache, then from it")
    compile_s, load_cached_s = load_times(build)
    measure_memory()
    request = SwitchRequest(target="embedded", link="udp", lanes=build[0], contributions=build[1], packets=packets)
    _say("embedded switch, UDP virtual ports over loopback")
    udp = measure_io(request)
    measure_memory()
    veth: dict[str, Any] | None = None
    missing = None
    try:
        _say("embedded switch, veth pairs in a network namespace")
        veth = measure_io(replace(request, link="veth", cores=cores))
    except MissingPartError as error:
        if with_bmv2:
            raise
        missing = str(error)
        _say(f"left out: {missing}")
    measure_memory()
    other = None
    if with_bmv2:
        _say("BMv2, veth pairs in a network namespace")
        other = measure_io(replace(request, target="bmv2", link="veth"))
    io = veth or udp
    return {
        "lanes": build[0],
        "contributions": build[1],
        "embedded": {
            "pipeline_pps": max(rates[1]),
            "pipeline_passes_pps": rates[1],
            "cores": cores,
            "cores_pps": max(rates[cores]),
            "cores_passes_pps": rates[cores],
            "io_pps": io["pps"],
            "io_interface": "veth" if veth else "udp",
            "udp_pps": udp["pps"],
            "veth_pps": veth["pps"] if veth else None,
            **{key: io[key] for key in OF_INTERFACES},
            "compile_s": compile_s,
            "load_cached_s": load_cached_s,
        },
        "bmv2": None
        if other is None
        else {
            "io_pps": other["pps"],
            "io_interface": "veth",
            **{key: other[key] for key in OF_INTERFACES},
        },
        "io_ratio": io["pps"] / other["pps"] if other else None,
        "busy": busy_before,
        "left_out": missing,
    }


def _busy() -> str | None:
    """A warning if the machine is too busy for rates by wall time; None if it is idle."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < cores / 2:
        return None
    return f"the machine is busy (load {load:.1f} on {cores} cores): rates by wall time are too low"


def load_times(build: tuple[int, int]) -> tuple[float, float]:
    """Seconds until a fresh process can handle packets: with an empty cache folder, and with a filled one."""
    with tempfile.TemporaryDirectory(prefix="sa-atp-cache-") as cache:
        return _load_s(build, cache), min(_load_s(build, cache) for _ in range(2))


def _load_s(build: tuple[int, int], cache: str) -> float:
    return float(in_a_process("loading the program", "load:seconds", {"build": build, "cache": cache}))


def measure_pipeline(build: tuple[int, int], packets: int) -> float:
    """Packets per second of one core, from memory to memory, in the best of several passes. Raises: SaAtpError."""
    from sa_atp.lab.bench.switch import memory as switch_memory

    return max(switch_memory.passes(build, 1, packets))


# --- output -----------------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    print(f"sa-atp bench switch: {text}", file=sys.stderr, flush=True)


def _print(found: dict[str, Any]) -> None:
    title = f"packets per second, {found['lanes']} lanes, {found['contributions']} contributions, 4 workers"
    table = Table("", *(Column(name, justify="right") for name in ("embedded", "BMv2", "ratio")), title=title)
    embedded, other, ratio = found["embedded"], found["bmv2"], found["io_ratio"]
    table.add_row("pipeline alone, one core", f"{embedded['pipeline_pps']:,.0f}", "", "")
    lowest = f"  ... the lowest of {PASSES} passes"
    table.add_row(lowest, f"{min(embedded['pipeline_passes_pps']):,.0f}", "", "")
    if embedded["cores"] > 1:
        table.add_row(f"... {embedded['cores']} cores", f"{embedded['cores_pps']:,.0f}", "", "")
        table.add_row(lowest, f"{min(embedded['cores_passes_pps']):,.0f}", "", "")
    table.add_row("UDP virtual ports, loopback", f"{embedded['udp_pps']:,.0f}", "", "")
    veth = f"{embedded['veth_pps']:,.0f}" if embedded["veth_pps"] else "not measured"
    table.add_row(
        "veth pairs" + (f", {embedded['cores']} cores" if embedded["cores"] > 1 else ""),
        veth,
        f"{other['io_pps']:,.0f}" if other else "",
        f"{ratio:.1f}" if ratio is not None else "",
    )
    for key, what in (
        ("cpu_us_per_packet", f"  CPU of the switch over {embedded['io_interface']}, us a packet"),
        ("kernel_us_per_packet", "    of it in the kernel"),
        ("waiting_us_per_packet", "  idle time of the switch, us a packet"),
    ):
        table.add_row(what, *(f"{each[key]:.2f}" if each else "" for each in (embedded, other)), "")
    console = terminal.console()
    terminal.print_table(console, table)
    console.print(
        f"start: {embedded['compile_s']:.1f} s if the program has to be compiled, {embedded['load_cached_s']:.1f} s from "
        "the cache"
    )
    if found["busy"]:
        console.print(found["busy"])
    if found["left_out"]:
        console.print(f"veth pairs were left out: {found['left_out']}")
