"""Loaded and translated programs, kept in the cache folder from run to run.

p4c unrolls everything, so that a program with thousands of lanes is megabytes of statements, which take seconds to read
and to find the loops in. What the runtime needs afterwards is small: tables, actions without their statements, places,
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
    """A program and its translation, from the cache where it is there. Actions have no statements any more.

    Args: config: BMv2 JSON. cache: folder; None: nothing is kept. shared: see `translate`.

    Raises: PipelineError, Unsupported: see `loading.load` and `translate`.
    """
    path = None if cache is None else cache / f"sa_atp_program_{_digest(config)}{'_shared' if shared else ''}.pickle"
    if path is not None:
        # whatever is wrong with the file, as after a crash of the machine: it is written anew
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
        written.replace(path)  # whole, whoever else writes it now
    return found, translation


def _digest(config: bytes) -> str:
    """Changes with the program, and with the code that reads and translates it."""
    digest = hashlib.sha256(_code())
    digest.update(config)
    return digest.hexdigest()[:16]


@lru_cache(maxsize=1)
def _code() -> bytes:
    folder = Path(__file__).parent
    files = [Path(loading.__file__), Path(program.__file__), *sorted((folder / "translate").glob("*.py"))]
    return b"\0".join(path.read_bytes() for path in files)
