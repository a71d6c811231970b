"""100,000 datagrams that are none: nothing crashes, no sum changes, and every one of them is counted.

They arrive while two jobs that share 16 slots sum, with lost packets, so that the switch, the parameter server and the
workers all have sums under way. Random bytes, truncations, and bit flips of packets that were valid a moment ago.

What is *not* in here, because nobody can tell it from a valid packet: bits flipped in a member's own packet where any
value is a possible one (lanes, sequence number, exponent, tag, bits of the fan-in). On the way that damage is found by
Ethernet's frame check sequence, and by the UDP checksum where a host's kernel receives the packet; a member that does it
on purpose can contribute what it likes anyway. So what comes from a member is damaged where the protocol can see it, and
what comes from strangers is damaged anywhere, or not at all. (protocol section 13)
"""

import random
from collections.abc import Callable, Iterator
from socket import inet_aton
from typing import Any

import numpy as np
from helpers.cluster import SERVER, Cluster, Reduction, events_of
from helpers.damage import PLACES, Seen, bursts, cut, flip, flip_some, noise, tapped
from helpers.messages import packet_of

from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.lab.simulator.world import SwitchPorts
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.frames import HEADERS_BYTES, Endpoint, checksum, datagram, headers_for, mac_for
from sa_atp.protocol.packets.header import pack
from sa_atp.protocol.packets.spec import HEADER_BYTES, MOST_CONTRIBUTIONS, MOST_RANKS, UDP_PORT, Flag, Kind
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.switches.control.events import Event
from sa_atp.switches.embedded.pipeline import ROW_BYTES, Pipeline

FOR_SWITCH, FOR_WORKER, FOR_SERVER = 34_000, 33_000, 33_000
BATCH = 500
EVERY_US = 200
SLOTS = 16
STRANGER: Address = ("10.0.77.7", 40_000)

# what the protocol can see to be wrong, whoever sends it; two flips of `kind` could make another valid packet
CHECKED = [*PLACES["version"], *PLACES["job"], *PLACES["epoch"]]


class Jobs:
    """Two jobs that sum for as long as datagrams are injected."""

    def __init__(self, pipeline: Pipeline, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = Cluster(
            [pipeline],
            seed=seed,
            links=LinkSettings(loss=0.005),
            settings=ServerSettings(slots=SLOTS, slots_per_job=SLOTS),
            ttl_ticks=5,
        )
        self.reductions: list[list[Reduction]] = [[], []]
        self.stop = False
        for number in (0, 1):
            self.cluster.start_job(3, name=f"job {number}")
        for workers in self.cluster.jobs:
            self.cluster.run_until_joined(workers)
        for number, workers in enumerate(self.cluster.jobs):
            for worker in workers:
                self._begin(worker, number, 0)

    def _begin(self, worker: SimWorker, number: int, at: int) -> None:
        """Begins the next sum. All ranks do equally many: the first rank that stops decides for all."""
        sums = self.reductions[number]
        if at == len(sums):
            if self.stop:
                return
            values = np.random.default_rng([number, at])
            parts = [[values.standard_normal(300).astype(np.float32)] for _ in range(3)]
            sums.append(Reduction(parts, "tensor"))
        sums[at].start(worker).future.add_done_callback(
            lambda _: self.cluster.clock.at(self.cluster.clock.now_us, lambda: self._begin(worker, number, at + 1))
        )

    def disturb(self, total: int, inject: Callable[[int], None]) -> None:
        """Injects datagrams in batches while sums are under way, then checks every sum."""
        done = 0

        def batch() -> None:
            nonlocal done
            inject(min(BATCH, total - done))
            done += min(BATCH, total - done)
            if done == total:
                self.stop = True
            else:
                clock.at(clock.now_us + EVERY_US, batch)

        clock = self.cluster.clock
        self.cluster.run_for(0.005)  # until packets of all kinds have passed
        clock.at(clock.now_us, batch)
        self.cluster.run(lambda: self.stop and all(r.over for sums in self.reductions for r in sums))
        assert done == total
        for sums in self.reductions:
            assert len(sums) > 10
            for reduction in sums:
                reduction.check()


# --- the switch -------------------------------------------------------------------------------------------------------


class AtSwitch:
    """Injects damaged frames into a switch, and classifies what it does with each."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.rng = jobs.rng
        self.rack = jobs.cluster.world.root
        self.counted = dict.fromkeys((Event.MALFORMED, Event.FOREIGN, Event.STALE, Event.PASSED_UP), 0)
        self.passed_on = self.corrupt = self.counted_by_hosts = 0
        self.seen = Seen()
        self._hosts = {self.rack.ports[ip]: host for ip, host in jobs.cluster.world.hosts.items()}
        self._frames = self.frames()
        receive = self.rack.switch.receive

        def tap(frame: bytes, port: int) -> None:
            kind, flags = frame[HEADERS_BYTES] & 15, frame[HEADERS_BYTES + 1]
            bridged = kind == Kind.RESULT and not flags & Flag.FAN_OUT
            if frame[30:34] != inet_aton(STRANGER[0]) and not bridged:
                self.seen.note(port, frame, frame[HEADERS_BYTES:])
            receive(frame, port)

        self.rack.switch.receive = tap  # type: ignore[method-assign]

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Port and frame."""
        rng = self.rng
        member = self.jobs.cluster.jobs[0][1].host.endpoint
        port = self.rack.ports[member.address[0]]
        server = Endpoint(mac_for(SERVER[0]), SERVER)
        while True:
            yield port, _frame(member, server, noise(rng))
            yield SwitchPorts().server, _frame(server, Endpoint(member.mac, (member.address[0], UDP_PORT)), noise(rng))
            for kind in (Kind.DATA, Kind.DATA, Kind.RESULT, Kind.PROBE, Kind.CONTROL):
                found = self.seen.some(rng, kind)
                if found is None:
                    continue
                where, frame = found
                assert isinstance(where, int)
                source, target, payload = datagram(frame) or (("", 0), ("", 0), b"")
                ends = Endpoint(mac_for(source[0]), source), Endpoint(mac_for(target[0]), target)
                # the frame is cut, or the datagram in it
                yield where, cut(rng, frame, least=34)
                yield where, _frame(*ends, cut(rng, payload))
                # damaged in a field that the switch checks; it checks none of control messages
                if kind is not Kind.CONTROL:
                    slots = PLACES["slot"][:-4]  # there are 16
                    yield where, flip_some(rng, frame, [8 * HEADERS_BYTES + p for p in [*CHECKED, *slots]])
                    yield where, flip(frame, [8 * HEADERS_BYTES + rng.choice(PLACES["kind"])])
                    yield where, flip(frame, [rng.choice(range(8 * 14, 8 * 34))])  # in the IPv4 header
                    yield where, flip(frame, [rng.choice(range(8 * 34, 8 * 36))])  # source port
                    yield where, flip(frame, [rng.choice(range(8 * 38, 8 * 40))])  # length
                if kind is Kind.DATA:
                    beyond = PLACES["bits_hi"]  # the jobs have three contributions
                    yield where, flip(frame, [8 * HEADERS_BYTES + rng.choice(beyond)])
                # from a port without a member: any field may be damaged
                if kind is not Kind.CONTROL:
                    stranger = Endpoint(mac_for(STRANGER[0]), STRANGER)
                    yield where, _frame(stranger, ends[1], payload)
                    yield where, _frame(stranger, ends[1], flip_some(rng, payload))
                    yield where % 3 + 400, frame
                    yield where % 3 + 400, flip_some(rng, frame, range(8 * HEADERS_BYTES, 8 * len(frame)))

    def inject(self, count: int) -> None:
        rows = np.zeros((count, ROW_BYTES), np.uint8)
        lengths, ports = np.zeros(count, np.int64), np.zeros(count, np.int64)
        corrupt = set()
        for row, (port, frame) in zip(range(count), self._frames, strict=False):
            rows[row, : len(frame)] = np.frombuffer(frame, np.uint8)
            lengths[row], ports[row] = len(frame), port
            if checksum(frame[14:34]) != 0:
                corrupt.add(row)
        before = self._counted()
        out = self.rack.switch.pipeline.process(rows, lengths, ports, self.jobs.cluster.clock.now_us)
        for event, counted in enumerate((self._counted() - before).tolist()):
            assert not counted or Event(event) in self.counted, f"{Event(event).name}: {counted} of what was injected"
            if counted:
                self.counted[Event(event)] += counted
        sources = set(out.sources.tolist())
        assert len(sources) == len(out), "copied"
        self.passed_on += len(out)
        self.corrupt += len(corrupt - sources)
        before_hosts = self._counted_by_hosts()
        for port, frame in [(int(out.ports[i]), out.packet(i)) for i in range(len(out))]:
            self._hosts[port].receive(frame)
        self.counted_by_hosts += self._counted_by_hosts() - before_hosts

    def _counted(self) -> np.ndarray:
        """Packets of each event, of all jobs together."""
        return events_of(self.rack.switch)

    def _counted_by_hosts(self) -> int:
        """Datagrams that hosts have refused."""
        workers = [worker for workers in self.jobs.cluster.jobs for worker in workers]
        return (
            sum(host.not_datagrams for host in self._hosts.values())
            + sum(refused_by_worker(worker) for worker in workers)
            + refused_by_server(self.jobs.cluster)
        )


def refused_by_worker(worker: SimWorker) -> int:
    stats = worker.worker.stats
    return stats.malformed + stats.foreign + stats.stale


def refused_by_server(cluster: Cluster) -> int:
    server = cluster.world.server
    stats = [job.stats for job in server.jobs.values()]
    return (
        server.malformed
        + server.foreign
        + sum(s.malformed + s.foreign + s.stale + s.beyond + s.duplicates for s in stats)
    )


def _frame(source: Endpoint, target: Endpoint, payload: bytes) -> bytes:
    return headers_for(source, target, len(payload)).tobytes() + payload


def test_a_switch_refuses_or_passes_on_and_never_adds(pipeline: Pipeline) -> None:
    """A host refuses what the switch bridges to it; frames with a bad IPv4 checksum are dropped, as by any router."""
    jobs = Jobs(pipeline, seed=1)
    site = AtSwitch(jobs)
    jobs.disturb(FOR_SWITCH, site.inject)
    assert all(count > 1000 for count in site.counted.values()), site.counted
    passed_up = site.counted.pop(Event.PASSED_UP)
    assert sum(site.counted.values()) + site.passed_on + site.corrupt == FOR_SWITCH
    assert site.passed_on > passed_up
    assert site.passed_on == site.counted_by_hosts


def test_a_members_packets_with_other_flags_or_slots_cost_time_only(pipeline: Pipeline) -> None:
    """These packets are valid; their bits say what they contribute, so no sum is wrong wherever they are added."""
    jobs = Jobs(pipeline, seed=4)
    switch = jobs.cluster.world.root.switch
    seen = Seen()
    receive = switch.receive

    def tap(frame: bytes, port: int) -> None:
        seen.note(port, frame, frame[HEADERS_BYTES:])
        receive(frame, port)

    switch.receive = tap  # type: ignore[method-assign]
    places = [8 * HEADERS_BYTES + p for p in [*PLACES["flags"], *PLACES["slot"][-4:]]]

    def inject(count: int) -> None:
        for _ in range(count // 20):
            found = seen.some(jobs.rng, Kind.DATA)
            if found is not None and isinstance(found[0], int):
                receive(flip_some(jobs.rng, found[1], places), found[0])

    jobs.disturb(30_000, inject)  # 1500 of them
    events = events_of(switch)
    assert min(events[e] for e in (Event.COLLISION, Event.PASSED_UP, Event.ANSWERED, Event.HANDED_OVER)) > 0, events


# --- hosts ------------------------------------------------------------------------------------------------------------


def damaged_for_worker(jobs: Jobs, worker: SimWorker, seen: Seen) -> Iterator[tuple[Address, bytes]]:
    """Sender and datagram."""
    rng, member = jobs.rng, worker.membership
    header: dict[str, Any] = {"job": member.job, "epoch": member.epoch}
    while True:
        yield SERVER, noise(rng)
        yield SERVER, pack(Kind.CONTROL, body=rng.randbytes(rng.randrange(100)), seq=rng.getrandbits(32), **header)
        yield SERVER, packet_of(_nonsense(rng), request=0, reply=True, **header)
        # nobody has asked, or only now
        yield SERVER, pack(Kind.PROBE_REPLY, seq=rng.getrandbits(32), bits=rng.getrandbits(64), **header)
        for kind in (Kind.RESULT, Kind.RESULT, Kind.PROBE_REPLY, Kind.CONTROL):
            found = seen.some(rng, kind)
            if found is None:
                continue
            packet = found[1]
            yield SERVER, cut(rng, packet)
            yield SERVER, flip_some(rng, packet, CHECKED)
            yield SERVER, flip(packet, [rng.choice(PLACES["kind"])])
            if kind is Kind.RESULT:
                yield SERVER, flip_some(rng, packet, [*PLACES["bits_hi"], *PLACES["bits_lo"]])
            yield STRANGER, packet
            yield STRANGER, flip_some(rng, packet)
            yield (
                (SERVER[0], SERVER[1] + 1),
                flip_some(rng, packet, range(8 * HEADER_BYTES, 8 * len(packet)) or CHECKED),
            )


def test_a_worker_refuses_and_counts(pipeline: Pipeline) -> None:
    jobs = Jobs(pipeline, seed=2)
    worker = jobs.cluster.jobs[0][1]
    seen = Seen()
    receive, stats = worker.worker.receive, worker.worker.stats
    worker.worker.receive = tapped(receive, seen)  # type: ignore[method-assign]
    damaged = damaged_for_worker(jobs, worker, seen)

    def counted() -> int:
        return refused_by_worker(worker) + stats.probe_replies

    def inject(count: int) -> None:
        before = counted()
        receive(bursts([next(damaged) for _ in range(count)]), jobs.cluster.clock.now_us)
        assert counted() - before == count
        worker.host.serve()

    jobs.disturb(FOR_WORKER, inject)
    assert all(n > 1000 for n in (stats.malformed, stats.foreign, stats.stale, stats.probe_replies)), stats


def _nonsense(rng: random.Random) -> dict[str, Any]:
    """Control messages for a worker that are unexpected or lack fields."""
    return rng.choice(
        [
            {"type": "recall"},
            {"type": "recall", "first": -1, "count": 5},
            {"type": "recall", "first": 7, "count": 1 << 40},
            {"type": "recall", "first": True, "count": 1},
            {"type": "failed", "reason": "lost", "ranks": [64]},
            {"type": "failed", "reason": "lost", "ranks": {"0": 0}},
            {"type": "failed", "ranks": [0.0]},
            {"type": "\ud800"},
            {"type": "join", "name": "job"},
        ]
    )


def damaged_for_server(jobs: Jobs, member: SimWorker, seen: Seen) -> Iterator[tuple[Address, bytes]]:
    """Sender and datagram."""
    rng = jobs.rng
    address = member.host.endpoint.address
    header: dict[str, Any] = {"job": member.membership.job, "epoch": member.membership.epoch}
    far = list(PLACES["seq"])[1:10]  # 2^22 to 2^30 numbers away
    while True:
        for sender in (address, STRANGER):
            yield sender, noise(rng)
            yield sender, packet_of(_unusable(rng), request=rng.choice((0, rng.getrandbits(32))), **header)
            yield sender, pack(Kind.CONTROL, body=rng.randbytes(rng.randrange(100)), seq=rng.getrandbits(32), **header)
        for kind in (Kind.DATA, Kind.DATA, Kind.RESULT, Kind.PROBE, Kind.CONTROL):
            found = seen.some(rng, kind)
            if found is None:
                continue
            origin, packet = found
            assert isinstance(origin, tuple)
            yield origin, cut(rng, packet)
            yield origin, flip_some(rng, packet, CHECKED)
            if kind in (Kind.DATA, Kind.RESULT):
                yield origin, flip(packet, [rng.choice(PLACES["kind"])])
                yield origin, flip(packet, [rng.choice(PLACES["bits_hi"])])
                yield origin, flip(packet, [rng.choice(far)])
            yield STRANGER, packet
            yield STRANGER, flip_some(rng, packet)
            yield (
                (address[0], address[1] + 100),
                flip_some(rng, packet, range(8 * HEADER_BYTES, 8 * len(packet)) or CHECKED),
            )


def test_the_parameter_server_refuses_and_counts(pipeline: Pipeline) -> None:
    jobs = Jobs(pipeline, seed=3)
    server = jobs.cluster.world.server
    seen = Seen()
    receive = server.receive
    server.receive = tapped(receive, seen)  # type: ignore[method-assign]
    damaged = damaged_for_server(jobs, jobs.cluster.jobs[0][1], seen)

    def inject(count: int) -> None:
        before = refused_by_server(jobs.cluster)
        receive(bursts([next(damaged) for _ in range(count)]), jobs.cluster.clock.now_us)
        assert refused_by_server(jobs.cluster) - before == count
        jobs.cluster.world.server_host.serve()

    jobs.disturb(FOR_SERVER, inject)
    assert len(server.jobs) == 2
    stats = server.jobs[1].stats
    assert min(server.malformed, server.foreign) > 1000
    assert min(stats.malformed, stats.foreign, stats.stale, stats.beyond) > 300, stats


def _unusable(rng: random.Random) -> dict[str, Any]:
    """Messages whose fields are missing, of another type, or out of range."""
    huge, listed = 1 << 70, [[[1]]]
    return rng.choice(
        [
            {"type": "alive"},
            {"type": "alive", "oldest": -1},
            {"type": "alive", "oldest": 1.5},
            {"type": "alive", "oldest": True},
            {"type": "leave", "oldest": "0"},
            {"type": "leave", "oldest": huge},
            {"type": "fetch", "first": 0},
            {"type": "fetch", "first": 0, "count": 0},
            {"type": "fetch", "first": 0, "count": 1025},
            {"type": "claim", "step": 0, "begun": 1, "held": 64},
            {"type": "claim", "step": listed, "begun": 0, "held": 1},
            {"type": "claim", "step": 0, "begun": 1, "held": 0},
            {"type": "claim", "step": 0, "begun": 0, "held": 1, "took_us": -1},
            {"type": "ask", "step": 0, "missing": 1 << MOST_CONTRIBUTIONS, "took_us": 0, "busy_us": 0},
            {"type": "ask", "step": 0, "missing": 0, "took_us": 0, "busy_us": None},
            {"type": "ask", "step": 0, "missing": 0, "took_us": 0, "busy_us": 0, "pending": 1001},
            {"type": "idle"},
            {"type": "describe", "job": 0, "rank": 0},
            {"type": "join"},
            {"type": "join", "name": "x" * 65, "rank": 0, "world_size": 1},
            {"type": "join", "name": "job 0", "rank": 3, "world_size": 3},
            {"type": "join", "name": "job 0", "rank": 0, "world_size": MOST_RANKS + 1},
            {"type": "join", "name": "job 0", "rank": 0, "world_size": 3, "micro_batches": 171},
            {"type": "join", "name": 0, "rank": 0, "world_size": 3, "micro_batches": 1},
            {"type": "unknown"},
            {"type": "\ud800" * 60},
        ]
    )
