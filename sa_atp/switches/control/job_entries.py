"""Makes the table entries and multicast group of a job.

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
from collections.abc import Mapping
from dataclasses import dataclass

from sa_atp.protocol.packets import spec as wire
from sa_atp.switches.control.jobspec import JobSpec, Member
from sa_atp.switches.p4runtime.entities import Exact, MulticastGroup, Replica, TableEntry, Ternary
from sa_atp.switches.p4runtime.schema import Schema

PARAMETER_SERVER_COPY = 1000
OWN_COPY = 1001
JOB_TABLES = ("job", "member", "uplink", "addresses")
# Entries of different jobs never match the same packet; of the same job the one for what is summed here comes first.
_WITHIN, _BEYOND = 2, 1


def group(spec: JobSpec) -> MulticastGroup:
    """The receivers of a result: members, at the last level the parameter server, on a Tofino also the switch itself."""
    replicas = {Replica(member.switch_port, member.rank + 1) for member in spec.copied_to}
    if spec.level == "root":
        replicas.add(Replica(spec.parameter_server.switch_port, PARAMETER_SERVER_COPY))
    if spec.loop_port is not None:
        replicas.add(Replica(spec.loop_port, OWN_COPY))
    return MulticastGroup(group=spec.group, replicas=frozenset(replicas))


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
    return [_job(spec, words, _WITHIN, {k: m for k, m in within.items() if m.mask}), _job(spec, words, _BEYOND, {})]


def _job(spec: JobSpec, words: BitmapWords, priority: int, conditions: dict[str, Ternary]) -> TableEntry:
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
            **words.split("fan_in", spec.fan_in),
            "is_leaf": int(spec.level == "leaf"),
            "group": spec.group,
            "ttl": spec.ttl_ticks,
            "within": int(priority == _WITHIN),
        },
        priority=priority,
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
    """(base, count) of a job's slots."""
    match = join.match.get("slot", Ternary(0, 0))
    assert isinstance(match, Ternary)
    return match.value, (~match.mask & 0xFFFF) + 1
