"""Where the compiled P4 programs and the plan files are: in the repository, or inside the installed package."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from sa_atp.errors import MissingPartError, UserError
from sa_atp.inputs import read_text
from sa_atp.words import join

NAME = "sa_atp"
_PACKAGE = Path(__file__).resolve().parent
# a wheel carries a copy; an editable install stands beside the sources
_PLACES = (_PACKAGE / "_data" / "p4src" / "compiled", _PACKAGE.parent / "p4src" / "compiled")
_PLANS = (_PACKAGE / "_data" / "topologies", _PACKAGE.parent / "topologies")


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledProgram:
    """A program for BMv2 and the embedded target. lanes: values a packet; None where the folder does not say."""

    json_path: Path
    p4info_path: Path
    lanes: int | None

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


def program(lanes: int = 64) -> CompiledProgram:
    """The aggregation program for packets of so many lanes.

    Raises: UserError: there is no such build; it lists those that there are. MissingPartError: there are none at all.
    """
    known = builds()
    if lanes not in known:
        raise UserError(f"lanes {lanes}: there is no such build of the P4 program; there is {_list(known)}")
    return from_folder(known[lanes])


def builds() -> dict[int, Path]:
    """Folders of the v1model builds, by lanes."""
    for place in _PLACES:
        found = {int(path.name.rsplit("-", 1)[1]): path for path in place.glob("v1model-*") if path.is_dir()}
        if found:
            return dict(sorted(found.items()))
    raise MissingPartError(f"the compiled P4 programs are not in {_PLACES[-1]}: run scripts/compile (it needs p4c)")


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
        lanes = json.loads((folder / "origin.json").read_text(encoding="utf-8"))["lanes"]
    except (OSError, ValueError, KeyError):
        lanes = None
    return CompiledProgram(json_path=json_path, p4info_path=infos[0], lanes=lanes)


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
    return int(folder.name.rsplit("-", 1)[1])


def _list(known: dict[int, Path]) -> str:
    return join(str(lanes) for lanes in known)
