"""Traces of operations: slow-downs of data-parallel ranks from a Parquet file, and what is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from sa_atp.cli import main
from sa_atp.lab.plans import operation_traces, plan_files, traces

TOPOLOGIES = Path(__file__).resolve().parents[3] / "topologies"
pytestmark = pytest.mark.needs("pyarrow")


def write(path: Path, rows: list[dict[str, Any]], **columns: Any) -> Path:
    """Writes a file with the types of the public traces."""
    import pyarrow as pa
    from pyarrow import parquet

    types = {
        "dp_rank": pa.int8(), "stage": pa.int8(), "rank": pa.int16(), "step": pa.int64(),
        "optype": pa.dictionary(pa.int8(), pa.string()), "start_ts": pa.float32(), "duration": pa.float32(),
        "seq_id": pa.int32(), "mc": pa.int8(), "mb_id": pa.int8(), "gmc": pa.int16(),
    } | columns  # fmt: skip
    table = {
        name: pa.array([row.get(name, 0) for row in rows], kind if kind != types["optype"] else pa.string()).cast(kind)
        for name, kind in types.items()
        if kind is not None
    }
    parquet.write_table(pa.table(table), path)
    return path


def job(slow: dict[tuple[int, int], float], steps: int = 3, ranks: int = 4, stages: int = 2) -> list[dict[str, Any]]:
    """Two micro-batches a step: stage 1 takes 2 s forward and backward, stage 0 half of that.

    Args: slow: factor by step and data-parallel rank.
    """
    rows = []
    for step in range(steps):
        for dp_rank in range(ranks):
            for stage in range(stages):
                at = {"step": 16 + step, "dp_rank": dp_rank, "stage": stage, "rank": dp_rank * stages + stage}
                unit = 0.25 * (1 + stage) * slow.get((step, dp_rank), 1.0)
                for mb_id in range(2):
                    rows.append({**at, "optype": "forward-compute", "mb_id": mb_id, "duration": unit})
                    rows.append({**at, "optype": "backward-compute", "mb_id": mb_id, "duration": unit})
                rows.append({**at, "optype": "grads-reduce-scatter", "start_ts": 4.0, "duration": 50.0})
    return rows


def test_a_rank_is_as_slow_as_its_slowest_stage(tmp_path: Path) -> None:
    path = write(tmp_path / "job.parquet", job({(0, 2): 3.0, (2, 1): 0.5}))
    found = operation_traces.read(path)
    assert (found.steps, found.workers, found.typical_s) == (3, 4, 2.0)
    assert len(found.rows) == 12
    other = {(step, worker): slow for step, worker, slow in found.rows if slow != 1.0}
    assert other == {(0, 2): 3.0, (2, 1): 0.5}
    assert found.step_s == pytest.approx(54.0)
    assert found.slowest_over_mean == pytest.approx((3 / 1.5 + 1 + 1 / 0.875) / 3)


def test_what_is_written_is_what_a_plan_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "job.parquet", job({(1, 3): 2.25}))
    assert main(["trace", str(path), "--out", str(tmp_path / "job.csv"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["steps"], said["workers"], said["rows"]) == (3, 4, 12)
    assert traces.read(tmp_path / "job.csv") == operation_traces.read(path).rows
    plan = tmp_path / "plan.toml"
    plan.write_text('[straggler]\npattern = "trace"\ntrace = "job.csv"\n')
    assert (1, 3, 2.25) in plan_files.load(plan).straggler.rows
    assert main(["trace", str(path), "--out", str(tmp_path / "job.csv")]) == 0
    assert "3 steps of 4 data-parallel ranks" in capsys.readouterr().out


def test_a_rank_that_does_nothing_in_a_step_has_no_row(tmp_path: Path) -> None:
    rows = [row for row in job({}) if (row["step"], row["dp_rank"]) != (17, 0)]
    found = operation_traces.read(write(tmp_path / "job.parquet", rows))
    assert (1, 0) not in {(step, worker) for step, worker, _ in found.rows}
    assert len(found.rows) == 11
    assert found.slowest_over_mean == pytest.approx(1.0), "it is none of the step's workers"


def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.parquet").write_text("step,worker\n")
    write(tmp_path / "columns.parquet", job({}), dp_rank=None)
    write(tmp_path / "sends.parquet", [{**row, "optype": "forward-send"} for row in job({})])
    write(tmp_path / "negative.parquet", job({(0, 0): -1.0}))
    write(tmp_path / "nothing.parquet", job({(s, r): 0.0 for s in range(3) for r in range(4)}))
    whole = write(tmp_path / "whole.parquet", job({})).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    for name, says in {
        "nowhere": "No such file or directory",
        "text": "not a Parquet file",
        "cut": "not a Parquet file",
        "columns": "no column 'dp_rank': expected the columns dp_rank, rank, step, optype, start_ts, duration",
        "sends": "no operation is a forward-compute or a backward-compute",
        "negative": "column duration: expected seconds, 0 or more",
        "nothing": "no operation takes any time",
    }.items():
        path = tmp_path / f"{name}.parquet"
        assert main(["trace", str(path), "--out", str(tmp_path / "out.csv")]) == 2
        error = capsys.readouterr().err
        assert error == f"sa-atp: {path}: {says}\n"
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("name", "steps", "workers", "slowest"),
    [("bytedance-sequences", 43, 32, 1.26), ("bytedance-slow-worker", 44, 4, 1.72)],
)
def test_the_committed_traces_are_those_of_their_jobs(name: str, steps: int, workers: int, slowest: float) -> None:
    plan = plan_files.load(TOPOLOGIES / f"{name}.toml")
    with (TOPOLOGIES / plan.straggler.trace).open() as file:
        rows = [(int(row["step"]), int(row["worker"]), float(row["slowdown"])) for row in csv.DictReader(file)]
    assert tuple(rows) == plan.straggler.rows
    assert len(rows) == steps * workers
    assert (plan.run.steps, plan.topology.workers) == (steps, workers)
    of_step = [[slow for step, _, slow in rows if step == n] for n in range(steps)]
    ratios = [max(found) / (sum(found) / workers) for found in of_step]
    assert sum(ratios) / steps == pytest.approx(slowest, abs=0.005)
