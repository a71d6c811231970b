"""Resolving a test's names and values in a compiled program."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.basics.errors import UserError
from sa_atp.switches.embedded.errors import PipelineError
from sa_atp.switches.embedded.stf.grammar import Add, SetDefault, parse
from sa_atp.switches.embedded.stf.names import CounterName, ProgramNames
from sa_atp.switches.p4runtime.entities import Exact, Lpm, Match, Range, TableEntry, Ternary

ROUTER = Path(__file__).resolve().parents[2] / "p4" / "router.json"
NAMES = ProgramNames.from_file(ROUTER)
FULL32 = 0xFFFFFFFF


def entry(line: str, names: ProgramNames = NAMES) -> TableEntry:
    (statement,) = parse(line).statements
    assert isinstance(statement, Add)
    return names.entry(statement)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("0x0a000000/8", Lpm(0x0A000000, 8)),
        ("0x0a0002**", Lpm(0x0A000200, 24)),
        ("0x0a000201", Lpm(0x0A000201, 32)),
        ("167772673/24", Lpm(0x0A000200, 24)),  # what is beyond the prefix is cut
        ("0/0", Lpm(0, 0)),
        ("0x0a000000&&&0xff000000", Lpm(0x0A000000, 8)),
    ],
)
def test_lpm(value: str, match: Match) -> None:
    assert entry(f"add route dst:{value} drop()") == TableEntry(
        table="RouterIngress.route", match={"dst": match}, action="RouterIngress.drop"
    )


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("0xc0******", Ternary(0xC0000000, 0xFF000000)),
        ("0x**01", Ternary(1, 0xFF)),  # digits that are not written do not matter either
        ("0x01", Ternary(1, FULL32)),
        ("1", Ternary(1, FULL32)),
        ("0b1**1", Ternary(0b1001, 0b1001)),
        ("0x12&&&0x10", Ternary(0x10, 0x10)),
        ("0xc0000200/24", Ternary(0xC0000200, 0xFFFFFF00)),
    ],
)
def test_ternary(value: str, match: Match) -> None:
    found = entry(f"add filter 7 src:{value} protocol:1->6 set_class(class:3)")
    assert found.match == {"src": match, "protocol": Range(1, 6)}
    assert (found.priority, found.params) == (8, {"class": 3})  # the least is 1, and in tests 0


def test_keys_that_are_left_out_and_single_values_of_a_range() -> None:
    assert entry("add filter 0 protocol:9 drop()").match == {"protocol": Range(9, 9)}
    assert entry("add filter 7 drop()").match == {}
    assert entry("add copies NoAction()").match == {"copy": Exact(0)}


def test_names_by_their_ends() -> None:
    for table in ("route", "RouterIngress.route", "Ingress.route"):
        assert entry(f"add {table} dst:1 RouterIngress.drop()").table == "RouterIngress.route"
    assert NAMES.counter("by_class") == CounterName("RouterIngress.by_class", "")
    assert NAMES.counter("routed") == CounterName("RouterIngress.routed", "RouterIngress.route")
    assert NAMES.register("balance") == "RouterIngress.balance"
    (statement,) = parse("setdefault route forward(port:1, next_hop:2)").statements
    assert isinstance(statement, SetDefault)
    found = NAMES.default(statement.table, statement.call)
    params = {"port": 1, "next_hop": 2}
    assert found == TableEntry(
        table="RouterIngress.route", action="RouterIngress.forward", params=params, is_default=True
    )
    assert "RouterIngress.known_ports" not in NAMES.changeable_tables()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("add nowhere dst:1 drop()", "there is no table nowhere; the program has "),
        ("add s dst:1 drop()", "table s may be RouterEgress.copies or RouterIngress.classes or "),
        ("add route ttl:1 drop()", "unknown key ttl; it has dst"),
        ("add route dst:1 dst:2 drop()", "dst is given twice"),
        ("add route dst:0x1_0 drop()", "0x1_0: expected a value"),
        ("add route dst:0x100000000 drop()", "key dst: 4294967296 does not fit in 32 bits"),
        ("add route dst:1/33 drop()", "a prefix of more than 32 bits"),
        ("add copies copy:65536 NoAction()", "copy does not fit in 16 bits"),
        ("add filter 1 protocol:256 drop()", "protocol does not fit in 8 bits"),
        ("add route dst:0x**000001 drop()", "no * before a digit that counts"),
        ("add route dst:1 forward(port:1)", "takes next_hop, port, not port"),
        ("add route dst:1 drop(x:1)", "takes no parameters, not x"),
        ("add route dst:1 forward(port:512, next_hop:0)", "port = 512 does not fit in 9 bits"),
        ("add route dst:1 forward(port:0x*, next_hop:0)", "expected a number"),
        ("add route dst:1 rewrite_source(mac:1)", "there is no action rewrite_source; table RouterIngress.route has "),
        ("add filter src:1 drop()", "expected a priority"),
        ("add filter 1 protocol:9->3 drop()", "expected a number or LOW->HIGH"),
        ("add route dst:1->3 drop()", "it matches by lpm, not by range"),
        ("add copies copy:0x1* NoAction()", "expected a number"),
    ],
)
def test_errors(line: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        entry(line)
    assert message in str(error.value)


def test_programs_that_are_none(tmp_path: Path) -> None:
    for name, text in (("none", None), ("text", "{"), ("other", '{"a": 1}'), ("list", "[]")):
        path = tmp_path / f"{name}.json"
        if text is not None:
            path.write_text(text)
        with pytest.raises(PipelineError, match=str(path)):
            ProgramNames.from_file(path)
    damaged: dict[str, Any] = json.loads(ROUTER.read_text())
    del damaged["pipelines"][0]["tables"][1]["action_ids"]
    with pytest.raises(PipelineError, match="damaged"):
        ProgramNames.from_source(damaged)


@given(st.integers(0, FULL32), st.integers(0, FULL32))
def test_masks_in_binary_digits(value: int, mask: int) -> None:
    digits = "".join(str(value >> i & 1) if mask >> i & 1 else "*" for i in range(31, -1, -1))
    assert entry(f"add filter 1 src:0b{digits} drop()").match == {"src": Ternary(value & mask, mask)}
