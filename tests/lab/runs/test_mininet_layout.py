"""Layouts of networks: routes, the parameter server's file, and topologies of p4lang's tutorials."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sa_atp.basics.errors import UserError
from sa_atp.lab.backends.mininet import p4lang, topologies
from sa_atp.lab.backends.mininet.layout import LinkQuality, NetworkLayout
from sa_atp.lab.backends.mininet.network import impairments
from sa_atp.lab.plans import plan_files
from sa_atp.net.sockets import ethtool


def layout_of(text: str, folder: Path = Path()) -> NetworkLayout:
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


def test_links_with_own_rates_and_congestion() -> None:
    text = (
        '[topology]\nworkers = 2\nworker_mbps = [100, 25]\n[straggler]\nby = "congestion"\nworkers = [1]\nslowdown = 4'
    )
    found = {c.node: c.quality for c in layout_of(text).cables if c.node.startswith("w")}
    assert (found["w0"].rate_mbps, found["w0"].own_share) == (100.0, 1.0)
    assert (found["w1"].rate_mbps, found["w1"].own_share) == (25.0, 0.25)


@pytest.mark.needs("mininet")
def test_a_congested_link_guarantees_its_own_and_other_traffic_their_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    from sa_atp.lab.backends.mininet import links

    commands: list[tuple[str, ...]] = []
    node = SimpleNamespace(
        pid=1, addIntf=lambda *_, **__: None, cmd=lambda *_: "", run=lambda *command: commands.append(command)
    )
    monkeypatch.setattr(ethtool, "socket_in", lambda pid: io.BytesIO())
    monkeypatch.setattr(ethtool, "set_features", lambda *_: None)
    links.LinkPort("w1-eth0", node=node, quality=LinkQuality(rate_mbps=100, own_share=0.25))
    rates = {each[each.index("classid") + 1]: each[each.index("rate") + 1] for each in commands if "classid" in each}
    assert rates == {"1:1": "100000000bit", "1:5": "10000000bit", "1:10": "25000000bit", "1:20": "75000000bit"}


def test_link_faults_apply_once_per_direction() -> None:
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


def host(name: str, ip: object = "10.0.9.9/24") -> dict[str, Any]:
    """A further host."""
    return {"hosts": {**TRIANGLE["hosts"], name: {"ip": ip}}}


def first_link(*link: object) -> dict[str, Any]:
    return {"links": [[*link], *TRIANGLE["links"][1:]]}


def last_link(*link: object) -> dict[str, Any]:
    return {"links": [*TRIANGLE["links"], [*link]]}


def read(folder: Path, **changes: Any) -> NetworkLayout:
    (folder / "topology.json").write_text(json.dumps({**TRIANGLE, **changes}))
    return read_file(folder / "topology.json")


def read_file(path: Path) -> NetworkLayout:
    return p4lang.read(path, LinkQuality(rate_mbps=100.0, delay_us=70), topologies.ADDED)


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
    found = layout_of(text.format(3), tmp_path)
    assert [(h.name, h.rank) for h in found.workers()] == [("h1", 0), ("h2", 1), ("h3", 2)]
    for workers in (2, 4):
        with pytest.raises(
            UserError, match=rf"t\.json: hosts: 3 hosts for topology\.workers = {workers}: expected {workers}"
        ):
            layout_of(text.format(workers), tmp_path)
    two_jobs = text.format(2) + "\n[job]\njobs = 2"
    with pytest.raises(UserError, match=r"3 hosts for topology\.workers = 2 and job\.jobs = 2: expected 4"):
        layout_of(two_jobs, tmp_path)


def test_congested_links_of_a_file(tmp_path: Path) -> None:
    turned = [link[1::-1] + link[2:] if link[0] == "h1" else link for link in TRIANGLE["links"]]  # the switch first
    (tmp_path / "t.json").write_text(json.dumps({**TRIANGLE, "links": turned}))
    text = '[topology]\nkind = "file"\nfile = "t.json"\nworkers = 3\n[straggler]\nby = "congestion"\nworkers = [0]'
    found = {c.node: c.quality for c in layout_of(text, tmp_path).cables if c.node.startswith("h")}
    assert {name: quality.own_share for name, quality in found.items()} == {"h1": 0.25, "h2": 1.0, "h3": 1.0}
    with pytest.raises(UserError, match=r"topology\.worker_mbps: the links of a topology\.file"):
        plan_files.parse(text.replace("workers = 3", "workers = 3\nworker_mbps = [1, 2, 3]"), "test.toml")


def test_added_hosts_take_free_ports(tmp_path: Path) -> None:
    links = [["s1-p510", "s2-p2"] if link[:2] == ["s1-p2", "s2-p2"] else link for link in TRIANGLE["links"]]
    (tmp_path / "t.json").write_text(json.dumps({**TRIANGLE, "links": links}))
    found = layout_of('[topology]\nkind = "file"\nfile = "t.json"\nworkers = 3\n[straggler]\nworkers = []', tmp_path)
    assert dict(found.neighbours("s1")) == {1: "h1", 510: "s2", 3: "s3", 2: "ps"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"links": [["h1", "s9-p1"]]}, r"links\[0\]: end 's9-p1'"),
        ({"links": [["h1", "s1-p1", "fast"]]}, r"links\[0\]: latency 'fast'"),
        ({"links": [["h1", "s1-p1", "1ms", 0]]}, r"links\[0\]: rate 0"),
        ({"links": [["h1"]]}, r"links\[0\] = \['h1'\]: expected two ends"),
        ({"links": TRIANGLE["links"][:1] + TRIANGLE["links"][4:]}, "a switch that has a link to every switch"),
        ({"hosts": {"h1": {"ip": "here"}}}, "hosts.h1"),
        ({"hosts": []}, "expected an object with hosts"),
        ({"hosts": {}}, r"hosts = \{\}: expected at least one"),
        ({"switches": {}}, r"switches = \{\}: expected at least one"),
        ({"links": []}, "hosts.h1: expected an entry of links that names it"),
        (host("ps"), "hosts: name 'ps' belongs to a host that every network gets: expected another"),
        (host("s3"), "hosts: name 's3' belongs to an entry of switches"),
        (host("s1-p9"), "hosts: name 's1-p9' means a port of a switch"),
        (host("a234567890b"), "hosts: name 'a234567890b': expected 1 to 10 letters"),
        (host("two words"), "hosts: name 'two words': expected 1 to 10 letters"),
        (host("h\n"), r"hosts: name 'h\\n': expected 1 to 10 letters"),
        (host("hö"), "hosts: name 'hö': expected 1 to 10 letters"),
        (host(""), "hosts: name '': expected 1 to 10 letters"),
        (
            {"switches": {**TRIANGLE["switches"], "switch123": {}}},
            "switches: name 'switch123': expected 1 to 8 letters",
        ),
        (
            host("h9", "192.168.0.1/24"),
            r"hosts\.h9\.ip = '192.168.0.1/24': expected the address of a host in 10.0.0.0/8",
        ),
        (host("h9", "10.255.255.255/8"), "expected the address of a host"),
        (host("h9", "10.0.3.255/24"), "expected the address of a host"),
        (host("h9", "10.0.0.0"), "expected the address of a host"),
        (host("h9", "fd00::1/64"), r"hosts\.h9\.ip = 'fd00::1/64': expected an IPv4 address"),
        (host("h9", 5), r"hosts\.h9 = \{'ip': 5\}: expected an object"),
        (host("h9", "10.0.1.1/8"), r"hosts\.h9\.ip = '10.0.1.1/8' belongs to hosts\.h1: expected another"),
        (host("h9", "10.0.255.1/24"), r"'10.0.255.1/24' belongs to a host that every network gets"),
        (first_link("h1", "s1-p1", "0.5.5ms"), r"links\[0\]: latency '0.5.5ms'"),
        (first_link("h1", "s1-p1", "-1ms"), r"links\[0\]: latency '-1ms'"),
        (first_link("h1", "s1-p1", "11s"), r"links\[0\]: latency '11s': expected a time like 10ms, .* at most 10 s"),
        (first_link("h1", "s1-p1", "9" * 400), r"links\[0\]: latency '999"),
        (first_link("h1", "s1-p1", None), r"links\[0\]: latency None"),
        (first_link("h1", "s1-p1", True), r"links\[0\]: latency True"),
        (first_link("h1", "s1-p1", "1ms", -1), r"links\[0\]: rate -1: expected 0.1 to 1,000,000 Mbit/s"),
        (first_link("h1", "s1-p1", "1ms", True), r"links\[0\]: rate True"),
        (first_link("h1", "s1-p1", "1ms", 10**400), r"links\[0\]: rate 1000"),
        (first_link(["h1"], "s1-p1"), r"links\[0\]: end \['h1'\]: expected a host, or SWITCH-pPORT"),
        (first_link("h1", "s1-p600"), r"links\[0\]: end 's1-p600': expected a port from 1 to 510"),
        (first_link("h1", "s1-p0"), r"links\[0\]: end 's1-p0': expected a port from 1 to 510"),
        (first_link("h1", "s1-p" + "9" * 5000), r"links\[0\]: end 's1-p999"),
        (first_link("h1", "s1-p02"), r"links\[1\]: port 2 of s1 is an end of links\[0\] already"),
        (first_link("h1", "h2"), r"links\[0\] = \['h1', 'h2'\]: both ends are hosts"),
        (first_link("s1-p8", "s1-p9"), r"links\[0\] = \['s1-p8', 's1-p9'\]: both ends are at s1"),
        (
            last_link("h1", "s1-p9"),
            r"links\[6\]: host h1 is an end of links\[0\] already: expected a host that is free",
        ),
        (last_link("s1-p8", "s2-p8"), r"links\[6\]: links\[1\] joins s1 and s2 already"),
    ],
)
def test_bad_topologies_are_refused_by_entry(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        read(tmp_path, **changes)
    assert str(refused.value).startswith(str(tmp_path / "topology.json"))
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "expected an object with hosts"),
        ("[" * 100_000, "not JSON"),
        ('{"hosts": {}, "hosts": {}}', "key 'hosts' is there twice in one object"),
        ('{"links": [["h1", "s1-p1", NaN]]}', "not JSON .NaN is no number of JSON"),
    ],
)
def test_invalid_topology_text(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=says) as refused:
        read_file(tmp_path / "a.json")
    assert str(refused.value).startswith(str(tmp_path / "a.json"))


def test_missing_topology_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_file(tmp_path / "nothing.json")
