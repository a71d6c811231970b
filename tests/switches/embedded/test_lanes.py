"""Headers of many equal fields: loops over them, and single statements, whatever has read or written the header before.

The values of such a header are in the packet until something writes one. There is no compiler here for a program of each
sequence: the tests give the compiled form of tests/p4/punt.p4 lanes, registers and one action, in the way p4c writes them.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_atp.basics.folders import cache_folder
from sa_atp.switches.embedded.pipeline import Pipeline

PUNT = json.loads((Path(__file__).resolve().parents[2] / "p4" / "punt.json").read_text())
LANES = 20
CELLS = 4
PART = range(4, 15)  # lanes of a loop that leaves out some
LOW, HIGH = -(1 << 31), (1 << 31) - 1

Node = dict[str, Any]
Lanes = list[int]
State = tuple[Lanes, list[Lanes]]  # the packet's lanes, and each cell's
Step = tuple[Callable[[int], list[Node]], Callable[[Lanes, list[Lanes], int], None]]
"""Statements of the action, by the index of the cell; and what they do to the lanes and to the cells."""


def lane(i: int) -> Node:
    return {"type": "field", "value": ["lanes", f"v{i}"]}


def held() -> Node:
    return {"type": "field", "value": ["scalars", "held"]}


def hexstr(value: int) -> Node:
    return {"type": "hexstr", "value": hex(value)}


def operation(op: str, left: Node, right: Node) -> Node:
    return {"type": "expression", "value": {"op": op, "left": left, "right": right}}


def assign(target: Node, source: Node) -> Node:
    return {"op": "assign", "parameters": [target, source]}


def read(target: Node, i: int, cell: int) -> Node:
    return {"op": "register_read", "parameters": [target, register(i), hexstr(cell)]}


def write(i: int, cell: int, source: Node) -> Node:
    return {"op": "register_write", "parameters": [register(i), hexstr(cell), source]}


def register(i: int) -> Node:
    return {"type": "register_array", "value": f"lane_{i}"}


def added(i: int, cell: int) -> list[Node]:
    was = operation("two_comp_mod", operation("&", held(), hexstr(0xFFFFFFFF)), hexstr(32))
    total = operation("sat_cast", operation("+", was, lane(i)), hexstr(32))
    return [read(held(), i, cell), assign(lane(i), total), write(i, cell, lane(i))]


def loop(body: Callable[[int, int], list[Node]], lanes: range = range(LANES)) -> Callable[[int], list[Node]]:
    return lambda cell: [statement for i in lanes for statement in body(i, cell)]


def does(change: Callable[[int, int], tuple[int, int]], lanes: range = range(LANES)) -> Callable[..., None]:
    """Args: change: the new values of a lane and of its cell, by their old ones. Beyond the registers nothing happens."""

    def apply(packet: Lanes, cells: list[Lanes], cell: int) -> None:
        if cell < CELLS:
            for i in lanes:
                packet[i], cells[cell][i] = change(packet[i], cells[cell][i])

    return apply


def put(to: int, value: Callable[[Lanes], int]) -> Callable[..., None]:
    def apply(packet: Lanes, cells: list[Lanes], cell: int) -> None:
        packet[to] = value(packet)

    return apply


def clear(packet: Lanes, cells: list[Lanes], cell: int) -> None:
    packet[:] = [0] * LANES


HEADER = [{"type": "header", "value": "lanes"}]
STEPS: dict[str, Step] = {
    "set": (loop(lambda i, cell: [write(i, cell, lane(i))]), does(lambda v, c: (v, v))),
    "add": (loop(added), does(lambda v, c: (min(max(v + c, LOW), HIGH),) * 2)),
    "read": (loop(lambda i, cell: [read(lane(i), i, cell)]), does(lambda v, c: (c, c))),
    "swap": (
        loop(lambda i, cell: [read(held(), i, cell), write(i, cell, lane(i)), assign(lane(i), held())]),
        does(lambda v, c: (c, v)),
    ),
    "read a part": (loop(lambda i, cell: [read(lane(i), i, cell)], PART), does(lambda v, c: (c, c), PART)),
    "set a part": (loop(lambda i, cell: [write(i, cell, lane(i))], PART), does(lambda v, c: (v, v), PART)),
    "add a part": (loop(added, PART), does(lambda v, c: (min(max(v + c, LOW), HIGH),) * 2, PART)),
    "write one": (lambda cell: [assign(lane(3), hexstr(0x1234))], put(3, lambda packet: 0x1234)),
    "move one": (lambda cell: [assign(held(), lane(7)), assign(lane(5), held())], put(5, lambda packet: packet[7])),
    "new header": (lambda cell: [{"op": op, "parameters": HEADER} for op in ("remove_header", "add_header")], clear),
}


def config(steps: list[tuple[str, int]]) -> dict[str, Any]:
    """The program: its parser extracts Ethernet and the lanes, its action does the steps at their cells."""
    program: dict[str, Any] = copy.deepcopy(PUNT)
    program["header_types"][0]["fields"] = [["held", 32, True]]
    program["header_types"].append({"name": "lanes_h", "id": 5, "fields": [[f"v{i}", 32, True] for i in range(LANES)]})
    program["headers"].append({"name": "lanes", "id": 5, "header_type": "lanes_h", "metadata": False, "pi_omit": True})
    program["parsers"][0]["parse_states"][2]["parser_ops"].append(
        {"parameters": [{"type": "regular", "value": "lanes"}], "op": "extract"}
    )
    program["deparsers"][0]["order"] = ["ethernet", "lanes"]
    program["register_arrays"] = [{"name": f"lane_{i}", "id": i, "size": CELLS, "bitwidth": 32} for i in range(LANES)]
    program["actions"][1]["primitives"] = [
        assign({"type": "field", "value": ["standard_metadata", "egress_spec"]}, hexstr(1)),
        *(statement for name, cell in steps for statement in STEPS[name][0](cell)),
    ]
    return program


def check(steps: list[tuple[str, int]], packets: list[Lanes], *, compiled: bool) -> None:
    """Sends packets through the program, and compares what leaves, and the registers, with what the steps should do."""
    text = json.dumps(config(steps)).encode()
    pipeline = Pipeline.from_config(text, compiled=compiled, cache=cache_folder() if compiled else None)
    cells = [[0] * LANES for _ in range(CELLS)]
    head, tail = bytes(12) + b"\x12\x34", b"payload"
    for lanes in packets:
        expected = list(lanes)
        for name, cell in steps:
            STEPS[name][1](expected, cells, cell)
        out = pipeline.process_one(head + np.array(lanes, ">i4").tobytes() + tail, 1, 0)
        assert out == [(1, head + np.array(expected, ">i4").tobytes() + tail)]
    found = np.stack([pipeline.register(f"lane_{i}") for i in range(LANES)], axis=1)
    assert found.astype(np.uint32).view(np.int32).tolist() == cells


def some_packets(seed: int) -> list[Lanes]:
    draw = np.random.default_rng(seed)
    large = draw.integers(LOW, HIGH, (2, LANES), endpoint=True)
    return [*large.tolist(), [HIGH] * LANES, [LOW] * LANES, draw.integers(-9, 9, LANES).tolist()]


@given(
    steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from([0, 1, CELLS])), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_any_sequence_of_statements(steps: list[tuple[str, int]], seed: int) -> None:
    check(steps, some_packets(seed), compiled=False)


@pytest.mark.parametrize("first", ["read a part", "add", "swap"])
def test_compiled(first: str) -> None:
    steps = [(first, 0), ("set", 2), *((name, at % 2) for at, name in enumerate(STEPS)), (first, 1), ("add", 2)]
    check(steps, some_packets(1), compiled=True)
