"""Topologies of p4lang's tutorials: their topology.json files.

    {"hosts": {"h1": {"ip": "10.0.1.1/24", "mac": "08:00:00:00:01:11", "commands": [...]}, ...},
     "switches": {"s1": {"runtime_json": "..."}, ...},
     "links": [["h1", "s1-p1"], ["s1-p3", "s2-p3", "10ms", 100], ...]}

A link names two ends ("s1-p3" is port 3 of s1), and optionally its latency (a text with a unit, or milliseconds) and its
rate in Mbit/s. Hosts keep their names and IP addresses. Their MAC addresses, gateways and commands are ignored, because all
hosts are in one subnet here. The tables of the switches are ignored, too: switches get those of the aggregation program.
Other keys are ignored as well.

The switch nearest to all others becomes the root of aggregation; switches with hosts and a link to the root become leaves.
Other switches would only forward, which the aggregation program cannot do for its own packets, so none may be on the path
of a worker.

Entries that Mininet, the switches or the kernel would refuse later, or misinterpret, are refused here, so that every file
that is read can be built.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.inputs import read_json
from sa_atp.basics.tables import limits
from sa_atp.basics.words import plural, short
from sa_atp.lab.backends.mininet.layout import (
    HOST_NAME_LETTERS,
    MOST_PORT,
    NEIGHBOURS,
    SWITCH_NAME_LETTERS,
    HostNode,
    LinkQuality,
    NetworkLayout,
    SwitchNode,
)
from sa_atp.lab.plans.plan import TopologyPlan

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
END = re.compile(r"(?P<switch>.+)-p(?P<port>[0-9]{1,9})")
LATENCY = re.compile(r"(?P<number>[0-9]+(\.[0-9]*)?|\.[0-9]+)(?P<unit>us|ms|s)?")
UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000}


def read(path: Path, default: LinkQuality, taken: Mapping[str, str]) -> NetworkLayout:
    """Reads a layout from a file; its hosts have no roles yet.

    Args:
        default: settings of links without latency or rate.
        taken: names and IP addresses of hosts that every network gets besides those of the file.

    Raises: UserError: names the file, the entry, and what would be accepted.
    """
    found = read_json(path)
    shape = {"hosts": dict, "switches": dict, "links": list}
    if not isinstance(found, dict) or not all(isinstance(found.get(key), kind) for key, kind in shape.items()):
        raise UserError(f"{path}: expected an object with hosts, switches and links, as p4lang's tutorials have it")
    for key in ("hosts", "switches"):
        if not found[key]:
            raise UserError(f"{path}: {key} = {{}}: expected at least one")
    reader = _TopologyReader(path, default, taken)
    for name in found["switches"]:
        reader.add_switch(name)
    for name, host in found["hosts"].items():
        reader.add_host(name, host)
    for number, link in enumerate(found["links"]):
        reader.add_link(number, link)
    reader.check_joined()
    return _with_root(reader.layout, path)


def check_hosts(layout: NetworkLayout, workers: int, jobs: int, where: str) -> None:
    """Checks that there are as many hosts as workers. Raises: UserError: there are more, or fewer."""
    if len(layout.hosts) != workers * jobs:
        asked = f"topology.workers = {workers}" + (f" and job.jobs = {jobs}" if jobs > 1 else "")
        raise UserError(
            f"{where}: hosts: {plural(len(layout.hosts), 'host')} for {asked}: expected {workers * jobs}, one for each "
            "worker"
        )


class _TopologyReader:
    """The layout read so far, with the entries that use each name, address, port and pair of switches."""

    def __init__(self, path: Path, default: LinkQuality, taken: Mapping[str, str]) -> None:
        self.layout = NetworkLayout()
        self._path = path
        self._default = default
        self._names = dict.fromkeys(taken, "a host that every network gets")
        self._addresses = dict.fromkeys(taken.values(), "a host that every network gets")
        self._ends: dict[tuple[str, int], str] = {}
        self._pairs: dict[frozenset[str], str] = {}

    # --- nodes --------------------------------------------------------------------------------------------------------

    def add_switch(self, name: str) -> None:
        self._check_name(name, "switches", SWITCH_NAME_LETTERS)
        self.layout.add_switch(SwitchNode(name=name, level="leaf"))

    def add_host(self, name: str, host: Any) -> None:
        self._check_name(name, "hosts", HOST_NAME_LETTERS)
        if self._switch_end(name) is not None:
            raise UserError(f"{self._path}: hosts: name {name!r} means a port of a switch: expected another")
        self.layout.add_host(HostNode(name=name, ip=self._ip(host, f"{self._path}: hosts.{name}"), role="traffic"))

    def _check_name(self, name: str, key: str, most: int) -> None:
        where = f"{self._path}: {key}: name {short(name)}"
        if NAME.fullmatch(name) is None or len(name) > most:
            raise UserError(
                f"{where}: expected 1 to {most} letters, digits, '_', '.' and '-', the first a letter or a digit: "
                "interfaces are called after it"
            )
        if name in self._names:
            raise UserError(f"{where} belongs to {self._names[name]}: expected another")
        self._names[name] = f"an entry of {key}"

    def _ip(self, host: Any, where: str) -> str:
        text = host.get("ip") if isinstance(host, dict) else None
        if not isinstance(text, str):
            raise UserError(f'{where} = {short(host)}: expected an object with "ip", like "10.0.1.1/24"')
        where = f"{where}.ip = {short(text)}"
        try:
            own = ipaddress.IPv4Interface(text)
        except ValueError:
            raise UserError(f'{where}: expected an IPv4 address, like "10.0.1.1/24"') from None
        unusable = {network.network_address for network in (own.network, NEIGHBOURS) if network.prefixlen < 31}
        unusable |= {network.broadcast_address for network in (own.network, NEIGHBOURS) if network.prefixlen < 31}
        if own.ip not in NEIGHBOURS or own.ip in unusable:
            raise UserError(f"{where}: expected the address of a host in {NEIGHBOURS}, the network of all hosts here")
        ip = str(own.ip)
        if ip in self._addresses:
            raise UserError(f"{where} belongs to {self._addresses[ip]}: expected another")
        self._addresses[ip] = where.removeprefix(f"{self._path}: ").partition(".ip")[0]
        return ip

    # --- links --------------------------------------------------------------------------------------------------------

    def add_link(self, number: int, link: Any) -> None:
        where = f"{self._path}: links[{number}]"
        if not isinstance(link, list) or not 2 <= len(link) <= 4:
            raise UserError(f"{where} = {short(link)}: expected two ends, and optionally latency and rate")
        (node, port), (other, other_port) = (self._end(end, where) for end in link[:2])
        if node not in self.layout.switches:  # a host's link has the host first
            node, port, other, other_port = other, other_port, node, port
        if node not in self.layout.switches:
            raise UserError(f"{where} = {short(link)}: both ends are hosts: expected a switch at one of them")
        if node == other:
            raise UserError(f"{where} = {short(link)}: both ends are at {node}: expected another node at one of them")
        for end, its_port in ((node, port), (other, other_port)):
            before = self._ends.setdefault((end, its_port), f"links[{number}]")
            if before != f"links[{number}]":
                what, wanted = (f"port {its_port} of {end}", "a port") if its_port else (f"host {end}", "a host")
                raise UserError(f"{where}: {what} is an end of {before} already: expected {wanted} that is free")
        before = self._pairs.setdefault(frozenset((node, other)), f"links[{number}]")
        if before != f"links[{number}]":
            raise UserError(
                f"{where}: {before} joins {node} and {other} already: expected one link between two switches"
            )
        if other in self.layout.hosts:
            node, port, other, other_port = other, other_port, node, port
        quality = replace(
            self._default,
            delay_us=_latency_us(link[2], where) if len(link) > 2 else self._default.delay_us,
            rate_mbps=_rate_mbps(link[3], where) if len(link) > 3 else self._default.rate_mbps,
        )
        self.layout.connect(node, other, quality, port=port, other_port=other_port)

    def check_joined(self) -> None:
        """Raises: UserError: a host has no link."""
        for name in self.layout.hosts:
            if (name, 0) not in self._ends:
                raise UserError(f"{self._path}: hosts.{name}: expected an entry of links that names it")

    def _end(self, end: Any, where: str) -> tuple[str, int]:
        """Returns: a node and its port; 0 for a host."""
        if isinstance(end, str) and end in self.layout.hosts:
            return end, 0
        found = self._switch_end(end) if isinstance(end, str) else None
        if found is None:
            raise UserError(f"{where}: end {short(end)}: expected a host, or SWITCH-pPORT with a switch of the file")
        if not 1 <= found[1] <= MOST_PORT:
            raise UserError(f"{where}: end {short(end)}: expected a port from 1 to {MOST_PORT}")
        return found

    def _switch_end(self, text: str) -> tuple[str, int] | None:
        """Returns: a switch of the file and a port; None: the text names none."""
        match = END.fullmatch(text)
        if match is None or match["switch"] not in self.layout.switches:
            return None
        return match["switch"], int(match["port"])


def _latency_us(value: Any, where: str) -> int:
    """Parses a latency; a number is milliseconds, as in the tutorials."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match = LATENCY.fullmatch(value) if isinstance(value, str) else None
    low, most_us = limits(TopologyPlan, "delay_us")
    if match is not None or is_number:
        delay_us = float(match["number"]) * UNITS_US[match["unit"] or "ms"] if match is not None else value * 1000
        if low <= delay_us <= most_us:
            return round(delay_us)
    raise UserError(
        f"{where}: latency {short(value)}: expected a time like 10ms, or milliseconds, of at most {most_us // 1_000_000} s"
    )


def _rate_mbps(value: Any, where: str) -> float:
    low, high = limits(TopologyPlan, "link_mbps")
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise UserError(f"{where}: rate {short(value)}: expected {low:g} to {high:,.0f} Mbit/s")
    return float(value)


def _with_root(layout: NetworkLayout, path: Path) -> NetworkLayout:
    """Chooses the root, and leaves out switches that are neither root nor leaf and that no worker needs."""
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
    chosen = NetworkLayout()
    for name in layout.switches:
        if name in kept:
            chosen.add_switch(SwitchNode(name=name, level="root" if name == root else "leaf"))
    for host in layout.hosts.values():
        chosen.add_host(host)
    for cable in layout.cables:
        ends = {cable.node, cable.other}
        # a link between two leaves would bypass the root
        if ends <= kept | layout.hosts.keys() and (root in ends or ends & layout.hosts.keys()):
            chosen.cables.append(cable)
    return chosen
