"""Compiles generated Python source, and keeps the compiled functions in a cache folder.

A folder of the cache is named by a hash of the source and of the operations that it calls, so a change of either is
compiled anew. numba finds compiled code by the path of its source, which is therefore a file in the folder, too.
"""

import hashlib
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sa_atp.switches.embedded import bits, block_locks
from sa_atp.switches.embedded.translate import Translation, checksums


def program_function(translation: Translation, *, compiled: bool, cache: Path | None) -> Any:
    """The `process` function of a translation: a numba dispatcher, or plain.

    Args: cache: folder for compiled code; None: it is not kept.
    """
    namespace = bits.compiled() if compiled else bits.plain()
    namespace.update(checksums.crc_tables())
    if translation.shared:
        namespace.update(block_locks.compiled(namespace) if compiled else block_locks.plain())
    name = _module_name(translation)
    return functions(name, [("pipeline.py", translation.source)], namespace, cache)["process"]


def functions(
    name: str, sources: Sequence[tuple[str, str]], namespace: dict[str, Any], cache: Path | None
) -> dict[str, Any]:
    """Executes sources in one namespace, as if they were a module of this name.

    Args: sources: file name and text of each. Returns: the namespace.
    """
    # numba restores cached code by the name of its module, so that must be importable
    module = types.ModuleType(name)
    if cache is None and namespace["compiled"] is not bits.plain_function:
        import numba

        namespace["compiled"] = numba.njit(nogil=True, error_model="numpy")
    module.__dict__.update(namespace)
    sys.modules[name] = module
    for file, text in sources:
        path = Path(f"<{name}>")
        if cache is not None:
            path = cache / name / file
            if not path.is_file() or path.read_text() != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        module.__file__ = str(path)
        exec(compile(text, str(path), "exec"), module.__dict__)
    return module.__dict__


def address_of(function: Any) -> int:
    """The address of a compiled function int64(int64), for compiled callers."""
    from numba import types as numba_types

    signature = (numba_types.int64,)
    function.compile(signature)
    made = function.overloads[signature]
    address: int = made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name)
    return address


def source_file(translation: Translation, cache: Path) -> Path:
    """The file of a program's Python source in a cache folder; its compiled code is beside it."""
    return cache / _module_name(translation) / "pipeline.py"


def digest_of(*texts: str) -> str:
    """A hash of the texts and of the operations that code may call."""
    digest = hashlib.sha256(Path(bits.__file__).read_bytes())
    for text in texts:
        digest.update(text.encode())
    return digest.hexdigest()[:16]


def _module_name(translation: Translation) -> str:
    shared = (Path(block_locks.__file__).read_text(),) if translation.shared else ()
    return "sa_atp_pipeline_" + digest_of(translation.source, *shared)
