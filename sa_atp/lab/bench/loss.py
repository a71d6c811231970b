"""`sa-atp bench loss`: the goodput of an all-reduce on links that lose packets, in virtual time.

It runs the real connections and switch program on simulated links, so results do not depend on the machine.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from sa_atp.basics import terminal
from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.basics.folders import cache_folder
from sa_atp.basics.waiting import waiting
from sa_atp.lab.bench.all_reduce_options import tensor_bytes
from sa_atp.lab.bench.all_reduce_task import contribution
from sa_atp.lab.bench.allreduce import payload_share
from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.lab.simulator.world import SERVER_IP, World
from sa_atp.protocol.job.membership import JoinRequest
from sa_atp.protocol.packets.spec import LANE_BUILDS, UDP_PORT
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.switches import artefacts
from sa_atp.switches.embedded.pipeline import Pipeline

WARM_UP = 1  # sums before the measurement, which learn the scales
SLOTS = 1024
LONGEST_US = 600_000_000  # of virtual time, for one sum


@dataclass(frozen=True, slots=True)
class LossRequest:
    workers: int
    bytes: int
    iterations: int
    lanes: int
    link_mbps: float
    delay_us: int
    seed: int


@dataclass(frozen=True, slots=True)
class LossRow:
    loss: float
    """Share of the packets that each link loses, in each direction."""
    goodput_mbps: float
    """Per worker: bits of the tensor over the time of a sum."""
    fraction_of_limit: float
    """Goodput as a share of the payload that the link could carry."""
    fraction_of_lossless: float | None
    """Goodput as a share of that without loss; None: that was not measured."""
    sent: int
    """Fragments of all workers, without retransmissions."""
    retransmitted: int
    probes: int
    at_server: int
    """Sums that the parameter server completed, counted by the workers."""
    sums_wrong: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="ranks (default: %(default)s)")
    parser.add_argument("--mbytes", type=float, default=16.0, metavar="M",
                        help="size of the float32 tensor in megabytes, 10^6 bytes (default: %(default)s)")  # fmt: skip
    parser.add_argument("--iterations", type=int, default=1, metavar="K", help="sums to measure (default: %(default)s)")
    parser.add_argument("--loss", type=float, nargs="+", default=[0.0, 0.01, 0.05], metavar="P",
                        help="shares of packets that links lose in each direction (default: 0 0.01 0.05)")  # fmt: skip
    parser.add_argument("--link-mbps", type=float, default=100.0, metavar="R", help="(default: %(default)s)")
    parser.add_argument("--delay-us", type=int, default=20, metavar="D", help="delay of a link (default: %(default)s)")
    parser.add_argument("--lanes", type=int, choices=LANE_BUILDS, default=256, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Raises: UserError, SaAtpError."""
    size = tensor_bytes(options)
    for loss in options.loss:
        if not 0 <= loss < 1:
            raise UserError(f"--loss {loss}: expected 0 to less than 1")
    if options.link_mbps <= 0:
        raise UserError(f"--link-mbps {options.link_mbps}: expected more than 0")
    if options.delay_us < 0:
        raise UserError(f"--delay-us {options.delay_us}: expected 0 or more")
    request = LossRequest(
        workers=options.workers,
        bytes=size,
        iterations=options.iterations,
        lanes=options.lanes,
        link_mbps=options.link_mbps,
        delay_us=options.delay_us,
        seed=options.seed,
    )
    rows = measure(request, options.loss)
    if options.json:
        print(json.dumps({**asdict(request), "rows": [asdict(row) for row in rows]}))
    else:
        _print(request, rows)
    return 1 if any(row.sums_wrong for row in rows) else 0


def measure(request: LossRequest, losses: Sequence[float]) -> list[LossRow]:
    """Raises: SaAtpError."""
    pipeline = Pipeline.from_file(artefacts.program(request.lanes).json_path, cache=cache_folder())
    with waiting("compiling the switch program, or loading it from the cache"):
        pipeline.compile()
    rows: list[LossRow] = []
    for loss in losses:
        print(f"sa-atp: loss {loss:g}", file=sys.stderr, flush=True)
        row = _measure_one(request, loss, pipeline, next((r.goodput_mbps for r in rows if r.loss == 0), None))
        rows.append(row)
    return rows


def _measure_one(request: LossRequest, loss: float, pipeline: Pipeline, lossless_mbps: float | None) -> LossRow:
    world = World(
        seed=request.seed,
        pipelines=[pipeline],
        links=LinkSettings(rate_mbps=request.link_mbps, delay_us=request.delay_us, loss=loss),
        settings=ServerSettings(lanes=request.lanes, slots=SLOTS),
    )
    workers = _workers(world, request.workers)
    parts = [np.concatenate(list(contribution(rank, request.bytes // 4))) for rank in range(request.workers)]
    wanted = np.asarray(np.sum(parts, axis=0, dtype=np.float64), np.float32)
    before_us = wrong = 0
    for n in range(WARM_UP + request.iterations):
        if n == WARM_UP:
            before_us = world.clock.now_us
        wrong += _all_reduce(world, workers, parts, wanted)
    seconds = (world.clock.now_us - before_us) / 1e6 / request.iterations
    goodput = request.bytes * 8 / 1e6 / seconds
    counted = [worker.worker.stats for worker in workers]
    if loss == 0:
        lossless_mbps = goodput
    return LossRow(
        loss=loss,
        goodput_mbps=round(goodput, 3),
        fraction_of_limit=round(goodput / (request.link_mbps * payload_share(request.lanes)), 4),
        fraction_of_lossless=None if lossless_mbps is None else round(goodput / lossless_mbps, 4),
        sent=sum(stats.fragments_sent for stats in counted),
        retransmitted=sum(stats.retransmitted for stats in counted),
        probes=sum(stats.probes for stats in counted),
        at_server=sum(stats.results_from_server for stats in counted),
        sums_wrong=wrong,
    )


def _workers(world: World, count: int) -> list[SimWorker]:
    joined: list[SimWorker] = []
    workers = [
        SimWorker(
            world.add_worker(rank),
            world.clock,
            JoinRequest(job="bench", rank=rank, world_size=count),
            (SERVER_IP, UDP_PORT),
            world.random,
            joined=joined.append,
        )
        for rank in range(count)
    ]
    _run(world, workers, lambda: len(joined) == count)
    return workers


def _all_reduce(world: World, workers: Sequence[SimWorker], parts: Sequence[Values], wanted: Values) -> int:
    """Runs one sum, which all ranks begin together. Returns: number of ranks with a wrong result. Raises: SaAtpError."""
    sums = [worker.begin(len(wanted), "bench") for worker in workers]
    for worker, sum_, part in zip(workers, sums, parts, strict=True):
        worker.contribute(sum_, [part], worker.membership.bits_of(worker.membership.rank))
    _run(world, workers, lambda: all(sum_.future.done() for sum_ in sums))
    return sum(not np.array_equal(sum_.future.result(timeout=0), wanted) for sum_ in sums)


def _run(world: World, workers: Sequence[SimWorker], until: Callable[[], bool]) -> None:
    over = world.clock.run(
        lambda: until() or any(w.error is not None for w in workers), world.clock.now_us + LONGEST_US
    )  # fmt: skip
    for worker in workers:
        if worker.error is not None:
            raise worker.error
    if not over:
        raise SaAtpError(f"a sum is not complete after {LONGEST_US / 1e6:.0f} simulated seconds")


def _print(request: LossRequest, rows: Sequence[LossRow]) -> None:
    columns = ("loss", "goodput per worker", "of limit", "of lossless", "retransmitted", "probes", "wrong sums")
    table = terminal.table((), columns)
    for r in rows:
        share = "" if r.fraction_of_lossless is None else f"{r.fraction_of_lossless:.1%}"
        table.add_row(
            f"{r.loss:.1%}",
            f"{r.goodput_mbps:.1f} Mbit/s",
            f"{r.fraction_of_limit:.1%}",
            share,
            f"{r.retransmitted / r.sent:.1%}",
            f"{r.probes / r.sent:.1%}",
            str(r.sums_wrong),
        )
    console = terminal.console()
    console.print(
        f"All-reduce of {request.bytes / 1e6:g} MB among {request.workers} workers, {request.lanes} lanes, links of "
        f"{request.link_mbps:g} Mbit/s and {request.delay_us} us, in virtual time. Goodput also as a share of the link's "
        "limit, and of the goodput without loss; retransmitted, probes: per fragment"
    )
    terminal.print_table(console, table)
