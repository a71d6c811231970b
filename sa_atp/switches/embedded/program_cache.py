"""Keeps loaded, translated and compiled programs in the cache folder.

p4c unrolls everything, so a program with thousands of lanes has megabytes of statements: reading them and finding their
loops takes seconds. The runtime needs much less: tables, actions without their statements, the memory layout, and the
source. Compiling that takes seconds once more.
"""

import contextlib
import dataclasses
import pickle
from functools import lru_cache
from pathlib import Path
from typing import Any

from sa_atp.basics.code_cache import digest_of, executed, has_code, source_of, write_whole
from sa_atp.switches.embedded import bits, block_locks, loading, program
from sa_atp.switches.embedded.program import Program
from sa_atp.switches.embedded.translate import Translation, checksums, translate

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
        write_whole(path, pickle.dumps((found, translation), protocol=PROTOCOL))
    return found, translation


def process(translation: Translation, *, compiled: bool, cache: Path | None) -> Any:
    """The function `process` of a translation: a numba dispatcher, or plain.

    Args: cache: folder for compiled code; None: it dies with the process.
    """
    namespace = bits.compiled(kept=cache is not None) if compiled else bits.plain()
    namespace.update(checksums.crc_tables())
    if translation.shared:
        namespace.update(block_locks.compiled(namespace) if compiled else block_locks.plain())
    called = (bits, block_locks) if translation.shared else (bits,)
    name = "sa_atp_pipeline_" + digest_of(translation.source, *map(source_of, called))
    return executed(name, [("pipeline.py", translation.source)], cache, namespace)["process"]


def is_compiled(found: Program, cache: Path) -> bool:
    """Whether the compiled code of a program is in the cache, so that a switch starts in a second instead of ten."""
    return has_code(process(translate(found), compiled=True, cache=cache))


def address_of(function: Any) -> int:
    """Address of a compiled function int64(int64), for other compiled code to call."""
    from numba import types

    signature = (types.int64,)
    function.compile(signature)
    made = function.overloads[signature]
    address: int = made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name)
    return address


def _digest(config: bytes) -> str:
    """A hash of the program, and of the code that reads and translates it."""
    return digest_of(config, *_code())


@lru_cache(maxsize=1)
def _code() -> tuple[str, ...]:
    translators = sorted((Path(__file__).parent / "translate").glob("*.py"))
    return source_of(loading), source_of(program), *(path.read_text(encoding="utf-8") for path in translators)
