"""Tells whether the compiled code of a program is in the cache: then a switch starts in a second instead of ten."""

from pathlib import Path
from typing import Any

from sa_atp.switches.embedded.code_cache import program_function, source_file
from sa_atp.switches.embedded.program import Program
from sa_atp.switches.embedded.translate import translate


def is_cached(program: Program, cache: Path) -> bool:
    """Whether numba would load the program's code for this machine, instead of compiling it."""
    translation = translate(program)
    if not source_file(translation, cache).is_file():
        return False
    return has_code(program_function(translation, compiled=True, cache=cache))


def has_code(function: Any) -> bool:
    """Whether the code of a cached function is there.

    It reads numba's own index, which ignores code of other versions and of other sources.
    """
    from numba.core.registry import cpu_target

    index = function._cache._cache_file
    processor = cpu_target.target_context.codegen().magic_tuple()
    return any(
        key[1] == processor and (Path(index._cache_path) / name).is_file()  # (signature, processor, closure)
        for key, name in index._load_index().items()
    )
