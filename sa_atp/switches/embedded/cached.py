"""Whether the compiled code of a program is in the cache, so that a switch starts in a second instead of ten."""

from pathlib import Path
from typing import Any

from sa_atp.switches.embedded.kept_code import program_function, source_file
from sa_atp.switches.embedded.program import Program
from sa_atp.switches.embedded.translate import translate


def is_cached(program: Program, cache: Path) -> bool:
    """True if numba would load the program's code for this machine, instead of compiling it."""
    translation = translate(program)
    if not source_file(translation, cache).is_file():
        return False
    return has_code(program_function(translation, compiled=True, cache=cache))


def has_code(function: Any) -> bool:
    """Whether the code of a function that numba keeps is there.

    Asks numba's own index, which leaves out what another version wrote, and what was made from another source.
    """
    from numba.core.registry import cpu_target

    index = function._cache._cache_file
    processor = cpu_target.target_context.codegen().magic_tuple()
    return any(
        key[1] == processor and (Path(index._cache_path) / name).is_file()  # (signature, processor, closure)
        for key, name in index._load_index().items()
    )
