"""Expressions of compiled programs: the translation against BMv2's arithmetic, which is that of integers of any size."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sa_atp.switches.embedded import bits
from sa_atp.switches.embedded.errors import Unsupported
from sa_atp.switches.embedded.loading import load
from sa_atp.switches.embedded.program import Program
from sa_atp.switches.embedded.translate.expressions import Translator

ROUTER = Path(__file__).resolve().parents[2] / "p4" / "router.json"
FIELDS = (
    ("i8", 8, True),
    ("i32", 32, True),
    ("b1", 1, False),
    ("b8", 8, False),
    ("b32", 32, False),
    ("b48", 48, False),
)
STORED = ((8, False), (32, False), (64, False), (8, True), (32, True))

Node = dict[str, Any]


def program() -> Program:
    source = json.loads(ROUTER.read_text())
    source["header_types"].append({"name": "t", "id": 99, "fields": [list(field) for field in FIELDS]})
    source["headers"].append({"name": "m", "id": 99, "header_type": "t", "metadata": True, "pi_omit": True})
    return load(source)


PROGRAM = program()


def node(op: str, left: Node | None, right: Node) -> Node:
    return {"type": "expression", "value": {"op": op, "left": left, "right": right}}


def field(name: str) -> Node:
    return {"type": "field", "value": ["m", name]}


def constant(value: int) -> Node:
    return {"type": "hexstr", "value": f"-0x{-value:x}" if value < 0 else f"0x{value:x}"}


def cast(op: str, inner: Node, width: int) -> Node:
    return node(op, inner, constant(width))


leaves = st.one_of(
    st.sampled_from([field(name) for name, _, _ in FIELDS]),
    st.sampled_from([constant(value) for value in (0, 1, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, -1, -5)]),
)


def trees(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.one_of(
        st.builds(node, st.sampled_from(["+", "-", "*", "&", "|", "^"]), inner, inner),
        st.builds(lambda child: node("~", None, child), inner),
        st.builds(cast, st.sampled_from(["two_comp_mod"]), inner, st.sampled_from([8, 32])),
        st.builds(cast, st.sampled_from(["sat_cast", "usat_cast"]), inner, st.sampled_from([8, 32])),
        st.builds(lambda child, width: node("&", child, constant((1 << width) - 1)), inner, st.sampled_from([8, 32])),
    )


def signed(value: int, width: int) -> int:
    half = 1 << (width - 1)
    return (value + half) % (2 * half) - half


def exact(tree: Node, values: dict[str, int]) -> int:
    """BMv2's arithmetic: values are truncated only where an operation says so."""
    if tree["type"] == "field":
        return values[tree["value"][1]]
    if tree["type"] == "hexstr":
        return int(tree["value"], 16)
    inner = tree["value"]
    right = exact(inner["right"], values)
    if inner["op"] == "~":
        return ~right
    left = exact(inner["left"], values)
    operations: dict[str, Callable[[], int]] = {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "&": lambda: left & right,
        "|": lambda: left | right,
        "^": lambda: left ^ right,
        "two_comp_mod": lambda: signed(left, right),
        "sat_cast": lambda: min(max(left, -(1 << (right - 1))), (1 << (right - 1)) - 1),
        "usat_cast": lambda: min(max(left, 0), (1 << right) - 1),
    }
    return operations[inner["op"]]()


def translated(tree: Node, values: dict[str, int], width: int, is_signed: bool) -> int:
    translator = Translator(PROGRAM)
    code = translator.cut(translator.expression(tree, "here"), width, is_signed)
    names = {translator.variable(*PROGRAM.field("m", name, "here")): value for name, value in values.items()}
    constants = {name: value for value, name in translator.names.constants.items()}
    return int(eval(code, {**bits.plain(), **constants, **names}))


@settings(max_examples=600)
@given(st.recursive(leaves, trees, max_leaves=5), st.data())
def test_stored_values_are_those_of_bmv2(tree: Node, draw: st.DataObject) -> None:
    values = {
        name: draw.draw(
            st.integers(-(1 << (width - 1)), (1 << (width - 1)) - 1) if is_signed else st.integers(0, (1 << width) - 1)
        )
        for name, width, is_signed in FIELDS
    }
    width, is_signed = draw.draw(st.sampled_from(STORED))
    wanted = exact(tree, values)
    try:
        found = translated(tree, values, width, is_signed)
    except Unsupported:
        assume(False)  # refused when the program is loaded: never a wrong number
    assert found == (signed(wanted, width) if is_signed else wanted % (1 << width))


@pytest.mark.parametrize("value", [-(1 << 31), -5, -1, 0, 7, (1 << 31) - 1])
def test_casts_to_bits_and_back_keep_the_sign(value: int) -> None:
    """(int<32>)(bit<32>)x + 3, saturating."""
    bits_of = node("&", field("i32"), constant(0xFFFFFFFF))
    total = cast("sat_cast", node("+", cast("two_comp_mod", bits_of, 32), constant(3)), 32)
    values = {name: 0 for name, _, _ in FIELDS} | {"i32": value}
    assert translated(bits_of, values, 64, False) == value % (1 << 32)
    assert translated(total, values, 32, True) == min(value + 3, (1 << 31) - 1)
