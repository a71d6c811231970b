"""The P4 program from memory to memory on several cores concurrently, as in the switch's loop but without sockets."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sa_atp.basics.arrays import ByteRows, Indices, Lengths
from sa_atp.basics.errors import SaAtpError
from sa_atp.basics.folders import cache_folder
from sa_atp.basics.waiting import waiting
from sa_atp.basics.words import plural
from sa_atp.lab.bench.switch.traffic import PASSES, WORKERS, Build, Contributions, Results, hosts, job
from sa_atp.protocol.packets.frames import HEADERS_BYTES
from sa_atp.switches import artefacts
from sa_atp.switches.control import jobs
from sa_atp.switches.control.writer import LocalWriter
from sa_atp.switches.embedded.call_frame import PLACES
from sa_atp.switches.embedded.pipeline import PORTS, Packets, Pipeline

ROOM = 64  # bytes that the program may add to a packet
TOGETHER = 10  # consecutive packets of a worker
FRAGMENTS = 512  # fragments of a measured round


@dataclass(frozen=True, slots=True)
class Round:
    """Every worker's contributions to some fragments."""

    first: int
    fragments: int
    frame_bytes: int
    row_bytes: int
    batches: list[tuple[ByteRows, Lengths, Indices]]
    """Frames, their lengths in bytes and their ports, for each core."""


def rounds(cores: int, count: int, fragments: int, build: Build, *, seed: int) -> Iterator[Round]:
    """Generates rounds. Cores get the workers in turn; with several cores, in every fourth round each worker has its own
    order of fragments, and rows have room for bytes that the program adds.

    Args: fragments: of a round, at most traffic.SLOTS. A round is valid until the next one.
    """
    draw = np.random.default_rng(seed)
    members, server = hosts()
    senders = [Contributions(member, server, build, fragments) for member in members]
    frame_bytes = HEADERS_BYTES + senders[0].payloads.shape[1]
    of_core = [range(core, WORKERS, cores) for core in range(cores)]
    row_bytes = frame_bytes + ROOM if cores > 1 else frame_bytes
    data = [np.zeros((len(ranks) * fragments, row_bytes), np.uint8) for ranks in of_core]
    ports = [np.repeat([members[rank].switch_port for rank in ranks], fragments) for ranks in of_core]
    for number in range(count):
        first = number * fragments
        for core, ranks in enumerate(of_core):
            for i, rank in enumerate(ranks):
                starts = list(range(0, fragments, TOGETHER))
                if cores > 1 and number % 4 == 3:
                    starts = draw.permutation(starts).tolist()
                order = np.concatenate([np.arange(at, min(at + TOGETHER, fragments)) for at in starts])
                data[core][i * fragments : (i + 1) * fragments, :frame_bytes] = senders[rank].frames(first + order)
        batches = [(data[c], np.full(len(data[c]), frame_bytes), ports[c]) for c in range(cores)]
        yield Round(first, fragments, frame_bytes, row_bytes, batches)


def passes(build: Build, cores: int, packets: int) -> Iterator[float]:
    """Packets per second of so many cores together, by the time of the slowest core: all contributions of a job of four
    workers. Every sum is checked.

    Time in which a core waits for another one counts; time used by other processes does not. Args: packets: of all passes.
    Yields: those of each pass. Raises: SaAtpError.
    """
    config = artefacts.program(*build).device_config()
    pipeline = Pipeline.from_config(config, cache=cache_folder(), shared=cores > 1)
    with waiting("compiling the switch program, or loading it from the cache"):
        pipeline.compile()
    members, server = hosts()
    jobs.install(LocalWriter(pipeline), job(members, server))
    count = -(-packets // (PASSES * FRAGMENTS * WORKERS))
    team: Sequence[Core] = [OnlyCore(pipeline)] if cores == 1 else []
    for number, each in enumerate(rounds(cores, PASSES * (count + 1), FRAGMENTS, build, seed=1)):
        team = team or [MemoryCore(pipeline, len(lengths), each.row_bytes) for _, lengths, _ in each.batches]
        with pipeline.lock:
            check(each, take_together(team, each.batches, number), build)
        if number % (count + 1) == 0:  # the first round of a pass only fills caches
            for core in team:
                core.spent_s = 0.0
        elif number % (count + 1) == count:
            yield count * FRAGMENTS * WORKERS / max(core.spent_s for core in team)


def check(each: Round, found: Sequence[Packets], build: Build) -> None:
    """Checks that every sum is right and was sent once to each worker and the parameter server. Raises: SaAtpError."""
    results = Results(each.first, each.fragments, build)
    for out in found:
        results.take(out.data[out.ports == 1, HEADERS_BYTES : each.frame_bytes])
    made = sum(len(out) for out in found)
    if not results.complete or results.wrong or made != each.fragments * (WORKERS + 1):
        raise SaAtpError(
            f"fragments from {each.first} on: {plural(made, 'packet')}, {plural(results.wrong, 'wrong sum')}"
        )


class Core(Protocol):
    """A core that runs the program; `spent_s` is its time in it."""

    spent_s: float

    def take(self, data: ByteRows, lengths: Indices, ports: Indices, now_us: int) -> Packets: ...


class OnlyCore:
    """A core that has the program for itself."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.spent_s = 0.0

    def take(self, data: ByteRows, lengths: Indices, ports: Indices, now_us: int) -> Packets:
        """Runs packets through the program. Args: as `Pipeline.process`."""
        started = time.thread_time()
        found = self._pipeline.process(data, lengths, ports, now_us)
        self.spent_s += time.thread_time() - started
        return found


class MemoryCore:
    """The state of one of several cores: a frame, and buffers for incoming and outgoing packets."""

    def __init__(self, pipeline: Pipeline, packets: int, row_bytes: int) -> None:
        """Args: packets: of a batch, at most; row_bytes: size of a row, with the bytes that the program may add."""
        self._pipeline = pipeline
        self.frame = frame = pipeline.new_frame()
        room = packets * pipeline.most_copies
        self._out = np.zeros((room, row_bytes), np.uint8)
        self._columns = [np.zeros(room, np.int64) for _ in range(4)]
        for name, array in {
            "starts": np.arange(packets) * row_bytes,
            "head_of": np.full(packets, -1),
            "heads_in": np.zeros(0, np.uint8),
            "heads": np.zeros(0, np.uint8),
            "kept": np.zeros(0, np.uint8),
            "depths": np.zeros(PORTS, np.int64),
            "out": self._out.reshape(-1),
            **dict(zip(("out_starts", "out_lengths", "out_ports", "out_sources"), self._columns, strict=True)),
        }.items():
            frame.array(PLACES[name], array)
        frame.number(PLACES["row_bytes"], row_bytes)
        self.spent_s = 0.0
        """Time of this core in the program."""

    def take(self, data: ByteRows, lengths: Indices, ports: Indices, now_us: int) -> Packets:
        """Runs packets through the program; the caller holds the pipeline's lock. Args: as `Pipeline.process`."""
        frame = self.frame
        self._pipeline.bring_up_to_date(frame)
        for name, array in (("packets", data.reshape(-1)), ("lengths", lengths), ("ports", ports)):
            frame.array(PLACES[name], array)
        for name, value in (("first", 0), ("last", len(lengths)), ("now", now_us)):
            frame.number(PLACES[name], value)
        started = time.thread_time()
        self._pipeline.run(frame)
        self.spent_s += time.thread_time() - started
        if frame.result(PLACES["first"]) != len(lengths):
            raise AssertionError("the outgoing packets do not fit the buffer")
        made = frame.result(PLACES["last"])
        _, out_lengths, out_ports, out_sources = (column[:made] for column in self._columns)
        return Packets(self._out[:made], out_lengths, out_ports, out_sources)


def take_together(
    cores: Sequence[Core], batches: Sequence[tuple[ByteRows, Indices, Indices]], now_us: int
) -> list[Packets]:
    """Runs a batch on each core concurrently. The caller holds the pipeline's lock. Returns: outgoing packets by core."""
    barrier = threading.Barrier(len(cores))

    def run(core: Core, batch: tuple[ByteRows, Indices, Indices]) -> Packets:
        barrier.wait()
        return core.take(*batch, now_us)

    with ThreadPoolExecutor(len(cores)) as threads:
        others = [threads.submit(run, *each) for each in zip(cores[1:], batches[1:], strict=True)]
        return [run(cores[0], batches[0]), *(other.result() for other in others)]
