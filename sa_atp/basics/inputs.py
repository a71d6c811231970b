"""Reads users' files, text, JSON and TOML, with errors of one line. Files of compiled programs may be compressed."""

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import short


def read_bytes(path: Path) -> bytes:
    """Reads a file, and decompresses it if its name ends in .xz. Raises: UserError."""
    import lzma

    try:
        content = path.read_bytes()
        return lzma.decompress(content) if path.suffix == ".xz" else content
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except lzma.LZMAError as error:
        raise UserError(f"{path}: not compressed by xz: {error}") from None
    except ValueError as error:  # the path has a NUL in it
        raise UserError(f"{short(str(path))}: {error}") from None


def read_text(path: Path) -> str:
    """Reads a text, as `read_bytes` does bytes. Raises: UserError: it cannot be read, or is not text."""
    try:
        return read_bytes(path).decode("utf-8-sig")  # some editors put a mark before the text
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not text in UTF-8: byte {error.object[error.start]:#04x} at {error.start}") from None


def read_json(path: Path) -> Any:
    """Reads a JSON file. Raises: UserError: it cannot be read, or is not JSON."""
    return parse_json(read_text(path), str(path))


def parse_json(text: str, where: str) -> Any:
    """Parses JSON.

    Args: where: the source, for messages. Raises: UserError: not JSON, or a key is twice in one object.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise UserError(f"{where}: key {short(twice)} is there twice in one object: expected each key once")
        return found

    def constant(name: str) -> None:
        raise ValueError(f"{name} is no number of JSON")

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error})") from None


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parses TOML. Args: where: the source, for messages. Raises: UserError: not TOML, or a number has too many digits."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a TOMLDecodeError, or of Python's own readers of numbers
        raise UserError(f"{where}: not TOML: {error}") from None


def microseconds(name: str, seconds: float) -> int:
    """A time in whole microseconds. Args: name: of the setting. Raises: UserError: it is no positive number of seconds."""
    try:
        is_positive = bool(0 < seconds < 1e9)
    except TypeError:
        is_positive = False
    if not is_positive:
        raise UserError(f"{name} = {seconds!r}: expected a positive number of seconds")
    return int(seconds * 1e6)
