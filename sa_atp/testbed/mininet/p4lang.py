"""Topologies of p4lang's tutorials: their topology.json files.

    {"hosts": {"h1": {"ip": "10.0.1.1/24", "mac": "08:00:00:00:01:11", "commands": [...]}, ...},
     "switches": {"s1": {"runtime_json": "..."}, ...},
     "links": [["h1", "s1-p1"], ["s1-p3", "s2-p3", "10ms", 100], ...]}

A link names two ends, "s1-p3" is port 3 of s1; then, if they are given, its latency (a text with a unit, or milliseconds)
and its rate in Mbit/s. Hosts keep their names and IP addresses. Their MAC addresses, gateways and commands are not used:
all hosts are neighbours here, whatever switch they are at. The tables of the switches are not used either: they get those
of the aggregation program.

One switch becomes the root of aggregation, the one that is nearest to all the others; those with hosts that have a link to
it become leaves. Others only forward, which the aggregation program cannot do for its own packets, so there may be none on
the way of a worker.
"""

import ipaddress
import re
from pathlib import Path
from typing import Any

from sa_atp.errors import UserError
from sa_atp.inputs import read_json
from sa_atp.testbed.mininet.layout import HostNode, Layout, LinkQuality, SwitchNode
from sa_atp.words import plural

END = re.compile(r"(?P<switch>[^-]+)-p(?P<port>[0-9]+)")
UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000}


def read(path: Path, default: LinkQuality) -> Layout:
    """A layout from a file, whose hosts have no roles yet.

    Args: default: of links whose entry gives no latency or rate. Raises: UserError: names the file and the entry.
    """
    found = read_json(path)
    shape = {"hosts": dict, "switches": dict, "links": list}
    if not isinstance(found, dict) or not all(isinstance(found.get(key), kind) for key, kind in shape.items()):
        raise UserError(f"{path}: expected an object with hosts, switches and links, as p4lang's tutorials have it")
    layout = Layout()
    for name in found["switches"]:
        layout.add_switch(SwitchNode(name=name, level="leaf"))
    for name, host in found["hosts"].items():
        layout.add_host(HostNode(name=name, ip=_ip(host, f"{path}: hosts.{name}"), role="traffic"))
    for number, link in enumerate(found["links"]):
        _add_link(layout, link, default, f"{path}: links[{number}]")
    return _with_root(layout, path)


def check_hosts(layout: Layout, wanted: int, file: str) -> None:
    """Raises: UserError: there are too few hosts."""
    if len(layout.hosts) < wanted:
        raise UserError(
            f"{file} has {plural(len(layout.hosts), 'host')}, but topology.workers and job.jobs ask for {wanted}"
        )


def _ip(host: Any, where: str) -> str:
    try:
        return str(ipaddress.IPv4Interface(host["ip"]).ip)
    except (KeyError, TypeError, ValueError):
        raise UserError(f'{where}: expected an object with "ip", like "10.0.1.1/24"') from None


def _add_link(layout: Layout, link: Any, default: LinkQuality, where: str) -> None:
    if not isinstance(link, list) or not 2 <= len(link) <= 4:
        raise UserError(f"{where}: expected two ends, and perhaps latency and rate")
    (node, port), (other, other_port) = (_end(layout, end, where) for end in link[:2])
    delay_us = _latency_us(link[2], where) if len(link) > 2 else default.delay_us
    rate_mbps = default.rate_mbps
    if len(link) > 3:
        if not isinstance(link[3], int | float) or link[3] <= 0:
            raise UserError(f"{where}: rate {link[3]!r}: expected Mbit/s")
        rate_mbps = float(link[3])
    quality = LinkQuality(
        rate_mbps=rate_mbps,
        delay_us=delay_us,
        jitter_us=default.jitter_us,
        loss=default.loss,
        duplicate=default.duplicate,
        reorder=default.reorder,
        queue_packets=default.queue_packets,
        mtu=default.mtu,
    )
    layout.connect(node, other, quality, port=port, other_port=other_port)


def _end(layout: Layout, end: Any, where: str) -> tuple[str, int]:
    if end in layout.hosts:
        return str(end), 0
    match = END.fullmatch(end) if isinstance(end, str) else None
    if match is None or match["switch"] not in layout.switches:
        raise UserError(f"{where}: end {end!r}: expected a host, or SWITCH-pPORT with a switch of the file")
    return match["switch"], int(match["port"])


def _latency_us(value: Any, where: str) -> int:
    """A number is milliseconds, as in the tutorials."""
    match = re.fullmatch(r"(?P<number>[0-9.]+)(?P<unit>us|ms|s)?", str(value))
    if match is None:
        raise UserError(f"{where}: latency {value!r}: expected a time like 10ms, or milliseconds")
    return round(float(match["number"]) * UNITS_US[match["unit"] or "ms"])


def _with_root(layout: Layout, path: Path) -> Layout:
    """Chooses the root; what is neither root nor leaf is left out where no worker needs it."""
    hosts_at = {name: [n for _, n in layout.neighbours(name) if n in layout.hosts] for name in layout.switches}
    around = {name: {n for _, n in layout.neighbours(name) if n in layout.switches} for name in layout.switches}
    busy = {name for name, hosts in hosts_at.items() if hosts}
    candidates = [name for name in layout.switches if busy - {name} <= around[name]]
    if not candidates:
        raise UserError(
            f"{path}: aggregation needs a switch that has a link to every switch with hosts ({', '.join(sorted(busy))})"
        )
    root = min(candidates, key=lambda name: (len(hosts_at[name]), list(layout.switches).index(name)))
    kept = {root} | busy
    chosen = Layout()
    for name in layout.switches:
        if name in kept:
            chosen.add_switch(SwitchNode(name=name, level="root" if name == root else "leaf"))
    for host in layout.hosts.values():
        chosen.add_host(host)
    for cable in layout.cables:
        ends = {cable.node, cable.other}
        # a link between two leaves would be a way around the root
        if ends <= kept | layout.hosts.keys() and (root in ends or ends & layout.hosts.keys()):
            chosen.cables.append(cable)
    return chosen
