"""Computes the points of a sweep or a table concurrently: in processes on this machine, or on a Dask cluster.

A point is a function of its arguments alone, so it may run anywhere, and more than once. Results are yielded as they
complete. If a process or a worker of the cluster dies, its point is tried again. Finished points that a folder keeps are
not computed again.
"""

import contextlib
import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sa_atp.basics import needs
from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.basics.words import plural
from sa_atp.lab.runs.point_process import answer, outcome
from sa_atp.lab.runs.processes import Group, Process, ProcessError, wait_for

TRIES = 2  # of a point whose process dies; clusters have distributed.scheduler.allowed-failures instead
CONNECT_S = 10.0  # to a scheduler
WORKERS_S = 60.0  # until the scheduler has a worker
WAIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Point:
    name: str
    """Unique, for messages and files."""
    work: str
    """The function that computes it, "package.module:function", with one argument."""
    arguments: Any
    """JSON-able."""


def run(
    points: Sequence[Point], folder: Path, *, jobs: int = 1, scheduler: str | None = None
) -> Iterator[tuple[Point, Any]]:
    """Computes points. Yields each with its JSON-able result as soon as it is complete.

    Args:
        folder: for logs.
        jobs: number of processes on this machine.
        scheduler: address of a Dask scheduler, as tcp://HOST:PORT; its workers compute then, and `jobs` is ignored.

    Raises: UserError: there is no such scheduler; MissingPartError; SaAtpError: a point failed, or its process died twice.
    """
    if jobs < 1:
        raise UserError(f"--jobs {jobs}: expected at least 1")
    return _on_cluster(points, scheduler) if scheduler else _on_cores(points, folder, jobs)


class Kept:
    """Finished points in a folder, from which an interrupted run continues."""

    def __init__(self, folder: Path, stamp: str) -> None:
        """Args: stamp: versions and commit; results with another stamp are computed again."""
        self._folder = folder
        self._stamp = stamp

    def run(
        self, points: Sequence[Point], *, jobs: int = 1, scheduler: str | None = None
    ) -> Generator[tuple[Point, Any], None, None]:
        """Like `run`, with finished points first. Raises: as `run`; UserError: the folder cannot be written."""
        left = []
        for point in points:
            found = self._read(point)
            if found is None:
                left.append(point)
            else:
                yield point, found[0]
        if left:
            self._make()
            for point, result in run(left, self._folder, jobs=jobs, scheduler=scheduler):
                self._write(point, result)
                yield point, result

    def _path(self, point: Point) -> Path:
        legible = re.sub(r"[^A-Za-z0-9.+-]+", "-", point.name).strip("-")[:80]
        return self._folder / f"{legible}-{hashlib.sha256(point.name.encode()).hexdigest()[:8]}.json"

    def _said(self, point: Point) -> dict[str, Any]:
        asked = {"name": point.name, "work": point.work, "arguments": point.arguments, "stamp": self._stamp}
        said: dict[str, Any] = json.loads(json.dumps(asked))
        return said

    def _read(self, point: Point) -> tuple[Any] | None:
        try:
            kept = json.loads(self._path(point).read_text())
        except (OSError, ValueError):  # missing or truncated
            return None
        if not isinstance(kept, dict) or "result" not in kept:
            return None
        result = kept.pop("result")
        return (result,) if kept == self._said(point) else None

    def _make(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self._folder}: cannot be made: {error.strerror}") from None

    def _write(self, point: Point, result: Any) -> None:
        path = self._path(point)
        part = path.with_suffix(".partial")
        try:
            part.write_text(json.dumps({**self._said(point), "result": result}))
            os.replace(part, path)
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None


# --- this machine -----------------------------------------------------------------------------------------------------


def _on_cores(points: Sequence[Point], folder: Path, jobs: int) -> Iterator[tuple[Point, Any]]:
    waiting = deque((point, 1) for point in points)
    at: dict[Process, tuple[Point, int]] = {}
    started = 0
    with Group() as group:

        def begin(process: Process | None = None) -> None:
            """Has a process, or a new one, compute the next waiting point."""
            nonlocal started
            if process is None:
                started += 1
                process = group.start(
                    f"process {started}", ["sa_atp.lab.runs.point_process"], folder / f"process-{started}.log",
                    {"OMP_NUM_THREADS": "1"},
                )  # fmt: skip
            at[process] = point, _ = waiting.popleft()
            with contextlib.suppress(ProcessError):  # a dead process is noticed when its answer is awaited
                process.tell({"work": point.work, "arguments": point.arguments})

        while waiting and len(at) < jobs:
            begin()
        while at:
            for process in wait_for(list(at), WAIT_S):
                point, number = at[process]
                try:
                    process.pump()
                    if not process.has_answer:
                        continue
                    answered = process.answer(0.0)
                except ProcessError as error:
                    if number == TRIES:
                        raise SaAtpError(f"{point.name}: its process died {plural(TRIES, 'time')}: {error}") from None
                    waiting.appendleft((point, number + 1))
                    del at[process]
                    begin()
                    continue
                del at[process]
                if waiting:
                    begin(process)
                yield point, outcome(answered, f"{point.name}: ")


# --- a cluster --------------------------------------------------------------------------------------------------------


def _on_cluster(points: Sequence[Point], scheduler: str) -> Iterator[tuple[Point, Any]]:
    if not re.fullmatch(r"(\w+://)?[^:/\s]+:\d{1,5}", scheduler):
        raise UserError(f"--scheduler {scheduler}: expected the address of a Dask scheduler, as tcp://HOST:PORT")
    needs.require_modules("--scheduler needs", "distributed")
    from distributed import CancelledError, Client, as_completed

    try:
        client = Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UserError(f"--scheduler {scheduler}: no Dask scheduler answers ({_line(error)})") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=WORKERS_S)
        except (OSError, TimeoutError):
            raise UserError(f"--scheduler {scheduler}: it has no workers: start some with `dask worker`") from None
        # `answer` runs one point at a time in a process: threads of a worker would share PyTorch's generator
        futures = client.map(answer, [p.work for p in points], [p.arguments for p in points], pure=False)
        point_of = {future.key: point for future, point in zip(futures, points, strict=True)}
        try:
            yield from _gather(as_completed(futures, loop=client.loop), point_of)
        except (CancelledError, OSError) as error:
            raise SaAtpError(f"--scheduler {scheduler}: the connection is lost ({_line(error)})") from None
        finally:
            with contextlib.suppress(Exception):  # it may be gone
                client.cancel(futures)


def _gather(futures: Iterable[Any], point_of: dict[str, Point]) -> Iterator[tuple[Point, Any]]:
    for future in futures:
        point = point_of[future.key]
        if future.status == "error":  # errors of the cluster; a point's own errors are answers
            raise SaAtpError(f"{point.name}: on the cluster: {_line(future.exception())}")
        yield point, outcome(future.result(), f"{point.name}: ")


def _line(error: BaseException | None) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
