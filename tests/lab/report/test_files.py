"""The folder of a run: valid files, a faithful round trip, and no half files."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sa_atp.basics.errors import UserError
from sa_atp.lab.plans.plan import HelpPlan, Plan, RunPlan, StragglerPlan
from sa_atp.lab.report import archive, files
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.report.trace import trace
from sa_atp.lab.runs.records import Evaluation, Interval, Iteration, PolicyRun, RunResult

from . import synthetic
from .cases import CASES, small

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
COUNTS = st.integers(0, 2**40)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)


@st.composite
def runs(draw: st.DrawFn) -> RunResult:
    """Any RunResult, whether or not it makes sense."""
    iterations = st.builds(
        Iteration, step=COUNTS, worker=COUNTS, compute_s=NUMBERS, help_s=NUMBERS, send_s=NUMBERS, wait_s=NUMBERS,
        iteration_s=NUMBERS, loss=NUMBERS, slowdown=NUMBERS, micro_batches=COUNTS, helped=COUNTS, end_s=NUMBERS,
        samples=COUNTS,
    )  # fmt: skip
    kinds = st.sampled_from(["compute", "help", "send", "wait", "pause", "between"])
    intervals = st.builds(Interval, COUNTS, COUNTS, kinds, COUNTS, COUNTS, TEXTS)
    evaluations = st.builds(Evaluation, COUNTS, NUMBERS, NUMBERS, NUMBERS)
    policy_runs = st.builds(
        PolicyRun, TEXTS, COUNTS, st.lists(iterations, max_size=3), st.lists(intervals, max_size=3),
        st.lists(evaluations, max_size=3), COUNTS, COUNTS, st.dictionaries(TEXTS, COUNTS, max_size=2),
        st.dictionaries(TEXTS, COUNTS, max_size=2), NUMBERS,
    )  # fmt: skip
    plan = Plan(
        run=RunPlan(seed=draw(st.integers(0, 99)), policies=draw(st.sampled_from([("atp",), ("sa-atp", "atp")]))),
        straggler=StragglerPlan(slowdown=draw(st.floats(1.0, 1000.0))),
        help=HelpPlan(grade=draw(st.sampled_from(["steal", "clone"]))),
    )
    manifest = draw(st.dictionaries(TEXTS, st.one_of(TEXTS, COUNTS, st.none(), st.lists(TEXTS)), max_size=3))
    return RunResult(plan, draw(TEXTS), draw(TEXTS), draw(TEXTS), manifest, draw(st.lists(policy_runs, max_size=2)))


def same(a: RunResult, b: RunResult) -> bool:
    """Equality for which NaN equals NaN."""
    return repr(a) == repr(b)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(runs())
def test_any_run_comes_back_from_json_as_it_was(result: RunResult) -> None:
    text = json.dumps(archive.encode(result), allow_nan=False)
    assert same(archive.decode(json.loads(text)), result)


def test_a_whole_folder_comes_back(tmp_path: Path) -> None:
    result = synthetic.result(repetitions=2, steps=6)
    written = files.write_data(result, tmp_path / "new" / "run")
    assert {path.name for path in written} == {
        "manifest.json", "iterations.csv", "summary.json", "timeline.json", "run.json",
    }  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "new" / "run").iterdir()) == sorted(path.name for path in written)
    assert same(files.load(tmp_path / "new" / "run"), result)


def test_loaded_data_gives_the_same_files(tmp_path: Path) -> None:
    files.write_data(CASES["no losses"](), tmp_path / "a")
    files.write_data(files.load(tmp_path / "a"), tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_a_run_of_an_older_release_is_read(tmp_path: Path) -> None:
    """Its records lack the times of ends, which follow from the durations."""
    data = archive.encode(small())
    for run in data["runs"]:
        table = run["iterations"]
        at = table["columns"].index("end_s")
        for row in [table["columns"], *table["rows"]]:
            row.pop(at)
    (tmp_path / "run.json").write_text(json.dumps(data))
    found = files.load(tmp_path)
    assert all(math.isnan(each.end_s) for run in found.runs for each in run.iterations)
    assert found.runs[0].iterations[0].iteration_s == small().runs[0].iterations[0].iteration_s


# --- iterations.csv ---------------------------------------------------------------------------------------------------


def test_csv_has_all_columns_and_a_row_per_worker_and_step() -> None:
    result = synthetic.result(steps=5, repetitions=2)
    rows = list(csv.DictReader(io.StringIO(files.iterations_csv(result))))
    assert list(rows[0])[:10] == [
        "policy", "repetition", "step", "worker", "compute_s", "help_s", "send_s", "wait_s", "iteration_s", "loss",
    ]  # fmt: skip
    assert list(rows[0])[10:] == [
        "slowdown", "micro_batches", "helped", "job", "end_s", "samples", "unused", "counted",
    ]  # fmt: skip
    assert len(rows) == 2 * 2 * 5 * 4
    for row in rows:
        parts = sum(float(row[name]) for name in ("compute_s", "help_s", "send_s", "wait_s"))
        assert parts == pytest.approx(float(row["iteration_s"]), abs=5e-6)
    assert {(row["policy"], row["repetition"]) for row in rows} == {
        (policy, str(n)) for policy in ("atp", "sa-atp") for n in range(2)
    }


def test_csv_marks_the_rows_that_means_count() -> None:
    """A mean over all rows would include the warm-up, which other files leave out."""
    result = small()
    last = result.runs[1].iterations[-1]
    result.runs[1].iterations.append(replace(last, step=3, iteration_s=100.0, is_finished=False))
    rows = list(csv.DictReader(io.StringIO(files.iterations_csv(result))))
    assert {row["step"] for row in rows if row["counted"] == "0"} == {"0", "3"}
    assert {row["step"] for row in rows if row["counted"] == "1"} == {"1", "2"}
    for policy, found in summarise(result)["policies"].items():
        taken = [float(r["iteration_s"]) for r in rows if r["policy"] == policy and r["counted"] == "1"]
        assert sum(taken) / len(taken) == pytest.approx(found["worker_iteration_time_s"]["mean"])
    everything = synthetic.result(steps=2)  # no more steps than the warm-up
    assert {r["counted"] for r in csv.DictReader(io.StringIO(files.iterations_csv(everything)))} == {"1"}


def test_csv_leaves_a_loss_that_is_nan_empty() -> None:
    rows = list(csv.DictReader(io.StringIO(files.iterations_csv(CASES["no losses"]()))))
    assert {row["loss"] for row in rows} == {""}


# --- timeline.json ----------------------------------------------------------------------------------------------------


def test_trace_events_are_valid() -> None:
    """The rules of the trace-event format that viewers check."""
    result = synthetic.result(steps=4, repetitions=2)
    events: list[dict[str, Any]] = json.loads(json.dumps(trace(result), allow_nan=False))["traceEvents"]
    for event in events:
        assert event["ph"] in ("X", "M", "i")
        assert isinstance(event["name"], str)
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        if event["ph"] != "M":
            assert type(event["ts"]) is int
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert list(names.values()) == [
        "ATP, repetition 1", "SA-ATP, repetition 1", "ATP, repetition 2", "SA-ATP, repetition 2",
    ]  # fmt: skip
    threads = [(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    assert sorted(threads) == [(pid, worker) for pid in names for worker in range(4)]
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} == set(threads)


def test_trace_shows_every_interval_with_its_activitys_colour() -> None:
    result = CASES["pauses"]()
    complete = [e for e in trace(result)["traceEvents"] if e["ph"] == "X"]
    assert len(complete) == sum(len(run.intervals) for run in result.runs)
    colours = {(e["cat"], e["cname"]) for e in complete}
    assert len(colours) == len({kind for kind, _ in colours}) == 5
    assert all(e["name"].startswith(e["cat"]) for e in complete)
    assert any(e["name"].startswith("help: shard") for e in complete)


# --- what can go wrong ------------------------------------------------------------------------------------------------


def broken(change: Any) -> Any:
    data = archive.encode(small())
    change(data)
    return data


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("format"),
        lambda d: d.update(version=99),
        lambda d: d.pop("plan"),
        lambda d: d["plan"]["run"].update(steps="many"),
        lambda d: d["plan"].update(nonsense={}),
        lambda d: d.update(runs={}),
        lambda d: d.update(backend=None),
        lambda d: d["runs"].append(3),
        lambda d: d["runs"][0].pop("repetition"),
        lambda d: d["runs"][0].update(sums_wrong="0"),
        lambda d: d["runs"][0]["fragments"].update(sent=1.5),
        lambda d: d["runs"][0]["iterations"]["columns"].append("more"),
        lambda d: d["runs"][0]["iterations"]["columns"].append("step"),
        lambda d: [each.pop(0) for t in [d["runs"][0]["iterations"]] for each in [t["columns"], *t["rows"]]],
        lambda d: d["runs"][0]["iterations"]["columns"].append(7),
        lambda d: d["runs"][0]["iterations"]["rows"][0].pop(),
        lambda d: d["runs"][0]["iterations"]["rows"].append(None),
        lambda d: d["runs"][0]["evaluations"]["rows"][0].__setitem__(1, "soon"),
        lambda d: d["runs"][0]["evaluations"]["rows"][0].__setitem__(1, []),
        lambda d: d["runs"][0]["evaluations"]["rows"][0].__setitem__(1, 10**400),
        lambda d: d["plan"]["straggler"].update(slowdown=10**400),
        lambda d: d["runs"][0]["intervals"]["rows"].append([0, 0, "sleep", 0, 1, ""]),
        lambda d: d["runs"][0]["intervals"]["rows"].append([0, 0, ["help"], 0, 1, ""]),
        lambda d: d["runs"][0]["intervals"]["rows"].append([0, "0", "help", 0, 1, ""]),
    ],
)
def test_data_that_is_not_a_run_is_refused_in_one_line(change: Any, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(broken(change)))
    with pytest.raises(UserError) as caught:
        files.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"[" * 100_000, b"\x00", b"\xff\xfe\x00"])
def test_data_that_is_no_object_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(data)
    with pytest.raises(UserError, match=r"run\.json"):
        files.load(tmp_path)


def test_folders_that_are_not_of_a_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"it has no run\.json"):
        files.load(tmp_path)
    with pytest.raises(UserError, match="there is no such folder"):
        files.load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="it is a file"):
        files.load(tmp_path / "file")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_what_was_there(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    files.write_text(path, "before")

    def half(part: Path) -> None:
        part.write_text("af")
        raise error

    with pytest.raises((UserError, KeyboardInterrupt)):
        files.write_file(path, half)
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
    assert path.read_text() == "before"
