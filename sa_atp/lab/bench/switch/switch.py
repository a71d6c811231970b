"""`sa-atp bench switch`: packets per second of the P4 program, alone and through real interfaces."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.table import Table

from sa_atp.basics import terminal
from sa_atp.basics.errors import MissingPartError, SaAtpError, UserError
from sa_atp.basics.waiting import waiting
from sa_atp.basics.words import plural
from sa_atp.lab.bench.switch.traffic import PASSES, WORKERS
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, LANE_BUILDS
from sa_atp.switches import artefacts

LOAD_TIMEOUT_S = 300.0
BATCH_FRAGMENTS = 512


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
    from sa_atp.lab.bench.switch.io import measure as measure_io
    from sa_atp.lab.bench.switch.request import SwitchRequest

    busy_before = _busy()
    passes = {1: pipeline_passes(build, packets)}
    if cores > 1:
        passes[cores] = switch_memory.passes(build, cores, packets)
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
    _say("embedded switch, UDP virtual ports over loopback")
    udp = measure_io(
        SwitchRequest(target="embedded", link="udp", lanes=build[0], contributions=build[1], packets=packets)
    )
    measure_memory()
    veth: dict[str, Any] | None = None
    missing = None
    try:
        _say("embedded switch, veth pairs in a network namespace")
        veth = measure_io(
            SwitchRequest(
                target="embedded", link="veth", lanes=build[0], contributions=build[1], packets=packets, cores=cores
            )
        )
    except MissingPartError as error:
        if with_bmv2:
            raise
        missing = str(error)
        _say(f"left out: {missing}")
    measure_memory()
    other = None
    if with_bmv2:
        _say("BMv2, veth pairs in a network namespace")
        other = measure_io(
            SwitchRequest(target="bmv2", link="veth", lanes=build[0], contributions=build[1], packets=packets)
        )
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
            "cpu_us_per_packet": io["cpu_us_per_packet"],
            "kernel_us_per_packet": io["kernel_us_per_packet"],
            "waiting_us_per_packet": io["waiting_us_per_packet"],
            "window": io["window"],
            "compile_s": compile_s,
            "load_cached_s": load_cached_s,
        },
        "bmv2": None
        if other is None
        else {
            "io_pps": other["pps"],
            "io_interface": "veth",
            "cpu_us_per_packet": other["cpu_us_per_packet"],
            "kernel_us_per_packet": other["kernel_us_per_packet"],
            "waiting_us_per_packet": other["waiting_us_per_packet"],
            "window": other["window"],
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
    command = [sys.executable, "-m", "sa_atp.lab.bench.switch.load", *map(str, build), cache]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise SaAtpError(f"loading the program took longer than {LOAD_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        raise SaAtpError(f"loading the program failed: {(done.stderr.strip() or 'no reason given').splitlines()[-1]}")
    return float(json.loads(done.stdout)["seconds"])


def measure_pipeline(build: tuple[int, int], packets: int) -> float:
    """Packets per second of one core, from memory to memory, in the best of several passes. Raises: SaAtpError."""
    return max(pipeline_passes(build, packets))


def pipeline_passes(build: tuple[int, int], packets: int) -> Iterator[float]:
    """Packets per second of one core, from memory to memory: all contributions of a job of four workers.

    It uses CPU time, which other processes affect little. Every sum is checked. Args: packets: of all passes. Yields: those
    of each pass. Raises: SaAtpError.
    """
    from sa_atp.basics.folders import cache_folder
    from sa_atp.lab.bench.switch.traffic import Contributions, Results, hosts, job
    from sa_atp.protocol.packets.frames import HEADERS_BYTES
    from sa_atp.switches.control import jobs
    from sa_atp.switches.control.writer import LocalWriter
    from sa_atp.switches.embedded.pipeline import Pipeline

    members, server = hosts()
    pipeline = Pipeline.from_file(artefacts.program(*build).json_path, cache=cache_folder())
    with waiting("compiling the switch program, or loading it from the cache"):
        pipeline.compile()
    jobs.install(LocalWriter(pipeline), job(members, server))
    senders = [Contributions(member, server, build, BATCH_FRAGMENTS) for member in members]
    count = BATCH_FRAGMENTS * WORKERS
    data = np.zeros((count, len(senders[0].head) + senders[0].payloads.shape[1]), np.uint8)
    lengths = np.full(count, data.shape[1])
    ports = np.repeat([member.switch_port for member in members], BATCH_FRAGMENTS)
    batches = -(-packets // (PASSES * count))
    spent = 0.0
    for batch in range(PASSES * (batches + 1)):
        is_first, is_last = batch % (batches + 1) == 0, batch % (batches + 1) == batches
        fragments = np.arange(BATCH_FRAGMENTS) + batch * BATCH_FRAGMENTS
        for rank, sender in enumerate(senders):
            data[rank * BATCH_FRAGMENTS : (rank + 1) * BATCH_FRAGMENTS] = sender.frames(fragments)
        started = time.thread_time()
        out = pipeline.process(data, lengths, ports, batch)
        spent = 0.0 if is_first else spent + time.thread_time() - started  # the first one fills caches
        results = Results(int(fragments[0]), BATCH_FRAGMENTS, build)
        results.take(out.data[out.ports == members[0].switch_port, HEADERS_BYTES : data.shape[1]])
        if not results.complete or results.wrong or len(out) != BATCH_FRAGMENTS * (WORKERS + 1):
            raise SaAtpError(f"batch {batch}: {plural(len(out), 'packet')}, {plural(results.wrong, 'wrong sum')}")
        if is_last:
            yield batches * count / spent


# --- output -----------------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    print(f"sa-atp bench switch: {text}", file=sys.stderr, flush=True)


def _print(found: dict[str, Any]) -> None:
    table = Table(
        title=f"packets per second, {found['lanes']} lanes, {found['contributions']} contributions, 4 workers"
    )
    table.add_column("")
    table.add_column("embedded", justify="right")
    table.add_column("BMv2", justify="right")
    table.add_column("ratio", justify="right")
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
