"""Copies of a multicast packet: ingress decides their ports, and each begins egress with the state after ingress.

So what comes of a group is what comes of each of its replicas alone, whatever egress does; BMv2's simple_switch gives each
copy its own headers and metadata. There is no compiler here for a program of each kind: the tests give the compiled form
of tests/p4/layers.p4 an egress of their own, statement by statement as p4c writes them. Its source would be:

    control LayersEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
        apply {
            if (standard.egress_rid == 1) { FIRST } else { OTHERS }
            hdr.order.answer = a sum of everything that egress can see in metadata and header stacks;
        }
    }
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_atp.basics.folders import cache_folder
from sa_atp.switches.embedded.pipeline import Pipeline
from sa_atp.switches.embedded.stf import grammar, runner
from sa_atp.switches.embedded.stf.embedded import EmbeddedTarget
from sa_atp.switches.embedded.stf.names import ProgramNames

LAYERS = json.loads((Path(__file__).resolve().parents[2] / "p4" / "layers.json").read_text())
GROUP = 7
STANDARD = "standard_metadata"
# what the target tells egress, or the program writes; not `_padding`, which no program can name
METADATA = [
    (header["name"], name)
    for header in LAYERS["headers"]
    if header["metadata"]
    for kind in LAYERS["header_types"]
    if kind["name"] == header["header_type"]
    for name, *_ in kind["fields"]
    if name != "_padding" and (header["name"], name) != (STANDARD, "ingress_global_timestamp")
]
FIELDS = [*METADATA, ("order", "what"), ("order", "labels"), ("labels[0]", "value"), ("labels[1]", "value")]
PACKETS = [
    bytes.fromhex(text)
    for text in (
        "0a0100 0111 0223 0334 0007",
        "0a0100 0111 0223 0335 0355",
        "0a0000 02010203 beef",
        "0c0000 0302aabb1234 ff",
    )
]

Statement = dict[str, Any]


def field(header: str, name: str) -> Statement:
    return {"type": "field", "value": [header, name]}


def number(value: int) -> Statement:
    return {"type": "hexstr", "value": f"0x{value:x}"}


def on_header(op: str) -> Any:
    """The statement for one header, as a function of its name."""
    return lambda name: {"op": op, "parameters": [{"type": "header", "value": name}]}


def assign(target: tuple[str, str], source: Statement) -> Statement:
    return {"op": "assign", "parameters": [field(*target), source]}


DROP = on_header("mark_to_drop")(STANDARD)
HEADERS = ("order", "labels[0]", "labels[1]", "labels[2]", "form.small", "form.large", "wide")
STACK = {"type": "header_stack", "value": "labels"}
statements = st.one_of(
    st.just(DROP),
    st.just({"op": "exit", "parameters": []}),
    st.builds(assign, st.sampled_from(FIELDS), st.integers(0, 511).map(number)),
    st.builds(lambda to, origin: assign(to, field(*origin)), st.sampled_from(FIELDS), st.sampled_from(FIELDS)),
    st.sampled_from(HEADERS).map(on_header("add_header")),
    st.sampled_from((*HEADERS, "options")).map(on_header("remove_header")),
    st.builds(
        lambda op, count: {"op": op, "parameters": [STACK, number(count)]},
        st.sampled_from(["push", "pop"]),
        st.integers(1, 2),
    ),
    st.sampled_from([("copy", "options"), ("labels[0]", "labels[1]"), ("labels[2]", "labels[0]")]).map(
        lambda pair: {"op": "assign_header", "parameters": [{"type": "header", "value": name} for name in pair]}
    ),
    st.just({"op": "assign_header_stack", "parameters": [{"type": "header_stack", "value": "spare"}, STACK]}),
    st.just({"op": "assign_union", "parameters": [{"type": "header_union", "value": "form"}] * 2}),
)


def sum_of_everything() -> list[Statement]:
    """hdr.order.answer = (hdr.order.answer * 31 + field) for each field, and for the length of the stack."""

    def expression(op: str, left: Statement, right: Statement) -> Statement:
        return {"type": "expression", "value": {"op": op, "left": left, "right": right}}

    length = {"type": "expression", "value": {"op": "size_stack", "left": None, "right": STACK}}
    answer = field("order", "answer")
    return [
        assign(
            ("order", "answer"),
            expression("&", expression("+", expression("*", answer, number(31)), each), number(0xFF)),
        )
        for each in (*(field(*place) for place in METADATA), length)
    ]


def program(first: list[Statement], others: list[Statement]) -> dict[str, Any]:
    """tests/p4/layers.p4 that multicasts everything, with these statements in egress."""
    made: dict[str, Any] = copy.deepcopy(LAYERS)
    for action in made["actions"]:
        if any(p["parameters"][0].get("value") == [STANDARD, "egress_spec"] for p in action["primitives"]):
            action["primitives"].append(assign((STANDARD, "mcast_grp"), number(GROUP)))
    tables = []
    bodies = (("first", first, "sum"), ("others", others, "sum"), ("sum", sum_of_everything(), None))
    for i, (name, primitives, following) in enumerate(bodies, 900):
        made["actions"].append({"name": name, "id": i, "runtime_data": [], "primitives": primitives})
        tables.append({
            "name": name, "id": i, "key": [], "match_type": "exact", "type": "simple", "max_size": 1024,
            "with_counters": False, "support_timeout": False, "direct_meters": None, "action_ids": [i],
            "actions": [name], "base_default_next": following, "next_tables": {name: following},
            "default_entry": {"action_id": i, "action_const": True, "action_data": [], "action_entry_const": True},
        })  # fmt: skip
    is_first = {"op": "==", "left": field(STANDARD, "egress_rid"), "right": number(1)}
    made["pipelines"][1] = {
        "name": "egress", "id": 1, "init_table": "which", "tables": tables, "action_profiles": [],
        "conditionals": [{
            "name": "which", "id": 0, "expression": {"type": "expression", "value": is_first},
            "true_next": "first", "false_next": "others",
        }],
    }  # fmt: skip
    return made


def pipeline_of(made: dict[str, Any], *, compiled: bool = False) -> Pipeline:
    return Pipeline.from_config(
        json.dumps(made).encode(), compiled=compiled, cache=cache_folder() if compiled else None
    )


def copies_of(pipeline: Pipeline, packet: bytes, replicas: list[tuple[int, int]]) -> list[tuple[int, bytes]]:
    pipeline.set_group(GROUP, replicas)
    return pipeline.process_one(packet, 3, 1000)


def as_each_alone(pipeline: Pipeline, replicas: list[tuple[int, int]]) -> int:
    """Compares the copies of a group with those of its replicas. Returns: how many copies were dropped."""
    dropped = 0
    for packet in PACKETS:
        alone = [copies_of(pipeline, packet, [replica]) for replica in replicas]
        dropped += sum(not out for out in alone)
        assert all(port == replica[0] for out, replica in zip(alone, replicas, strict=True) for port, _ in out)
        assert copies_of(pipeline, packet, replicas) == [each for out in alone for each in out]
    return dropped


@settings(max_examples=60)
@given(
    st.lists(statements, max_size=4),
    st.lists(statements, max_size=3),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=2, max_size=4),
)
def test_a_group_is_its_replicas(
    first: list[Statement], others: list[Statement], replicas: list[tuple[int, int]]
) -> None:
    as_each_alone(pipeline_of(program(first, others)), replicas)


EVERYTHING = [
    DROP,
    *(assign(place, number(5)) for place in FIELDS if place != (STANDARD, "egress_spec")),
    *(on_header("remove_header")(name) for name in HEADERS[1:]),
    {"op": "push", "parameters": [STACK, number(1)]},
    on_header("add_header")("labels[0]"),
]


@pytest.mark.parametrize(("compiled", "drops"), [(False, True), (False, False), (True, True)])
def test_nothing_of_one_copy_is_left_for_the_next(compiled: bool, drops: bool) -> None:
    """The first copy changes all state; the others report the state that they see."""
    pipeline = pipeline_of(program(EVERYTHING if drops else EVERYTHING[1:], []), compiled=compiled)
    assert as_each_alone(pipeline, [(1, 1), (2, 2), (3, 1), (4, 3)]) == (2 * len(PACKETS) if drops else 0)


def test_a_group_of_one_is_sent_as_if_by_port() -> None:
    """Unicast in egress: instance type normal, and no replica number."""
    made = program([], [assign(("order", "what"), field(STANDARD, "instance_type"))])
    assert [packet[0] for _, packet in copies_of(pipeline_of(made), PACKETS[0], [(4, 0)])] == [5]
    for action in made["actions"]:
        action["primitives"] = [
            assign((STANDARD, "instance_type"), number(9))  # ingress cannot make it another one
            if p["parameters"] and p["parameters"][0].get("value") == [STANDARD, "mcast_grp"] and action["id"] < 900
            else p
            for p in action["primitives"]
        ]
    assert [(port, packet[0]) for port, packet in pipeline_of(made).process_one(PACKETS[0], 3, 0)] == [(1, 0)]


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_packets_are_not_sent_back_where_they_came_from(tmp_path: Path, compiled: bool) -> None:
    """As a packet test, as for `sa-atp stf`: egress drops the copy for the ingress port.

    The source: if (standard.egress_port == standard.ingress_port) mark_to_drop(standard).
    """
    made = program([DROP], [])
    (which,) = made["pipelines"][1]["conditionals"]
    which["expression"]["value"].update(left=field(STANDARD, "egress_port"), right=field(STANDARD, "ingress_port"))
    made["pipelines"][1]["tables"][0]["next_tables"] = {"first": None}
    made["pipelines"][1]["tables"][1]["next_tables"] = {"others": None}
    (tmp_path / "flood.json").write_text(json.dumps(made))
    lines = [f"mc_mgrp_create {GROUP}", "mc_node_create 1 1 2 3", f"mc_node_associate {GROUP} 0"]
    for port in (1, 2, 3):
        lines.append(f"packet {port} 000000 09")
        lines += [f"expect {other} 000000 09 $" for other in (1, 2, 3) if other != port]
    (tmp_path / "flood.stf").write_text("\n".join(lines) + "\n")
    pipeline = Pipeline.from_file(
        tmp_path / "flood.json", compiled=compiled, cache=cache_folder() if compiled else None
    )
    names = ProgramNames.from_file(tmp_path / "flood.json")
    result = runner.run(grammar.read(tmp_path / "flood.stf"), names, EmbeddedTarget(pipeline))
    assert result.expected == 6
    assert result.passed, "\n".join(f"{f.line}: {f.message}\n{f.picture}" for f in result.failures)
