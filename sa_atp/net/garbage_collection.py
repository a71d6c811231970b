"""Garbage collection in processes that have loaded much and must not pause for long."""

import gc


def freeze_loaded_objects() -> None:
    """Exempts all objects that exist now from garbage collection; call it when everything is loaded.

    A full collection in a process with numba or PyTorch visits some hundred thousand objects, and takes 100 to 250 ms: as
    long as a step of the demo, once in some hundred steps.
    """
    gc.collect()
    gc.freeze()
