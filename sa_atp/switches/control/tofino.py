"""Compiled Tofino programs, and the two forms in which P4Runtime servers of Tofino switches take them.

    pi        bf_switchd with PI: three fields, each with its length before it, as 32 bits with the low byte first
    stratum   stratum_bfrt: the protobuf message BfPipelineConfig

A program is a folder: the output of p4c's Tofino back end, or one of p4src/compiled, where the large files are compressed
and `origin.json` has their digests. Pure: no connection.
"""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from sa_atp.basics.errors import UserError
from sa_atp.basics.inputs import read_bytes, read_text
from sa_atp.switches import artefacts

Chip = Literal["tofino", "tofino2"]
Packing = Literal["stratum", "pi"]
CHIPS: tuple[Chip, ...] = get_args(Chip)
PACKINGS: tuple[Packing, ...] = get_args(Packing)
PIPES = 4  # a program is loaded into all of them; a chip with fewer ignores the others
MODELS: Mapping[str, Chip] = {"tofino-model": "tofino", "tofino2-model": "tofino2"}
"""The chip of each target that is the vendor's software model."""
LOOP_PORTS: Mapping[Chip, int] = {"tofino": 68, "tofino2": 6}
"""The recirculation port of each chip in the program (p4src/tna/target.p4; a test compares them)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TofinoProgram:
    """A program for one kind of Tofino.

    name: the program's name for the driver; pipe: name of the pipeline profile; lanes: values in a packet, None if the
    folder does not say; bfrt, context: JSON for the driver; binary: the chip's configuration.
    """

    folder: Path
    name: str
    pipe: str
    chip: Chip
    lanes: int | None
    packing: Packing
    bfrt: bytes
    context: bytes
    binary: bytes
    p4info_text: str

    def device_config(self) -> bytes:
        """P4Runtime's p4_device_config, in the form of `packing`."""
        if self.packing == "pi":
            return pack_pi(self.name, self.binary, self.context)
        return pack_stratum(self.name, self.bfrt, self.pipe, self.context, self.binary, range(PIPES))

    def p4info(self) -> str:
        """The P4Info in text form."""
        return self.p4info_text

    @property
    def cookie(self) -> int:
        """A number that identifies the program to P4Runtime: a digest of its bytes."""
        return int.from_bytes(hashlib.sha256(self.device_config()).digest()[:8], "big")


# --- packings ---------------------------------------------------------------------------------------------------------


def pack_pi(name: str, binary: bytes, context: bytes) -> bytes:
    """The p4_device_config for bf_switchd with PI."""
    return b"".join(struct.pack("<I", len(part)) + part for part in (name.encode(), binary, context))


def pack_stratum(name: str, bfrt: bytes, pipe: str, context: bytes, binary: bytes, pipes: Sequence[int]) -> bytes:
    """The p4_device_config for stratum_bfrt: a `stratum.hal.barefoot.BfPipelineConfig` with one profile.

    It is encoded by hand: two messages of bytes and strings are not worth another package.
    """
    scope = _field(4, bytes(pipes))  # packed, each below 128
    profile = _field(1, pipe.encode()) + _field(2, context) + _field(3, binary) + scope
    return _field(1, name.encode()) + _field(2, bfrt) + _field(3, profile)


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field in protobuf's wire format."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


# --- folders ----------------------------------------------------------------------------------------------------------


def from_folder(folder: Path, packing: Packing = "stratum") -> TofinoProgram:
    """Reads a program. Raises: UserError: a file is missing or damaged, or the files are not of one program."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    artefacts.check_age(folder)
    origin = _origin(folder)
    binary_name = next((name for name in ("tofino.bin", "tofino2.bin") if _find(folder, name)), "tofino.bin")
    parts = {name: _read(folder, name, origin) for name in ("bfrt.json", "context.json", binary_name)}
    header = binary_header(parts[binary_name], folder / binary_name)
    context = _json(parts["context.json"], folder / "context.json")
    bfrt = _json(parts["bfrt.json"], folder / "bfrt.json")
    chip = header.get("target")
    if chip not in CHIPS:
        raise UserError(f"{folder}/{binary_name}: it is for {chip!r}; expected one of {', '.join(CHIPS)}")
    for key, found in (("target", chip), ("program_name", header.get("program_name"))):
        if context.get(key) != found:
            raise UserError(
                f"{folder}: context.json has {key} {context.get(key)!r}, {binary_name} has {found!r}: "
                "they are not of one compilation"
            )
    name, pipe = _names(folder, context)
    p4info = read_text(artefacts.p4info_in(folder))
    _check_tables(folder, p4info, bfrt)
    return TofinoProgram(
        folder=folder,
        name=name,
        pipe=pipe,
        chip=chip,
        lanes=origin.get("lanes"),
        packing=packing,
        bfrt=parts["bfrt.json"],
        context=parts["context.json"],
        binary=parts[binary_name],
        p4info_text=p4info,
    )


def binary_header(binary: bytes, path: Path) -> dict[str, Any]:
    """The first block of a tofino.bin, which describes it. Raises: UserError: the file is not a tofino.bin."""
    try:
        if binary[:4] != b"\0\0\0H":
            raise ValueError("it does not begin with a header")
        return _bson(binary[4:])
    except (ValueError, IndexError, struct.error) as error:
        raise UserError(f"{path}: not a configuration of a Tofino ({error})") from None


def header_bytes(binary: bytes) -> int:
    """The length of the first block; the rest depends on the program alone."""
    return 4 + int(struct.unpack_from("<I", binary, 4)[0])


def _bson(data: bytes) -> dict[str, Any]:
    """Decodes a flat BSON document of numbers and strings."""
    (size,) = struct.unpack_from("<i", data)
    if not 5 <= size <= len(data):
        raise ValueError("its header is cut off")
    found: dict[str, Any] = {}
    at = 4
    while (kind := data[at]) != 0:
        end = data.index(0, at)
        name, at = data[at + 1 : end].decode(), end + 1
        if kind == 2:
            (length,) = struct.unpack_from("<i", data, at)
            found[name] = data[at + 4 : at + 3 + length].decode()
            at += 4 + length
        elif kind in (16, 18):
            (found[name],) = struct.unpack_from("<i" if kind == 16 else "<q", data, at)
            at += 4 if kind == 16 else 8
        else:
            raise ValueError(f"its header has a field of type {kind}")
    return found


def _origin(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "origin.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}/origin.json: {error}") from None


def _places(folder: Path, name: str) -> Iterator[Path]:
    """Paths where a file may be: beside the others, or where the compiler puts it; plain, or compressed."""
    for place in (folder, folder / "pipe"):
        yield place / name
        yield place / f"{name}.xz"


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in _places(folder, name) if path.is_file()), None)


def _read(folder: Path, name: str, origin: dict[str, Any]) -> bytes:
    path = _find(folder, name)
    if path is None:
        raise UserError(f"{folder}: expected {name} of p4c's Tofino back end, in it or in its folder pipe")
    content = read_bytes(path)
    expected = origin.get("files", {}).get(name, {}).get("sha256")
    if expected is not None and hashlib.sha256(content).hexdigest() != expected:
        raise UserError(f"{path}: its checksum is not the one in origin.json: run scripts/tofino compile")
    return content


def _json(content: bytes, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected an object")
    return found


def _names(folder: Path, context: dict[str, Any]) -> tuple[str, str]:
    """Names of the program and its pipeline: from the compiler's .conf, or else from the context."""
    for path in sorted(folder.glob("*.conf")):
        try:
            program = _json(path.read_bytes(), path)["p4_devices"][0]["p4_programs"][0]
            return str(program["program-name"]), str(program["p4_pipelines"][0]["p4_pipeline_name"])
        except (KeyError, IndexError, TypeError):
            raise UserError(f"{path}: expected p4_devices with p4_programs with p4_pipelines") from None
    return str(context["program_name"]), "pipe"


def _check_tables(folder: Path, p4info: str, bfrt: dict[str, Any]) -> None:
    """Checks that the driver's JSON has every table of the P4Info, which it finds by name. Raises: UserError."""
    from sa_atp.switches.control.client import parse_p4info

    known = {str(table["name"]).partition(".")[2] for table in bfrt.get("tables", ())}
    missing = [t.preamble.name for t in parse_p4info(p4info).tables if t.preamble.name not in known]
    if missing:
        raise UserError(
            f"{folder}: the P4Info has the table {missing[0]}, bfrt.json has not: they are not of one program"
        )
