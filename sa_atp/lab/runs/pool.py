"""A pool of processes for work that is computed here in parallel. They end with the process that made them."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor


def pool(jobs: int) -> ProcessPoolExecutor:
    """A pool of `jobs` processes."""
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin)


def _begin() -> None:
    """Prepares a process of the pool: Ctrl-C is its parent's, and it ends when that has ended, however it did.

    A pool's own processes go on otherwise, and then wait for more work for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
