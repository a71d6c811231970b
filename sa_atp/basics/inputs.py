"""Reads users' files, text and JSON, with errors of one line."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import short


def read_text(path: Path) -> str:
    """Reads a text file. Raises: UserError: it cannot be read, or is not text."""
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not text in UTF-8: byte {error.object[error.start]:#04x} at {error.start}") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:  # the path has a NUL in it
        raise UserError(f"{short(str(path))}: {error}") from None


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
