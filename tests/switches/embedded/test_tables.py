"""Const entries of a program, and the order of added entries."""

import contextlib
import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sa_atp.switches.control.errors import UpdateRefusedError
from sa_atp.switches.control.writer import LocalWriter
from sa_atp.switches.embedded.errors import PipelineError
from sa_atp.switches.embedded.loading import load
from sa_atp.switches.embedded.pipeline import Pipeline
from sa_atp.switches.p4runtime.entities import Lpm, Range, TableEntry, Update, UpdateKind

P4 = Path(__file__).resolve().parents[2] / "p4"
ROUTER: dict[str, Any] = json.loads((P4 / "router.json").read_text())
PORTS, CLASSES, FILTER, ROUTE = (f"RouterIngress.{name}" for name in ("known_ports", "classes", "filter", "route"))


def changed(change: Callable[[dict[str, dict[str, Any]]], None]) -> dict[str, Any]:
    """router.json after a change of its tables, which are given by name."""
    program = copy.deepcopy(ROUTER)
    change({table["name"]: table for pipeline in program["pipelines"] for table in pipeline["tables"]})
    return program


def entry(*match: dict[str, Any], action: int, data: str = "0x01", priority: int = 1) -> dict[str, Any]:
    return {
        "match_key": list(match),
        "action_entry": {"action_id": action, "action_data": [data]},
        "priority": priority,
    }


def ternary(key: str, mask: str) -> dict[str, Any]:
    return {"match_type": "ternary", "key": key, "mask": mask}


def prefix(key: str, length: int) -> dict[str, Any]:
    return {"match_type": "lpm", "key": key, "prefix_length": length}


def classes(*entries: dict[str, Any]) -> Callable[[dict[str, dict[str, Any]]], None]:
    return lambda tables: tables[CLASSES].update(entries=list(entries))


def routes(*entries: dict[str, Any]) -> Callable[[dict[str, dict[str, Any]]], None]:
    return lambda tables: tables[ROUTE].update(entries=list(entries))


def action_of(table: str, name: str) -> int:
    found = next(t for p in ROUTER["pipelines"] for t in p["tables"] if t["name"] == table)
    return int(found["action_ids"][found["actions"].index(f"RouterIngress.{name}")])


SET_CLASS = action_of(CLASSES, "set_class")
FLOOD = action_of(ROUTE, "flood")
ANY = ternary("0x00", "0x00")


def matches(program: dict[str, Any], table: str) -> list[tuple[tuple[int, int], ...]]:
    (found,) = [t for t in load(program).tables() if t.name == table]
    assert found.const_entries is not None
    return [e.match for e in found.const_entries]


def test_bits_that_do_not_count_are_no_part_of_a_constant_entry() -> None:
    one = entry(ternary("0x46", "0xf0"), ternary("0xff", "0x00"), action=SET_CLASS)
    assert matches(changed(classes(one)), CLASSES) == [((0x40, 0xF0), (0, 0))]
    two = entry(prefix("0x0a0b0c0d", 12), action=FLOOD), entry(prefix("0xffffffff", 0), action=FLOOD)
    assert matches(changed(routes(*two)), ROUTE) == [((0x0A000000, 0xFFF00000),), ((0, 0),)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            classes(
                entry(ternary("0x46", "0xf0"), ANY, action=SET_CLASS),
                entry(ternary("0x47", "0xf0"), ANY, action=SET_CLASS),
            ),
            "table RouterIngress.classes: entry 2: there is one with this match already",
        ),
        (
            routes(
                entry(prefix("0x0a0b0c0d", 8), action=FLOOD),
                entry(prefix("0x0a000000", 8), action=FLOOD, priority=2),  # routes have no priorities
            ),
            "table RouterIngress.route: entry 2: there is one with this match already",
        ),
        (routes(entry(prefix("0x0a000000", 33), action=FLOOD)), "entry 1: dst: a prefix of 33 bits"),
        (routes(entry(ternary("0x0a000000", "0x0"), action=FLOOD)), "dst matches by lpm, not by ternary"),
        (classes(entry(ternary("0x100", "0xff"), ANY, action=SET_CLASS)), "class: 0x100 does not fit in 8 bits"),
        (classes(entry(ternary("-0x01", "0xff"), ANY, action=SET_CLASS)), "class: -0x01 does not fit in 8 bits"),
        (
            classes(entry(ANY, ANY, action=SET_CLASS, data="-0x01")),
            "table RouterIngress.classes: entry 1: the parameter class = -1 (8 bits) is not supported",
        ),
        (
            lambda tables: tables[ROUTE].update(default_entry={"action_id": FLOOD, "action_data": ["-0x01"]}),
            "table RouterIngress.route: default action: the parameter group = -1 (16 bits) is not supported",
        ),
        (classes(entry(ANY, action=SET_CLASS)), "damaged BMv2 JSON"),
        (
            lambda tables: tables[FILTER].update(
                entries=[
                    entry(
                        ternary("0x0", "0x0"),
                        {"match_type": "range", "start": "0x05", "end": "0x04"},
                        ternary("0x0", "0x0"),
                        action=action_of(FILTER, "set_class"),
                    )
                ]
            ),
            "table RouterIngress.filter: entry 1: protocol: the range 5..4 is empty",
        ),
        (
            lambda tables: tables[PORTS]["key"][0].update(match_type="lpm"),
            "table RouterIngress.known_ports: a longest prefix of 9 bits (whole bytes only) is not supported",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tables_that_bmv2_would_refuse_or_read_differently(
    change: Callable[[dict[str, dict[str, Any]]], None], message: str
) -> None:
    with pytest.raises(PipelineError, match=re.escape(message)):
        load(changed(change))


def test_a_table_with_constant_entries_has_room_for_them_whatever_it_says() -> None:
    """Counters are indexed by the entry's number, so fewer cells would be accessed beyond their end."""
    many = [entry(ternary(f"0x{i:02x}", "0xff"), ANY, action=SET_CLASS, priority=i + 1) for i in range(8)]

    def change(tables: dict[str, dict[str, Any]]) -> None:
        tables[CLASSES].update(entries=many, max_size=2, with_counters=True)

    state = Pipeline(load(changed(change)), compiled=False).table("classes")
    assert {e.number for e in state.entries.values()} == set(range(1, 9))
    assert len(state.counters) == 9


def test_among_equal_priorities_the_lowest_handle_wins() -> None:
    """BMv2 gives a new entry the lowest free handle, and prefers the lowest matching handle."""
    pipeline = Pipeline(load(ROUTER), compiled=False)
    state = pipeline.table("filter")
    writer = LocalWriter(pipeline)

    def write(kind: UpdateKind, low: int) -> None:
        match = {"protocol": Range(low, 9)}
        entry = TableEntry(table="filter", match=match, action="set_class", params={"class": low}, priority=5)
        writer.write([Update(kind, entry)])

    def add(low: int) -> None:
        write(UpdateKind.INSERT, low)

    def order() -> list[int]:
        return [e.match[1][0] for e in state.ordered()]

    for low in (1, 2, 3):
        add(low)
    assert order() == [1, 2, 3]
    for low in (2, 1):
        write(UpdateKind.DELETE, low)
    add(4)
    assert order() == [4, 3]
    add(5)
    assert order() == [4, 5, 3]
    add(6)
    with pytest.raises(UpdateRefusedError, match=re.escape("full (4 entries)")):
        add(7)


def test_an_entry_outside_a_masked_key_is_refused() -> None:
    program = changed(lambda tables: tables[ROUTE]["key"][0].update(mask="0xffff0000"))
    writer = LocalWriter(Pipeline(load(program), compiled=False))
    for value, says in ((0x0A000000, ""), (0x0A000100, "dst: 0xa000100 never matches: the key's mask is 0xffff0000")):
        entry = TableEntry(table="route", match={"dst": Lpm(value, 24)}, action="drop")
        with pytest.raises(UpdateRefusedError, match=says) if says else contextlib.nullcontext():
            writer.write([Update(UpdateKind.INSERT, entry)])
