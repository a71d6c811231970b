"""Counted things, lists and likely meanings in messages."""

import reprlib
from collections.abc import Callable, Iterable
from typing import Any


class _Short(reprlib.Repr):
    def repr1(self, x: Any, level: int) -> str:
        """Writes tuples as lists, which a plan's file has."""
        return super().repr1(list(x) if isinstance(x, tuple) else x, level)


_short = _Short()
_short.maxlist = _short.maxlevel = 12
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
    """The known word that is close to an unknown one, or the beginning of it, or the other way round, as " (did you mean
    steps?)"; nothing, if none is.
    """
    import difflib

    words = list(known)
    close = difflib.get_close_matches(word, words, 1)
    close += [
        each for each in words if min(len(word), len(each)) > 2 and (word.startswith(each) or each.startswith(word))
    ]
    return f" (did you mean {close[0]}?)" if close else ""


def one_of(value: Any, known: Iterable[Any], show: Callable[[Any], str] = repr) -> str:
    """The end of a message about a wrong choice: all choices, and the close one. Args: show: how a choice is written."""
    choices = list(known)
    close = meant(value, [each for each in choices if isinstance(each, str)]) if isinstance(value, str) else ""
    return f"expected one of {', '.join(map(show, choices))}{close}"
