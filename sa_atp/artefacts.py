"""Where the compiled P4 programs and the plan files are: in the repository, or inside the installed package."""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sa_atp.errors import MissingPartError, UserError
from sa_atp.inputs import read_text
from sa_atp.spec import CONTRIBUTION_BITS, WIDE_BUILDS
from sa_atp.words import join

NAME = "sa_atp"
_PACKAGE = Path(__file__).resolve().parent
# a wheel carries a copy; an editable install stands beside the sources
_PLACES = (_PACKAGE / "_data" / "p4src" / "compiled", _PACKAGE.parent / "p4src" / "compiled")
_PLANS = (_PACKAGE / "_data" / "topologies", _PACKAGE.parent / "topologies")


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledProgram:
    """A program for BMv2 and the embedded target.

    lanes: values a packet; contributions: bits of its bitmap. None where the folder does not say.
    """

    json_path: Path
    p4info_path: Path
    lanes: int | None
    contributions: int | None = None

    def device_config(self) -> bytes:
        """BMv2 JSON, as P4Runtime's p4_device_config. Raises: UserError."""
        try:
            return self.json_path.read_bytes()
        except OSError as error:
            raise UserError(f"{self.json_path}: {error.strerror or error}") from None

    def p4info(self) -> str:
        """The P4Info in text form. Raises: UserError."""
        return read_text(self.p4info_path)

    @property
    def cookie(self) -> int:
        """Names the program to P4Runtime: the same bytes, the same number."""
        return int.from_bytes(hashlib.sha256(self.device_config()).digest()[:8], "big")


def program(lanes: int = 64, contributions: int = CONTRIBUTION_BITS) -> CompiledProgram:
    """The aggregation program for packets of so many lanes, with bits for so many contributions.

    Raises: UserError: there is no such build; it lists those that there are. MissingPartError: there are none at all.
    """
    if contributions != CONTRIBUTION_BITS:
        return from_folder(_wide_builds().get((lanes, contributions)) or _no_build(lanes, contributions))
    known = builds()
    if lanes not in known:
        raise UserError(f"lanes {lanes}: there is no such build of the P4 program; there is {_list(known)}")
    return from_folder(known[lanes])


def builds() -> dict[int, Path]:
    """Folders of the v1model builds with bitmaps of 64 bits, by lanes."""
    return {lanes: path for (lanes, contributions), path in all_builds().items() if contributions == CONTRIBUTION_BITS}


def most_contributions(lanes: int) -> int:
    """How many contributions the widest build for packets of so many lanes has bits for."""
    return max((most for width, most in WIDE_BUILDS if width == lanes), default=CONTRIBUTION_BITS)


def contributions_for(lanes: int, needed: int) -> int | None:
    """The bits of the smallest build for packets of so many lanes that has so many at least; None: there is none."""
    builds = (CONTRIBUTION_BITS, *(most for width, most in WIDE_BUILDS if width == lanes))
    return min((most for most in builds if most >= needed), default=None)


def wide_enough(lanes: int, needed: int, name: str = "--contributions") -> int:
    """What contributions_for finds. Args: name: what asks for so many. Raises: UserError: no build has so many."""
    found = contributions_for(lanes, needed) if needed >= 1 else None
    if found is None:
        more = [f"{most} with {width}" for width, most in WIDE_BUILDS if most > most_contributions(lanes)]
        others = f" ({_list(more)})" if more else ""
        raise UserError(f"{name} {needed}: expected 1 to {most_contributions(lanes)} with {lanes} lanes{others}")
    return found


def _no_build(lanes: int, contributions: int) -> NoReturn:
    known = [f"{most} with {width} lanes" for width, most in _wide_builds()]
    raise UserError(
        f"contributions {contributions} with {lanes} lanes: there is no such build of the P4 program; "
        f"there is {_list([f'{CONTRIBUTION_BITS} with each number of lanes', *known])}"
    )


def _wide_builds() -> dict[tuple[int, int], Path]:
    return {build: path for build, path in all_builds().items() if build[1] != CONTRIBUTION_BITS}


def all_builds() -> dict[tuple[int, int], Path]:
    """Folders of the v1model builds, by lanes and contributions."""
    for place in _PLACES:
        found = {_build_of(path.name): path for path in place.glob("v1model-*") if path.is_dir()}
        if found:
            return dict(sorted(found.items()))
    raise MissingPartError(f"the compiled P4 programs are not in {_PLACES[-1]}: run scripts/compile (it needs p4c)")


def _build_of(folder: str) -> tuple[int, int]:
    """Lanes and contributions of v1model-256 or v1model-256-c512."""
    _, lanes, *wide = folder.split("-")
    return int(lanes), int(wide[0].removeprefix("c")) if wide else CONTRIBUTION_BITS


def from_folder(folder: Path) -> CompiledProgram:
    """A compiled program in a folder: one BMv2 JSON, and its P4Info in text form beside it.

    Raises: UserError: the folder does not hold exactly one of each.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected one with a BMv2 JSON and its P4Info")
    infos = sorted([*folder.glob("*.p4info.txtpb"), *folder.glob("*.p4info.txt")])
    if len(infos) != 1:
        raise UserError(f"{folder}: expected one P4Info (*.p4info.txtpb), found {len(infos)}")
    name = infos[0].name.split(".p4info.")[0]
    json_path = folder / f"{name}.json"
    if not json_path.is_file():
        raise UserError(f"{folder}: expected the BMv2 JSON {json_path.name} beside {infos[0].name}")
    try:
        origin = json.loads((folder / "origin.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        origin = {}
    return CompiledProgram(
        json_path=json_path,
        p4info_path=infos[0],
        lanes=origin.get("lanes"),
        contributions=origin.get("contributions"),
    )


def plan_file(path: Path) -> Path:
    """A plan file: the one at this path; else the project's own plan of that name, wherever the project is installed.

    So `sa-atp run topologies/demo.toml` and `sa-atp run demo` work from every folder.

    Raises: UserError: there is neither; it lists the project's own.
    """
    if os.path.exists(path) and not os.path.isdir(path):  # unlike Path's, these take names of every kind
        return path
    own = {file.stem: file for place in reversed(_PLANS) for file in place.glob("*.toml")}
    if path.parent in (Path(), Path("topologies")) and path.suffix in ("", ".toml") and path.stem in own:
        return own[path.stem]
    what = "a folder, not a plan file" if os.path.isdir(path) else "no such file"
    raise UserError(f"{path}: {what}; the project's own plans are {', '.join(sorted(own)) or 'not installed'}")


def tofino_folder(chip: str, lanes: int | None = None) -> Path:
    """Folder of the program for a Tofino; `sa_atp.control.tofino` reads it. lanes: None for the most that there are.

    Raises: UserError: there is no such build; it lists those that there are. MissingPartError: there are none at all.
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


def lanes_of(folder: Path) -> int:
    """Lanes of one of the project's own builds, which its folder is named by."""
    return _build_of(folder.name)[0]


def _list(known: Iterable[object]) -> str:
    return join(str(lanes) for lanes in known)
