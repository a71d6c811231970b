"""Counted things, lists and likely meanings in messages."""

import reprlib
from collections.abc import Iterable
from typing import Any

_short = reprlib.Repr()
_short.maxtuple = _short.maxlist = _short.maxlevel = 12
_short.maxstring = _short.maxother = 120


def short(value: Any) -> str:
    """A user's value as Python writes it, on one line; long ones without their middle."""
    return _short.repr(value)


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """1 packet, 2 packets. Args: nouns: the plural, if it is not the noun and an s."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def join(words: Iterable[str]) -> str:
    """a, b and c."""
    found = list(words)
    return " and ".join(filter(None, [", ".join(found[:-1]), found[-1]])) if found else ""


def meant(word: str, known: Iterable[str]) -> str:
    """The known word that is close to an unknown one, as " (did you mean steps?)"; nothing, if none is."""
    import difflib

    close = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""
