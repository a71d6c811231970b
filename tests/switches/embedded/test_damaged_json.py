"""A damaged BMv2 JSON is an error of one line: for `sa-atp stf`, and for a controller that pushes it."""

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_atp.switches.embedded.errors import PipelineError
from sa_atp.switches.embedded.loading import load
from sa_atp.switches.embedded.stf.names import ProgramNames
from sa_atp.switches.embedded.translate import translate

LAYERS = json.loads((Path(__file__).resolve().parents[2] / "p4" / "layers.json").read_text())
GONE = object()
VALUES: list[Any] = [None, -1, 2**70, float("inf"), float("nan"), "", "x", "0x", [], [[]], {}, True, ["scalars", "x"]]


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if key != "source_info":
            yield (*path, key)
            yield from places(value, (*path, key))


def damaged(place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made: dict[str, Any] = copy.deepcopy(LAYERS)
    node: Any = made
    for key in place[:-1]:
        node = node[key]
    if value is GONE:
        del node[place[-1]]
    else:
        node[place[-1]] = value
    return made


@settings(max_examples=80)
@given(st.sampled_from(list(places(LAYERS))), st.sampled_from([GONE, *VALUES]))
def test_loads_or_says_why(place: tuple[Any, ...], value: Any) -> None:
    made = damaged(place, value)
    for read in (lambda: translate(load(json.dumps(made))), lambda: ProgramNames.from_source(made)):
        with contextlib.suppress(PipelineError):
            read()  # any other error fails the test


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("actions", 0, "primitives", 0, "op"), GONE),
        (("pipelines", 0, "conditionals", 0, "expression"), ""),
        (("pipelines", 0, "tables", 0, "next_tables"), "x"),
        (("headers", 1, "name"), "x"),
    ],
)
def test_damage_is_named(place: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(PipelineError, match=r"^pipeline: damaged BMv2 JSON \("):
        translate(load(damaged(place, value)))


def test_nested_without_end() -> None:
    with pytest.raises(PipelineError, match="not BMv2 JSON"):
        load("[" * 100_000)
