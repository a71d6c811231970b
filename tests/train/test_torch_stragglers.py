"""Who was slow: plain DDP under `sa-atp up -- torchrun`, told by the command and by a rank."""

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
from rank_pool import HERE

from sa_atp.protocol.packets.lateness_messages import JobLateness

LIMIT_S = 400.0
SLOW_RANK, STEPS, SLEEP_S = 1, 25, 0.1


def test_a_rank_that_sleeps_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "sa_atp", "up", "--lanes", "256", "--",
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", str(HERE / "straggling.py"),
            str(SLOW_RANK), str(STEPS), str(SLEEP_S),
        ],
        env={**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE}:{HERE.parents[1]}"},
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = msgspec.json.decode(done.stdout, type=JobLateness)
    slow = {each.rank: each for each in found.slow}[SLOW_RANK]
    assert found.sums == STEPS
    # on a busy machine others are late as well, now and then
    assert slow.late >= STEPS // 2
    assert slow.computing_us >= STEPS // 2 * SLEEP_S * 1e6 / 2
    assert slow.activity == "computing"
    told = re.search(r"job up, (\d+) sums: (.*)", done.stderr)
    assert told is not None, done.stderr
    assert (int(told[1]), told[2]) == (STEPS, found.verdict)
    rows = [line.split() for line in done.stderr[told.end() :].splitlines()]
    assert rows[1][:4] == ["rank", "late", "in", "last"]
    by_rank = {int(row[0]): row for row in rows[2:5]}
    assert by_rank[SLOW_RANK][1:3] == [str(slow.late), str(slow.last)]
