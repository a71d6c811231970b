"""Counted things and lists in messages."""

from collections.abc import Iterable


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """1 packet, 2 packets. Args: nouns: where it is more than an s."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def join(words: Iterable[str]) -> str:
    """a, b and c."""
    found = list(words)
    return " and ".join(filter(None, [", ".join(found[:-1]), found[-1]])) if found else ""
