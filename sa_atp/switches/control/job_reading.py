"""Recognises a job in a switch's table entries: the inverse of job_entries.

Other controllers may have written to the switch, or a write may be incomplete, so the entries are compared with those that
the job would need.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.protocol.packets import spec as wire
from sa_atp.switches.control.job_entries import (
    OF_ALL,
    OWN_COPY,
    PARAMETER_SERVER_COPY,
    BitmapWords,
    entries,
    groups,
    key_of,
    number_in,
    same_effect,
    slots_of,
)
from sa_atp.switches.control.jobspec import NO_RANK, JobSpec, Level, Member
from sa_atp.switches.p4runtime.entities import Exact, MulticastGroup, TableEntry


@dataclass(frozen=True, kw_only=True)
class InstalledJob:
    """A job on a switch.

    spec: None if its entries are no complete job; `problems` then has a sentence for each thing that is wrong.
    """

    job: int
    spec: JobSpec | None
    problems: tuple[str, ...] = ()


def reconstruct(
    job: int, present: Sequence[TableEntry], known: dict[int, MulticastGroup], words: BitmapWords
) -> InstalledJob:
    """The job that entries describe. Args: present: all entries of the job; known: the switch's multicast groups."""
    try:
        spec = _spec(job, present, known, words)
    except (_Incomplete, UserError) as error:
        return InstalledJob(job=job, spec=None, problems=(str(error),))
    wanted = {key_of(e): e for e in entries(spec, words)}
    found = {key_of(e): e for e in present}
    problems = [f"{entry} is missing" for key, entry in wanted.items() if key not in found]
    problems += [f"{entry} is not part of the job" for key, entry in found.items() if key not in wanted]
    problems += [
        f"{entry} is {found[key].action} {dict(found[key].params)}, expected {dict(entry.params)}"
        for key, entry in wanted.items()
        if key in found and not same_effect(entry, found[key])
    ]
    for each in groups(spec):
        if known.get(each.group) != each:
            problems.append(f"multicast group {each.group} has other receivers than the job has members")
    return InstalledJob(job=job, spec=spec, problems=tuple(problems))


class _Incomplete(Exception):
    """A part of a job is missing; the message names it."""


def _spec(job: int, present: Sequence[TableEntry], groups: dict[int, MulticastGroup], words: BitmapWords) -> JobSpec:
    joins = [e for e in present if e.table == "job" and e.action == "join"]
    scattered_to = sum(e.priority > OF_ALL for e in joins) // 2
    joins = [e for e in joins if e.priority <= OF_ALL]
    joins.sort(key=lambda e: e.params["within"], reverse=True)
    ups = [
        e for e in present if e.table == "uplink" and e.match["evicted"] == Exact(1) and e.action == "in_the_name_of"
    ]
    if [e.params["within"] for e in joins] != [1, 0]:
        raise _Incomplete(
            f"the table job has {plural(len(joins), 'entry', 'entries')} for it, "
            "expected one within and one beyond its fan-in"
        )
    if len(ups) != 1:
        raise _Incomplete("the table uplink has no entry for its evicted sums")
    join, number = joins[0], joins[0].params["group"]
    if number not in groups:
        raise _Incomplete(f"its multicast group {number} does not exist")
    copies = {number_in(e, "copy"): e for e in present if e.table == "addresses" and e.action == "send"}
    admits = [e for e in present if e.table == "member" and e.action == "admit"]
    admitted = {
        (number_in(e, "ip"), number_in(e, "udp_port"), e.params["fans_out"]): number_in(e, "port")
        for e in sorted(admits, key=lambda e: number_in(e, "port"))
    }
    level: Level = "leaf" if join.params["is_leaf"] else "root"
    replicas = {r.instance: r.port for r in groups[number].replicas}
    up_port = ups[0].params["port"]
    members, leaf_ports, leaves = [], set(), dict[str, int]()
    named = {(e.params["to_ip"], e.params["to_udp_port"]) for e in copies.values()}
    for copy, entry in copies.items():
        if copy == PARAMETER_SERVER_COPY:
            continue
        place = _place_of(entry, admitted, named)
        if place is None:
            raise _Incomplete(f"the table member has no entry for rank {copy - 1}")
        member = _receiver(entry, place[1], copy - 1)
        if member.udp_port == wire.UDP_PORT != place[0]:  # addressed to its leaf
            leaf_ports.add(place[1])
        elif member.udp_port != place[0]:  # ... on its host
            leaves[member.ip] = member.udp_port
        members.append(dataclasses.replace(member, udp_port=place[0]))
    if PARAMETER_SERVER_COPY not in copies:
        raise _Incomplete("the table addresses has no entry for the parameter server")
    server = copies[PARAMETER_SERVER_COPY]
    server_port = replicas.get(PARAMETER_SERVER_COPY)
    if server_port is None:  # on a leaf, the parameter server is not in the group
        server_port = _server_port(present, server, up_port)
    base, count = slots_of(join)
    return JobSpec(
        job=job,
        epoch=number_in(join, "epoch"),
        fan_in=words.joined("fan_in", join.params),
        slot_base=base,
        slot_count=count,
        scattered_to=scattered_to,
        group=number,
        ttl_ticks=join.params["ttl"],
        level=level,
        members=tuple(m if m.ip not in leaves else _below(leaves[m.ip], m, replicas, named) for m in members),
        parameter_server=_receiver(server, server_port),
        uplink=_receiver(ups[0], up_port),
        leaf_ports=tuple(leaf_ports),
        loop_port=replicas.get(OWN_COPY),
    )


def _below(leaf: int, member: Member, replicas: Mapping[int, int], named: Collection[tuple[int, int]]) -> Member:
    """A member on a host with a leaf: below it, if its copies go there, or it gets none."""
    is_copied_to = member.rank + 1 in replicas and member.address in named
    return member if is_copied_to else dataclasses.replace(member, leaf=leaf)


def _place_of(
    entry: TableEntry, admitted: dict[tuple[int, int, int], int], named: Collection[tuple[int, int]]
) -> tuple[int, int] | None:
    """UDP port and switch port of the worker that an entry of `addresses` is for. Args: named: in all these entries."""
    ip, udp_port = entry.params["to_ip"], entry.params["to_udp_port"]
    if (ip, udp_port, 0) not in admitted:  # addressed to its leaf
        at_host = [other for at, other, fans_out in admitted if at == ip and not fans_out]
        unnamed = [other for other in at_host if (ip, other) not in named]
        udp_port = next(iter(unnamed or at_host), udp_port)
    port = admitted.get((ip, udp_port, 0))
    return None if port is None else (udp_port, port)


def _server_port(present: Sequence[TableEntry], server: TableEntry, up_port: int) -> int:
    """Port of the parameter server at a leaf: the uplink's, unless its packets are admitted from another port, too."""
    ports = {
        number_in(e, "port")
        for e in present
        if e.table == "member"
        and (number_in(e, "ip"), number_in(e, "udp_port")) == (server.params["to_ip"], server.params["to_udp_port"])
    }
    return min(ports - {up_port}, default=up_port)


def _receiver(entry: TableEntry, port: int, rank: int = NO_RANK) -> Member:
    ip, mac = entry.params["to_ip"], f"{entry.params['to_mac']:012x}"
    return Member(
        rank=rank,
        ip=".".join(str(ip >> shift & 255) for shift in (24, 16, 8, 0)),
        udp_port=entry.params["to_udp_port"],
        mac=":".join(mac[i : i + 2] for i in range(0, 12, 2)),
        switch_port=port,
    )
