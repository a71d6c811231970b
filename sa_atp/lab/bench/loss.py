"""`sa-atp bench loss`: the goodput of an all-reduce on links that lose packets, in virtual time.

It runs the real connections and switch program on simulated links, so results do not depend on the machine.
"""

import argparse
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from sa_atp.basics import terminal
from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.basics.folders import cache_folder
from sa_atp.basics.waiting import waiting
from sa_atp.lab import policies
from sa_atp.lab.bench.all_reduce_options import tensor_bytes
from sa_atp.lab.bench.all_reduce_task import contribution
from sa_atp.lab.bench.allreduce import payload_share
from sa_atp.lab.simulator.network import Clock, LinkSettings
from sa_atp.lab.simulator.peer_world import PeerWorld
from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.lab.simulator.world import SERVER_IP, World
from sa_atp.protocol.job.membership import JoinRequest
from sa_atp.protocol.packets.frames import HEADERS_BYTES
from sa_atp.protocol.packets.spec import LANE_BUILDS, UDP_PORT
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.switches import artefacts
from sa_atp.switches.artefacts import CompiledProgram
from sa_atp.switches.embedded.pipeline import Pipeline

OURS = "sa-atp"
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
    against: tuple[str, ...] = ()
    """Other protocols to measure beside ours."""
    slots: int | None = None
    """Slots of the job; None: each protocol's default."""


@dataclass(frozen=True, slots=True)
class LossRow:
    protocol: str
    """"sa-atp", or another protocol's name."""
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
    parser.add_argument("--against", choices=sorted(policies.peers()), action="append", default=[],
                        help="measure another protocol, too, with its own switch program")  # fmt: skip
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
        against=tuple(dict.fromkeys(options.against)),
    )
    rows = measure(request, options.loss)
    if options.json:
        print(json.dumps({**asdict(request), "rows": [asdict(row) for row in rows]}))
    else:
        _print(request, rows)
    return 1 if any(row.sums_wrong for row in rows) else 0


def measure(request: LossRequest, losses: Sequence[float]) -> list[LossRow]:
    """Raises: SaAtpError."""
    found = programs(request)
    # the others first: a mistake in one's own program is heard at once
    rows = {name: measure_protocol(request, name, found[name], losses) for name in (*request.against, OURS)}
    return [row for name in found for row in rows[name]]


def programs(request: LossRequest) -> dict[str, CompiledProgram]:
    """The switch programs of our protocol and the others, by name. Raises: UserError: there is none with so many lanes."""
    peers = policies.peers()
    return {OURS: artefacts.program(request.lanes)} | {n: peers[n].program(request.lanes) for n in request.against}


def measure_protocol(
    request: LossRequest, protocol: str, program: CompiledProgram, losses: Sequence[float]
) -> list[LossRow]:
    """Raises: SaAtpError."""
    rows: list[LossRow] = []
    pipeline = Pipeline.from_file(program.json_path, cache=cache_folder())
    with waiting("compiling the switch program, or loading it from the cache"):
        pipeline.compile()
    lossless_mbps: float | None = None
    for loss in losses:
        print(f"sa-atp: {protocol}, loss {loss:g}", file=sys.stderr, flush=True)
        row = _measure_one(request, protocol, loss, pipeline, lossless_mbps)
        rows.append(row)
        if loss == 0:
            lossless_mbps = row.goodput_mbps
    return rows


def _measure_one(
    request: LossRequest, protocol: str, loss: float, pipeline: Pipeline, lossless_mbps: float | None
) -> LossRow:
    links = LinkSettings(rate_mbps=request.link_mbps, delay_us=request.delay_us, loss=loss)
    parts = [np.concatenate(list(contribution(rank, request.bytes // 4))) for rank in range(request.workers)]
    cluster: _Cluster = (
        _Ours(request, pipeline, links) if protocol == OURS else _Theirs(request, protocol, pipeline, links)
    )
    wanted = cluster.wanted(parts)
    before_us = wrong = 0
    for n in range(WARM_UP + request.iterations):
        if n == WARM_UP:
            before_us = cluster.clock.now_us
        wrong += sum(not np.array_equal(found, wanted) for found in cluster.all_reduce(parts))
    seconds = (cluster.clock.now_us - before_us) / 1e6 / request.iterations
    goodput = request.bytes * 8 / 1e6 / seconds
    if loss == 0:
        lossless_mbps = goodput
    sent, retransmitted, probes, at_server = cluster.counted()
    return LossRow(
        protocol=protocol,
        loss=loss,
        goodput_mbps=round(goodput, 3),
        fraction_of_limit=round(goodput / (request.link_mbps * cluster.payload_share), 4),
        fraction_of_lossless=None if lossless_mbps is None else round(goodput / lossless_mbps, 4),
        sent=sent,
        retransmitted=retransmitted,
        probes=probes,
        at_server=at_server,
        sums_wrong=wrong,
    )


class _Cluster(ABC):
    """Workers on simulated links, under one protocol."""

    clock: Clock
    payload_share: float
    """The share of a link's bits that carry values."""

    def wanted(self, parts: Sequence[Values]) -> Values:
        """The right sum, float32[n]."""
        return np.asarray(np.sum(parts, axis=0, dtype=np.float64), np.float32)

    @abstractmethod
    def all_reduce(self, parts: Sequence[Values]) -> list[Values]:
        """What each rank gets, if all begin together. Raises: SaAtpError."""

    @abstractmethod
    def counted(self) -> tuple[int, int, int, int]:
        """Of all workers: packets sent, sent again, probes, and sums that the parameter server completed."""

    def run(self, until: Callable[[], bool], errors: Callable[[], Iterable[SaAtpError | None]]) -> None:
        """Raises: SaAtpError: a worker's, or the time is over."""
        over = self.clock.run(lambda: until() or any(errors()), self.clock.now_us + LONGEST_US)
        for error in filter(None, errors()):
            raise error
        if not over:
            raise SaAtpError(f"a sum is not complete after {LONGEST_US / 1e6:.0f} simulated seconds")


class _Ours(_Cluster):
    def __init__(self, request: LossRequest, pipeline: Pipeline, links: LinkSettings) -> None:
        settings = ServerSettings(lanes=request.lanes, slots=request.slots or SLOTS)
        world = World(seed=request.seed, pipelines=[pipeline], links=links, settings=settings)
        self.clock = world.clock
        self.payload_share = payload_share(request.lanes)
        joined: list[SimWorker] = []
        self.workers = [
            SimWorker(
                world.add_worker(rank),
                world.clock,
                JoinRequest(job="bench", rank=rank, world_size=request.workers),
                (SERVER_IP, UDP_PORT),
                world.random,
                joined=joined.append,
            )
            for rank in range(request.workers)
        ]
        self.run(lambda: len(joined) == request.workers, self._errors)

    def _errors(self) -> Iterable[SaAtpError | None]:
        return [worker.error for worker in self.workers]

    def all_reduce(self, parts: Sequence[Values]) -> list[Values]:
        sums = [worker.begin(len(parts[0]), "bench") for worker in self.workers]
        for worker, sum_, part in zip(self.workers, sums, parts, strict=True):
            worker.contribute(sum_, [part], worker.membership.bits_of(worker.membership.rank))
        self.run(lambda: all(sum_.future.done() for sum_ in sums), self._errors)
        return [sum_.future.result(timeout=0) for sum_ in sums]

    def counted(self) -> tuple[int, int, int, int]:
        stats = [worker.worker.stats for worker in self.workers]
        return (
            sum(each.fragments_sent for each in stats),
            sum(each.retransmitted for each in stats),
            sum(each.probes for each in stats),
            sum(each.results_from_server for each in stats),
        )


class _Theirs(_Cluster):
    def __init__(self, request: LossRequest, protocol: str, pipeline: Pipeline, links: LinkSettings) -> None:
        self.peer = policies.peers()[protocol]
        self.lanes = request.lanes
        self.payload_share = 4 * request.lanes / (HEADERS_BYTES + self.peer.packet_bytes(request.lanes))  # as ours
        slots = request.slots or self.peer.slots
        self.world = PeerWorld(
            self.peer,
            pipeline,
            seed=request.seed,
            lanes=request.lanes,
            slots=slots,
            timeout_us=self.peer.timeout_us(slots, request.lanes, request.link_mbps, request.delay_us),
            links=[links] * request.workers,
        )
        self.clock = self.world.clock

    def wanted(self, parts: Sequence[Values]) -> Values:
        return self.peer.reference(parts, self.lanes)

    def all_reduce(self, parts: Sequence[Values]) -> list[Values]:
        futures = [worker.all_reduce(part) for worker, part in zip(self.world.workers, parts, strict=True)]
        errors = [worker.transport for worker in self.world.workers]
        self.run(lambda: all(future.done() for future in futures), lambda: [each.error for each in errors])
        return [future.result(timeout=0) for future in futures]

    def counted(self) -> tuple[int, int, int, int]:
        transports = [worker.transport for worker in self.world.workers]
        return sum(each.sent for each in transports), sum(each.retransmitted for each in transports), 0, 0


def _print(request: LossRequest, rows: Sequence[LossRow]) -> None:
    columns = (
        "protocol",
        "loss",
        "goodput per worker",
        "of limit",
        "of lossless",
        "retransmitted",
        "probes",
        "wrong sums",
    )
    table = terminal.table((), columns)
    for r in rows:
        share = "" if r.fraction_of_lossless is None else f"{r.fraction_of_lossless:.1%}"
        table.add_row(
            r.protocol,
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
