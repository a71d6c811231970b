"""SwitchML's workers (Sapio et al., NSDI 2021, algorithm 4) and the entries of its switch program (p4src/peers/switchml).

A tensor is cut into blocks of as many values as a packet has. Block b goes through slot b modulo the number of slots, so a
slot's blocks follow one another: a worker sends the next when it has the result of the last. What has no result after a
time-out is sent again; the time-out doubles while no result comes at all. Values are integers: of each block, the largest
exponent of all workers decides the scale. It is agreed on one packet ahead: a slot's first packet carries no values, and
each later one the exponent of the block that follows.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sa_atp.basics.arrays import ByteRows, Mask, Numbers, Values
from sa_atp.basics.errors import UserError
from sa_atp.lab.peers.peer import Peer, PeerJob
from sa_atp.protocol.job.errors import TransportError
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.frames import ip_number
from sa_atp.switches import artefacts
from sa_atp.switches.control import routes
from sa_atp.switches.p4runtime.entities import Entity, Exact, MulticastGroup, Replica, TableEntry

JOB = 1
SLOTS = 512  # of the program
HEADER_BYTES = 8
FIRST_ROUND = 2  # the program's registers begin with round 0
ZERO_EXPONENT = 127  # added to an exponent, so that a byte holds it
SUM_BITS = 30  # a sum of all workers stays below 2^30
PATIENCE = 4  # time-outs in a row, without a result, before the time-out doubles
MOST_DOUBLINGS = 6
GIVE_UP_US = 60_000_000  # without a result


def exponents_of(values: Values) -> Numbers:
    """The exponent e of each block, as a byte that `ZERO_EXPONENT` has been added to: its values are below 2^e.

    Args: values: float32[blocks, lanes], finite.
    """
    _, exponents = np.frexp(np.abs(values).max(axis=1))
    found: Numbers = np.clip(exponents.astype(np.int64) + ZERO_EXPONENT, 0, 255)
    return found


def shift_of(exponents: Numbers, workers: int) -> Numbers:
    """By how many bits the values of a block with these exponents, as bytes, are shifted, so that no sum overflows."""
    return SUM_BITS - (workers - 1).bit_length() - (exponents - ZERO_EXPONENT)


def reference(parts: Sequence[Values], lanes: int) -> Values:
    """The sum that the protocol makes of all workers' tensors, float32[n], worked out without packets."""
    blocks = [_blocks(part, lanes) for part in parts]
    shift = shift_of(np.max([exponents_of(each) for each in blocks], axis=0), len(parts))[:, None]
    total = np.sum([np.rint(np.ldexp(each.astype(np.float64), shift)) for each in blocks], axis=0)
    found: Values = np.ldexp(total, -shift).astype(np.float32).reshape(-1)[: len(parts[0])]
    return found


def _blocks(values: Values, lanes: int) -> Values:
    """Cuts a tensor into float32[blocks, lanes], with zeros after its end."""
    padded = np.zeros((max(1, -(-len(values) // lanes)), lanes), np.float32)
    padded.reshape(-1)[: len(values)] = values
    return padded


class SwitchMlTransport:
    """SwitchML's end at one worker: its slots, what it has sent for each, and when (a Transport)."""

    def __init__(self, rank: int, job: PeerJob) -> None:
        self.error: TransportError | None = None
        self.sent = 0
        self.retransmitted = 0
        self._rank = rank
        self._job = job
        slots = job.slots
        self._rounds = np.full(slots, FIRST_ROUND - 1, np.int64)  # the last that each slot was used for
        self._scales = np.zeros(slots, np.int64)  # the exponent of the block that comes next
        self._blocks = np.full(slots, -1, np.int64)  # whose values are under way; below 0: only an exponent is
        self._awaits = np.zeros(slots, np.bool_)
        self._to_send = np.zeros(slots, np.bool_)
        self._places = np.zeros(slots, np.int64)  # in the queue of those to send
        self._queued = 0  # how often a slot has been put there
        self._due_us = np.zeros(slots, np.int64)  # when what was sent is late
        self._late = 0  # how often something was late since a result came
        self._packets = np.zeros((slots, HEADER_BYTES + 4 * job.lanes), np.uint8)
        self._size = 0
        self._values = self._sum = np.zeros((0, job.lanes), np.float32)
        self._exponents = np.zeros(0, np.int64)
        self._last_us = 0  # when something came last
        self._done: Values | None = None

    def begin(self, values: Values, now_us: int) -> None:
        """Raises: UserError: a value is not finite."""
        if not np.isfinite(values).all():
            raise UserError(f"rank {self._rank}: a value is not finite, which SwitchML cannot sum")
        self._size = len(values)
        self._values = _blocks(values, self._job.lanes)
        self._sum = np.empty_like(self._values)
        self._exponents = exponents_of(self._values)
        self._last_us = now_us
        used = np.arange(min(self._job.slots, len(self._values)))
        self._blocks[used] = used - self._job.slots
        self._prepare(used)

    def _prepare(self, slots: Numbers) -> None:
        """Makes the next packet of each slot: the values of its block, and the exponent of the one after that."""
        blocks, coming = self._blocks[slots], self._blocks[slots] + self._job.slots
        rows = np.zeros((len(slots), self._job.lanes), ">i4")
        full = blocks >= 0
        shift = shift_of(self._scales[slots[full]], len(self._job.seats))[:, None]
        rows[full] = np.rint(np.ldexp(self._values[blocks[full]].astype(np.float64), shift))
        self._rounds[slots] += 1
        head = np.zeros((len(slots), HEADER_BYTES), np.uint8)
        head[:, 0], head[:, 1] = JOB, self._rank
        head[:, 2:4] = _bytes_of(slots)
        head[:, 4:6] = _bytes_of(self._rounds[slots] & 0xFFFF)
        more = coming < len(self._exponents)
        head[more, 6] = self._exponents[coming[more]]
        self._packets[slots] = np.hstack([head, rows.view(np.uint8)])
        self._awaits[slots] = True
        self._queue(slots)
        self.sent += len(slots)

    def _queue(self, slots: Numbers) -> None:
        """Packets leave in the order in which they were ready: else some slots are done before others get a turn."""
        self._to_send[slots] = True
        self._places[slots] = self._queued + np.arange(len(slots))
        self._queued += len(slots)

    def transmit(self, now_us: int, budget_bytes: int | None = None) -> list[Burst]:
        slots = np.flatnonzero(self._to_send)
        slots = slots[np.argsort(self._places[slots])]
        if budget_bytes is not None:
            slots = slots[: max(0, budget_bytes) // self._packets.shape[1]]
        if not len(slots):
            return []
        self._to_send[slots] = False
        # what waits in a queue for longer than the time-out would else be sent again and again, and keep it full
        self._due_us[slots] = now_us + (self._job.timeout_us << min(self._late // PATIENCE, MOST_DOUBLINGS))
        return [Burst(self._job.switch, self._packets[slots])]

    def receive(self, bursts: Sequence[Burst], now_us: int) -> None:
        for burst in bursts:
            if burst.data.shape[1] == self._packets.shape[1]:
                self._take(burst.data, now_us)

    def _take(self, rows: ByteRows, now_us: int) -> None:
        """Takes results. Duplicates, and results of earlier rounds, change nothing."""
        slots = _number(rows, 2)
        rows, slots = rows[slots < self._job.slots], slots[slots < self._job.slots]
        is_next: Mask = self._awaits[slots] & (_number(rows, 4) == self._rounds[slots] & 0xFFFF) & (rows[:, 0] == JOB)
        slots, rows = slots[is_next], rows[is_next]
        first = np.sort(np.unique(slots, return_index=True)[1])
        slots, rows = slots[first], rows[first]
        if not len(slots):
            return
        blocks = self._blocks[slots]
        full = blocks >= 0
        sums = np.ascontiguousarray(rows[full][:, HEADER_BYTES:]).view(">i4").astype(np.float64)
        shift = shift_of(self._scales[slots[full]], len(self._job.seats))[:, None]
        self._sum[blocks[full]] = np.ldexp(sums, -shift)
        self._scales[slots] = rows[:, 6]
        self._awaits[slots] = self._to_send[slots] = False
        self._blocks[slots] += self._job.slots
        self._last_us = now_us
        self._late = 0
        self._prepare(slots[self._blocks[slots] < len(self._values)])
        if not self._awaits.any():
            self._done = self._sum.reshape(-1)[: self._size]

    def next_timer_us(self) -> int | None:
        waiting = self._awaits & ~self._to_send
        if self.error is not None or not waiting.any():
            return None
        return int(self._due_us[waiting].min())

    def handle_timer(self, now_us: int) -> None:
        late = np.flatnonzero(self._awaits & ~self._to_send & (self._due_us <= now_us))
        self._queue(late)
        self._late += bool(len(late))
        self.retransmitted += len(late)
        if now_us - self._last_us > GIVE_UP_US:
            self.error = TransportError(f"rank {self._rank}: no result in {GIVE_UP_US / 1e6:.0f} s")
            self._awaits[:] = self._to_send[:] = False

    def next_event(self) -> Values | None:
        done, self._done = self._done, None
        return done


def _bytes_of(numbers: Numbers) -> ByteRows:
    """Numbers of 16 bits as uint8[n, 2], in the network's order."""
    return numbers.astype(">u2").view(np.uint8).reshape(-1, 2)


def _number(rows: ByteRows, at: int) -> Numbers:
    """The numbers of 16 bits at a byte of each row, int64[n]."""
    return rows[:, at].astype(np.int64) << 8 | rows[:, at + 1]


class SwitchMl(Peer):
    most_workers = 32  # bits of a slot's register
    forwards = True

    def programs(self) -> Mapping[int, Path]:
        """See Peer."""
        return artefacts.peer_builds("switchml")

    def packet_bytes(self, lanes: int) -> int:
        """See Peer."""
        return HEADER_BYTES + 4 * lanes

    def reference(self, parts: Sequence[Values], lanes: int) -> Values:
        """See Peer."""
        return reference(parts, lanes)

    def entries(self, job: PeerJob) -> list[Entity]:
        """See Peer. Raises: UserError: more workers or slots than the program has bits or registers for."""
        if not 1 <= len(job.seats) <= self.most_workers:
            raise UserError(f"{len(job.seats)} workers: SwitchML's program has bits for 1 to {self.most_workers}")
        if not 1 <= job.slots <= SLOTS:
            raise UserError(f"{job.slots} slots: SwitchML's program has 1 to {SLOTS}")
        replicas = frozenset(Replica(seat.switch_port, rank + 1) for rank, seat in enumerate(job.seats))
        admit = {"workers": len(job.seats), "group": JOB}
        found: list[Entity] = [
            MulticastGroup(group=JOB, replicas=replicas),
            TableEntry(table="jobs", match={"job": Exact(JOB)}, action="admit", params=admit),
            *(routes.entry(ip, port) for ip, port in job.routes),
        ]
        for rank, seat in enumerate(job.seats):
            source = {"from_mac": job.switch_mac, "from_ip": ip_number(job.switch[0])}
            target = {"to_mac": seat.mac, "to_ip": ip_number(seat.ip), "to_udp_port": seat.udp_port}
            found.append(
                TableEntry(
                    table="workers",
                    match={"job": Exact(JOB), "worker": Exact(rank + 1)},
                    action="send",
                    params=source | target,
                )
            )
        return found

    def transport(self, rank: int, job: PeerJob) -> SwitchMlTransport:
        """See Peer."""
        return SwitchMlTransport(rank, job)


PEER = SwitchMl()
