"""timeline.json: the activities of all workers in Chrome's trace-event format, for Perfetto and chrome://tracing.

A process is one repetition of one policy, a thread is one worker. Viewers choose colours by name (Perfetto) or by
`cname` (chrome://tracing), so names begin with the activity.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sa_atp.lab.report.drawing.gaps import without_gaps
from sa_atp.lab.report.text import policy_name
from sa_atp.lab.runs.records import Interval, PolicyRun, RunResult
from sa_atp.lab.runs.tasks import job_name
from sa_atp.net.logs import reading
from sa_atp.net.logs.writing import folder_of
from sa_atp.protocol.log import lines

# The named colours of the format nearest to those of the figures:
# https://github.com/catapult-project/catapult/blob/main/tracing/tracing/base/color_scheme.html
COLOURS = {
    "compute": "rail_response",  # blue
    "help": "thread_state_iowait",  # orange
    "send": "rail_load",  # green
    "wait": "grey",
    "pause": "thread_state_uninterruptible",  # mauve
    "between": "generic_work",  # a darker grey
}


def trace(result: RunResult, log: Path | None = None) -> dict[str, Any]:
    """All repetitions of all policies as trace events; times in microseconds from the first step of each.

    Args: log: folder with logs of decisions, which become instant events; None: there are none. Raises: UserError.
    """
    events: list[dict[str, Any]] = []
    for pid, run in enumerate(result.runs, start=1):
        events += _process(result, pid, run)
        if log is not None:
            number = run.repetition * result.plan.job.jobs + run.job
            events += _decisions(log / folder_of(job_name(run.policy, number)), pid, run, result.plan.topology.workers)
    return {
        "displayTimeUnit": "ms",
        "otherData": {"plan": result.plan_path, "backend": result.backend, "switch": result.switch},
        "traceEvents": events,
    }


def _process(result: RunResult, pid: int, run: PolicyRun) -> Iterator[dict[str, Any]]:
    name = policy_name(run.policy)
    if result.plan.run.repetitions > 1:
        name += f", repetition {run.repetition + 1}"
    if result.plan.job.jobs > 1:
        name += f", job {run.job}"
    yield _metadata(pid, 0, "process_name", {"name": name})
    yield _metadata(pid, 0, "process_sort_index", {"sort_index": pid})
    for worker in sorted({i.worker for i in run.intervals} | {i.worker for i in run.iterations}):
        yield _metadata(pid, worker, "thread_name", {"name": f"worker {worker}"})
        yield _metadata(pid, worker, "thread_sort_index", {"sort_index": worker})
    starts: dict[int, int] = {}
    for interval in run.intervals:
        starts[interval.step] = min(interval.start_us, starts.get(interval.step, interval.start_us))
    for step, start_us in sorted(starts.items()):
        yield {"name": f"step {step}", "cat": "step", "ph": "i", "s": "p", "ts": start_us, "pid": pid, "tid": 0}
    slow = {(i.worker, i.step): i.slowdown for i in run.iterations if i.slowdown > 1}
    for interval in sorted(without_gaps(run), key=lambda i: (i.start_us, -i.end_us)):
        is_in_step = interval.kind != "between"
        yield _complete(pid, interval, slow.get((interval.worker, interval.step)) if is_in_step else None)


def _complete(pid: int, interval: Interval, slowdown: float | None) -> dict[str, Any]:
    args: dict[str, Any] = {"step": interval.step}
    if interval.label:
        args["what"] = interval.label
    if slowdown is not None:
        args["slowdown"] = slowdown
    names = {"help": f"help: {interval.label}" if interval.label else "help", "between": "between steps"}
    return {
        "name": names.get(interval.kind, interval.kind),
        "cat": interval.kind,
        "ph": "X",
        "ts": interval.start_us,
        "dur": max(0, interval.end_us - interval.start_us),
        "pid": pid,
        "tid": interval.worker,
        "cname": COLOURS[interval.kind],
        "args": args,
    }


def _decisions(folder: Path, pid: int, run: PolicyRun, workers: int) -> Iterator[dict[str, Any]]:
    """Yields instant events for decisions, each on its rank's row; the parameter server has a row below the ranks."""
    for path in sorted(folder.glob("*.jsonl")):
        found = reading.read(path)
        row = workers if found.rank is None else found.rank
        if found.rank is None:
            yield _metadata(pid, row, "thread_name", {"name": lines.PARAMETER_SERVER})
            yield _metadata(pid, row, "thread_sort_index", {"sort_index": row})
        for time_us, event in found.events:
            yield {
                "name": event.name,
                "cat": event.name.partition(":")[0],
                "ph": "i",
                "s": "t",
                "ts": time_us - run.origin_us,
                "pid": pid,
                "tid": row,
                "args": lines.fields(event),
            }


def _metadata(pid: int, tid: int, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}
