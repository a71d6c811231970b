"""Keeps loaded and translated programs in the cache folder.

p4c unrolls everything, so a program with thousands of lanes has megabytes of statements: reading them and finding their
loops takes seconds. The runtime needs much less: tables, actions without their statements, the memory layout, and the
source.
"""

import contextlib
import dataclasses
import hashlib
import os
import pickle
import threading
from functools import lru_cache
from pathlib import Path

from sa_atp.switches.embedded import loading, program
from sa_atp.switches.embedded.program import Program
from sa_atp.switches.embedded.translate import Translation, translate

PROTOCOL = 5  # of pickle


def loaded(config: bytes, cache: Path | None, *, shared: bool = False) -> tuple[Program, Translation]:
    """Loads and translates a program, or takes both from the cache. Its actions have no statements any more.

    Args: config: BMv2 JSON. cache: folder; None: nothing is kept. shared: see `translate`.

    Raises: PipelineError, Unsupported: see `loading.load` and `translate`.
    """
    path = None if cache is None else cache / f"sa_atp_program_{_digest(config)}{'_shared' if shared else ''}.pickle"
    if path is not None:
        # a damaged file, as after a crash of the machine, is written anew
        with contextlib.suppress(Exception):
            found, translation = pickle.loads(path.read_bytes())
            if isinstance(found, Program) and isinstance(translation, Translation):
                return found, translation
    whole = loading.load(config)
    translation = translate(whole, shared=shared)
    actions = {number: dataclasses.replace(action, primitives=()) for number, action in whole.actions.items()}
    found = dataclasses.replace(whole, actions=actions)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        written.write_bytes(pickle.dumps((found, translation), protocol=PROTOCOL))
        written.replace(path)  # atomic, if other processes write it, too
    return found, translation


def _digest(config: bytes) -> str:
    """A hash of the program, and of the code that reads and translates it."""
    digest = hashlib.sha256(_code())
    digest.update(config)
    return digest.hexdigest()[:16]


@lru_cache(maxsize=1)
def _code() -> bytes:
    folder = Path(__file__).parent
    files = [Path(loading.__file__), Path(program.__file__), *sorted((folder / "translate").glob("*.py"))]
    return b"\0".join(path.read_bytes() for path in files)
