"""A protocol of one's own: the P4 program beside this file, its tables, and a worker's transport. docs/own-program.md."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sa_atp.basics.arrays import Numbers, Values
from sa_atp.basics.errors import UserError
from sa_atp.lab.peers.peer import Peer, PeerJob
from sa_atp.lab.policies.policy import PeerPolicy
from sa_atp.protocol.job.errors import TransportError
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.frames import ip_number
from sa_atp.switches.p4runtime.entities import Entity, Exact, MulticastGroup, Replica, TableEntry

LANES = 64
WINDOW = 128  # half of the program's slots
SCALE = 2.0**20  # values are integers of 32 bits on the wire,
MOST = 2.0**31 / SCALE  # so that sums have to stay below this
PACKET = np.dtype([("chunk", ">u4"), ("worker", ">u4"), ("values", ">i4", LANES)])
GIVE_UP_US = 60_000_000  # without a sum


class OwnTransport:
    """A worker: chunk c is sent when chunk c - WINDOW is summed, and again after a time-out."""

    def __init__(self, rank: int, job: PeerJob) -> None:
        self.error: TransportError | None = None
        self.sent = self.retransmitted = 0
        self._rank = rank
        self._job = job
        self._first = 1  # the first chunk of this sum; chunks are counted over all sums
        self._packets = np.zeros(0, PACKET)
        self._is_summed = np.zeros(0, np.bool_)
        self._due_us = np.zeros(0, np.int64)  # when what was sent is late; -1: to be sent
        self._late = 0  # how often something was late since a sum came
        self._size = 0
        self._heard_us = 0
        self._done: Values | None = None

    def begin(self, values: Values, now_us: int) -> None:
        """Cuts float32[n] into chunks. Raises: UserError: a sum may not fit 32 bits."""
        if not np.abs(values).max(initial=0) * len(self._job.seats) < MOST:
            raise UserError(f"rank {self._rank}: a value of {MOST:g} / {len(self._job.seats)} or more does not fit")
        self._first += len(self._packets)
        count = max(1, -(-len(values) // LANES))
        self._packets = np.zeros(count, PACKET)
        self._packets["chunk"] = self._first + np.arange(count)
        self._packets["worker"] = self._rank
        integers = np.zeros((count, LANES), np.int64)
        integers.reshape(-1)[: len(values)] = np.rint(values * SCALE)
        self._packets["values"] = integers
        self._size = len(values)
        self._is_summed = np.zeros(count, np.bool_)
        self._due_us = np.full(count, -1, np.int64)
        self._heard_us = now_us
        self.sent += count

    def transmit(self, now_us: int, budget_bytes: int | None = None) -> list[Burst]:
        """Sends what the window allows, and what `handle_timer` wants again."""
        is_free = np.concatenate([np.ones(WINDOW, np.bool_), self._is_summed])[: len(self._packets)]
        wanted = np.flatnonzero((self._due_us < 0) & is_free & ~self._is_summed)
        if budget_bytes is not None:
            wanted = wanted[: max(0, budget_bytes) // PACKET.itemsize]
        self._due_us[wanted] = now_us + (self._job.timeout_us << min(self._late // 4, 6))
        rows = self._packets[wanted].view(np.uint8).reshape(len(wanted), PACKET.itemsize)
        return [Burst(self._job.switch, rows)] if len(wanted) else []

    def receive(self, bursts: Sequence[Burst], now_us: int) -> None:
        """Takes sums. A duplicate changes nothing."""
        for burst in bursts:
            if burst.data.shape[1] != PACKET.itemsize:
                continue
            found = np.ascontiguousarray(burst.data).view(PACKET)[:, 0]
            at: Numbers = found["chunk"].astype(np.int64) - self._first
            is_new = (at >= 0) & (at < len(self._packets))
            is_new[is_new] = ~self._is_summed[at[is_new]]
            self._packets["values"][at[is_new]] = found["values"][is_new]
            self._is_summed[at[is_new]] = True
            if is_new.any():
                self._heard_us = now_us
                self._late = 0
                if self._is_summed.all():
                    sums = self._packets["values"].reshape(-1)[: self._size]
                    self._done = (sums / SCALE).astype(np.float32)

    def next_timer_us(self) -> int | None:
        """When the next packet without a sum is late."""
        waiting = self._due_us[(self._due_us >= 0) & ~self._is_summed]
        return int(waiting.min()) if len(waiting) and self.error is None else None

    def handle_timer(self, now_us: int) -> None:
        """What is late is sent again, and less often while no sum comes: it may wait in a queue that it would fill."""
        late = (self._due_us >= 0) & ~self._is_summed & (self._due_us <= now_us)
        self._due_us[late] = -1
        self._late += bool(late.any())
        self.retransmitted += int(late.sum())
        if now_us - self._heard_us > GIVE_UP_US:
            self.error = TransportError(f"rank {self._rank}: no sum in {GIVE_UP_US / 1e6:.0f} s")

    def next_event(self) -> Values | None:
        """The sum, once."""
        done, self._done = self._done, None
        return done


class OwnAggregation(Peer):
    slots = WINDOW

    def programs(self) -> Mapping[int, Path]:
        """What p4c made from own_aggregation.p4."""
        return {LANES: Path(__file__).resolve().parent / "compiled"}

    def packet_bytes(self, lanes: int) -> int:
        """See Peer."""
        return PACKET.itemsize

    def reference(self, parts: Sequence[Values], lanes: int) -> Values:
        """See Peer."""
        total = np.sum([np.rint(part * SCALE).astype(np.int64) for part in parts], axis=0)
        return np.asarray(total / SCALE, np.float32)

    def entries(self, job: PeerJob) -> list[Entity]:
        """The job's entry; a group of all workers, and one of each; and the address of each copy."""
        workers = [Replica(seat.switch_port, rank + 1) for rank, seat in enumerate(job.seats)]
        ip = {"ip": Exact(ip_number(job.switch[0]))}
        found: list[Entity] = [
            TableEntry(table="jobs", match=ip, action="admit", params={"workers": len(workers)}),
            MulticastGroup(group=1, replicas=frozenset(workers)),
        ]
        for rank, seat in enumerate(job.seats):
            found.append(MulticastGroup(group=2 + rank, replicas=frozenset([workers[rank]])))
            address = {"mac": seat.mac, "ip": ip_number(seat.ip), "udp_port": seat.udp_port}
            found.append(TableEntry(table="workers", match={"worker": Exact(rank + 1)}, action="send", params=address))
        return found

    def transport(self, rank: int, job: PeerJob) -> OwnTransport:
        """See Peer."""
        return OwnTransport(rank, job)


class OwnPolicy(PeerPolicy):
    name = "own"
    title = "own aggregation"
    summary = "As ATP, with the program and the transport of examples/own_aggregation."
    source = "an example"
    colour = "#0B6E4F"
    peer = OwnAggregation()


POLICIES = (OwnPolicy(),)
