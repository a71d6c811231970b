"""Logs of connections on sockets, and what ends a log and nothing else."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.ranks import on_ranks, running_server

import sa_atp
from sa_atp.basics.errors import UserError
from sa_atp.net.communicator import Communicator
from sa_atp.net.logs.reading import read
from sa_atp.net.logs.writing import MOST_EARLY, LogFolder, folder_of
from sa_atp.protocol.log.lines import RANK_KINDS, SERVER_KINDS
from sa_atp.protocol.log.rank_events import Led, SumBegun
from sa_atp.protocol.log.server_events import InstallAsked, JobEnded, Joined, TurnedAway

VALUES = 1 << 20


def names(path: Path) -> set[str]:
    return {event.name for _, event in read(path).events}


def test_a_job_on_sockets_logs_what_a_simulated_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("SA_ATP_LOG", str(log))

    def work(comm: Communicator) -> None:
        for _ in range(3):  # of which the later ones are foretold, and flow
            comm.all_reduce(np.full(VALUES, comm.membership.rank + 1, np.float32), key="x")
        work = comm.helping.work(comm.helping.begin_step())
        news = work.news
        work.report_done()
        news.result(30)

    with running_server(tmp_path, log=log) as server:
        on_ranks(server, work, "a job/1", 2, micro_batches=2, help="steal")
    folder = log / "a_job_1"
    for rank in range(2):
        found = names(folder / f"rank-{rank}.jsonl")
        assert found >= {
            "membership:joining", "membership:welcomed", "membership:leaving", "sum:begun", "sum:opened",
            "sum:contributed", "sum:done", "sum:streamed", "chunk:scale_agreed", "question:asked", "question:answered",
            "help:asked", "help:answered",
        }  # fmt: skip
        assert found <= RANK_KINDS.keys()
    found = names(folder / "parameter-server.jsonl")
    assert found >= {
        "membership:joined", "membership:leave_asked", "membership:let_go", "membership:job_ended", "switch:install_asked",
        "switch:installed", "switch:removed", "help:decided",
    }  # fmt: skip
    assert found <= SERVER_KINDS.keys()


def test_a_disk_that_is_full_ends_the_log_with_one_line(tmp_path: Path) -> None:
    program = f"""
import resource
from pathlib import Path
from sa_atp.net.logs.writing import LogFolder
from sa_atp.protocol.log.rank_events import SumBegun
logs = LogFolder.virtual(Path({str(tmp_path)!r}), lambda: 1)
log, other = logs.rank("job", 0), logs.rank("job", 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for n in range(40):
    log(SumBegun(n, 1))
    other(SumBegun(n, 1))
    logs.flush()
print("it goes on")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "it goes on\n"
    assert ended.stderr == f"sa-atp: the log in {tmp_path} ends here: File too large\n"
    events = read(tmp_path / "job" / "rank-0.jsonl").events  # whose last line is cut off
    assert [event for _, event in events] == [SumBegun(n, 1) for n in range(len(events))]
    assert 0 < len(events) < 40


def test_a_second_log_of_a_rank_does_not_replace_the_first(tmp_path: Path) -> None:
    logs = LogFolder.virtual(tmp_path, lambda: 5)
    for n in range(3):
        log = logs.rank("job", 2)
        log(SumBegun(n, 1))
        logs.flush()
    found = [read(tmp_path / "job" / name).events for name in ("rank-2.jsonl", "rank-2.1.jsonl", "rank-2.2.jsonl")]
    assert found == [[(5, SumBegun(n, 1))] for n in range(3)]


def test_a_job_that_never_begins_leaves_no_file(tmp_path: Path) -> None:
    logs = LogFolder.virtual(tmp_path, lambda: 5)
    for n in range(300):
        logs.server(f"job {n}")(Joined(0, 1, "127.0.0.1:9", [1]))
    begun = logs.server("job")
    for n in range(2 * MOST_EARLY):
        begun(TurnedAway(n, "its terms differ"))
    logs.flush()
    assert list(tmp_path.iterdir()) == []
    begun(InstallAsked(1, 0, 64))
    begun(JobEnded(1))
    logs.flush()
    (path,) = tmp_path.rglob("*.jsonl")
    events = [event for _, event in read(path).events]
    kept = [TurnedAway(n, "its terms differ") for n in range(MOST_EARLY + 1, 2 * MOST_EARLY)]
    assert events == [*kept, InstallAsked(1, 0, 64), JobEnded(1)]


def test_numbers_may_be_numpys(tmp_path: Path) -> None:
    logs = LogFolder.virtual(tmp_path, lambda: 5)
    logs.rank("job", 0)(Led(np.int64(1), "0x1", [np.int32(2)], np.float64(0.5)))  # type: ignore[arg-type, list-item]
    logs.flush()
    assert read(tmp_path / "job" / "rank-0.jsonl").events == [(5, Led(1, "0x1", [2], 0.5))]


@pytest.mark.parametrize(("job", "folder"), [("../up", "_._up"), (".", "_"), ("ü 1", "__1"), ("boa+1.5", "boa+1.5")])
def test_a_jobs_name_does_not_lead_out_of_the_folder(job: str, folder: str) -> None:
    assert folder_of(job) == folder


def test_a_folder_that_cannot_be_made_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot make the folder"):
        sa_atp.connect("udp://127.0.0.1:9", job="job", rank=0, world_size=1, log=tmp_path / "file" / "log")
