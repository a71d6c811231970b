"""Runs many worlds, seed by seed, in one process or several; collects failures and watches memory."""

import gc
import os
import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.folders import cache_folder
from sa_atp.lab.peers import switchml
from sa_atp.lab.runs.pool import pool
from sa_atp.lab.soak import peers
from sa_atp.lab.soak.draw import draw
from sa_atp.lab.soak.invariants import Broken
from sa_atp.lab.soak.scene import Scene
from sa_atp.lab.soak.shrink import shrink
from sa_atp.lab.soak.transcript import Transcript
from sa_atp.lab.soak.world import Outcome, SoakWorld
from sa_atp.switches import artefacts
from sa_atp.switches.embedded.pipeline import Pipeline

MOST_SEEDS = 10_000_000
MOST_SEED = 2**63
LOT = 20  # seeds that a process runs before it reports
WARM_LOTS = 10  # lots during which memory may grow: code is loaded, and large worlds occur
MOST_GROWTH_MB = 150.0  # of a process after that, however many worlds it runs
MOST_FAILURES = 20  # a run ends after so many failures
MOST_CPU_S = 600.0  # of a world; more means an endless loop
ENDLESS = "endless"  # the kind of violation in that case
SLOWEST = 5  # worlds that reports name


@dataclass(frozen=True, slots=True)
class SoakFailure:
    seed: int
    what: str
    detail: str
    scene: list[str]
    """The shrunk world's description, in words."""
    shrunk: dict[str, Any]
    """The shrunk scene as JSON-able data."""
    shrunk_detail: str
    transcript: list[str]

    @property
    def repeat_command(self) -> str:
        """The command that repeats the failure."""
        return f"sa-atp soak --first {self.seed} --seeds 1"


@dataclass(slots=True)
class SoakResult:
    """The outcome of worlds with consecutive seeds: of a lot that one process runs, or of a whole run."""

    first: int
    seeds: int = 0
    elapsed_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    """The numbers of all outcomes together, by their names in `Outcome`."""
    failures: list[SoakFailure] = field(default_factory=list)
    longest: list[tuple[int, int]] = field(default_factory=list)
    """(microseconds without progress, seed), the longest first."""
    memory_mb: dict[int, list[float]] = field(default_factory=dict)
    """Megabytes that each process had after each lot of worlds, by the number of the process."""
    worlds_alive: int = 0
    """Worlds that are still in memory after their lot."""

    def add(self, seed: int, outcome: Outcome) -> None:
        counts = asdict(outcome)
        self.longest = sorted([*self.longest, (counts.pop("longest_us"), seed)], reverse=True)[:SLOWEST]
        self.counts.update(counts)

    def take(self, lot: "SoakResult") -> None:
        self.seeds += lot.seeds
        self.counts.update(lot.counts)
        self.failures += lot.failures
        self.longest = sorted([*self.longest, *lot.longest], reverse=True)[:SLOWEST]
        for process, memory_mb in lot.memory_mb.items():
            self.memory_mb.setdefault(process, []).extend(memory_mb)
        self.worlds_alive = max(self.worlds_alive, lot.worlds_alive)

    @property
    def growth_mb(self) -> float | None:
        """The largest growth of a process's memory after `WARM_LOTS`; None: no process ran for long enough."""
        grown = [mb[-1] - mb[WARM_LOTS - 1] for mb in self.memory_mb.values() if len(mb) >= 2 * WARM_LOTS]
        return max(grown, default=None)

    @property
    def problems(self) -> list[str]:
        """Problems of the run that are no single world's: memory that grows or is not freed."""
        found = []
        if self.growth_mb is not None and self.growth_mb > MOST_GROWTH_MB:
            found.append(f"memory has grown by {self.growth_mb:.0f} MB, more than {MOST_GROWTH_MB:.0f}")
        if self.worlds_alive:
            found.append(f"{self.worlds_alive} worlds are still in memory after they ended")
        return found

    @property
    def is_bad(self) -> bool:
        return bool(self.failures or self.problems)

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON-able data."""
        counts = self.counts
        return {
            "first": self.first,
            "seeds": self.seeds,
            "elapsed_s": round(self.elapsed_s, 1),
            "virtual_s": round(counts["virtual_us"] / 1e6, 1),
            **{name: counts[name] for name in ("sums", "packets", "events", "ranks")},
            "ranks_done": counts["done"],
            "errors": counts["errors"],
            "longest": [{"seed": seed, "without_progress_s": round(us / 1e6, 3)} for us, seed in self.longest],
            "memory_mb": {
                "first": round(max((mb[0] for mb in self.memory_mb.values()), default=0.0), 1),
                "last": round(max((mb[-1] for mb in self.memory_mb.values()), default=0.0), 1),
                "growth": None if self.growth_mb is None else round(self.growth_mb, 1),
            },
            "problems": self.problems,
            "failures": [
                {
                    "seed": each.seed,
                    "what": each.what,
                    "detail": each.detail,
                    "again": each.repeat_command,
                    "shrunk": each.shrunk,
                    "shrunk_detail": each.shrunk_detail,
                    "words": each.scene,
                    "transcript": each.transcript,
                }
                for each in sorted(self.failures, key=lambda failure: failure.seed)
            ],
        }


def check(first: int, seeds: int, minutes: float | None, jobs: int) -> None:
    """Raises: UserError."""
    if not 1 <= seeds <= MOST_SEEDS:
        raise UserError(f"--seeds {seeds}: expected 1 to {MOST_SEEDS}")
    if not 0 <= first < MOST_SEED - seeds:
        raise UserError(f"--first {first}: expected 0 to {MOST_SEED - seeds - 1}")
    if minutes is not None and not 0 < minutes < float("inf"):
        raise UserError(f"--minutes {minutes:g}: expected a positive number")
    if not 1 <= jobs <= 256:
        raise UserError(f"--jobs {jobs}: expected 1 to 256")


def soak(
    first: int,
    seeds: int,
    *,
    minutes: float | None = None,
    jobs: int = 1,
    shrinks: bool = True,
    on_progress: Callable[[SoakResult], None] = lambda result: None,
) -> SoakResult:
    """Runs the worlds of seeds `first`, `first + 1`, ...

    Args:
        minutes: no world begins after so long; None: all seeds run.
        jobs: number of processes.
        shrinks: whether failing worlds are shrunk.
        on_progress: called with the result so far after each lot.

    Raises: UserError.
    """
    check(first, seeds, minutes, jobs)
    began = time.monotonic()
    result = SoakResult(first)
    deadline = None if minutes is None else began + 60 * minutes
    for lot in _lots(first, seeds, jobs, deadline, shrinks):
        result.take(lot)
        result.elapsed_s = time.monotonic() - began
        on_progress(result)
        if len(result.failures) >= MOST_FAILURES:
            break
    return result


def _lots(first: int, seeds: int, jobs: int, deadline: float | None, shrinks: bool) -> Iterator[SoakResult]:
    wanted = iter([(at, min(LOT, first + seeds - at)) for at in range(first, first + seeds, LOT)])
    work = partial(run_lot, deadline=deadline, shrinks=shrinks)
    if jobs == 1:
        for at, count in wanted:
            lot = work(at, count)
            yield lot
            if lot.seeds < count:
                return
        return
    with pool(jobs) as processes:
        under_way: set[Future[SoakResult]] = {processes.submit(work, *lot) for lot in islice(wanted, 2 * jobs)}
        while under_way:
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            if deadline is None or time.monotonic() < deadline:
                under_way |= {processes.submit(work, *lot) for lot in islice(wanted, len(done))}
            yield from (each.result() for each in done)


def run_lot(first: int, count: int, deadline: float | None, shrinks: bool) -> SoakResult:
    """Runs worlds one after the other until the count or the deadline is reached."""
    lot = SoakResult(first)
    for seed in range(first, first + count):
        if deadline is not None and time.monotonic() >= deadline:
            break
        lot.seeds += 1
        scene = draw(seed)
        try:
            lot.add(seed, run_scene(scene))
        except Broken as broken:
            lot.failures.append(explain(seed, scene, broken, shrinks=shrinks))
    gc.collect()
    lot.worlds_alive = sum(
        issubclass(type(each), SoakWorld) for each in gc.get_objects()
    )  # isinstance would call their __class__
    lot.memory_mb[os.getpid()] = [memory_mb()]
    return lot


@cache
def _pipeline(lanes: int, contributions: int, number: int) -> Pipeline:
    """A pipeline of this process, which all worlds with this build reuse."""
    return Pipeline.from_file(artefacts.program(lanes, contributions).json_path, cache=cache_folder())


@cache
def _pipeline_of_peers() -> Pipeline:
    return Pipeline.from_file(switchml.PEER.program(peers.LANES).json_path, cache=cache_folder())


def run_scene(scene: Scene, transcript: Transcript | None = None) -> Outcome:
    """Runs a world. Raises: Broken."""
    switches = [_pipeline(scene.lanes, scene.contributions, number) for number in range(1 + scene.leaves)]
    with _bounded(MOST_CPU_S):
        outcome = SoakWorld(scene, switches, None if transcript is None else transcript.attach).run()
        more = peers.run(scene, _pipeline_of_peers()) if scene.peer else 0
        return replace(outcome, sums=outcome.sums + more)


@contextmanager
def _bounded(cpu_s: float) -> Iterator[None]:
    """Interrupts the block after so much CPU time. Called from the main thread. Raises: Broken."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Broken(
            ENDLESS, f"still running after {cpu_s:g} s of CPU time, at\n{''.join(traceback.format_stack(frame))}"
        )

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def broken_in(scene: Scene) -> Broken | None:
    """Runs a world; returns the violation that it ends with, if any."""
    try:
        run_scene(scene)
    except Broken as broken:
        return broken.with_traceback(None)
    return None


def explain(seed: int, scene: Scene, broken: Broken, *, shrinks: bool = True) -> SoakFailure:
    """Shrinks a failing world, and runs the small one once more with a transcript of its packets."""
    if broken.what == ENDLESS:
        return SoakFailure(seed, broken.what, broken.detail, scene.words(), scene.as_dict(), str(broken), [])
    small, small_broken = shrink(scene, broken, broken_in) if shrinks else (scene, broken)
    transcript = Transcript()
    try:
        run_scene(small, transcript)
    except Broken as error:
        small_broken = error
    return SoakFailure(
        seed=seed,
        what=broken.what,
        detail=broken.detail,
        scene=small.words(),
        shrunk=small.as_dict(),
        shrunk_detail=str(small_broken),
        transcript=transcript.lines(),
    )


def memory_mb() -> float:
    """The resident memory of this process."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * resource.getpagesize() / 1e6
