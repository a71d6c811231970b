"""Random changes to topology files: each file can be built, or is refused in one line."""

import copy
import ipaddress
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from sa_atp.basics.errors import UserError
from sa_atp.lab.backends.mininet import run, topologies
from sa_atp.lab.backends.mininet.layout import NEIGHBOURS, NetworkLayout
from sa_atp.lab.plans import plan_files

ROOT = Path(__file__).parents[3]
GOOD = json.loads((ROOT / "topologies" / "p4lang-topology.json").read_text())
PLAN = '[topology]\nkind = "file"\nfile = "t.json"\nworkers = {}\n[job]\nmicro_batches = 4\n[straggler]\nworkers = []\n'

ENDS = st.builds("{}-p{}".format, st.sampled_from(["s1", "s2", "s3", "s4"]), st.integers(0, 600))
NAMES = st.sampled_from(
    ["h1", "h4", "s1", "s3", "ps", "t1", "h-1", "a longer name", "a234567890", "hö", "\ud800", "", "lo", "eth0"]
)
ADDRESSES = st.sampled_from(
    ["10.0.1.1/24", "10.0.255.1", "10.255.255.255", "10.0.1.0/24", "192.168.1.1/24", "::1", "10.0.1", "10.0.0.7/33", ""]
)
TIMES = st.sampled_from(["1ms", "0", "0.5.5ms", ".", "1 ms", "-3us", "10.s", "1e3ms", "9s", "11s"])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.one_of(
    ENDS, NAMES, ADDRESSES, TIMES, PLAIN, st.lists(ENDS | NAMES | TIMES | PLAIN, max_size=5),
    st.dictionaries(NAMES, PLAIN, max_size=3),
)  # fmt: skip


def places(found: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to each value within a file."""
    items = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, value in items:
        yield (*way, key)
        yield from places(value, (*way, key))


def change(found: Any, data: st.DataObject) -> None:
    """Changes, drops, renames or adds one value."""
    *way, key = data.draw(st.sampled_from(list(places(found))))
    for each in way:
        found = found[each]
    what = data.draw(st.sampled_from(["change", "drop", "copy", "name", "add"]))
    if what == "drop":
        del found[key]
    elif what == "copy" and isinstance(found, list):
        found.insert(data.draw(st.integers(0, len(found))), copy.deepcopy(found[key]))
    elif what == "name" and isinstance(found, dict):
        found[data.draw(NAMES)] = found.pop(key)
    elif what == "add" and isinstance(found, list):
        found.append(data.draw(VALUES))
    elif what == "add" and isinstance(found, dict):
        found[data.draw(NAMES)] = data.draw(VALUES)
    else:
        found[key] = data.draw(VALUES)


def drawn(folder: Path, text: str, workers: int) -> NetworkLayout | None:
    """The network of a file; None: it is refused in one line."""
    (folder / "t.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        return topologies.of_plan(plan_files.parse(PLAN.format(workers), "plan.toml"), folder)
    except UserError as error:
        said = str(error)
        assert len(said.splitlines()) == 1, said
        assert said.startswith(str(folder / "t.json")), said
        assert len(said) < 1000 + len(str(folder)), said
        said.encode()  # it can be printed
        return None


def check_buildable(layout: NetworkLayout, workers: int) -> None:
    """Checks what Mininet, the switches and the parameter server assume."""
    assert [host.rank for host in layout.workers()] == list(range(workers))
    addresses = [host.ip for host in layout.hosts.values()]
    assert len(set(addresses)) == len(addresses)
    assert all(ipaddress.ip_address(ip) in NEIGHBOURS for ip in addresses)
    assert not layout.hosts.keys() & layout.switches.keys()
    ends = [end for c in layout.cables for end in ((c.node, c.port), (c.other, c.other_port))]
    assert len(set(ends)) == len(ends)
    assert sorted(node for node, _ in ends if node in layout.hosts) == sorted(layout.hosts)
    for node, port in ends:
        assert (port == 0) if node in layout.hosts else (1 <= port <= 510)
        assert re.fullmatch(r"[-_.A-Za-z0-9]{1,15}", f"{node}-eth{port}")
    for cable in layout.cables:
        assert cable.quality.rate_mbps is not None
        assert 0.1 <= cable.quality.rate_mbps <= 1e6
        assert 0 <= cable.quality.delay_us <= 10_000_000
    told = layout.switch_file({name: name for name in layout.switches}, 40)["switches"]
    assert all(set(entry["hosts"]) == set(addresses) for entry in told)


@settings(max_examples=400)
@given(data=st.data())
def test_a_changed_file_is_built_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    found = copy.deepcopy(GOOD)
    for _ in range(data.draw(st.integers(0, 3))):
        change(found, data)
        if not found:
            break
    hosts = found.get("hosts")
    workers = max(1, min(len(hosts), 8)) if isinstance(hosts, dict) else 4
    layout = drawn(tmp_path_factory.getbasetemp(), json.dumps(found), workers)
    if layout is not None:
        check_buildable(layout, workers)
    if found == GOOD:
        assert layout is not None


def test_the_rates_of_workers_links_are_those_of_the_file(tmp_path: Path) -> None:
    """Reports mark slow links by them, because the plan does not have them."""
    slow = copy.deepcopy(GOOD)
    slow["links"][1] = ["h2", "s1-p2", "1ms", 5]
    (tmp_path / "t.json").write_text(json.dumps(slow))
    plan = plan_files.parse(PLAN.format(4), str(tmp_path / "plan.toml"))
    normal = plan.topology.link_mbps
    assert run.worker_mbps(plan, tmp_path / "plan.toml") == [normal, 5.0, normal, normal]
