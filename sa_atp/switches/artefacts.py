"""Finds compiled P4 programs and plan files: in the repository, or inside the installed package.

A compiled program has digests of its sources and of its own files beside it (origin.json). Loading one whose sources or
files have changed since prints a warning, once; with SA_ATP_STRICT in the environment it is an error.
"""

import hashlib
import json
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sa_atp.basics.errors import MissingPartError, UserError
from sa_atp.basics.inputs import read_bytes, read_text
from sa_atp.basics.words import join, meant
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, WIDE_BUILDS

NAME = "sa_atp"
CHECKOUT_S = 30.0  # in which files that belong together may be written
_PACKAGE = Path(__file__).resolve().parents[1]
# a wheel carries a copy; an editable install stands beside the sources
_PLACES = (_PACKAGE / "_data" / "p4src" / "compiled", _PACKAGE.parent / "p4src" / "compiled")
_PLANS = (_PACKAGE / "_data" / "topologies", _PACKAGE.parent / "topologies")


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledProgram:
    """A program for BMv2 and the embedded target.

    lanes: values in a packet; contributions: bits of its bitmap. None if the folder does not say.
    """

    json_path: Path
    p4info_path: Path
    lanes: int | None
    contributions: int | None = None

    def device_config(self) -> bytes:
        """BMv2 JSON, as P4Runtime's p4_device_config. Raises: UserError."""
        return read_bytes(self.json_path)

    def p4info(self) -> str:
        """The P4Info in text form. Raises: UserError."""
        return read_text(self.p4info_path)

    @property
    def cookie(self) -> int:
        """A number that identifies the program to P4Runtime: a digest of its bytes."""
        return int.from_bytes(hashlib.sha256(self.device_config()).digest()[:8], "big")


def program(lanes: int = 64, contributions: int = CONTRIBUTION_BITS) -> CompiledProgram:
    """The build of the aggregation program with these numbers of lanes and contributions.

    Raises: UserError: there is no such build; it lists the others. MissingPartError: there are none at all.
    """
    known = all_builds()
    if (lanes, contributions) not in known:
        wanted = f"lanes {lanes}" + (
            f" with {contributions} contributions" if contributions != CONTRIBUTION_BITS else ""
        )
        others = [f"{width} with {most} contributions" for width, most in known if most != CONTRIBUTION_BITS]
        raise UserError(f"{wanted}: there is no such build of the P4 program; there is {_list([*builds(), *others])}")
    return from_folder(known[lanes, contributions])


def builds() -> dict[int, Path]:
    """Folders of the v1model builds with bitmaps of 64 bits, by lanes."""
    return {lanes: path for (lanes, contributions), path in all_builds().items() if contributions == CONTRIBUTION_BITS}


def most_contributions(lanes: int) -> int:
    """The largest number of contributions of a build with `lanes` lanes."""
    return max((most for width, most in WIDE_BUILDS if width == lanes), default=CONTRIBUTION_BITS)


def contributions_for(lanes: int, needed: int) -> int | None:
    """The number of contributions of the smallest build with `lanes` lanes and at least `needed`; None if there is none."""
    builds = (CONTRIBUTION_BITS, *(most for width, most in WIDE_BUILDS if width == lanes))
    return min((most for most in builds if most >= needed), default=None)


def wide_enough(lanes: int, needed: int, name: str = "--contributions") -> int:
    """As `contributions_for`. Args: name: the option, for the message. Raises: UserError: no build has as many."""
    found = contributions_for(lanes, needed) if needed >= 1 else None
    if found is None:
        more = [f"{most} with {width}" for width, most in WIDE_BUILDS if most > most_contributions(lanes)]
        others = f" ({_list(more)})" if more else ""
        raise UserError(f"{name} {needed}: expected 1 to {most_contributions(lanes)} with {lanes} lanes{others}")
    return found


def all_builds() -> dict[tuple[int, int], Path]:
    """Folders of the v1model builds, by lanes and contributions."""
    for place in _PLACES:
        found = {_build_of(path.name): path for path in place.glob("v1model-*") if path.is_dir()}
        if found:
            return dict(sorted(found.items()))
    raise MissingPartError(f"the compiled P4 programs are not in {_PLACES[-1]}: run scripts/compile (it needs p4c)")


def _build_of(folder: str) -> tuple[int, int]:
    """Parses the name of a build's folder, such as v1model-256-c512. Returns: lanes and contributions."""
    _, lanes, *wide = folder.split("-")
    return int(lanes), int(wide[0].removeprefix("c")) if wide else CONTRIBUTION_BITS


def from_folder(folder: Path, *, to_run: bool = True) -> CompiledProgram:
    """A compiled program in a folder: one BMv2 JSON, and its P4Info in text form beside it, which may be compressed.

    Args: to_run: whether to check its age, see `check_age`.
    Raises: UserError: the folder does not hold exactly one of each; or see `check_age`.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected one with a BMv2 JSON and its P4Info")
    info = p4info_in(folder)
    json_path = folder / f"{info.name.split('.p4info.')[0]}.json"
    if not json_path.is_file():
        raise UserError(f"{folder}: expected the BMv2 JSON {json_path.name} beside {info.name}")
    if to_run:
        check_age(folder)
    origin = _origin(folder)
    return CompiledProgram(
        json_path=json_path,
        p4info_path=info,
        lanes=origin.get("lanes"),
        contributions=origin.get("contributions"),
    )


def p4info_in(folder: Path) -> Path:
    """The P4Info of a compiled program, in text form. Raises: UserError: there is not exactly one."""
    found = sorted({path for end in ("txtpb", "txtpb.xz", "txt") for path in folder.glob(f"*p4info*.{end}")})
    if len(found) != 1:
        raise UserError(f"{folder}: expected one P4Info (*.p4info.txtpb), found {len(found)}")
    return found[0]


# --- compiled programs and their sources ------------------------------------------------------------------------------


def sources_digest(p4src: Path, architecture: str, build: str, lanes: int, contributions: int) -> str:
    """A digest of a program's sources: the files that the compiler reads, and wire.toml, from which some are generated.

    Comments in wire.toml do not count, nor do its tables of builds: `build` has the options of this one.

    Args: architecture: the folder of its own sources; build: the compiler's options, as text.
    """
    total = hashlib.sha256(build.encode())
    wire = tomllib.loads((p4src / "wire.toml").read_text(encoding="utf-8"))
    total.update(json.dumps({k: v for k, v in wire.items() if k not in ("wide", "tofino")}, sort_keys=True).encode())
    of_build = (f"lanes_{lanes}.p4", f"bits_{contributions}.p4")
    for path in sorted([*p4src.glob("core/**/*.p4"), *p4src.glob(f"{architecture}/*.p4")]):
        if path.name not in of_build and (path.match("lanes_*.p4") or path.match("bits_*.p4")):
            continue
        total.update(f"{path.relative_to(p4src).as_posix()}\n".encode() + path.read_bytes())
    return total.hexdigest()


def v1model_digest(p4src: Path, lanes: int, contributions: int, target: str = "v1model") -> str:
    """`sources_digest` of a program for v1model. Args: target: the folder of its own sources."""
    return sources_digest(p4src, target, f"lanes {lanes}\ncontributions {contributions}\n", lanes, contributions)


def tofino_digest(p4src: Path, build: Mapping[str, Any]) -> str:
    """`sources_digest` of a Tofino program. Args: build: its table in wire.toml."""
    return sources_digest(p4src, "tna", json.dumps(build, sort_keys=True), build["lanes"], CONTRIBUTION_BITS)


def file_digest(content: bytes) -> dict[str, Any]:
    """What origin.json says of a file that the compiler wrote. Args: content: not compressed."""
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def changed_files(folder: Path, other: Path | None = None) -> list[str]:
    """The names, without .xz, of a compiled program's files that differ from their digests in origin.json.

    Args: folder: of origin.json; other: the folder of the files, if that is another one.
    """
    files = _origin(folder).get("files")
    return [
        name
        for name, made in (files.items() if isinstance(files, dict) else ())
        if isinstance(made, dict) and made.get("sha256") != file_digest(_content(other or folder, name))["sha256"]
    ]


def _content(folder: Path, name: str) -> bytes:
    """A file of a compiled program, decompressed; empty if it cannot be read."""
    packed = folder / f"{name}.xz"
    with suppress(UserError):
        return read_bytes(packed if packed.exists() else folder / name)
    return b""


def is_current(folder: Path) -> bool | None:
    """Whether a compiled program is what its compiler made from the present sources; None: nothing here says so."""
    return False if changed_files(folder) else _has_sources_as_then(folder)


def _has_sources_as_then(folder: Path) -> bool | None:
    """Whether a compiled program was made from the present sources; None: it has no digest, or there are no sources."""
    p4src, origin = folder.resolve().parent.parent, _origin(folder)
    try:
        if not (p4src / "core").is_dir() or "sources" not in origin:
            return None
        if "chip" in origin:
            build = tomllib.loads((p4src / "wire.toml").read_text(encoding="utf-8"))["tofino"][folder.resolve().name]
            return bool(origin["sources"] == tofino_digest(p4src, build))
        contributions = origin.get("contributions", CONTRIBUTION_BITS)
        found = v1model_digest(p4src, origin["lanes"], contributions, origin.get("target", "v1model"))
        return bool(origin["sources"] == found)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check_age(folder: Path) -> None:
    """Warns on standard error, once for each folder, if a program is not what its sources compile to.

    Raises: UserError: it is not, and SA_ATP_STRICT is set.
    """
    changed = _changed_since(folder.resolve())
    if newer := _source_beside(folder.resolve()):
        _say_once(f"{folder}: {newer} has changed since this was compiled, and this is what runs: compile it again")
    if changed is None:
        return
    text = (
        f"{folder}: this compiled P4 program differs from its sources, and is what runs: {changed} changed since it was "
        f"compiled; run scripts/{'tofino compile' if 'chip' in _origin(folder) else 'compile'} (it needs p4c)"
    )
    if os.environ.get("SA_ATP_STRICT", "0") not in ("", "0"):
        raise UserError(f"{text}; SA_ATP_STRICT is set")
    _say_once(text)


@lru_cache
def _changed_since(folder: Path) -> str | None:
    """The files that have changed since a program was compiled, with a verb, for a message; None: none that is known."""
    if files := changed_files(folder):
        return f"{join(files)} {'has' if len(files) == 1 else 'have'}"
    return "p4src has" if _has_sources_as_then(folder) is False else None


@lru_cache
def _source_beside(folder: Path) -> str | None:
    """The name of a P4 source beside the folder of a compiled program that is newer by more than a checkout takes."""
    compiled_at = max((path.stat().st_mtime for path in folder.glob("*.json")), default=0.0)
    return next((p.name for p in folder.parent.glob("*.p4") if p.stat().st_mtime > compiled_at + CHECKOUT_S), None)


@lru_cache
def _say_once(text: str) -> None:
    print(f"sa-atp: {text}", file=sys.stderr, flush=True)


def _origin(folder: Path) -> dict[str, Any]:
    """The contents of a program's origin.json; empty if there is none."""
    try:
        found = json.loads((folder / "origin.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# --- plan files and Tofino --------------------------------------------------------------------------------------------


def plan_file(path: Path) -> Path:
    """The plan file at this path, or else the project's own plan of that name.

    So `sa-atp run topologies/demo.toml` and `sa-atp run demo` work from every folder.

    Raises: UserError: there is neither; it lists the project's own plans.
    """
    if os.path.exists(path) and not os.path.isdir(path):  # Path's own methods raise for some names
        return path
    own = plan_files()
    if path.parent in (Path(), Path("topologies")) and path.suffix in ("", ".toml") and path.stem in own:
        return own[path.stem]
    what = "a folder, not a plan file" if os.path.isdir(path) else "no such file"
    known = ", ".join(own) or "not installed"
    raise UserError(f"{path}: {what}{meant(path.stem, own)}; the project's own plans are {known}")


def plan_files() -> dict[str, Path]:
    """The project's own plan files, by name."""
    found = {file.stem: file for place in reversed(_PLANS) for file in place.glob("*.toml")}
    return dict(sorted(found.items()))


def tofino_folder(chip: str, lanes: int | None = None) -> Path:
    """Folder of the program for a Tofino, which `control.tofino` reads. Args: lanes: None for the largest build.

    Raises: UserError: there is no such build; it lists the others. MissingPartError: there are none at all.
    """
    for place in _PLACES:
        found = {lanes_of(path): path for path in place.glob(f"{chip}-*") if path.is_dir()}
        if found and lanes is not None and lanes not in found:
            raise UserError(
                f"lanes {lanes}: there is no such build for {chip}; there is {_list(dict(sorted(found.items())))}"
            )
        if found:
            return found[max(found) if lanes is None else lanes]
    raise MissingPartError(f"no program for {chip} is in {_PLACES[-1]}: run scripts/tofino compile (it needs p4c)")


def peer_builds(name: str) -> dict[int, Path]:
    """Folders of the compiled programs of another protocol (`lab.peers`), by lanes."""
    return {lanes_of(path): path for place in reversed(_PLACES) for path in place.glob(f"{name}-*")}


def lanes_of(folder: Path) -> int:
    """Lanes of one of the project's own builds, from the name of its folder."""
    return _build_of(folder.name)[0]


def _list(known: Iterable[object]) -> str:
    return join(str(lanes) for lanes in known)
