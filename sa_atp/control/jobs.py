"""Aggregation jobs on a switch: what the tables of the P4 program hold for each, written and read back.

    table      key                        for a job
    job        job, epoch, slot & mask,   two entries: one for the contributions that are summed here, one for all others.
               bits & mask, on_behalf     What completes a sum, where results go, how long a slot may be idle
    member     job, port, ip, udp_port    who may send; and whose results may be copied to everyone
    uplink     job, evicted               two entries: port of the next level, and addresses: at a root of all that goes up,
                                          at a leaf of evicted sums
    addresses  job, copy                  rank + 1: a member; 1000: the parameter server
    group      (multicast)                one replica a receiver: its port, and its copy number

A copy also carries a source address: the parameter server's where it goes to a member, and a member's where it goes to
the parameter server, because a host drops packets that seem to come from itself. An evicted sum goes up in the name of a
member of its job: the next level admits members only. (protocol section 4)
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sa_atp import spec as wire
from sa_atp.control.events import COUNTER, Event, cell
from sa_atp.control.jobspec import NO_RANK, JobSpec, Level, Member
from sa_atp.control.writer import Writer
from sa_atp.errors import UserError
from sa_atp.softswitch.p4runtime.entities import (
    CounterEntry,
    Counts,
    Exact,
    MulticastGroup,
    Replica,
    TableEntry,
    Ternary,
    Update,
    UpdateKind,
)

PARAMETER_SERVER_COPY = 1000
OWN_COPY = 1001
JOB_TABLES = ("job", "member", "uplink", "addresses")
# Entries of different jobs never match the same packet; of the same job the one for what is summed here comes first.
_WITHIN, _BEYOND = 2, 1
_WORD = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class InstalledJob:
    """A job as a switch has it.

    spec: None where what is there is no whole job; `problems` then says what is wrong, one sentence each.
    """

    job: int
    spec: JobSpec | None
    problems: tuple[str, ...] = ()


# --- what a job is made of --------------------------------------------------------------------------------------------


def group(spec: JobSpec) -> MulticastGroup:
    """Who gets a copy of a result: the receivers, at the last level the parameter server, on a Tofino the switch itself."""
    replicas = {Replica(member.switch_port, member.rank + 1) for member in spec.copied_to}
    if spec.level == "root":
        replicas.add(Replica(spec.parameter_server.switch_port, PARAMETER_SERVER_COPY))
    if spec.loop_port is not None:
        replicas.add(Replica(spec.loop_port, OWN_COPY))
    return MulticastGroup(group=spec.group, replicas=frozenset(replicas))


def entries(spec: JobSpec) -> list[TableEntry]:
    """All table entries of a job; those of the table `job` are the last."""
    return [*_members(spec), *_uplinks(spec), *_addresses(spec), *_jobs(spec)]


def _jobs(spec: JobSpec) -> list[TableEntry]:
    """What is summed here has no bits beyond the fan-in and, at a leaf, is not sent on behalf of another worker."""
    beyond = ~spec.fan_in & ((1 << wire.CONTRIBUTION_BITS) - 1)
    within = {"bits_hi": Ternary(0, beyond >> 32), "bits_lo": Ternary(0, beyond & _WORD), "on_behalf": Ternary(0, 1)}
    if spec.level == "root":
        del within["on_behalf"]
    return [_job(spec, _WITHIN, {k: m for k, m in within.items() if m.mask}), _job(spec, _BEYOND, {})]


def _job(spec: JobSpec, priority: int, conditions: dict[str, Ternary]) -> TableEntry:
    return TableEntry(
        table="job",
        match={
            "job": Exact(spec.job),
            "epoch": Exact(spec.epoch),
            "slot": Ternary(spec.slot_base, spec.slot_mask),
            **conditions,
        },
        action="join",
        params={
            "fan_in_hi": spec.fan_in >> 32,
            "fan_in_lo": spec.fan_in & _WORD,
            "is_leaf": int(spec.level == "leaf"),
            "group": spec.group,
            "ttl": spec.ttl_ticks,
            "within": int(priority == _WITHIN),
        },
        priority=priority,
    )


def _members(spec: JobSpec) -> list[TableEntry]:
    """Workers may contribute; the parameter server, and what comes from above, may also have a result copied."""
    server, uplink = spec.parameter_server, spec.uplink
    fans_out = {(server.switch_port, *server.address), (uplink.switch_port, *uplink.address)}
    if spec.level == "leaf":  # results that the level above copies come through the uplink in the server's name
        fans_out.add((uplink.switch_port, *server.address))
    admitted = {(m.switch_port, *m.address): 0 for m in spec.members} | dict.fromkeys(sorted(fans_out), 1)
    return [
        TableEntry(
            table="member",
            match={"job": Exact(spec.job), "port": Exact(port), "ip": Exact(ip), "udp_port": Exact(udp_port)},
            action="admit",
            params={"fans_out": may_fan_out},
        )
        for (port, ip, udp_port), may_fan_out in admitted.items()
    ]


def _uplinks(spec: JobSpec) -> list[TableEntry]:
    port = {"port": spec.uplink.switch_port}
    addresses = _from_to(spec.members[0], spec.uplink)
    # What leaves the last switch is for the parameter server, whatever address workers send to; what leaves a leaf keeps
    # its sender, to whom the root answers.
    passed = ("to_port", port) if spec.level == "leaf" else ("in_the_name_of", {**port, **addresses})
    return [
        TableEntry(
            table="uplink", match={"job": Exact(spec.job), "evicted": Exact(evicted)}, action=action, params=params
        )
        for evicted, (action, params) in enumerate((passed, ("in_the_name_of", {**port, **addresses})))
    ]


def _addresses(spec: JobSpec) -> list[TableEntry]:
    someone, server = spec.members[0], spec.parameter_server
    found = [_address(spec.job, PARAMETER_SERVER_COPY, someone, server)]
    # A copy for a leaf goes to the port that switches listen to, so that the leaf takes it up and copies it on. Members
    # that share a port of a root are below a leaf; a member that has the port to itself takes its copy as it is.
    behind = Counter(m.switch_port for m in spec.members) if spec.receivers is not None else Counter()
    receivers = [
        dataclasses.replace(m, udp_port=wire.UDP_PORT) if behind[m.switch_port] > 1 else m for m in spec.members
    ]
    return found + [_address(spec.job, receiver.rank + 1, server, receiver) for receiver in receivers]


def _address(job: int, copy: int, sender: Member, receiver: Member) -> TableEntry:
    return TableEntry(
        table="addresses",
        match={"job": Exact(job), "copy": Exact(copy)},
        action="send",
        params=_from_to(sender, receiver),
    )


def _from_to(sender: Member, receiver: Member) -> dict[str, int]:
    return {
        "from_mac": sender.mac_number,
        "from_ip": sender.ip_number,
        "from_udp_port": sender.udp_port,
        "to_mac": receiver.mac_number,
        "to_ip": receiver.ip_number,
        "to_udp_port": receiver.udp_port,
    }


# --- changes ----------------------------------------------------------------------------------------------------------


def install(writer: Writer, spec: JobSpec, *, share_slots: bool = False) -> int:
    """Makes a switch serve a job, whatever it held for that job before; only differences are written.

    The entry that admits packets comes last, so that none is taken before there is a way for its result. After a
    failure, installing again finishes the work.

    Args: share_slots: let the job have slots of another one. That is safe, and slower for both: fragments that find
        their slot taken are summed by the parameter server.

    Returns: how many updates were written.

    Raises:
        UserError: another job has the multicast group, or (unless they may be shared) a slot that the job wants.
        RefusedError: the switch refused something; other `ControlError`s: it could not be asked.
    """
    tables = _read_tables(writer)
    _check_room(tables, spec, share_slots)
    present = _of_job(tables, spec.job)
    wanted = {_key(e): e for e in entries(spec)}
    upserts = [
        Update(UpdateKind.MODIFY if key in present else UpdateKind.INSERT, entry)
        for key, entry in wanted.items()
        if key not in present or not _same(entry, present[key])
    ]
    stale = [Update(UpdateKind.DELETE, _bare(entry)) for key, entry in present.items() if key not in wanted]
    old_groups = {e.params["group"] for e in present.values() if e.table == "job" and "group" in e.params}
    return _write(
        writer,
        _group_updates(writer, group(spec)) + [u for u in upserts if _table(u) != "job"],
        [u for u in upserts + stale if _table(u) == "job"],
        [u for u in stale if _table(u) != "job"] + _group_deletes(writer, old_groups - {spec.group}),
    )


def remove(writer: Writer, job: int) -> int:
    """Makes a switch forget a job: packets of it are stale from then on. Returns: how many updates were written."""
    present = _of_job(_read_tables(writer), job).values()
    deletes = [Update(UpdateKind.DELETE, _bare(entry)) for entry in present]
    groups = {e.params["group"] for e in present if e.table == "job" and "group" in e.params}
    return _write(
        writer,
        [u for u in deletes if _table(u) == "job"],
        [u for u in deletes if _table(u) != "job"] + _group_deletes(writer, groups),
    )


def _write(writer: Writer, *batches: Sequence[Update]) -> int:
    """One write a batch: within one, the order is the server's to choose."""
    for batch in batches:
        if batch:
            writer.write(batch)
    return sum(len(batch) for batch in batches)


def _group_updates(writer: Writer, wanted: MulticastGroup) -> list[Update]:
    present = writer.read(MulticastGroup(group=wanted.group))
    if wanted in present:
        return []
    return [Update(UpdateKind.MODIFY if present else UpdateKind.INSERT, wanted)]


def _group_deletes(writer: Writer, groups: Iterable[int]) -> list[Update]:
    return [
        Update(UpdateKind.DELETE, MulticastGroup(group=number))
        for number in sorted(groups)
        if writer.read(MulticastGroup(group=number))
    ]


def _check_room(tables: Sequence[TableEntry], spec: JobSpec, share_slots: bool) -> None:
    for entry in tables:
        if entry.table != "job" or _number(entry, "job") == spec.job or entry.action != "join":
            continue
        other = f"job {_number(entry, 'job')}"
        if entry.params["group"] == spec.group:
            raise UserError(f"job {spec.job}: group {spec.group} belongs to {other}: choose another one")
        base, count = _slots(entry)
        if not share_slots and base < spec.slot_base + spec.slot_count and spec.slot_base < base + count:
            raise UserError(
                f"job {spec.job}: slots {spec.slot_base} to {spec.slot_base + spec.slot_count - 1} overlap with "
                f"{other}, which has {base} to {base + count - 1}"
            )


def free_slots(writer: Writer, count: int) -> int:
    """The first base at which a job may have `count` slots, a power of two.

    Raises: UserError: there is no room for so many beside the jobs that are there.
    """
    taken = [_slots(e) for e in _read_tables(writer) if e.table == "job"]
    for base in range(0, wire.SLOTS - count + 1, count):
        if all(other >= base + count or other + size <= base for other, size in taken):
            return base
    raise UserError(f"there are no {count} slots in a row left of {wire.SLOTS}: {len(taken)} jobs have some")


# --- what is there ----------------------------------------------------------------------------------------------------


def read_jobs(writer: Writer) -> list[InstalledJob]:
    """The jobs that a switch holds, whole or not, by number."""
    tables = _read_tables(writer)
    groups = {g.group: g for g in writer.read(MulticastGroup()) if isinstance(g, MulticastGroup)}
    return [
        _reconstruct(job, [e for e in tables if _number(e, "job") == job], groups)
        for job in sorted({_number(e, "job") for e in tables})
    ]


def _reconstruct(job: int, present: Sequence[TableEntry], groups: dict[int, MulticastGroup]) -> InstalledJob:
    try:
        spec = _spec(job, present, groups)
    except (_Incomplete, UserError) as error:
        return InstalledJob(job=job, spec=None, problems=(str(error),))
    wanted = {_key(e): e for e in entries(spec)}
    found = {_key(e): e for e in present}
    problems = [f"{entry} is missing" for key, entry in wanted.items() if key not in found]
    problems += [f"{entry} is not part of the job" for key, entry in found.items() if key not in wanted]
    problems += [
        f"{entry} is {found[key].action} {dict(found[key].params)}, expected {dict(entry.params)}"
        for key, entry in wanted.items()
        if key in found and not _same(entry, found[key])
    ]
    if groups[spec.group] != group(spec):
        problems.append(f"multicast group {spec.group} has other receivers than the job has members")
    return InstalledJob(job=job, spec=spec, problems=tuple(problems))


class _Incomplete(Exception):
    """What is missing for a whole job."""


def _spec(job: int, present: Sequence[TableEntry], groups: dict[int, MulticastGroup]) -> JobSpec:
    joins = [e for e in present if e.table == "job" and e.action == "join"]
    joins.sort(key=lambda e: e.params["within"], reverse=True)
    ups = [e for e in present if e.table == "uplink" and e.match["evicted"] == Exact(1)]
    if [e.params["within"] for e in joins] != [1, 0]:
        raise _Incomplete(
            f"the table job has {len(joins)} entries for it, expected one within and one beyond its fan-in"
        )
    if len(ups) != 1:
        raise _Incomplete("the table uplink has no entry for it")
    join, number = joins[0], joins[0].params["group"]
    if number not in groups:
        raise _Incomplete(f"its multicast group {number} does not exist")
    copies = {_number(e, "copy"): e for e in present if e.table == "addresses" and e.action == "send"}
    admitted = {
        (_number(e, "ip"), _number(e, "udp_port"), e.params["fans_out"]): _number(e, "port")
        for e in sorted((e for e in present if e.table == "member" and e.action == "admit"), key=_port)
    }
    level: Level = "leaf" if join.params["is_leaf"] else "root"
    replicas = {r.instance: r.port for r in groups[number].replicas}
    up_port = ups[0].params["port"]
    members = []
    for copy, entry in copies.items():
        if copy == PARAMETER_SERVER_COPY:
            continue
        place = _place_of(entry, admitted)
        if place is None:
            raise _Incomplete(f"the table member has no entry for rank {copy - 1}")
        member = _receiver(entry, place[1], copy - 1)
        members.append(dataclasses.replace(member, udp_port=place[0]))
    if PARAMETER_SERVER_COPY not in copies:
        raise _Incomplete("the table addresses has no entry for the parameter server")
    server = copies[PARAMETER_SERVER_COPY]
    server_port = replicas.get(PARAMETER_SERVER_COPY)
    if server_port is None:  # a leaf, where it is not in the group
        server_port = _server_port(present, server, up_port)
    base, count = _slots(join)
    return JobSpec(
        job=job,
        epoch=_number(join, "epoch"),
        fan_in=join.params["fan_in_hi"] << 32 | join.params["fan_in_lo"],
        slot_base=base,
        slot_count=count,
        group=number,
        ttl_ticks=join.params["ttl"],
        level=level,
        members=tuple(members),
        parameter_server=_receiver(server, server_port),
        uplink=_receiver(ups[0], up_port),
        receivers=tuple(copy - 1 for copy in replicas if copy not in (PARAMETER_SERVER_COPY, OWN_COPY)) or None,
        loop_port=replicas.get(OWN_COPY),
    )


def _place_of(entry: TableEntry, admitted: dict[tuple[int, int, int], int]) -> tuple[int, int] | None:
    """UDP port and switch port of the worker that an entry of `addresses` is for."""
    ip, udp_port = entry.params["to_ip"], entry.params["to_udp_port"]
    if udp_port == wire.UDP_PORT and (ip, udp_port, 0) not in admitted:  # addressed to its leaf
        udp_port = next((other for at, other, fans_out in admitted if at == ip and not fans_out), udp_port)
    port = admitted.get((ip, udp_port, 0))
    return None if port is None else (udp_port, port)


def _server_port(present: Sequence[TableEntry], server: TableEntry, up_port: int) -> int:
    """Port of the parameter server at a leaf: the uplink's, unless its packets are admitted from another one too."""
    ports = {
        _number(e, "port")
        for e in present
        if e.table == "member"
        and (_number(e, "ip"), _number(e, "udp_port")) == (server.params["to_ip"], server.params["to_udp_port"])
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


# --- counters ---------------------------------------------------------------------------------------------------------


def counters(writer: Writer, job: int) -> dict[Event, Counts]:
    """What the switch has counted for a job since its pipeline was pushed, or since `reset_counters`."""
    indices = {cell(job, event): event for event in Event}
    found = writer.read(*(CounterEntry(counter=COUNTER, index=index) for index in indices))
    return {
        indices[entry.index]: entry.counts or Counts()
        for entry in found
        if isinstance(entry, CounterEntry) and entry.index in indices
    }


def reset_counters(writer: Writer, job: int) -> None:
    writer.write(
        Update(UpdateKind.MODIFY, CounterEntry(counter=COUNTER, index=cell(job, event), counts=Counts(0, 0)))
        for event in Event
    )


# --- helpers ----------------------------------------------------------------------------------------------------------

_Key = tuple[str, tuple[tuple[str, object], ...], int]


def _read_tables(writer: Writer) -> list[TableEntry]:
    found = writer.read(*(TableEntry(table=table) for table in JOB_TABLES))
    return [entry for entry in found if isinstance(entry, TableEntry)]


def _of_job(tables: Iterable[TableEntry], job: int) -> dict[_Key, TableEntry]:
    return {_key(entry): entry for entry in tables if _number(entry, "job") == job}


def _key(entry: TableEntry) -> _Key:
    return (entry.table, tuple(sorted(entry.match.items(), key=lambda item: item[0])), entry.priority)


def _same(one: TableEntry, other: TableEntry) -> bool:
    return (one.action, dict(one.params)) == (other.action, dict(other.params))


def _bare(entry: TableEntry) -> TableEntry:
    """What names an entry to be deleted."""
    return TableEntry(table=entry.table, match=entry.match, priority=entry.priority)


def _table(update: Update) -> str:
    return update.entity.table if isinstance(update.entity, TableEntry) else ""


def _number(entry: TableEntry, field: str) -> int:
    match = entry.match[field]
    assert isinstance(match, Exact)
    return match.value


def _port(entry: TableEntry) -> int:
    return _number(entry, "port")


def _slots(join: TableEntry) -> tuple[int, int]:
    """(base, count) of a job's slots."""
    match = join.match.get("slot", Ternary(0, 0))
    assert isinstance(match, Ternary)
    return match.value, (~match.mask & 0xFFFF) + 1
