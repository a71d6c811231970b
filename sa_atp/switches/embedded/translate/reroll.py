"""Finds loops in straight-line code.

p4c unrolls everything: a program that treats 64 lanes alike becomes 64 copies of the same statements, which differ only in
the number of the lane. Translated one by one they would take numba minutes, and run without vector instructions. This
module replaces such copies by a loop.

It does not depend on lanes: a run of statements is a loop if consecutive groups of them are equal except for references
into a *family* (the fields of a vector header, registers of one size and width), whose indices increase by one from group
to group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIN_REPETITIONS = 8
MAX_PERIOD = 8  # statements of a group


@dataclass(frozen=True, slots=True)
class FamilyMember:
    """A reference to a member of a family."""

    family: str
    index: int


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over `body`, `count` times; its member indices are those of the first pass."""

    body: tuple[Mapping[str, Any], ...]
    count: int


Families = Mapping[tuple[str, str], FamilyMember]  # ("field", "lanes.v3") or ("register", "lane_3") to the member


def reroll(statements: Sequence[Mapping[str, Any]], families: Families) -> list[Mapping[str, Any] | Loop]:
    """Replaces every run of equal groups by a Loop, longest runs first."""
    shapes = [_shape(s, families) for s in statements]
    out: list[Mapping[str, Any] | Loop] = []
    at = 0
    while at < len(statements):
        best = (0, 0)  # (statements covered, period)
        for period in range(1, MAX_PERIOD + 1):
            count = _repetitions(shapes, at, period)
            if count >= MIN_REPETITIONS:
                best = max(best, (count * period, -period))
        if best[0]:
            covered, period = best[0], -best[1]
            out.append(Loop(tuple(statements[at : at + period]), covered // period))
            at += covered
        else:
            out.append(statements[at])
            at += 1
    return out


def _repetitions(shapes: list[tuple[Any, tuple[int, ...]]], start: int, period: int) -> int:
    count = 1
    while start + (count + 1) * period <= len(shapes):
        for j in range(period):
            first_shape, first = shapes[start + j]
            shape, indices = shapes[start + count * period + j]
            if shape != first_shape or not first or any(b - a != count for a, b in zip(first, indices, strict=True)):
                return count if count > 1 else 0
        count += 1
    return count if count > 1 else 0


def _shape(statement: Mapping[str, Any], families: Families) -> tuple[Any, tuple[int, ...]]:
    """A statement with family members replaced by the family's name, and their indices in order."""
    indices: list[int] = []

    def walk(node: Any) -> Any:
        if isinstance(node, Mapping):
            member = member_of(node, families)
            if member is not None:
                indices.append(member.index)
                return ("member", member.family)
            return tuple((k, walk(v)) for k, v in node.items() if k != "source_info")
        if isinstance(node, list | tuple):
            return tuple(walk(child) for child in node)
        return node

    return walk(statement), tuple(indices)


def member_of(node: Mapping[str, Any], families: Families) -> FamilyMember | None:
    kind = node.get("type")
    if kind == "field":
        return families.get(("field", f"{node['value'][0]}.{node['value'][1]}"))
    if kind == "register_array":
        return families.get(("register", node["value"]))
    return None
