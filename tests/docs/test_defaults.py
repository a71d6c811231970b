"""Defaults and limits that documents state are those of the code."""

import argparse
import re

import pytest

from docs.blocks import ROOT
from sa_atp.basics.words import join
from sa_atp.cli import build_parser
from sa_atp.lab.bench.allreduce import DEFAULT_SIZES
from sa_atp.lab.plans.plan import HelpPlan, TopologyPlan
from sa_atp.net.connecting import connect
from sa_atp.protocol.packets.mtu import most_lanes
from sa_atp.protocol.packets.spec import (
    CONTRIBUTION_BITS,
    LANE_BUILDS,
    MOST_CONTRIBUTIONS,
    MOST_RANKS,
    SLOTS,
    UDP_PORT,
    WIDE_BUILDS,
)

((WIDE_LANES, _),) = WIDE_BUILDS
SIZES = [int(size) for size in DEFAULT_SIZES.split(",")]


def option(*words: str) -> object:
    """The default of an option: a command, perhaps one below it, and the option."""
    *commands, name = words
    parser: argparse.ArgumentParser = build_parser()
    for command in commands:
        (below,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        parser = below.choices[command]
    return parser.get_default(name)


def keyword(name: str) -> object:
    """The default of an argument of `connect`."""
    assert connect.__kwdefaults__ is not None
    return connect.__kwdefaults__[name]


SAID = [
    ("docs/cli.md", r"`--contributions N` chooses bitmaps for .*: up to (\d+), in packets of (\d+) lanes; default: (\d+)",
     [MOST_CONTRIBUTIONS, WIDE_LANES, CONTRIBUTION_BITS]),
    ("docs/cli.md", r"`--contributions N` chooses bitmaps for .* default: (\d+)", [option("up", "contributions")]),
    ("docs/cli.md", r"on loopback is (\d+);", [most_lanes(65536, CONTRIBUTION_BITS)]),
    ("docs/cli.md", r"memory of a switch's slots \((\d+)\)", [SLOTS]),
    ("docs/cli.md", r"`topology.mtu` \(default (\d+);", [TopologyPlan().mtu]),
    ("sa_atp/lab/bench/allreduce.py", r"without a list: (\d+) bytes to (\d+) MB", [SIZES[0], SIZES[-1] // 10**6]),
    ("docs/pytorch.md", r"Ranks times micro-batches: (\d+) at most, or (\d+) in packets of (\d+) lanes",
     [CONTRIBUTION_BITS, MOST_CONTRIBUTIONS, WIDE_LANES]),
    ("docs/pytorch.md", r"`sa-atp up --dead-after SECONDS` .*, (\d+) s by", [option("up", "dead_after")]),
    ("docs/pytorch.md", r"`sa-atp up --dead-after SECONDS` .*, (\d+) s by", [option("ps", "dead_after")]),
    ("docs/protocol.md", r"A job has at most (\d+) ranks", [MOST_RANKS]),
    ("docs/protocol.md", r"^port (\d+) is what a switch looks for; it is also the default port", [UDP_PORT]),
    ("docs/protocol.md", r"(\d+) % by default. Where no worker is slow", [100 * HelpPlan().patience]),
    ("docs/protocol.md", r"\| `connect` for all ranks, or for the server \| `timeout_s` \| (\d+) s",
     [keyword("timeout_s")]),
    ("docs/protocol.md", r"\| an operation for progress .* \| `operation_timeout_s` \| (\d+) s",
     [keyword("operation_timeout_s")]),
    ("docs/protocol.md", r"\| a worker for the server's answers to `alive` \| `server_timeout_s` \| (\d+) s",
     [keyword("server_timeout_s")]),
    ("docs/protocol.md", r"\| the server for a sign of life of each worker \| `--dead-after` \| (\d+) s",
     [option("ps", "dead_after")]),
]  # fmt: skip


@pytest.mark.parametrize(("document", "words", "values"), SAID)
def test_a_document_states_what_is(document: str, words: str, values: list[object]) -> None:
    found = re.findall(words, (ROOT / document).read_text(), re.M)
    assert len(found) == 1, "adapt the pattern to the document"
    stated = [found[0]] if isinstance(found[0], str) else found[0]
    assert [float(each) for each in stated] == values


def test_lanes_that_there_are_builds_of() -> None:
    assert f"# p4c, for {join(map(str, LANE_BUILDS))} lanes" in (ROOT / "docs/first-hour.md").read_text()


def test_links_that_carry_lanes() -> None:
    table = re.findall(r"^\| ([\d, ]+) \| (\d+)[^|]*\| [\d., MB]+ \|$", (ROOT / "docs/cli.md").read_text(), re.M)
    least = {lanes: int(mtu) for names, mtu in table for lanes in map(int, names.split(", "))}
    assert sorted(least) == sorted(LANE_BUILDS)
    for lanes, mtu in least.items():
        assert most_lanes(mtu, CONTRIBUTION_BITS) >= lanes
        if lanes > 64:  # the smallest go by what every link carries
            assert most_lanes(mtu - 1, CONTRIBUTION_BITS) < lanes


@pytest.mark.needs("torch")
def test_settings_of_a_pytorch_script() -> None:
    from sa_atp.train.environment import _VARIABLES

    table = re.findall(r"^\| `(\w+)` \| `(SA_ATP_\w+)` \| ([^|]+?) \|", (ROOT / "docs/pytorch.md").read_text(), re.M)
    said = {name: (variable, default.partition(";")[0].strip("`")) for name, variable, default in table}
    assert said.pop("server") == ("SA_ATP_SERVER", "none: `UserError")
    found = {name: (variable, f"{default:g}" if kind is float else str(default))
             for name, (variable, kind, default) in _VARIABLES.items()}  # fmt: skip
    assert {name: (variable, default.strip("` ")) for name, (variable, default) in said.items()} == found
