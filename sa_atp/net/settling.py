"""Garbage collection in processes that have much loaded and must not stop for long."""

import gc


def settle() -> None:
    """Loading is over: what is there stays, and is not looked through again.

    A full collection in a process with numba or PyTorch goes through some hundred thousand objects, and stops it for 100
    to 250 ms: as long as a step of the demo, once in some hundred steps, under whatever policy is running then.
    """
    gc.collect()
    gc.freeze()
