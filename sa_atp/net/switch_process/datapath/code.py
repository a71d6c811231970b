"""Compiles the loop's functions, or loads them from the cache.

Sources name the arrays of the loop's memory (see `state`) as if they were there. Each function gets the frame of that
memory as `s`; here it also gets the lines that take the arrays it names from the frame.
"""

import ast
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from sa_atp.basics.code_cache import digest_of, executed, has_code, source_of
from sa_atp.net.shared_memory import layout
from sa_atp.net.switch_process.datapath import state, system
from sa_atp.switches.embedded import bits
from sa_atp.switches.embedded.translate import deparsing

SOURCES = tuple(
    Path(__file__).with_name(f"{name}.py")
    for name in ("arriving", "super_packets", "channels", "wires", "leaving", "turn")
)

ARRAYS = "sa_atp.net.switch_process.datapath.arrays"  # declares the arrays for type checkers; nothing is there to run
KINDS = {"int64": "i64", "uint8": "u8"}  # the operations that take arrays from a frame are called by these


def sources() -> list[tuple[str, str]]:
    """Returns the file name and the text of each source of the loop, with the lines that take arrays from the state."""
    return [(path.name, _with_arrays(path.read_text(encoding="utf-8"))) for path in SOURCES]


def _with_arrays(text: str) -> str:
    """A source in which each function takes the arrays that it names from the frame."""
    memory = {**state.ports((), (), (), (), ()), **state.arriving(1, 1, 1), **state.leaving(1, 1), **state.crossing()}
    tree = ast.parse(text)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == ARRAYS]
    arrays = {each.name for node in imports for each in node.names}
    for function in tree.body:
        if isinstance(function, ast.FunctionDef):
            named = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            for name in sorted(named & arrays, reverse=True):
                place = getattr(state, name.upper())
                taken = f"{name} = array_{KINDS[memory[place].dtype.name]}_{memory[place].ndim}(s, {place})"
                function.body[:0] = ast.parse(taken).body
    return ast.unparse(tree)


@lru_cache(maxsize=2)
def compiled(cache: Path | None) -> dict[str, Any]:
    """The functions of the sources; numba compiles each at its first call. Args: cache: see `Pipeline`."""
    operations = bits.compiled(kept=cache is not None)
    from sa_atp.net.shared_memory import atomics  # which needs numba, as the operations do

    texts = sources()
    name = "sa_atp_datapath_" + digest_of(
        *(text for _, text in texts), *map(source_of, (bits, system, state, deparsing, layout, atomics))
    )
    return executed(name, texts, cache, {**operations, **system.calls(operations)})


@lru_cache(maxsize=1)
def plain_functions() -> dict[str, Any]:
    """Returns the functions of `wires`, which decide what an impaired link does to a frame, as plain Python."""
    texts = [(name, text) for name, text in sources() if name == "wires.py"]
    return executed("sa_atp_plain_wires", texts, None, bits.plain())


def ready(cache: Path | None) -> Callable[..., int]:
    """Compiles `run_turn`, or loads it from the cache."""
    from numba import int64

    function: Any = compiled(cache)["run_turn"]
    function.compile((int64,) * 7)
    return cast(Callable[..., int], function)


def is_cached(cache: Path) -> bool:
    """Whether the loop's compiled code is in the cache."""
    return has_code(compiled(cache)["run_turn"])
