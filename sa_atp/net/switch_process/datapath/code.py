"""The loop's compiled functions: made, or loaded from the cache."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from sa_atp.basics.kept_code import digest_of, executed, has_code, source_of
from sa_atp.net.switch_process.datapath import state, system
from sa_atp.switches.embedded import bits
from sa_atp.switches.embedded.translate import packets

SOURCES = tuple(Path(__file__).with_name(f"{name}.py") for name in ("arriving", "super_packets", "leaving", "turn"))


def sources() -> list[tuple[str, str]]:
    """File name and text of each."""
    return [(path.name, path.read_text()) for path in SOURCES]


@lru_cache(maxsize=2)
def compiled(cache: Path | None) -> dict[str, Any]:
    """The functions of the sources, which numba compiles when they are called. Args: cache: see `Pipeline`."""
    operations = bits.compiled(kept=cache is not None)
    texts = sources()
    name = "sa_atp_datapath_" + digest_of(*(text for _, text in texts), *map(source_of, (bits, system, state, packets)))
    return executed(name, texts, cache, {**operations, **system.calls(operations)})


def ready(cache: Path | None) -> Callable[..., int]:
    """`run_turn`, compiled, or loaded from the cache."""
    from numba import int64

    function: Any = compiled(cache)["run_turn"]
    function.compile((int64,) * 7)
    return cast(Callable[..., int], function)


def is_cached(cache: Path) -> bool:
    """Whether the loop's compiled code is in the cache."""
    return has_code(compiled(cache)["run_turn"])
