"""A pool of processes that compute here in parallel. They end with the block, or with the process, that made them."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait


@contextmanager
def pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of `jobs` processes. A block that an exception ends, such as Ctrl-C, waits for no work under way."""
    theirs, ours = multiprocessing.Pipe(duplex=False)
    processes = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin, (theirs,))
    try:
        yield processes
        processes.shutdown()
    finally:
        ours.close()  # which the processes notice
        processes.shutdown(cancel_futures=True)
        theirs.close()


def _begin(block: Connection) -> None:
    """Prepares a process of the pool to ignore Ctrl-C, which its parent handles, and to end with the block or the parent.

    Without that, the processes of a pool outlive a parent that is killed, and wait for more work for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(block,), daemon=True).start()


def _end_with(block: Connection) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel, block])
    os._exit(1)
