"""Files that users give: text and JSON, read with errors of one line."""

import json
from pathlib import Path
from typing import Any

from sa_atp.errors import UserError


def read_text(path: Path) -> str:
    """Raises: UserError: it cannot be read, or is not text."""
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors put a mark before the text
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not text in UTF-8: byte {error.object[error.start]:#04x} at {error.start}") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def read_json(path: Path) -> Any:
    """Raises: UserError: it cannot be read, or is not JSON."""
    return parse_json(read_text(path), str(path))


def parse_json(text: str, where: str) -> Any:
    """Raises: UserError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error})") from None
