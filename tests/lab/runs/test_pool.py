"""Processes of a pool end with the process that made them, also where that is interrupted or killed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_S = 60.0
SCRIPT = """
import os, sys
from sa_atp.lab.runs.pool import pool

def work(seconds):
    import time
    print("working", flush=True)
    time.sleep(seconds)

if __name__ == "__main__":
    with pool(2) as processes:
        processes.submit(work, 600)
        processes.submit(work, 600).result()
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_its_parent(how: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        assert "working" in parent.stdout.readline()
        parent.send_signal(how)
        parent.wait(TIMEOUT_S)
        # the pipe ends when the last process that has it has ended
        parent.communicate(timeout=TIMEOUT_S)
