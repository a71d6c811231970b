"""The description of an aggregation job for a switch: its members, slots, and the bits that make a sum complete.

It is validated when it is made. The command line prints and reads it in the form of `to_json` and `from_json`.
"""

import dataclasses
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sa_atp.basics.errors import UserError
from sa_atp.protocol.numbers.scattered import cut_of
from sa_atp.protocol.packets import spec

Level = Literal["root", "leaf"]
NO_RANK = -1
MOST_RANK = 998  # copy numbers 1 to 999 are ranks 0 to 998
DROP_PORT = 511
GROUPS_APART = 256  # of a job whose results are scattered: its parts' groups
MOST_SCATTERED_GROUP = 65535 - GROUPS_APART * spec.MOST_RANKS
_MOST_SLOTS = 1 << 16  # that a packet can address; a switch's own number is checked when a job is installed


@dataclass(frozen=True, kw_only=True)
class Member:
    """A host that is attached to a switch."""

    ip: str
    """IPv4 address"""
    udp_port: int
    """the port that it sends from, and receives results at"""
    mac: str
    """MAC address of its interface, "02:00:00:00:00:01" """
    switch_port: int
    """the port of this switch that leads to it"""
    rank: int = NO_RANK
    """the worker's rank in the job; -1 for a host that is not a worker"""
    leaf: int = 0
    """at a root: the UDP port of the leaf on the worker's host, which gets one copy for all workers below it. 0: the worker
    has none"""

    def __post_init__(self) -> None:
        try:
            ipaddress.IPv4Address(str(self.ip))
        except ValueError:
            raise UserError(f"ip {self.ip!r}: expected an IPv4 address") from None
        check_mac("mac", self.mac)
        _check("udp_port", self.udp_port, 1, 65535)
        _check("switch_port", self.switch_port, 0, DROP_PORT - 1)
        _check("rank", self.rank, NO_RANK, MOST_RANK)
        _check("leaf", self.leaf, 0, 65535)
        object.__setattr__(self, "mac", self.mac.lower())

    @property
    def ip_number(self) -> int:
        return int(ipaddress.IPv4Address(self.ip))

    @property
    def mac_number(self) -> int:
        return int(self.mac.replace(":", ""), 16)

    @property
    def address(self) -> tuple[int, int]:
        """(IP address, UDP port) as numbers."""
        return (self.ip_number, self.udp_port)

    def __str__(self) -> str:
        name = f"rank {self.rank}" if self.rank != NO_RANK else "host"
        return f"{name} {self.ip}:{self.udp_port} {self.mac} port {self.switch_port}"


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One job on one switch."""

    job: int
    """its number, 1 to 255"""
    epoch: int
    """incarnation, 0 to 255: packets of another one are stale"""
    fan_in: int
    """the contribution bits that this switch must see before a sum is complete, as a bitmap"""
    slot_base: int
    """the job's slots are slot_base to slot_base + slot_count - 1; the base is a multiple of the count"""
    slot_count: int
    """a power of two"""
    group: int
    """multicast group for results, 1 to 65535; each job needs its own"""
    ttl_ticks: int
    """how long an incomplete sum may be idle before another fragment may take its slot: ticks of spec.TICK_US"""
    level: Level
    """"root": complete sums go down to the members; "leaf": they go up"""
    members: tuple[Member, ...]
    """the workers below this switch"""
    parameter_server: Member
    uplink: Member
    """the next level: at a root the parameter server. At a leaf its switch_port leads to the spine, and its address is the
    parameter server's, because a switch has no address"""
    scattered_to: int = 0
    """among how many ranks results are scattered, each of which needs its own part of them only; 0: they go to all"""
    leaf_ports: tuple[int, ...] = ()
    """at a root: the ports that lead to another aggregating switch. It gets one copy of a result, and makes further ones"""
    loop_port: int | None = None
    """a Tofino's recirculation port, by which its own copy of a result comes back. None for other programs (protocol
    section 4.9)"""

    def __post_init__(self) -> None:
        _check("job", self.job, 1, spec.JOBS - 1)
        _check("epoch", self.epoch, 0, 255)
        _check("fan_in", self.fan_in, 1, (1 << spec.MOST_CONTRIBUTIONS) - 1)
        _check("slot_count", self.slot_count, 1, _MOST_SLOTS)
        if self.slot_count & (self.slot_count - 1):
            raise UserError(f"job {self.job}: slot_count {self.slot_count}: expected a power of two")
        _check("slot_base", self.slot_base, 0, _MOST_SLOTS - self.slot_count)
        if self.slot_base % self.slot_count:
            raise UserError(f"job {self.job}: slot_base {self.slot_base}: expected a multiple of {self.slot_count}")
        _check("group", self.group, 1, 65535)
        _check("scattered_to", self.scattered_to, 0, spec.MOST_RANKS)
        if self.scattered_to:
            self._check_parts()
        _check("ttl_ticks", self.ttl_ticks, 1, (1 << 32) - 1)
        if self.loop_port is not None:
            _check("loop_port", self.loop_port, 0, DROP_PORT - 1)
        if self.level not in get_args(Level):
            raise UserError(f"job {self.job}: level {self.level!r}: expected {' or '.join(get_args(Level))}")
        if not self.members:
            raise UserError(f"job {self.job}: members: expected at least one")
        self._check_members()
        for name in ("parameter_server", "uplink"):
            object.__setattr__(self, name, dataclasses.replace(getattr(self, name), rank=NO_RANK))
        self._check_leaves()

    def _check_parts(self) -> None:
        if cut_of(self.scattered_to, self.slot_count) is None:
            raise UserError(
                f"job {self.job}: scattered_to {self.scattered_to}: expected more slots, at least "
                f"{1 << self.scattered_to.bit_length()}"
            )
        if self.group > MOST_SCATTERED_GROUP:
            raise UserError(
                f"job {self.job}: group {self.group}: expected at most {MOST_SCATTERED_GROUP}, since scattered"
            )

    def _check_leaves(self) -> None:
        for port in self.leaf_ports:
            _check("leaf_ports", port, 0, DROP_PORT - 1)
        if self.level == "leaf" and any(m.leaf for m in self.members):
            raise UserError(f"job {self.job}: members: leaf: only a root has leaves below it")
        if self.leaf_ports and self.level == "leaf":
            raise UserError(f"job {self.job}: leaf_ports {list(self.leaf_ports)}: only a root has leaves below it")
        # ports without a worker of the job do not matter
        present = {m.switch_port for m in self.members}
        object.__setattr__(self, "leaf_ports", tuple(sorted(present.intersection(self.leaf_ports))))

    def _check_members(self) -> None:
        object.__setattr__(self, "members", tuple(sorted(self.members, key=lambda m: m.rank)))
        ranks, places = set(), set()
        for member in self.members:
            if member.rank == NO_RANK:
                raise UserError(f"job {self.job}: member {member}: a rank is missing")
            if member.rank in ranks:
                raise UserError(f"job {self.job}: members: rank {member.rank} is given twice")
            if member.address in places:
                raise UserError(f"job {self.job}: members: {member.ip}:{member.udp_port} is given twice")
            ranks.add(member.rank)
            places.add(member.address)
        if self.parameter_server.address in places:
            raise UserError(f"job {self.job}: the parameter server's address is also that of a member")

    @property
    def slot_mask(self) -> int:
        """The bits of a slot's number that are the same for all slots of the job."""
        return 0xFFFF & ~(self.slot_count - 1)

    def group_of(self, part: int) -> int:
        """The multicast group for results that one rank needs."""
        return self.group + GROUPS_APART * (part + 1)

    @property
    def copied_to(self) -> tuple[Member, ...]:
        """The members that get a copy of a result: of those below each leaf the first one."""
        first = {self._leaf_of(m): m.rank for m in reversed(self.members)}
        return tuple(m for m in self.members if self._leaf_of(m) is None or m.rank == first[self._leaf_of(m)])

    def _leaf_of(self, member: Member) -> tuple[str | int, int] | None:
        """Names the leaf that a member is below: by its port, or by its host's address and its UDP port."""
        if member.leaf:
            return member.ip, member.leaf
        return (member.switch_port, 0) if member.switch_port in self.leaf_ports else None

    def to_json(self) -> dict[str, Any]:
        """A dict of numbers, strings and lists; the fan-in is text, because JSON readers round numbers of 64 bits."""
        found = dataclasses.asdict(self)
        found["fan_in"] = f"0x{self.fan_in:x}"
        found["members"] = [dataclasses.asdict(m) for m in self.members]
        found["leaf_ports"] = list(self.leaf_ports)
        return found


def from_json(source: Mapping[str, Any]) -> JobSpec:
    """The inverse of `JobSpec.to_json`. Raises: UserError: the message names the key."""
    values = dict(_keys(source, JobSpec, "job"))
    if isinstance(values["fan_in"], str):
        try:
            values["fan_in"] = int(values["fan_in"], 0)
        except ValueError:
            raise UserError(f"fan_in {values['fan_in']!r}: expected a number such as 0xf") from None
    if not isinstance(values["members"], list):
        raise UserError("members: expected a list")
    values["members"] = tuple(_member(m, f"members[{i}]") for i, m in enumerate(values["members"]))
    for name in ("parameter_server", "uplink"):
        values[name] = _member(values[name], name)
    if not isinstance(values.get("leaf_ports", []), list):
        raise UserError(f"leaf_ports {values['leaf_ports']!r}: expected a list of ports")
    values["leaf_ports"] = tuple(values.get("leaf_ports", ()))
    return JobSpec(**values)


def _member(source: Any, where: str) -> Member:
    values = _keys(source, Member, where)
    try:
        return Member(**values)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def check_mac(name: str, value: Any) -> None:
    """Raises: UserError: the value is not a MAC address."""
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", value):
        raise UserError(f"{name} {value!r}: expected six bytes like 02:00:00:00:00:01")


def _keys(source: Any, kind: type, where: str) -> dict[str, Any]:
    fields = dataclasses.fields(kind)
    if not isinstance(source, Mapping):
        raise UserError(f"{where}: expected an object with {', '.join(f.name for f in fields)}")
    for name in source.keys() - {f.name for f in fields}:
        raise UserError(f"{where}: unknown key {name}; expected {', '.join(f.name for f in fields)}")
    for field in fields:
        if field.default is dataclasses.MISSING and field.name not in source:
            raise UserError(f"{where}: the key {field.name} is missing")
    return dict(source)


def _check(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise UserError(f"{name} {value!r}: expected {low} to {high}")
