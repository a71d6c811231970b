"""Networks on paper: which way leads where, what the parameter server is told, and topologies of p4lang's tutorials."""

import json
from pathlib import Path
from typing import Any

import pytest

from sa_atp.errors import UserError
from sa_atp.testbed import plan_files
from sa_atp.testbed.mininet import p4lang, topologies
from sa_atp.testbed.mininet.layout import Layout, LinkQuality
from sa_atp.testbed.mininet.network import impairments


def layout_of(text: str, folder: Path = Path()) -> Layout:
    found = topologies.of_plan(plan_files.parse(text, "test.toml"), folder)
    found.check("test.toml")
    return found


def test_star() -> None:
    star = layout_of("[topology]\nworkers = 5\nlink_mbps = 50\n[job]\nmicro_batches = 4")
    assert star.ports("s1") == {**{f"10.0.0.{n + 1}": n + 1 for n in range(5)}, "10.0.255.1": 6}
    assert {cable.quality.rate_mbps for cable in star.cables} == {50.0}
    (entry,) = star.switch_file({"s1": "unix:s1"}, 40)["switches"]
    assert (entry["level"], entry["leaf_ports"], entry["mark_above"]) == ("root", [], 40)


def test_two_levels() -> None:
    tree = layout_of('[topology]\nkind = "two-level"\nworkers = 5\nracks = 2\ntrunk_mbps = 7\n[job]\nmicro_batches = 4')
    at = {name: {node for _, node in tree.neighbours(name) if node in tree.hosts} for name in tree.switches}
    assert at == {"s1": {"ps"}, "leaf1": {"w0", "w2", "w4"}, "leaf2": {"w1", "w3"}}
    up = tree.port_towards("leaf1", "s1")
    ports = tree.ports("leaf1")
    assert {ip for ip, port in ports.items() if port == up} == {"10.0.0.2", "10.0.0.4", "10.0.255.1"}
    assert {c.quality.rate_mbps for c in tree.cables if c.node in tree.switches} == {7.0}
    told = {e["grpc"]: e for e in tree.switch_file({n: n for n in tree.switches}, 40)["switches"]}
    assert told["leaf1"]["uplink_port"] == up
    assert sorted(told["s1"]["leaf_ports"]) == [1, 2]


def test_dumbbell_with_traffic_crosses_one_link() -> None:
    bell = layout_of('[topology]\nkind = "dumbbell"\n[traffic]\nudp_mbps = 5')
    sides = {name: {n for _, n in bell.neighbours(name) if n in bell.hosts} for name in bell.switches}
    assert sides == {"leaf1": {"w0", "w2", "t1"}, "s1": {"w1", "w3", "t2", "ps"}}


def test_jobs_have_workers_of_their_own() -> None:
    two = layout_of("[topology]\nworkers = 3\n[job]\njobs = 2\n[straggler]\nworkers = [2]")
    assert two.jobs == 2
    assert [h.name for h in two.workers(0)] == ["w0", "w1", "w2"]
    assert [(h.name, h.ip) for h in two.workers(1)] == [(f"j1w{n}", f"10.0.1.{n + 1}") for n in range(3)]


def test_links_of_their_own_rates_and_congested_ones() -> None:
    text = (
        '[topology]\nworkers = 2\nworker_mbps = [100, 25]\n[straggler]\nby = "congestion"\nworkers = [1]\nslowdown = 4'
    )
    found = {c.node: c.quality for c in layout_of(text).cables if c.node.startswith("w")}
    assert (found["w0"].rate_mbps, found["w0"].own_share) == (100.0, 1.0)
    assert (found["w1"].rate_mbps, found["w1"].own_share) == (25.0, 0.25)


def test_what_links_do_to_packets_is_done_once_for_each_direction() -> None:
    tree = layout_of(
        '[topology]\nkind = "two-level"\nworkers = 2\ndelay_us = 300\n[network]\nloss = 0.1\n[straggler]\nworkers = [1]'
    )
    root, leaf = impairments(tree, "s1", 5), impairments(tree, "leaf1", 5)
    wanted = "delay_us=300,loss=0.1"
    assert root[:2] == leaf[:2] == ["--seed", "5"]
    ports = {node: port for port, node in tree.neighbours("s1")}
    assert set(zip(root[2::2], root[3::2], strict=True)) == {
        ("--impair", f"{ports['ps']}:{wanted}"),
        ("--impair-arrivals", f"{ports['leaf1']}:{wanted}"),
        ("--impair-arrivals", f"{ports['leaf2']}:{wanted}"),
    }
    own = {node: port for port, node in tree.neighbours("leaf1")}
    assert ("--impair", f"{own['w0']}:{wanted}") in set(zip(leaf[2::2], leaf[3::2], strict=True))


TRIANGLE: dict[str, Any] = {
    "hosts": {f"h{n}": {"ip": f"10.0.{n}.{n}/24", "mac": "08:00:00:00:01:11"} for n in (1, 2, 3)},
    "switches": {"s1": {}, "s2": {}, "s3": {}},
    "links": [["h1", "s1-p1"], ["s1-p2", "s2-p2"], ["s1-p3", "s3-p2"], ["s3-p3", "s2-p3", "5ms", 20],
              ["h2", "s2-p1", "0", 10], ["h3", "s3-p1", 2]],
}  # fmt: skip


def read(folder: Path, **changes: Any) -> Layout:
    (folder / "topology.json").write_text(json.dumps({**TRIANGLE, **changes}))
    return p4lang.read(folder / "topology.json", LinkQuality(rate_mbps=100.0, delay_us=70))


def test_a_tutorials_topology(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert found.root.name == "s1"
    # the third side of the triangle would be a way around the root
    assert {frozenset((c.node, c.other)) for c in found.cables if c.node in found.switches} == {
        frozenset(("s1", "s2")), frozenset(("s1", "s3")),
    }  # fmt: skip
    quality = {c.node: c.quality for c in found.cables if c.node in found.hosts}
    assert (quality["h1"].rate_mbps, quality["h1"].delay_us) == (100.0, 70)
    assert (quality["h2"].rate_mbps, quality["h2"].delay_us) == (10.0, 0)
    assert quality["h3"].delay_us == 2000
    assert found.hosts["h3"].ip == "10.0.3.3"


def test_its_hosts_become_workers_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(TRIANGLE))
    text = '[topology]\nkind = "file"\nfile = "t.json"\nworkers = {}\n[straggler]\nworkers = [0]'
    found = layout_of(text.format(2), tmp_path)
    assert [(h.name, h.rank) for h in found.workers()] == [("h1", 0), ("h2", 1)]
    assert found.hosts["h3"].role == "traffic"
    with pytest.raises(UserError, match=r"t\.json has 3 hosts"):
        layout_of(text.format(4), tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"links": [["h1", "s9-p1"]]}, r"links\[0\]: end 's9-p1'"),
        ({"links": [["h1", "s1-p1", "fast"]]}, r"links\[0\]: latency 'fast'"),
        ({"links": [["h1", "s1-p1", "1ms", 0]]}, r"links\[0\]: rate 0"),
        ({"links": [["h1"]]}, r"links\[0\]: expected two ends"),
        ({"links": TRIANGLE["links"][:1] + TRIANGLE["links"][4:]}, "a switch that has a link to every switch"),
        ({"hosts": {"h1": {"ip": "here"}}}, "hosts.h1"),
        ({"hosts": []}, "expected an object with hosts"),
    ],
)
def test_bad_topologies_are_refused_by_entry(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        read(tmp_path, **changes)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        p4lang.read(tmp_path / "nothing.json", LinkQuality())
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        p4lang.read(tmp_path / "a.json", LinkQuality())
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(UserError, match="expected an object with hosts"):
        p4lang.read(tmp_path / "a.json", LinkQuality())
