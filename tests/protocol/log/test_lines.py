"""What may be in a log is what is declared."""

import re
from pathlib import Path

import msgspec
import pytest

from sa_atp.protocol.log import lines
from sa_atp.protocol.log.event import Event
from sa_atp.protocol.log.lines import KINDS, BadLine, ReferenceTime
from sa_atp.protocol.log.rank_events import JoinWaits, Lost
from sa_atp.protocol.log.server_events import Installed

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs/log.md").read_text()


def test_the_document_has_what_is_declared() -> None:
    assert DOCUMENT.endswith(lines.tables()), "write it anew: `sa-atp log --events` prints what follows `# Events`"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_an_event_is_described(kind: type[Event]) -> None:
    assert re.fullmatch(r"[a-z]+:[a-z_]+", kind.name)
    assert kind.__doc__
    assert kind.__doc__.startswith(tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    assert f"| `{kind.name}` | " in lines.tables()
    for field in msgspec.structs.fields(kind):
        for values, meaning in re.findall(rf"^\| `{field.name}` \| (.+) \| (.*) \|$", lines.tables(), re.M):
            assert meaning or values.startswith("one of"), "a field whose values are not listed says what it is"


@pytest.mark.parametrize(
    "event",
    [
        Lost(3, "0xf0", "order", 1, 9, 4),
        JoinWaits([0, 2], refusal="no room"),
        Installed(7),
    ],
    ids=lambda event: event.name,
)
def test_a_line_is_read_as_it_was_written(event: Event) -> None:
    line = lines.encode(12, event)
    assert line.endswith(b"\n")
    assert lines.decode(line) == (12, event)


def test_the_first_line_says_whose_it_is() -> None:
    first = lines.header("job", 2, ReferenceTime("virtual"))
    assert lines.decode_header(lines.encode_header(first)) == first
    assert (first.title, first.trace.vantage_point.rank) == ("rank 2 of job job", 2)
    assert [lines.header("job", rank, ReferenceTime("virtual")).trace.vantage_point.name for rank in (None, 0)] == [
        "parameter server",
        "rank 0",
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "not an event"),
        (b'{"time":1,"name":"recovery:found","data":{}}', "no event is called 'recovery:found'"),
        (b'{"time":1,"name":"recovery:silence","data":{"timeouts":1}}', "awaited"),
        (b'{"time":1,"name":"recovery:silence","data":{"timeouts":0,"awaited":1}}', "timeouts"),
        (b'{"time":1,"name":"recovery:silence","data":{"timeouts":1,"awaited":1,"by":2}}', "by"),
    ],
)
def test_what_is_not_declared_is_refused(line: bytes, says: str) -> None:
    with pytest.raises(BadLine, match=says):
        lines.decode(line)
