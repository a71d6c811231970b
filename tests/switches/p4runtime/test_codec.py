"""Names and entities that a program has, and those that it does not have."""

from pathlib import Path

import pytest
from google.protobuf import text_format

from sa_atp.switches.p4runtime import codec, schema
from sa_atp.switches.p4runtime.entities import Exact, Lpm, Match, Range, RegisterEntry, TableEntry, Ternary
from sa_atp.switches.p4runtime.errors import Refusal
from sa_atp.switches.p4runtime.messages import p4info_pb2

P4 = Path(__file__).resolve().parents[2] / "p4"
ROUTER = schema.from_p4info(text_format.Parse((P4 / "router.p4info.txtpb").read_text(), p4info_pb2.P4Info()))


def test_names_may_be_any_unambiguous_end() -> None:
    assert ROUTER.table("RouterIngress.route") is ROUTER.table("route")
    with pytest.raises(Refusal, match="there is no register nothing; the program has balance, last_source"):
        ROUTER.register("nothing")
    with pytest.raises(Refusal, match="there is no table with id 5"):
        ROUTER.table(5)


@pytest.mark.parametrize(
    ("entity", "message"),
    [
        (TableEntry(table="route", match={"dst": Exact(1)}), "table route: dst matches by lpm, not by exact"),
        (TableEntry(table="route", match={"dst": Lpm(-1, 8)}), "-1 is negative"),
        (
            TableEntry(table="route", action="flood", params={"port": 1}),
            "no parameter port; action flood has group",
        ),
        (RegisterEntry(register="last_source", index=0, value=-1), "-1 is negative"),
    ],
)
def test_entities_that_messages_cannot_express(entity: TableEntry | RegisterEntry, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        codec.encode(entity, ROUTER)


@pytest.mark.parametrize(
    ("table", "match"),
    [("route", {"dst": Lpm(0, 0)}), ("filter", {"src": Ternary(0, 0), "protocol": Range(0, 255)})],
)
def test_fields_that_match_everything_are_left_out(table: str, match: dict[str, Match]) -> None:
    assert len(codec.encode(TableEntry(table=table, match=match), ROUTER).table_entry.match) == 0
