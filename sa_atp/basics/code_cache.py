"""Python source that becomes compiled functions, and other things worked out once, kept in a cache folder from run to run.

What is kept is named by a digest of all that it depends on, so nothing is taken for what has become something else. numba
finds compiled code by the place of its source, and restores it by the name of its module: `executed` makes both. Each
version of numba has a folder of its own, because it drops what another one has compiled from the same file.
"""

import hashlib
import os
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any


def digest_of(*parts: str | bytes) -> str:
    """Sixteen hexadecimal digits that change with each part."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def source_of(module: ModuleType) -> str:
    """The text of a module."""
    return Path(str(module.__file__)).read_text(encoding="utf-8")


def executed(
    name: str, sources: Iterable[tuple[str, str]], cache: Path | None, namespace: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Executes sources in one namespace, as if they were a module.

    Args:
        name: of the module; in it is a digest of all that its code depends on.
        sources: file name and text of each.
        cache: a folder, in which they become files that numba may keep compiled code beside; None: they stay in memory.
        namespace: what they find there.

    Returns: the namespace.
    """
    module = ModuleType(name)
    module.__dict__.update(namespace or {})
    sys.modules[name] = module
    for file, text in sources:
        path = Path(f"<{name}>")
        if cache is not None:
            path = cache / f"numba-{metadata.version('numba')}" / name / file
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                write_whole(path, text.encode())
        module.__file__ = str(path)
        exec(compile(text, str(path), "exec"), module.__dict__)
    return module.__dict__


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that others see whole, or not at all, whoever else writes it now.

    Raises: OSError, also with the file's name where the disk is full, which Python leaves out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        written.write_bytes(content)
        written.replace(path)
    except OSError as error:
        written.unlink(missing_ok=True)
        error.filename = str(path)
        raise


def is_of_cache(error: OSError) -> bool:
    """Whether numba could not write compiled code to the cache; Python does not say which file cannot grow."""
    return any(
        frame.f_globals.get("__name__") == "numba.core.caching" for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def has_code(function: Any) -> bool:
    """Whether numba would load a function's code for this machine, instead of compiling it.

    Asks numba's own index, which leaves out what another version wrote, and what was made from another source.
    """
    from numba.core.registry import cpu_target

    index = function._cache._cache_file
    processor = cpu_target.target_context.codegen().magic_tuple()
    return any(
        key[1] == processor and (Path(index._cache_path) / name).is_file()  # (signature, processor, closure)
        for key, name in index._load_index().items()
    )
