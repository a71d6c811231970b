"""Logs of runs: what they have in virtual time, where they are, and that a run is the same with and without."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sa_atp.cli import main
from sa_atp.lab.backends import simulated
from sa_atp.lab.plans import plan_files
from sa_atp.lab.report import archive
from sa_atp.lab.report.trace import trace
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun, RunResult
from sa_atp.net.logs.reading import LogFile, read
from sa_atp.protocol.log.rank_events import Contributed, HelpAnswered, Lost, Resent, WindowChanged
from sa_atp.protocol.log.server_events import Decided, Told

PLAN = """
[run]
steps = 3
backend = "sim"
policies = ["sa-atp"]
[topology]
workers = 3
link_mbps = 1000
[switch]
lanes = 64
[job]
model = "resnet-50"
model_scale = 0.0004
batch_size = 8
micro_batches = 8
compute_us_per_sample = 10000
[network]
loss = 0.04
[straggler]
pattern = "constant"
workers = [2]
slowdown = 4.0
"""
JOB = "sa-atp-0"


def simulate(log: Path | None) -> PolicyRun:
    (found,) = simulated.run(plan_files.parse(PLAN, "here"), Progress(), log=log)
    return found


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PolicyRun]:
    folder = tmp_path_factory.mktemp("log")
    return folder, simulate(folder)


def log_of(folder: Path, who: str) -> LogFile:
    return read(folder / JOB / f"{who}.jsonl")


def records(run: PolicyRun) -> Any:
    return archive.encode(RunResult(plan_files.parse(PLAN, "here"), "here", "sim", "embedded", {}, [run]))["runs"]


def test_a_lossy_run_with_help_tells_what_was_decided(logged: tuple[Path, PolicyRun]) -> None:
    folder, run = logged
    ranks = [log_of(folder, f"rank-{rank}") for rank in range(3)]
    events = [event for log in ranks for _, event in log.events]
    kinds = Counter(event.name for event in events)
    for name in ("membership:welcomed", "sum:begun", "sum:done", "chunk:scale_agreed", "question:asked", "help:asked"):
        assert kinds[name], name
    for log in ranks:
        assert [time for time, _ in log.events] == sorted(time for time, _ in log.events)
        assert log.header.trace.reference_time.clock_type == "virtual"
    assert kinds["sum:begun"] == kinds["sum:done"] == 3 * 3
    # what is logged is what was counted
    assert sum(event.count for event in events if isinstance(event, Resent)) == run.fragments["retransmitted"] > 0
    assert {event.rule for event in events if isinstance(event, Lost)} == {"order", "question"}
    assert any(isinstance(event, WindowChanged) and event.network < event.network_before for event in events)
    assert any(isinstance(event, Contributed) and event.on_behalf and event.ranks == [2] for event in events)


def test_the_ledger_gives_what_helpers_say_they_were_given(logged: tuple[Path, PolicyRun]) -> None:
    folder, run = logged
    decided = [event for _, event in log_of(folder, "parameter-server").events if isinstance(event, Decided)]
    said = [event for _, event in log_of(folder, "parameter-server").events if isinstance(event, Told)]
    assert any(event.work for event in said)
    given = {(e.step, e.rank, e.work, e.copies) for e in said}
    given |= {(e.step, e.rank, e.work, e.copies) for e in decided if not e.late}
    told = set()
    for rank in range(3):
        for _, event in log_of(folder, f"rank-{rank}").events:
            if isinstance(event, HelpAnswered) and (event.work or event.copies):
                told.add((event.step, rank, event.work, event.copies))
    assert told
    assert told <= given
    assert any(event.each_us[2] > event.each_us[0] > 0 for event in decided), "what is believed of the straggler"
    assert len(decided) == run.help["questions"]


def test_the_same_seed_leaves_the_same_bytes_and_the_same_run_as_without(
    logged: tuple[Path, PolicyRun], tmp_path: Path
) -> None:
    folder, run = logged
    again = simulate(tmp_path)
    files = sorted(path.relative_to(folder) for path in folder.rglob("*.jsonl"))
    assert len(files) == 4
    for file in files:
        assert (folder / file).read_bytes() == (tmp_path / file).read_bytes()
    assert records(run) == records(again) == records(simulate(None))


def test_the_timeline_has_decisions_on_their_ranks_rows(logged: tuple[Path, PolicyRun]) -> None:
    folder, run = logged
    result = RunResult(plan_files.parse(PLAN, "here"), "here", "sim", "embedded", {}, [run])
    events = trace(result, folder)["traceEvents"]
    marks = [event for event in events if event["ph"] == "i" and event["cat"] == "sum" and event["tid"] == 2]
    done = [event["ts"] for event in marks if event["name"] == "sum:done"]
    begun = [event["ts"] for event in marks if event["name"] == "sum:begun"]
    own = [i for i in run.iterations if i.worker == 2]
    steps = sorted((round(1e6 * (i.end_s - i.iteration_s)), round(1e6 * i.end_s)) for i in own)
    assert len(begun) == len(done) == len(steps) == 3
    for (start_us, end_us), first_us, last_us in zip(steps, begun, done, strict=True):
        assert start_us <= first_us <= last_us <= end_us
    (row,) = (e["tid"] for e in events if e["ph"] == "M" and e["args"].get("name") == "parameter server")
    assert any(event["ph"] == "i" and event["tid"] == row and event["cat"] == "help" for event in events)
    assert all(event["ph"] != "i" or event["cat"] == "step" for event in trace(result)["traceEvents"])


# --- the command line -----------------------------------------------------------------------------------------------------


def run(folder: Path, *options: str) -> int:
    plan = folder / "plan.toml"
    plan.write_text(PLAN)
    return main(["run", str(plan), "--set", "run.steps=1", "--out", str(folder / "run"), "--json", *options])


def test_a_run_keeps_its_log_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--log", "--jobs", "2") == 0
    log = tmp_path / "run" / "log"
    assert {path.name for path in (log / JOB).iterdir()} == {f"rank-{n}.jsonl" for n in range(3)} | {
        "parameter-server.jsonl"
    }
    timeline = json.loads((tmp_path / "run" / "timeline.json").read_text())
    assert any(event.get("name") == "sum:done" for event in timeline["traceEvents"])
    capsys.readouterr()
    assert main(["log", str(log), "--category", "sum", "--rank", "1", "--operation", "0"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said
    assert all("rank 1 " in line and " sum:" in line and "operation 0" in line for line in said)
    assert run(tmp_path) == 0
    assert not list(log.rglob("*.jsonl")), "they were of the run that was replaced"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["run", "PLAN", "--log", "FULL"], "--log FULL: there is something in this folder"),
        (["run", "PLAN", "--log", "NEW", "--scheduler", "tcp://here:1"], "--log is for runs on this machine"),
        (["log"], "which one?"),
        (["log", "EMPTY"], "there is no log"),
        (["log", "NONE"], "NONE: No such file or directory"),
        (["log", "PLAN"], "line 1: not the first line of a log"),
        (["log", "PLAN", "--category", "loss"], "--category loss: expected one of membership, sum"),
        (["log", "PLAN", "--rank", "one"], "--rank one: expected"),
    ],
)
def test_mistakes_are_one_line(
    command: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("PLAN").write_text(PLAN)
    Path("EMPTY").mkdir()
    Path("FULL").mkdir()
    Path("FULL", "file").touch()
    assert main(command) == 2
    assert says in capsys.readouterr().err
