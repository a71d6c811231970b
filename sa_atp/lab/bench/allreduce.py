"""`sa-atp bench allreduce`: goodput and CPU cost of one all-reduce, beside a peer's on the same workers in the same run."""

import argparse
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sa_atp.basics import needs, terminal
from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.lab import policies
from sa_atp.lab.backends.cluster import LOOPBACK, READY_TIMEOUT_S, LocalCluster
from sa_atp.lab.backends.local import run_tasks
from sa_atp.lab.backends.peer_switch import LocalPeer
from sa_atp.lab.bench import allreduce_sizes, stations
from sa_atp.lab.bench.all_reduce_options import tensor_bytes
from sa_atp.lab.bench.all_reduce_task import WARM_UP
from sa_atp.lab.bench.cluster import AllReduceRequest, Cluster
from sa_atp.lab.report import stats
from sa_atp.lab.runs.processes import Group
from sa_atp.net.loop.compiled import connection_kernels
from sa_atp.net.sockets.mtu import of_interface
from sa_atp.protocol.packets.mtu import check_fits, most_lanes
from sa_atp.protocol.packets.spec import HEADER_BYTES
from sa_atp.switches import artefacts, lanes_option

ETHERNET_BYTES, IP_BYTES, UDP_BYTES = 14, 20, 8
TIMEOUT_S = 300.0
OURS = "sa-atp"
GLOO = "gloo"
LOOPBACK_MBPS = 10_000.0  # for a time-out that is not too short
DEFAULT_SIZES = "400,4000,40000,400000,4000000,64000000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="ranks (default: %(default)s)")
    parser.add_argument("--mbytes", type=float, default=16.0, metavar="M",
                        help="size of the float32 tensor in megabytes, 10^6 bytes (default: %(default)s)")  # fmt: skip
    parser.add_argument("--iterations", type=int, default=5, metavar="K", help="sums to measure (default: %(default)s)")
    parser.add_argument("--backend", choices=("local", "mininet"), default="local")
    parser.add_argument("--link-mbps", type=float, metavar="R", help="rate of every link; needs --backend mininet")
    parser.add_argument("--switch", choices=("embedded", "bmv2"), default="embedded")
    lanes_option.add(parser, "the links")
    parser.add_argument("--mtu", type=int, default=1500, metavar="BYTES",
                        help="MTU of every link; only with --backend mininet (default: %(default)s)")  # fmt: skip
    parser.add_argument(
        "--sizes",
        nargs="?",
        const=DEFAULT_SIZES,
        metavar="BYTES,...",
        type=_sizes,
        help="measure tensors of these sizes in place of --mbytes; without a list: 400 bytes to 64 MB",
    )
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw times by size; needs --sizes")
    parser.add_argument("--no-shm", action="store_true",
                        help="workers on the switch's machine send packets, and share no memory with it")  # fmt: skip
    parser.add_argument("--against", choices=(GLOO, *policies.peers()), help="measure a peer as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Raises: UserError, MissingPartError, SaAtpError."""
    size = tensor_bytes(options)
    if options.link_mbps is not None and options.link_mbps <= 0:
        raise UserError(f"--link-mbps {options.link_mbps}: expected more than 0")
    if options.figure is not None and options.sizes is None:
        raise UserError("--figure: the figure shows times by size: add --sizes")
    if options.against == GLOO:
        needs.require_modules("--against gloo needs", "torch")
    request = AllReduceRequest(
        workers=options.workers,
        bytes=size,
        iterations=options.iterations,
        lanes=_lanes(options),
        mtu=options.mtu,
        switch=options.switch,
        link_mbps=options.link_mbps,
        shares=not options.no_shm,
    )
    with (
        tempfile.TemporaryDirectory(prefix="sa-atp-bench-") as folder,
        _backend(options, request, Path(folder)) as made,
    ):
        connection_kernels()  # compiled here, so that the memory for compiling does not count as a worker's
        if options.sizes is not None:
            found = allreduce_sizes.measure(measure, made, request, options.sizes, options.against, Path(folder))
        else:
            found = measure(made, request, options.against, Path(folder))
    if options.figure is not None:
        allreduce_sizes.draw(found, options.figure)
    if options.json:
        print(json.dumps(found))
    elif options.sizes is not None:
        allreduce_sizes.print_table(found)
    else:
        _print(found)
    return 1 if found["sums_wrong"] else 0


def _lanes(options: argparse.Namespace) -> int:
    """The number of lanes. Raises: UserError: they do not fit the links' MTU."""
    mtu = of_interface("lo") if options.backend == "local" else options.mtu
    if options.lanes is not None:
        check_fits(options.lanes, mtu, "every link")
    lanes = most_lanes(mtu) if options.lanes is None else int(options.lanes)
    artefacts.program(lanes)  # warnings about the program appear here, not only in the switch's log
    return lanes


def measure(cluster: Cluster, request: AllReduceRequest, peer: str | None, folder: Path) -> dict[str, Any]:
    """Runs the benchmark on a running cluster. Args: folder: for the workers' results. Raises: SaAtpError."""
    ours = _measure_one(cluster, request, OURS, folder)
    limit = None if request.link_mbps is None else request.link_mbps * payload_share(request.lanes)
    found: dict[str, Any] = {
        "workers": request.workers,
        "bytes": request.bytes,
        "iterations": request.iterations,
        "lanes": request.lanes,
        "switch": request.switch,
        "link_mbps": request.link_mbps,
        "goodput_mbps": ours["goodput_mbps"],
        "p50_ms": ours["p50_ms"],
        "p99_ms": ours["p99_ms"],
        "longest_ms": ours["longest_ms"],
        "limit_mbps": limit,
        "fraction_of_limit": None if limit is None else ours["goodput_mbps"] / limit,
        "cpu_s_per_gbyte": ours["cpu_s_per_gbyte"],
        "cpu_s_per_gbyte_of_services": ours["cpu_s_per_gbyte_of_services"],
        "cpu_s_per_gbyte_by_process": ours["cpu_s_per_gbyte_by_process"],
        "memory": ours["memory"],
        "retransmitted": ours["retransmitted"],
        "shares_memory": ours["shares_memory"],
        **({"stations": ours["stations"]} if request.stations else {}),
        "sums_wrong": ours["wrong"],
        "peer": None,
        "ratio_to_peer": None,
    }
    if peer is not None:
        theirs = _measure_one(cluster.beside or cluster, request, peer, folder)
        shown = ("goodput_mbps", "p50_ms", "p99_ms", "longest_ms", "cpu_s_per_gbyte", "memory")
        known = policies.peers()
        lanes = known[peer].lanes(request.lanes) if peer in known else None
        found["peer"] = {"name": peer, "lanes": lanes, **{key: theirs[key] for key in shown}}
        found["ratio_to_peer"] = ours["goodput_mbps"] / theirs["goodput_mbps"]
        found["sums_wrong"] += theirs["wrong"]
    return found


def payload_share(lanes: int) -> float:
    """Share of a link's bytes that are gradient values, with all headers counted."""
    payload = 4 * lanes
    return payload / (payload + HEADER_BYTES + UDP_BYTES + IP_BYTES + ETHERNET_BYTES)


def _measure_one(cluster: Cluster, request: AllReduceRequest, transport: str, folder: Path) -> dict[str, Any]:
    print(
        f"sa-atp: {transport}: {plural(request.iterations, 'sum')} of {request.bytes / 1e6:g} MB",
        file=sys.stderr,
        flush=True,
    )
    services = [] if transport == GLOO else cluster.services
    services_before = [service.cpu_times_s() for service in services]
    job = None
    if cluster.peers is not None:
        peer = policies.peers()[transport]
        lanes = peer.lanes(request.lanes)
        timeout_us = peer.timeout_us(peer.slots, lanes, request.link_mbps or LOOPBACK_MBPS)
        job = cluster.peers.new_job(peer, request.workers, lanes=lanes, slots=peer.slots, timeout_us=timeout_us)
    common = {
        "kind": "all_reduce",
        "transport": transport,
        "world_size": request.workers,
        "values": request.bytes // 4,
        "iterations": request.iterations,
        "server": cluster.server,
        "job": f"bench-{os.getpid()}-{request.bytes}",
        "stations": request.stations,
        "store": list(cluster.store),
        "peer_job": job,
    }
    interfaces = cluster.interfaces or [None] * request.workers
    each_rank = enumerate(zip(cluster.workers, interfaces, strict=True))
    tasks = [(worker, {**common, "rank": rank, "interface": name}) for rank, (worker, name) in each_rank]
    results = run_tasks(transport, tasks, folder, TIMEOUT_S)
    services_after = [service.cpu_times_s() for service in services]
    # a sum takes as long as its slowest rank
    seconds = [max(each) for each in zip(*(r["seconds"] for r in results), strict=True)]
    gbytes = request.workers * request.bytes / 1e9
    workers_s, workers_kernel_s = (
        sum(r[key] for r in results) / (request.iterations * gbytes) for key in ("cpu_s", "kernel_s")
    )
    where = {"workers": {"own_s": workers_s - workers_kernel_s, "kernel_s": workers_kernel_s}}
    # services do not separate warm-up and barriers from sums: their CPU time is divided by all sums
    used = (request.iterations + WARM_UP) * gbytes
    for service, before, after in zip(services, services_before, services_after, strict=True):
        own_s, kernel_s = ((b - a) / used for a, b in zip(before, after, strict=True))
        where[service.name] = {"own_s": own_s, "kernel_s": kernel_s}
    services_s = sum(sum(each.values()) for name, each in where.items() if name != "workers")
    return {
        "goodput_mbps": request.bytes * 8 / 1e6 / (sum(seconds) / len(seconds)),
        **{f"p{which}_ms": stats.milliseconds(np.array(seconds), which) for which in (50, 99)},
        "longest_ms": 1e3 * max(seconds),
        "memory": _memory([r["memory"] for r in results]),
        "cpu_s_per_gbyte": workers_s + services_s,
        "cpu_s_per_gbyte_of_services": services_s,
        "cpu_s_per_gbyte_by_process": where,
        "wrong": sum(r["wrong"] for r in results),
        "stations": stations.total([r["stations"] for r in results if "stations" in r]),
        "shares_memory": all(r.get("shares_memory", False) for r in results),
        "retransmitted": sum(r.get("stats", {}).get("retransmitted", 0) for r in results),
    }


def _memory(of_workers: list[dict[str, float]]) -> dict[str, float]:
    """Memory of the worker that used most, by cause.

    The benchmark's arrays are the tensor, its source and the expected sum; `before` is the process without any array; the
    rest is the transport's.
    """
    most = max(of_workers, key=lambda each: each["peak_mb"])
    transport_mb = max(0.0, most["peak_mb"] - most["before_mb"] - most["arrays_mb"])
    return {**most, "transport_mb": transport_mb}


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(each) for each in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers of bytes, as in 400,4000") from None
    if not all(4 <= size <= 4_000_000_000 and size % 4 == 0 for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r}: expected multiples of 4, up to 4000000000")
    return sizes


@contextmanager
def _backend(options: argparse.Namespace, request: AllReduceRequest, folder: Path) -> Iterator[Cluster]:
    if options.backend == "mininet":
        from sa_atp.lab.bench.mininet import cluster

        with cluster(request, folder, with_peers=options.against in policies.peers()) as made:
            yield made
        return
    if request.link_mbps is not None:
        raise UserError("--link-mbps: the rate of loopback cannot be limited: use --backend mininet")
    if request.switch == "bmv2":
        raise UserError("--switch bmv2: BMv2 needs interfaces: use --backend mininet")
    with local(request, folder, with_peers=options.against in policies.peers()) as made:
        yield made


@contextmanager
def local(request: AllReduceRequest, folder: Path, *, with_peers: bool = False) -> Iterator[Cluster]:
    """Runs the cluster on this machine. Args: with_peers: whether a switch for other protocols runs beside ours."""
    with Group(lambda text: terminal.say(f"sa-atp bench: {text}"), together=True) as group:
        services = LocalCluster(group, folder, lanes=request.lanes, slots=1024, shares=request.shares)
        workers = [
            group.start(f"worker {rank}", ["sa_atp.lab.bench.all_reduce_task"], folder / f"worker{rank}.log")
            for rank in range(request.workers)
        ]
        theirs = LocalPeer(group, folder) if with_peers else None
        host, port = services.ready()
        for worker in workers:
            worker.answer(READY_TIMEOUT_S)
        if theirs is not None:
            theirs.ready()
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            store = probe.getsockname()
        yield Cluster(
            workers,
            f"udp://{host}:{port}",
            [p for p in (services.switch, services.server) if p is not None],
            store,
            beside=None if theirs is None else Cluster(workers, "", [theirs.process], store, peers=theirs),
        )


def _print(found: dict[str, Any]) -> None:
    table = terminal.table([""], ("goodput per worker", "CPU per GB and worker"))
    table.add_row("sa-atp", f"{found['goodput_mbps']:.0f} Mbit/s", f"{found['cpu_s_per_gbyte']:.2f} s")
    if found["peer"]:
        peer = found["peer"]
        table.add_row(peer["name"], f"{peer['goodput_mbps']:.0f} Mbit/s", f"{peer['cpu_s_per_gbyte']:.2f} s")
    console = terminal.console()
    console.print(
        f"All-reduce of {found['bytes'] / 1e6:g} MB among {found['workers']} workers, {found['lanes']} lanes, "
        f"{found['switch']} switch, {'shared memory, ' if found['shares_memory'] else ''}"
        f"{plural(found['iterations'], 'sum')}"
    )
    terminal.print_table(console, table)
    for name, each in found["cpu_s_per_gbyte_by_process"].items():
        console.print(f"CPU of {name}, per GB and worker: "
                      f"{each['own_s']:.2f} s in its own code, {each['kernel_s']:.2f} s in the kernel")  # fmt: skip
    if found["limit_mbps"] is not None:
        console.print(
            f"{found['fraction_of_limit']:.1%} of what the links can carry ({found['limit_mbps']:.1f} Mbit/s)"
        )
    if found["peer"] and found["peer"]["lanes"]:
        console.print(
            f"{found['peer']['name']}: {found['peer']['lanes']} lanes, a switch of its own, without shared memory"
        )
    if found["ratio_to_peer"] is not None:
        console.print(f"{found['ratio_to_peer']:.2f} times the goodput of {found['peer']['name']}")
    memory = found["memory"]
    console.print(
        f"memory of a worker: {memory['peak_mb']:.0f} MB at most: {memory['arrays_mb']:.0f} in the benchmark's arrays, "
        f"{memory['transport_mb']:.0f} in the transport, {memory['before_mb']:.0f} in the program itself"
    )
    console.print(f"wrong sums: {found['sums_wrong']}")
