"""The switches of a network: where hosts are attached, and a `Keeper` for each.

    leaf ──┐
    leaf ──┴── root ── parameter server

A `Keeper` brings one switch up: program, routes, jobs. It checks the switch regularly, and brings it up again after a
restart, which it recognises by the program's cookie: a switch that has just started has another one, or none.
"""

import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.basics.inputs import read_json
from sa_atp.basics.words import one_of, plural
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.frames import mac_for
from sa_atp.protocol.packets.mtu import most_lanes
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS
from sa_atp.protocol.server.server_events import Admit, HostLeaf
from sa_atp.switches import artefacts
from sa_atp.switches.control import routes, tofino
from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.control.errors import ControlError
from sa_atp.switches.control.job_tables import JobTables, Problems
from sa_atp.switches.control.jobspec import DROP_PORT, JobSpec, Level, Member, check_mac
from sa_atp.switches.p4runtime.entities import TableEntry
from sa_atp.switches.p4runtime.rpc import check_address

CHECK_TIMEOUT_S = 2.0
Target = Literal["v1model", "tofino", "tofino2"]


def mac_text(ip: str) -> str:
    """The MAC address that the project's own networks give to the host with this IP address."""
    mac = mac_for(ip)
    return ":".join(f"{mac >> shift & 255:02x}" for shift in range(40, -8, -8))


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """How hosts are attached to a switch."""

    default_port: int
    """Switch port of all hosts that are not in `ports`: at a leaf, the port towards the root."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Switch port by IP address."""
    macs: Mapping[str, str] = field(default_factory=dict)
    """MAC address by IP address, of hosts with other addresses than `mac_text`."""
    level: Level = "root"
    leaf_ports: frozenset[int] = frozenset()
    """At a root: the ports behind which another switch aggregates."""
    ttl_ticks: int = 100
    """How long an incomplete sum may be idle before another fragment may take its slot, in ticks of about 1 ms."""
    loop_port: int | None = None
    """A Tofino's recirculation port, by which its own copies of results come back; None on other switches."""
    host: HostLeaf | None = None
    """The switch is this leaf on a host; None: it is not on a host of workers."""
    above: Address | None = None
    """At a leaf: the address of the switch above, from which results come; None: they come from the server's."""

    def member(self, address: Address, rank: int = -1) -> Member:
        ip, udp_port = address
        port = self.ports.get(ip, self.default_port)
        mac = self.macs.get(ip) or mac_text(ip)
        return Member(ip=ip, udp_port=udp_port, mac=mac, switch_port=port, rank=rank)

    def _up(self, address: Address) -> Member:
        """A host above this switch: for a leaf on a host, also one with its own address."""
        member = self.member(address)
        return member if self.host is None else replace(member, switch_port=self.default_port)

    def spec(self, job: Admit) -> JobSpec | None:
        """The job as this switch must have it; None if none of its workers is below the switch."""
        assert job.server is not None
        members = [self.member(address, rank) for rank, address in job.addresses.items()]
        if self.host is not None:
            below = job.leaves.get(self.host, ())
            members = [m for m in members if m.rank in below]
        elif self.level == "leaf":
            members = [m for m in members if m.switch_port != self.default_port]
        else:
            leaf_of = {rank: leaf.down for leaf, ranks in job.leaves.items() for rank in ranks}
            members = [replace(m, leaf=leaf_of.get(m.rank, 0)) for m in members]
        if not members:
            return None
        return JobSpec(
            job=job.number,
            epoch=job.epoch,
            fan_in=job.map.summed_below(m.rank for m in members),
            slot_base=job.slot_base,
            slot_count=job.slot_count,
            scattered_to=job.scattered_to,
            group=job.number,
            ttl_ticks=self.ttl_ticks,
            level=self.level,
            members=tuple(members),
            parameter_server=self._up(job.server),
            uplink=self._up(self.above or job.server),
            leaf_ports=tuple(self.leaf_ports),
            loop_port=self.loop_port,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchPlace:
    """One switch of a network: its address, program and attached hosts."""

    grpc: str
    device_id: int = 0
    attachment: Attachment
    routes: Mapping[str, int] = field(default_factory=dict)
    """Port by IP address or network, for everything that is not aggregated."""
    mark_above: int | None = None
    """Length of a port's queue, in packets (on a Tofino: buffer cells), above which packets are marked as congested; None:
    the program's default."""
    target: Target = "v1model"
    """Kind of switch: v1model is the embedded target or BMv2."""
    packing: tofino.Packing = "stratum"
    """The form in which the server of a Tofino takes the program."""

    def program(self, lanes: int, contributions: int = CONTRIBUTION_BITS) -> "SwitchProgram":
        """The build that the switch shall run. Raises: UserError: there is no such build."""
        if self.target == "v1model":
            return artefacts.program(lanes, contributions)
        if contributions != CONTRIBUTION_BITS:
            raise UserError(f"contributions {contributions}: a {self.target} has {CONTRIBUTION_BITS}")
        return tofino.from_folder(artefacts.tofino_folder(self.target, lanes), self.packing)


RANKS_PORT, LINK_UP_PORT = 1, 2
"""Ports of a leaf on a host: to the ranks, and up."""


def leaf_on_host(leaf: HostLeaf, above: Address | None) -> SwitchPlace:
    """A leaf on a host. Args: above: see `Attachment`."""
    attachment = Attachment(
        default_port=LINK_UP_PORT, ports={leaf.ip: RANKS_PORT}, level="leaf", host=leaf, above=above
    )
    # what ranks send to the server goes up, too
    return SwitchPlace(grpc=leaf.where, attachment=attachment, routes={leaf.ip: LINK_UP_PORT})


def choose_build(places: Sequence[SwitchPlace], mtu: int, contributions: int | None = None) -> tuple[int, int]:
    """Chooses numbers of lanes and contributions for these switches and a parameter server on a link with this MTU.

    If a switch runs a build already, it is the one for all.

    Args: contributions: least number; None: not specified.
    Raises: ControlError: a switch does not answer; UserError: they run several builds, or one with fewer contributions.
    """
    running = {build: place.grpc for place in places if (build := _running(place)) is not None}
    if len(running) > 1:
        raise UserError(
            "the switches run different builds: "
            + ", ".join(f"{lanes} lanes, {bits} contributions at {at}" for (lanes, bits), at in sorted(running.items()))
            + "; choose one for all with --lanes"
        )
    for (lanes, bits), grpc in running.items():
        if contributions is not None and bits < contributions:
            raise UserError(
                f"--contributions {contributions}: {grpc} runs a build for {bits}; --lanes {lanes} has another one loaded"
            )
        return lanes, bits
    needed = CONTRIBUTION_BITS if contributions is None else contributions
    lanes = most_lanes(mtu, needed)
    return lanes, artefacts.wide_enough(lanes, needed)


def _running(place: SwitchPlace) -> tuple[int, int] | None:
    """Lanes and contributions of the build that a switch runs, or must run; None: none yet. Raises: ControlError."""
    if place.target != "v1model":
        return artefacts.lanes_of(artefacts.tofino_folder(place.target)), CONTRIBUTION_BITS
    client = P4RuntimeClient(place.grpc, place.device_id).open()
    try:
        cookie = client.cookie()
    finally:
        client.close()
    builds = artefacts.all_builds().items()
    return next((build for build, path in builds if artefacts.from_folder(path, to_run=False).cookie == cookie), None)


class SwitchProgram(Protocol):
    """A compiled program for any target."""

    def p4info(self) -> str: ...
    def device_config(self) -> bytes: ...
    @property
    def cookie(self) -> int: ...


def load_places(path: Path) -> list[SwitchPlace]:
    """Reads a file of switches, as for `sa-atp ps --switches`.

        {"switches": [{"grpc": "127.0.0.1:9559", "device_id": 0, "level": "leaf", "uplink_port": 9,
                       "hosts": {"10.0.0.1": 1, "10.0.0.2": 2}},
                      {"grpc": "127.0.0.1:9560", "level": "root", "leaf_ports": [1],
                       "hosts": {"10.0.0.1": 1, "10.0.0.2": 1, "10.0.255.1": 2}}]}

    Raises: UserError: the message names the file and the key.
    """
    found = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("switches"), list) or not found["switches"]:
        raise UserError(f'{path}: expected {{"switches": [...]}} with at least one switch')
    places = [_place(each, f"{path}: switches[{i}]") for i, each in enumerate(found["switches"])]
    if sum(place.attachment.level == "root" for place in places) != 1:
        raise UserError(f"{path}: expected exactly one switch with level root")
    return places


def levels(places: list[SwitchPlace]) -> int:
    """How many switches aggregate between a worker and the parameter server, at most."""
    return 2 if any(place.attachment.level == "leaf" for place in places) else 1


def leaves(places: Sequence[SwitchPlace], job: Admit) -> list[list[int]]:
    """The ranks of a job below each leaf."""
    found = [place.attachment for place in places if place.attachment.level == "leaf"]
    return [
        [rank for rank, address in job.addresses.items() if leaf.member(address).switch_port != leaf.default_port]
        for leaf in found
    ] + [list(ranks) for ranks in job.leaves.values()]


_KEYS: dict[str, type] = {
    "grpc": str, "device_id": int, "level": str, "uplink_port": int, "leaf_ports": list, "hosts": dict,
    "mark_above": int, "loop_port": int, "macs": dict, "target": str, "packing": str,
}  # fmt: skip


def _place(source: Any, where: str) -> SwitchPlace:
    if not isinstance(source, dict):
        raise UserError(f"{where}: expected an object with {', '.join(_KEYS)}")
    for key, value in source.items():
        if key not in _KEYS or type(value) is not _KEYS[key]:
            expected = f"a {_KEYS[key].__name__}" if key in _KEYS else f"one of {', '.join(_KEYS)}"
            raise UserError(f"{where}: {key} = {value!r}: expected {expected}")
    level = source.get("level", "root")
    hosts = source.get("hosts", {})
    if "grpc" not in source or level not in ("root", "leaf"):
        raise UserError(f"{where}: expected grpc, and level root or leaf")
    if (level == "leaf") != ("uplink_port" in source):
        raise UserError(f"{where}: uplink_port belongs to a leaf, and every leaf has one")
    if not all(
        type(port) is int and 0 <= port < DROP_PORT for port in [*hosts.values(), *source.get("leaf_ports", ())]
    ):
        raise UserError(f"{where}: ports must be whole numbers from 0 to {DROP_PORT - 1}")
    for ip in (*hosts, *source.get("macs", {})):
        try:
            ipaddress.IPv4Address(ip)
        except ValueError:
            raise UserError(f"{where}: {ip!r}: expected an IPv4 address") from None
    try:
        check_address(source["grpc"])
    except UserError as error:
        raise UserError(f"{where}: grpc: {error}") from None
    if not 0 <= source.get("device_id", 0) < 1 << 64 or not 0 <= source.get("mark_above", 0) < 1 << 19:
        raise UserError(f"{where}: expected a device_id of 0 to 2**64 - 1, and mark_above of 0 to 2**19 - 1")
    for key, known in (("target", get_args(Target)), ("packing", tofino.PACKINGS)):
        if source.get(key, known[0]) not in known:
            raise UserError(f"{where}: {key} = {source[key]!r}: {one_of(source[key], known, str)}")
    for mac in source.get("macs", {}).values():
        check_mac(f"{where}: macs:", mac)
    uplink = source.get("uplink_port", 0)
    target: Target = source.get("target", "v1model")
    attachment = Attachment(
        default_port=uplink,
        ports=hosts,
        level=level,
        leaf_ports=frozenset(source.get("leaf_ports", ())),
        loop_port=source.get("loop_port", None if target == "v1model" else tofino.LOOP_PORTS[target]),
        macs=source.get("macs", {}),
    )
    return SwitchPlace(
        grpc=source["grpc"],
        device_id=source.get("device_id", 0),
        attachment=attachment,
        routes=dict(hosts),
        mark_above=source.get("mark_above"),
        target=target,
        packing=source.get("packing", "stratum"),
    )


class Keeper:
    """Keeps one switch supplied with its program, routes and jobs. Its calls block; use it from one thread."""

    def __init__(self, place: SwitchPlace, program: SwitchProgram) -> None:
        self.place = place
        self._program = program
        self._client: P4RuntimeClient | None = None
        self._lost_because = f"{self.where}: not connected"
        self._jobs: dict[int, JobSpec] = {}
        self._over: set[int] = set()  # jobs that the switch may still have, and should not
        self._missing: set[int] = set()  # jobs that the switch may have lost in a restart, and should have
        self._has_pushed = False  # whether the switch did not have its program when it was last brought up
        self._tables: JobTables | None = None  # what the switch holds for jobs; None: not known

    @property
    def where(self) -> str:
        """The switch, for messages."""
        return f"switch {self.place.device_id} at {self.place.grpc}"

    @property
    def has_bare_results(self) -> bool:
        """Whether the program can leave the values out of results (protocol section 5.9): those made before cannot."""
        return '"send_bare"' in self._program.p4info()

    @property
    def is_connected(self) -> bool:
        """Whether `bring_up` has succeeded, and the switch has not been lost since."""
        return self._client is not None

    def bring_up(self) -> Problems:
        """Connects; pushes the program unless it runs already; sets routes and jobs.

        Returns: why a job could not be restored, by its number. `check` tries these again; the others are served.
        Raises: ControlError, UserError.
        """
        self._disconnect()
        client = P4RuntimeClient(self.place.grpc, self.place.device_id).open()
        self._client = client
        self._has_pushed = client.cookie() != self._program.cookie
        if self._has_pushed:
            client.push_pipeline(self._program.p4info(), self._program.device_config(), cookie=self._program.cookie)
        if self.place.mark_above is not None:
            client.modify(
                TableEntry(
                    table="threshold", action="above", params={"packets": self.place.mark_above}, is_default=True
                )
            )
        for prefix, port in self.place.routes.items():
            routes.add(client, prefix, port)
        self._missing = set(self._jobs)
        return self._write()

    def apply_jobs(self, installed: Sequence[Admit], removed: Collection[int]) -> Problems:
        """Installs and removes jobs, all at once.

        Args: removed: numbers of jobs.
        Returns: problems, by the number of the job.
        """
        for number in removed:
            if self._jobs.pop(number, None) is not None:
                self._over.add(number)
            self._missing.discard(number)
        problems: Problems = {}
        wanted = []
        for job in installed:
            try:
                spec = self.place.attachment.spec(job)
            except UserError as problem:
                problems[job.number] = problem
                continue
            if spec is not None:
                self._jobs[job.number] = spec
                wanted.append(job.number)
            elif self._jobs.pop(job.number, None) is not None:  # the switch had it before
                self._over.add(job.number)
                self._missing.discard(job.number)
        try:
            return problems | self._write(wanted)
        except ControlError as error:  # a part may have been written
            return problems | dict.fromkeys([*wanted, *self._over], error)

    def _write(self, numbers: Iterable[int] = ()) -> Problems:
        """Installs these jobs and those that are missing, and removes those that are over.

        Raises: ControlError: the switch could not be asked.
        """
        numbers = {*numbers, *self._missing}
        if not numbers and not self._over:
            return {}
        if self._client is None:
            raise ControlError(self._lost_because)
        tables, self._tables = self._tables or JobTables(self._client), None  # not known while it is written
        self._over -= numbers  # a job that is installed anew is not over
        problems = tables.remove(self._over)
        self._over = set(problems)
        problems |= tables.install([self._jobs[number] for number in sorted(numbers)], share_slots=True)
        self._missing &= set(problems)
        self._tables = tables
        return problems

    def check(self) -> str | None:
        """Checks that the switch has its program and jobs, and restores them if not.

        Returns: what was done, or what is wrong, in one sentence; None if nothing was.
        """
        try:
            if self._client is not None and self._client.is_primary and self._client.cookie() == self._program.cookie:
                return self._not_served(self._write())  # removes and restores what it could not before
        except ControlError:
            pass  # the switch is gone: perhaps it is back
        try:
            problems = self.bring_up()
        except SaAtpError as error:
            self._disconnect()
            self._lost_because = str(error)
            return self._lost_because
        served = plural(len(self._jobs) - len(self._missing), "job")
        what = (
            "had restarted: restored its program,"
            if self._has_pushed
            else "was out of reach, or another controller's, and still has its program: restored"
        )
        done = f"{self.where} {what} {plural(len(self.place.routes), 'route')}, {served}"
        return "; ".join(filter(None, (done, self._not_served(problems))))

    def _not_served(self, problems: Problems) -> str | None:
        """Names the jobs that the switch should have, and cannot."""
        missing = [
            f"job {number} is not restored: {problems[number]}" for number in sorted(self._missing & set(problems))
        ]
        return "; ".join(missing) or None

    def close(self) -> None:
        """Ends the connection; the switch keeps its state."""
        self._disconnect()

    def _disconnect(self) -> None:
        self._tables = None
        if self._client is not None:
            self._client.timeout_s = CHECK_TIMEOUT_S
            self._client.close()
            self._client = None
