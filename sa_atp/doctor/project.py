"""Probes of the project's own files: compiled P4 programs, generated files, the cache of compiled pipelines."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sa_atp.basics import needs
from sa_atp.basics.errors import SaAtpError
from sa_atp.basics.folders import cache_folder
from sa_atp.basics.words import join
from sa_atp.doctor.finding import Finding, attempt
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS
from sa_atp.switches import artefacts

CHECKOUT = Path(__file__).resolve().parents[2]


def programs() -> Finding:
    """Checks that all compiled P4 programs are there and can be read."""
    in_checkout = needs.checkout() is not None
    how = "scripts/compile (it needs p4c), or `git checkout p4src/compiled`" if in_checkout else "install sa_atp again"
    try:
        builds = [artefacts.from_folder(folder, to_run=False) for folder in artefacts.all_builds().values()]
        for build in builds:
            json.loads(build.device_config())
    except (SaAtpError, OSError, ValueError) as error:
        return Finding(name="p4 programs", ok=False, detail=str(error), how=how)
    return Finding(name="p4 programs", ok=True, detail=_describe(builds))


def _describe(builds: Sequence[artefacts.CompiledProgram]) -> str:
    wide = [f"{b.lanes} with {b.contributions} contributions" for b in builds if b.contributions != CONTRIBUTION_BITS]
    plain = [str(b.lanes) for b in builds if b.contributions == CONTRIBUTION_BITS]
    return f"{join([*plain, *wide])} lanes"


def artefacts_current() -> Finding | None:
    """Checks that the compiled programs were made from the sources beside them; None outside a checkout."""
    return _check("p4 artefacts", "made from the sources here", "compile", "--check", "--no-rebuild")


def generated() -> Finding | None:
    """Checks that the constants in P4 and Python are those of p4src/wire.toml; None outside a checkout."""
    return _check("wire constants", "in step with p4src/wire.toml", "generate", "--check")


def _check(name: str, success: str, script: str, *options: str) -> Finding | None:
    path = CHECKOUT / "scripts" / script
    if not path.is_file():
        return None
    ok, said = attempt([sys.executable, str(path), *options], tells_shortage=True)
    return Finding(name=name, ok=ok, detail=success if ok else said, how=f"scripts/{script}")


def cache() -> Finding:
    try:
        folder = cache_folder()
    except (OSError, RuntimeError) as error:
        return Finding(
            name="cache", ok=False, detail=str(error), how="set SA_ATP_CACHE to a folder that can be written"
        )
    return Finding(name="cache", ok=os.access(folder, os.W_OK), detail=str(folder))


def compiled(lanes: int) -> Finding:
    """Whether the pipeline is in the cache. If not, nothing is wrong: the first switch that starts compiles it."""
    name = f"pipeline, {lanes} lanes"
    how = "the first switch that starts compiles it, which takes about 15 s"
    try:
        from sa_atp.net.switch_process.datapath import code
        from sa_atp.switches.embedded import program_cache
        from sa_atp.switches.embedded.loading import load

        program, cache = load(artefacts.program(lanes).json_path), cache_folder()
        found = program_cache.is_compiled(program, cache) and code.is_cached(cache)
    except Exception as error:  # a broken installation may raise anything
        return Finding(name=name, ok=False, detail=f"{type(error).__name__}: {error}", how=how)
    return Finding(name=name, ok=found, detail="compiled" if found else "not compiled yet", how=how)
