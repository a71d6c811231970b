"""The switch as a person reads the rules: what comes out for what comes in.

Plain Python, one packet at a time, with a dictionary for the slots. It shares no code with the P4 program, its translation
or the targets: the golden vectors are what this model says, and every target has to agree with it.

Where the rules stand: p4src/core/parser.p4 (what is an SA-ATP packet), admission.p4 (who may do what), slot_state.p4 (what
a packet finds), verdict.p4 (what happens), dispatch.p4 and egress.p4 (where it goes, and with which addresses);
docs/protocol.md, section 4.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

from sa_atp.switches.control.jobspec import JobSpec, Member

from .packets import (
    COLLISION,
    CONTROL,
    DATA,
    FAN_OUT,
    ON_BEHALF,
    PARTIAL,
    PROBE,
    PROBE_REPLY,
    RESEND,
    RESULT,
    SA_PORT,
    AnyPacket,
    Arp,
    Header,
    Host,
    Packet,
)  # fmt: skip

WAIT_TICKS = 97  # of 1024 microseconds in what `wait` is on the embedded target: a tenth of a second
LANE_MAX, LANE_MIN = 2**31 - 1, -(2**31)

# event counters (admission.p4)
EVENTS = (
    "malformed", "foreign", "stale", "claimed", "added", "completed", "duplicate", "answered", "collision", "evicted",
    "handed over", "passed up", "probed", "fanned out", "finished",
)  # fmt: skip


@dataclass(frozen=True)
class Name:
    """What a slot's owner is known by; a packet that differs in any of these is of another fragment."""

    job: int
    epoch: int
    exponent: int
    tag: int
    seq: int


@dataclass
class Slot:
    """name: whose sum it is; None once it was given up. bits: what is in the sum; offered: what ever came for it.

    lapsed: anyone may claim it, however fresh it is. live: its sum is still wanted, and is handed over when it is claimed.
    """

    seq: int
    name: Name | None
    bits: int
    offered: int
    lanes: tuple[int, ...]
    touched: int
    lapsed: bool = False
    live: bool = True


@dataclass(frozen=True)
class Verdict:
    """The row of the truth table that a packet hits, in the codes of types.p4."""

    intent: int
    found: int
    is_leaf: int
    overlap: int
    full: int


CONTRIBUTE, RESENT, ASK, RELEASE, BEYOND, REFUSED = range(1, 7)
FREE, EXPIRED, OTHER, OPEN, DONE = range(5)


class Switch:
    def __init__(self, lanes: int, jobs: list[JobSpec], routes: list[tuple[str, int]], contributions: int = 64) -> None:
        """Args: routes: (network in CIDR form, port)."""
        self.lanes = lanes
        self.header = 12 + contributions // 8  # bytes, of what is no control message
        self.jobs = {(job.job, job.epoch): job for job in jobs}
        self.routes = [(_network(prefix), port) for prefix, port in routes]
        self.slots: dict[int, Slot] = {}
        self.now = 0  # ticks
        self.events: Counter[tuple[int, str]] = Counter()
        self.verdicts: list[Verdict] = []

    def wait(self) -> None:
        self.now += WAIT_TICKS

    def receive(self, port: int, packet: AnyPacket) -> list[tuple[int, AnyPacket]]:
        """(port, packet) of each packet that comes out."""
        if isinstance(packet, Arp):
            return self._bridge(packet.target.ip, packet)
        if not isinstance(packet, Packet):
            return self._bridge(0, packet)
        if not packet.checksum_is_right and not packet.options:
            return []
        is_udp = packet.protocol == 17 and not packet.options and not packet.fragment & 0x3FFF
        dst_port = packet.target.udp_port if packet.dst_port is None else packet.dst_port
        if not is_udp or dst_port != SA_PORT:
            return self._bridge(packet.target.ip, packet)
        octets = sum(len(group) for group in packet.groups()) // 2
        if packet.sa is None or octets < 14 + 20 + 8 + 20:
            self.events[0, "malformed"] += 1
            return []
        sa = packet.sa
        if sa.kind in (CONTROL, PROBE_REPLY) or (sa.kind == RESULT and not sa.flags & FAN_OUT):
            return self._bridge(packet.target.ip, packet)  # from host to host
        return self._aggregate(port, packet.having(udp_checksum=0), sa)

    def _bridge(self, ip: int, packet: AnyPacket) -> list[tuple[int, AnyPacket]]:
        matching = [(mask, port) for (network, mask), port in self.routes if ip & mask == network]
        return [(max(matching)[1], packet)] if matching else []

    # --- who may do what ----------------------------------------------------------------------------------------------

    def _aggregate(self, port: int, packet: Packet, sa: Header) -> list[tuple[int, AnyPacket]]:
        intent, event, job = self._admit(port, packet, sa)
        if job is None:
            assert event is not None
            self.events[sa.job, event] += 1
            self.verdicts.append(Verdict(REFUSED, FREE, 0, 0, 0))
            return []
        found, overlap, full = FREE, False, False
        if intent != BEYOND:
            found, overlap, full = self._look(intent, sa, job)
        self.verdicts.append(Verdict(intent, found, int(job.level == "leaf"), int(overlap), int(full)))
        event, out = self._decide(port, intent, found, overlap, full, packet, sa, job)
        self.events[sa.job, event] += 1
        return out

    def _admit(self, port: int, packet: Packet, sa: Header) -> tuple[int, str | None, JobSpec | None]:
        """Intent, or (what is wrong with the packet, no job)."""
        whole = self.header + 4 * self.lanes
        complete = _payload_bytes(packet) >= whole and _udp_bytes(packet) == 8 + whole
        bare = _payload_bytes(packet) >= self.header and _udp_bytes(packet) == 8 + self.header
        if sa.version != 1:
            return REFUSED, "malformed", None
        if sa.kind == DATA and complete and sa.bits:
            intent = CONTRIBUTE
        elif sa.kind == RESULT and complete:
            intent = RELEASE
        elif sa.kind == PROBE and bare:
            intent = ASK
        else:
            return REFUSED, "malformed", None
        job = self.jobs.get((sa.job, sa.epoch))
        if job is None or not job.slot_base <= sa.slot < job.slot_base + job.slot_count:
            return REFUSED, "stale", None
        sender = (port, packet.source.ip, packet.source.udp_port)
        members = {(m.switch_port, *m.address) for m in job.members}
        above = {(h.switch_port, *h.address) for h in (job.parameter_server, job.uplink)}
        if job.level == "leaf":
            above.add((job.uplink.switch_port, *job.parameter_server.address))
        if sender not in members | above or (intent == RELEASE and sender not in above):
            return REFUSED, "foreign", None
        if intent == CONTRIBUTE:
            if sa.bits & ~job.fan_in or (job.level == "leaf" and sa.flags & ON_BEHALF):
                intent = BEYOND
            elif sa.flags & RESEND:
                intent = RESENT
        return intent, None, job

    # --- what the slot says -------------------------------------------------------------------------------------------

    def _look(self, intent: int, sa: Header, job: JobSpec) -> tuple[int, bool, bool]:
        """What the packet finds; whether some of its bits were offered before; whether it makes the sum complete.

        Changes what does not depend on the verdict: who was heard of, and what was offered.
        """
        slot = self.slots.get(sa.slot)
        lapsed = slot is None or slot.lapsed or self.now - slot.touched > job.ttl_ticks
        if slot is None or slot.seq != sa.seq:
            if intent != CONTRIBUTE or not lapsed:
                return OTHER, False, False
            if slot is not None and slot.live and sa.bits != job.fan_in:
                return EXPIRED, False, False
            return FREE, False, sa.bits == job.fan_in
        if intent == CONTRIBUTE and not lapsed:
            slot.touched = self.now
        if intent in (RESENT, RELEASE):
            slot.lapsed = True
        adds = intent in (CONTRIBUTE, RESENT)
        overlap = bool(adds and slot.offered & sa.bits)
        if adds:
            slot.offered |= sa.bits
        if slot.name != _name(sa):
            return OTHER, False, False
        if intent in (RESENT, RELEASE):
            slot.live = False
        if intent == RESENT:
            slot.name = None
        if adds and not overlap:
            return OPEN, False, slot.bits | sa.bits == job.fan_in
        return DONE if slot.bits == job.fan_in else OPEN, True, False

    # --- what happens -------------------------------------------------------------------------------------------------

    def _decide(
        self, port: int, intent: int, found: int, overlap: bool, full: bool, packet: Packet, sa: Header, job: JobSpec
    ) -> tuple[str, list[tuple[int, AnyPacket]]]:
        """The event that is counted, and what comes out. Changes the slot."""
        slot = self.slots.get(sa.slot)
        if intent == BEYOND:
            return "passed up", self._up(job, packet)
        if intent == RELEASE:
            return "fanned out", self._down(job, packet)
        if intent == ASK:
            if found == OPEN or (found == DONE and job.level == "root"):
                assert slot is not None
                return "probed", [self._answer(port, packet.having(kind=PROBE_REPLY, bits=slot.bits))]
            return "probed", self._up(job, packet)

        if found == DONE:
            assert slot is not None
            kept = packet.having(lanes=slot.lanes)
            if job.level == "leaf":
                return "answered", self._complete_up(job, kept)
            return "answered", [self._answer(port, _result(kept, job))]
        if found == OPEN and overlap:
            if intent == CONTRIBUTE:
                return "duplicate", []
            assert slot is not None
            return "handed over", self._hand_over(job, packet.having(lanes=slot.lanes, bits=slot.bits))
        if found == OPEN:
            assert slot is not None
            slot.lanes = _sum(slot.lanes, packet.lanes or ())
            slot.bits |= sa.bits
            packet = packet.having(lanes=slot.lanes)
            if full:
                if job.level == "root":
                    slot.lapsed, slot.live = True, False
                return "completed", self._complete(job, packet)
            if intent == CONTRIBUTE:
                return "added", []
            return "handed over", self._hand_over(job, packet.having(bits=slot.bits))
        if intent == RESENT:  # nothing of this fragment is here
            return "passed up", self._up(job, packet)
        if found == OTHER:
            return "collision", self._up(job, packet.having(flags=sa.flags | COLLISION))

        # free, or expired: the packet takes the slot
        assert packet.lanes is not None
        evicted = slot if found == EXPIRED else None
        self.slots[sa.slot] = Slot(sa.seq, _name(sa), sa.bits, sa.bits, packet.lanes, self.now)
        if evicted is not None:
            return "evicted", self._evict(packet, evicted)
        if not full:
            return "claimed", []
        if job.level == "root":
            self.slots[sa.slot].lapsed, self.slots[sa.slot].live = True, False
        return "completed", self._complete(job, packet)

    def _complete(self, job: JobSpec, packet: Packet) -> list[tuple[int, AnyPacket]]:
        if job.level == "leaf":
            return self._complete_up(job, packet)
        result = _result(packet, job)
        return self._down(job, result.having(flags=_flags(result) | FAN_OUT))

    def _complete_up(self, job: JobSpec, packet: Packet) -> list[tuple[int, AnyPacket]]:
        """As if one worker had sent the sum of all."""
        return self._up(job, packet.having(bits=job.fan_in, flags=_flags(packet) & ~(PARTIAL | COLLISION | ON_BEHALF)))

    def _hand_over(self, job: JobSpec, packet: Packet) -> list[tuple[int, AnyPacket]]:
        """An incomplete sum leaves for good."""
        return self._up(job, packet.having(flags=_flags(packet) & ~(RESEND | ON_BEHALF) | PARTIAL))

    def _evict(self, packet: Packet, old: Slot) -> list[tuple[int, AnyPacket]]:
        """An idle sum leaves under its own name, in the packet that pushed it out, sent by a member of its job."""
        assert old.name is not None
        job = self.jobs[old.name.job, old.name.epoch]
        evicted = packet.having(
            lanes=old.lanes,
            bits=old.bits,
            flags=_flags(packet) & ~(COLLISION | ON_BEHALF) | PARTIAL,
            **dataclasses.asdict(old.name),
        )
        return [(job.uplink.switch_port, _between(job.members[0], job.uplink, evicted))]

    # --- where it goes ------------------------------------------------------------------------------------------------

    def _up(self, job: JobSpec, packet: Packet) -> list[tuple[int, AnyPacket]]:
        """To the next level: from a leaf in the name of whoever sent it, from a root in that of the first member."""
        if job.level == "root":
            packet = _between(job.members[0], job.uplink, packet)
        return [(job.uplink.switch_port, packet)]

    def _down(self, job: JobSpec, packet: Packet) -> list[tuple[int, AnyPacket]]:
        """A copy for each receiver, from the parameter server; its own copy comes from a member."""
        server = job.parameter_server
        out: list[tuple[int, AnyPacket]] = []
        for member in job.copied_to:
            copy = packet
            if member.switch_port in job.leaf_ports:  # the leaf takes the copy, and makes more
                member = dataclasses.replace(member, udp_port=SA_PORT)
            elif _whose(job, packet) not in (None, member.rank):
                copy = packet.having(lanes=None)
            out.append((member.switch_port, _between(server, member, copy)))
        if job.level == "root":
            out.append((server.switch_port, _between(job.members[0], server, packet)))
        return out

    def _answer(self, port: int, packet: Packet) -> tuple[int, AnyPacket]:
        """Back to the sender, from where it sent to."""
        return port, packet.having(source=packet.target, target=packet.source)


def _whose(job: JobSpec, packet: Packet) -> int | None:
    """The rank that alone needs the values of a result; None: everybody does."""
    if not job.scattered_to or packet.sa is None:
        return None
    places = next(2**n for n in range(16) if 2**n > job.scattered_to)
    place = packet.sa.slot // min(32, job.slot_count // places) % places
    return place if place < job.scattered_to else None


def _result(packet: Packet, job: JobSpec) -> Packet:
    """A complete sum, as the last level sends it."""
    flags = _flags(packet) & ~(RESEND | PARTIAL | COLLISION | ON_BEHALF)
    return packet.having(kind=RESULT, bits=job.fan_in, flags=flags)


def _flags(packet: Packet) -> int:
    assert packet.sa is not None
    return packet.sa.flags


def _name(sa: Header) -> Name:
    return Name(sa.job, sa.epoch, sa.exponent, sa.tag, sa.seq)


def _sum(held: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    """Lane by lane, at the bounds of an int32 where it would go beyond."""
    return tuple(min(max(a + b, LANE_MIN), LANE_MAX) for a, b in zip(held, more, strict=True))


def _udp_bytes(packet: Packet) -> int:
    """What the UDP header says."""
    if packet.udp_bytes is not None:
        return packet.udp_bytes
    return packet.cut + _payload_bytes(packet) + 8


def _payload_bytes(packet: Packet) -> int:
    """What is there after the UDP header."""
    return sum(len(group) for group in packet.groups()) // 2 - 42


def _between(source: Member, target: Member, packet: Packet) -> Packet:
    """The packet with these addresses."""
    return packet.having(source=_host(source), target=_host(target), dst_port=None)


def _host(member: Member) -> Host:
    return Host("", member.mac_number, member.ip_number, member.udp_port)


def _network(prefix: str) -> tuple[int, int]:
    """(address, mask)."""
    ip, _, length = prefix.partition("/")
    octets = [int(octet) for octet in ip.split(".")]
    return int.from_bytes(bytes(octets), "big"), ~((1 << (32 - int(length or 32))) - 1) & 0xFFFFFFFF
