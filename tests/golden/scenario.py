"""A scenario: packets told in order, the model's answers, and both as an STF file."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator

from sa_atp.protocol.packets.spec import SLOTS
from sa_atp.switches.control import job_entries
from sa_atp.switches.control.jobspec import JobSpec, Member
from sa_atp.switches.p4runtime.entities import Exact, Match, TableEntry, Ternary

from .model import EVENTS, Switch
from .packets import DATA, FAN_OUT, PROBE, RESULT, AnyPacket, Header, Host, Packet, text

# ("packet", (port, hex, [(port, hex) of each that comes out])), ("wait", None), or ("counters", {job: {event: packets}})
Step = tuple[str, object]

WIDTH = 118
ECT0 = 2  # what ECN-capable senders write (RFC 3168)
EVENTS_PER_JOB = 32

RULER = """\
    packet PORT  dst mac, src mac, type | 45 tos bytes id frag ttl proto checksum src dst |
                 src port, dst port, bytes, checksum | version+kind flags slot job epoch exponent tag seq bits | lanes
"""


class Scenario:
    """One test. `jobs` and `routes` are installed before the first packet."""

    def __init__(
        self,
        name: str,
        about: str,
        *,
        lanes: int = 64,
        contributions: int = 64,
        jobs: Iterable[JobSpec] = (),
        routes: Iterable[tuple[str, int]] = (),
    ) -> None:
        self.name = name
        self.about = textwrap.dedent(about).strip().splitlines()
        self.lanes = lanes
        self.contributions = contributions
        self.jobs = list(jobs)
        self.routes = list(routes)
        self.switch = Switch(lanes, self.jobs, self.routes, contributions)
        self.steps: list[tuple[Step, str]] = []  # each with what is said of it
        self._lines: list[str] = []

    def stf(self, *, loop_port: int | None = None, uncounted: Collection[str] = ()) -> str:
        """Args:
        loop_port: of a Tofino, where a switch sends itself copies of results; None: it needs none.
        uncounted: events that the target does not count, or counts besides.
        """
        head = [
            *(f"# {line}".rstrip() for line in self.about),
            "#",
            f"# For the build of {self._build()}. Written by tests/golden/generate.py, which derives what is expected",
            "# from tests/golden/model.py. The fields of a line:",
            *(f"# {line}" for line in RULER.splitlines()),
        ]
        left_out = {f"({cell})" for cell in self._cells(uncounted)}
        body = [
            line
            for line in self._lines
            if not line.startswith("check_counter") or line[line.index("(") : line.index(")") + 1] not in left_out
        ]
        return "\n".join([*head, *self._entries(loop_port), *body]) + "\n"

    def _build(self) -> str:
        return f"{self.lanes} lanes" + (f", {self.contributions} contributions" if self.contributions != 64 else "")

    def _cells(self, events: Collection[str]) -> list[int]:
        jobs = {job.job for job in self.jobs} | {job for job, _ in self.switch.events}
        return [job * EVENTS_PER_JOB + EVENTS.index(event) for job in jobs for event in events]

    # --- packets ------------------------------------------------------------------------------------------------------

    def values(self, value: Callable[[int], int]) -> tuple[int, ...]:
        """Lanes by their number."""
        return tuple(value(k) for k in range(self.lanes))

    @property
    def falling(self) -> tuple[int, ...]:
        """-1, -2, -3, ...: what is kept of negative numbers matters too."""
        return self.values(lambda k: -1 - k)

    def comment(self, words: str) -> None:
        self._lines += _comment(words)

    def data(self, sender: Member, job: JobSpec, event: str, words: str, **fields: object) -> None:
        """A contribution of a member; fields of the header, `lanes`, and fields of the packet."""
        fields.setdefault("lanes", self.values(lambda k: k + 1))
        self.send(sender.switch_port, self.packet_of(sender, job, DATA, **fields), event, words)

    def packet_of(self, sender: Member, job: JobSpec, kind: int, **fields: object) -> Packet:
        """A packet of this build from a member to the job's parameter server."""
        return packet_of(sender, job, kind, contributions=self.contributions, **fields)

    def probe(self, sender: Member, job: JobSpec, event: str, words: str, **fields: object) -> None:
        self.send(sender.switch_port, self.packet_of(sender, job, PROBE, **fields), event, words)

    def result(self, job: JobSpec, event: str, words: str, *, port: int | None = None, **fields: object) -> None:
        """A complete sum of the parameter server, for a switch to copy to everyone."""
        server = job.parameter_server
        fields.setdefault("flags", FAN_OUT)
        fields.setdefault("bits", job.fan_in)
        fields.setdefault("lanes", self.values(lambda k: k + 1))
        packet = self.packet_of(server, job, RESULT, **fields).having(target=host(job.copied_to[0], "worker"))
        packet = packet.having(dst_port=21313)  # the port that switches listen for
        self.send(server.switch_port if port is None else port, packet, event, words)

    def send(self, port: int, packet: AnyPacket, event: str | None, words: str) -> None:
        """Any packet. event: the counter that must go up; None where no job counts it."""
        before = self.switch.events.copy()
        out = self.switch.receive(port, packet)
        counted = [name for (_, name) in self.switch.events - before]
        assert counted == ([event] if event else []), f"{self.name}: {words}: {counted or 'nothing'}, not {event}"
        what = text(packet.sa) + ": " if isinstance(packet, Packet) and packet.sa is not None else ""
        effect = f"{event}; " if event else ""
        ports = ", ".join(str(p) for p, _ in out)
        leaves = f"leaves by port {ports}" if out else "nothing leaves"
        self.comment(f"{what}{words} ({effect}{leaves})")
        moved = (port, "".join(packet.groups()), [(to, "".join(made.groups())) for to, made in out])
        self.steps.append((("packet", moved), f"{what}{words} ({effect}{leaves})"))
        self._lines.append(f"packet {port} " + " ".join(packet.groups()))
        self._lines += [f"expect {to} " + " ".join(made.groups()) + " $" for to, made in out]

    def wait(self, words: str) -> None:
        self.switch.wait()
        self.comment(words)
        self._lines.append("wait")
        self.steps.append((("wait", None), words))

    def check_counters(self) -> None:
        """What the switch has counted, of every event of every job."""
        self._lines += ["", f"# Counters: job * {EVENTS_PER_JOB} + event.", "wait"]
        counted = sorted({job.job for job in self.jobs} | {job for job, _ in self.switch.events})
        nonzero = {job: {e: n for (of, e), n in self.switch.events.items() if of == job} for job in counted}
        self.steps.append((("counters", nonzero), "what the switch has counted, of every job"))
        for job in counted:
            for i, event in enumerate(EVENTS):
                count = self.switch.events[job, event]
                self._lines.append(f"check_counter job_events({job * EVENTS_PER_JOB + i}) packets == {count}")

    # --- tables -------------------------------------------------------------------------------------------------------

    def _words(self) -> job_entries.BitmapWords:
        """What the program calls the words of a bitmap."""
        if self.contributions == 64:
            return job_entries.HALVES
        return job_entries.BitmapWords(tuple(map(str, range(self.contributions // 64))), 64)

    def _entries(self, loop_port: int | None) -> Iterator[str]:
        node = 0
        for job in self.jobs:
            slots = f"{job.slot_base} to {job.slot_base + job.slot_count - 1}"
            yield from _comment(
                f"Job {job.job}, epoch {job.epoch}: {job.level}, fan-in {job.fan_in:#x}, slots {slots}, "
                f"time to live {job.ttl_ticks} ticks of 1024 microseconds; what sa_atp/switches/control/jobs.py installs."
            )
            job = dataclasses.replace(job, loop_port=loop_port)
            yield from (_add(entry) for entry in job_entries.entries(job, self._words()))
            for group in job_entries.groups(job):
                yield f"mc_mgrp_create {group.group}"
                for replica in sorted(group.replicas, key=lambda r: r.instance):
                    yield f"mc_node_create {replica.instance} {replica.port}"
                    yield f"mc_node_associate {group.group} {node}"
                    node += 1
        if self.routes:
            yield from _comment("Where ordinary traffic goes.")
            for prefix, port in self.routes:
                ip, _, length = prefix.partition("/")
                number = int.from_bytes(bytes(int(octet) for octet in ip.split(".")), "big")
                yield f"add bridge ip:0x{number:08x}/{length or 32} to_port(port:{port})"


def _comment(words: str) -> list[str]:
    return ["", *(f"# {line}" for line in textwrap.wrap(" ".join(words.split()), WIDTH - 2))]


def host(member: Member, name: str = "") -> Host:
    return Host(name, member.mac_number, member.ip_number, member.udp_port)


def packet_of(sender: Member, job: JobSpec, kind: int, **fields: object) -> Packet:
    """A packet from a member to the job's parameter server; slot 0 of the job unless `slot` says another."""
    header = Header(kind=kind, job=job.job, epoch=job.epoch, slot=job.slot_base)
    packet = Packet(source=host(sender), target=host(job.parameter_server), sa=header, tos=ECT0)
    return packet.having(**fields)


def _add(entry: TableEntry) -> str:
    match = " ".join(f"{name}:{_value(name, value)}" for name, value in entry.match.items())
    parameters = ", ".join(f"{name}:{_number(name, value)}" for name, value in entry.params.items())
    priority = f" {entry.priority}" if entry.priority else ""
    return f"add {entry.table}{priority} {match} {entry.action}({parameters})"


def _value(name: str, match: Match) -> str:
    if isinstance(match, Ternary):
        width = WORD_BITS if match.mask >> 32 else SLOT_BITS
        digits = ["*" if not match.mask >> bit & 1 else str(match.value >> bit & 1) for bit in reversed(range(width))]
        return "0b" + "".join(digits)
    assert isinstance(match, Exact)
    return _number(name, match.value)


def _number(name: str, value: int) -> str:
    """Addresses and bitmaps in hex, with all their digits."""
    for part, digits in (("mac", 12), ("ip", 8), ("fan_in", 8)):
        if part in name:
            return f"0x{value:0{digits}x}"
    return str(value)


SLOT_BITS = 16
WORD_BITS = 64  # of a wide build's bitmap
assert SLOTS <= 1 << SLOT_BITS
