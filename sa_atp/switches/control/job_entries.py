"""Makes the table entries and multicast group of a job.

    table      key                        for a job
    job        job, epoch, slot & mask,   two entries: one for the contributions that are summed here, one for all others.
               bits & mask, on_behalf     What completes a sum, where results go, how long a slot may be idle
    member     job, port, ip, udp_port    who may send; and whose results may be copied to everyone
    uplink     job, evicted               two entries: port of the next level, and addresses: at a root of all that goes up,
                                          at a leaf of evicted sums
    addresses  job, copy                  rank + 1: a member; 1000: the parameter server; 1025 + rank: a member that does
                                          not need the values
    group      (multicast)                one replica a receiver: its port, and its copy number

A copy also carries a source address: the parameter server's where it goes to a member, and a member's where it goes to
the parameter server, because a host drops packets that seem to come from itself. An evicted sum goes up in the name of a
member of its job: the next level admits members only. (protocol section 4)

Where results are scattered, the bits of a slot's number that say which part it is of choose one of several groups, with two
more entries of `job` each; and members have a second entry of `addresses`, for results that come bare. (section 5.9)
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from sa_atp.protocol.numbers.scattered import cut_of
from sa_atp.protocol.packets import spec as wire
from sa_atp.switches.control.jobspec import JobSpec, Member
from sa_atp.switches.p4runtime.entities import Exact, MulticastGroup, Replica, TableEntry, Ternary
from sa_atp.switches.p4runtime.schema import Schema

PARAMETER_SERVER_COPY = 1000
OWN_COPY = 1001
BARE_COPY = 1 << 10  # a bit of the copy numbers of bare results, and of no others
JOB_TABLES = ("job", "member", "uplink", "addresses")
# Entries of different jobs never match the same packet; of the same job the one for what is summed here comes first.
_WITHIN, _BEYOND = 2, 1
OF_ALL = 2  # priority of entries for all slots of a job; those for the slots of one part have higher ones


def groups(spec: JobSpec) -> list[MulticastGroup]:
    """All multicast groups of a job."""
    return [_group(spec, spec.group, None), *(_group(spec, spec.group_of(r), r) for r in range(spec.scattered_to))]


def _group(spec: JobSpec, number: int, part: int | None) -> MulticastGroup:
    """The receivers of a result: members, at the last level the parameter server, on a Tofino also the switch itself.

    Args: part: the rank that alone needs the values; None: all do.
    """
    replicas = {
        Replica(member.switch_port, member.rank + 1 | (0 if _needs(spec, member, part) else BARE_COPY))
        for member in spec.copied_to
    }
    if spec.level == "root":
        replicas.add(Replica(spec.parameter_server.switch_port, PARAMETER_SERVER_COPY))
    if spec.loop_port is not None:
        replicas.add(Replica(spec.loop_port, OWN_COPY))
    return MulticastGroup(group=number, replicas=frozenset(replicas))


def _needs(spec: JobSpec, member: Member, part: int | None) -> bool:
    """Whether a member's copy of a result needs the values. The copy for a leaf switch does: its members may need them."""
    return part in (None, member.rank) or is_for_leaf(spec, member)


def is_for_leaf(spec: JobSpec, member: Member) -> bool:
    """Whether a member's copies go to the leaf that it is below."""
    return bool(member.leaf) or member.switch_port in spec.leaf_ports


@dataclass(frozen=True, slots=True)
class BitmapWords:
    """The names of a bitmap's words in a program: fields and parameters NAME_hi and NAME_lo, or NAME_0, NAME_1, ..."""

    names: tuple[str, ...]
    """hi and lo, or 0 (the lowest contributions), 1, ..., in the program's order."""
    width: int
    """Bits of a word."""

    @classmethod
    def of(cls, schema: Schema) -> "BitmapWords":
        """The words of a switch's program."""
        keys = [m for m in schema.table("job").match if m.name.startswith("bits_")]
        return cls(tuple(m.name.removeprefix("bits_") for m in keys), keys[0].bits)

    @property
    def contributions(self) -> int:
        """Number of bits of a bitmap."""
        return self.width * len(self.names)

    @property
    def all(self) -> int:
        """The bitmap with all bits set."""
        return (1 << self.contributions) - 1

    def split(self, what: str, bits: int) -> dict[str, int]:
        """A bitmap as words, by name. Args: what: the first part of the names of the fields or parameters."""
        mask = (1 << self.width) - 1
        return {f"{what}_{name}": bits >> self.width * _significance(name) & mask for name in self.names}

    def joined(self, what: str, values: Mapping[str, int]) -> int:
        """The inverse of `split`."""
        return sum(values[f"{what}_{name}"] << self.width * _significance(name) for name in self.names)


def _significance(name: str) -> int:
    """The position of a word in the bitmap, by its name; 0 is the lowest."""
    return {"lo": 0, "hi": 1}[name] if name in ("lo", "hi") else int(name)


HALVES = BitmapWords(("hi", "lo"), 32)
"""The words of programs with 64 contributions."""


def entries(spec: JobSpec, words: BitmapWords = HALVES) -> list[TableEntry]:
    """All table entries of a job; those of the table `job` are the last."""
    return [*_members(spec), *_uplinks(spec), *_addresses(spec), *_jobs(spec, words)]


def _jobs(spec: JobSpec, words: BitmapWords) -> list[TableEntry]:
    """Entries of the table `job`. A switch sums contributions with no bits beyond its fan-in and, at a leaf, not sent on
    behalf of another worker.
    """
    beyond = words.split("bits", ~spec.fan_in & words.all)
    within = {name: Ternary(0, mask) for name, mask in beyond.items()} | {"on_behalf": Ternary(0, 1)}
    if spec.level == "root":
        del within["on_behalf"]
    within = {name: m for name, m in within.items() if m.mask}
    return [
        _job(spec, words, priority, conditions, part)
        for part in (*range(spec.scattered_to), None)
        for priority, conditions in ((_WITHIN, within), (_BEYOND, {}))
    ]


def _job(
    spec: JobSpec, words: BitmapWords, priority: int, conditions: dict[str, Ternary], part: int | None
) -> TableEntry:
    slots = Ternary(spec.slot_base, spec.slot_mask)
    cut = None if part is None else cut_of(spec.scattered_to, spec.slot_count)
    if part is not None and cut is not None:
        slots = Ternary(spec.slot_base | part * cut.stretch, spec.slot_mask | cut.block - cut.stretch)
    return TableEntry(
        table="job",
        match={
            "job": Exact(spec.job),
            "epoch": Exact(spec.epoch),
            "slot": slots,
            **conditions,
        },
        action="join",
        params={
            **words.split("fan_in", spec.fan_in),
            "is_leaf": int(spec.level == "leaf"),
            "group": spec.group if part is None else spec.group_of(part),
            "ttl": spec.ttl_ticks,
            "within": int(priority == _WITHIN),
        },
        priority=priority if part is None else priority + OF_ALL,
    )


def _members(spec: JobSpec) -> list[TableEntry]:
    """Entries of the table `member`: workers may contribute; the parameter server, and the level above, may also have a
    result copied.
    """
    server, uplink = spec.parameter_server, spec.uplink
    fans_out = {(server.switch_port, *server.address), (uplink.switch_port, *uplink.address)}
    if spec.level == "leaf":  # results from the level above come through the uplink in the server's name
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
    # Packets from the last switch go to the parameter server, whatever address workers send to; packets from a leaf keep
    # their sender, to whom the root answers.
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
    # a copy for a leaf goes to the switches' own UDP port, or that of the leaf on a host, so that the leaf handles it, and
    # copies it to its members
    copied_to = spec.copied_to
    receivers = [
        dataclasses.replace(m, udp_port=wire.UDP_PORT)
        if m.switch_port in spec.leaf_ports
        else dataclasses.replace(m, udp_port=m.leaf)
        if m.leaf and m in copied_to
        else m
        for m in spec.members
    ]
    found += [_address(spec.job, receiver.rank + 1, server, receiver) for receiver in receivers]
    bare = [member for member in copied_to if not is_for_leaf(spec, member)] if spec.scattered_to else []
    return found + [_address(spec.job, member.rank + 1 | BARE_COPY, server, member) for member in bare]


def _address(job: int, copy: int, sender: Member, receiver: Member) -> TableEntry:
    return TableEntry(
        table="addresses",
        match={"job": Exact(job), "copy": Exact(copy)},
        action="send_bare" if copy & BARE_COPY else "send",
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


# --- single entries ---------------------------------------------------------------------------------------------------

Key = tuple[str, tuple[tuple[str, object], ...], int]


def key_of(entry: TableEntry) -> Key:
    """The identity of an entry: a table holds at most one entry of a key."""
    return (entry.table, tuple(sorted(entry.match.items(), key=lambda item: item[0])), entry.priority)


def same_effect(one: TableEntry, other: TableEntry) -> bool:
    """Whether two entries of one key do the same."""
    return (one.action, dict(one.params)) == (other.action, dict(other.params))


def number_in(entry: TableEntry, field: str) -> int:
    """The value of an exact field in an entry's key."""
    match = entry.match[field]
    assert isinstance(match, Exact)
    return match.value


def slots_of(join: TableEntry) -> tuple[int, int]:
    """(base, count) of the slots of an entry; where they are one part's, of the range in which these are."""
    match = join.match.get("slot", Ternary(0, 0))
    assert isinstance(match, Ternary)
    count = 1 << (~match.mask & 0xFFFF).bit_length()
    return match.value & ~(count - 1), count
