"""The terms on which all ranks of a job must agree when they join, and their differences. (protocol section 7.1)"""

import hashlib
import json
from collections.abc import Mapping, Sequence

from sa_atp.basics.errors import UserError
from sa_atp.protocol.job.errors import describe_ranks
from sa_atp.protocol.packets.control import (
    LONGEST_STATED_NAME,
    LONGEST_STATED_VALUE,
    MOST_STATED,
    MOST_STATED_BYTES,
    Terms,
)

Value = str | int | float | bool | None
NOTHING = "not stated"
OWN_NAMES = ("world_size", "micro_batches", "help", "seats", "cut_off", "results")  # stated in fields of Join


def stated(values: Mapping[str, Value]) -> dict[str, str]:
    """A program's own terms, as they travel. Text that is too long is cut, and ends with its digest.

    Raises: UserError: a name or value is not allowed.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"agree = {values!r}: expected names and values, as {{'learning rate': 0.1}}")
    found: dict[str, str] = {}
    for name, value in values.items():
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= LONGEST_STATED_NAME
            or not (name.isascii() and name.isprintable())
            or name in OWN_NAMES
        ):
            raise UserError(
                f"agree: the name {name!r}: expected 1 to {LONGEST_STATED_NAME} printable ASCII characters, "
                f"and none of {', '.join(OWN_NAMES)}"
            )
        if not isinstance(value, Value):
            raise UserError(
                f"agree[{name!r}] is a {type(value).__name__}: expected text, a number, True, False or None"
            )
        found[name] = _short(ascii(value))
    size = len(json.dumps(found))
    if len(found) > MOST_STATED or size > MOST_STATED_BYTES:
        raise UserError(
            f"agree has {len(found)} names, and {size} characters in all: expected at most {MOST_STATED} names, "
            f"and {MOST_STATED_BYTES} characters"
        )
    return found


def _short(text: str) -> str:
    if len(text) <= LONGEST_STATED_VALUE:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[: LONGEST_STATED_VALUE - len(digest) - 4]}... {digest}"


def named(terms: Terms) -> dict[str, str]:
    """All terms by name, as text: the form in which terms of two ranks are compared."""
    closes = "never" if terms.cut_off is None else f"{terms.cut_off.after_us} us, {terms.cut_off.least} seats"
    own = (
        str(terms.world_size), str(terms.micro_batches), ascii(terms.help_grade.value), str(terms.seats), closes,
        ascii(terms.results.value),
    )  # fmt: skip
    # last, so that a forged packet's own terms cannot replace these
    return {**terms.agree, **dict(zip(OWN_NAMES, own, strict=True))}


def difference(asked: Terms, rank: int, agreed: Terms, others: Sequence[int]) -> str | None:
    """Describes the differences between the terms of a rank that asks and of those that have joined; None: there are
    none.
    """
    theirs, ours = named(asked), named(agreed)
    differing = [name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name)]
    # sorted, because answers are cut at the end: a table's name comes before the names of its entries
    names = sorted(differing, key=lambda name: (OWN_NAMES.index(name) if name in OWN_NAMES else len(OWN_NAMES), name))
    if not differing:
        return None
    there = [other for other in others if other != rank] or [rank]
    whose = describe_ranks(there) + (", which has joined already" if there == [rank] else "")
    found = ", ".join(
        f"{name} is {theirs.get(name, NOTHING)} for rank {rank} and {ours.get(name, NOTHING)} for {whose}"
        for name in names
    )
    return f"{found}: all ranks of a job must say the same"
