"""The parameter server's send queue: messages at once, results as fast as they leave its host. (protocol section 5.7)

Results of sums that are finished here can exceed the link's rate. A rank that waits for one asks again; if all were
written to the socket, each question would queue another copy. So results wait here, at most once for each receiver.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np

from sa_atp.basics.arrays import ByteRows, Mask, Seqs
from sa_atp.protocol.packets.datagrams import Address, Burst

Key = tuple[int, int, int]  # job, epoch, rank
EVERYBODY = -1  # in place of a rank: a switch makes the copies
NOTHING: frozenset[int] = frozenset()


class Outbox:
    def __init__(self) -> None:
        self._messages: deque[Burst] = deque()
        self._results: deque[tuple[Key, Seqs, Burst]] = deque()
        self._waiting: dict[Key, set[int]] = {}

    def append(self, burst: Burst) -> None:
        """Queues a message, which leaves with the next `take`."""
        self._messages.append(burst)

    def extend(self, bursts: Iterable[Burst]) -> None:
        self._messages.extend(bursts)

    def add_results(self, key: Key, address: Address, seqs: Seqs, packets: ByteRows) -> None:
        """Queues results, one in each row, without duplicates. Args: seqs: sequence number of each row."""
        waiting = self._waiting.setdefault(key, set())
        new = []
        for row, seq in enumerate(seqs.tolist()):
            if seq not in waiting:
                waiting.add(seq)
                new.append(row)
        if len(new) < len(seqs):
            seqs, packets = seqs[new], packets[new]
        if new:
            self._results.append((key, seqs, Burst(address, packets)))
        elif not waiting:
            del self._waiting[key]

    def waits_for(self, key: Key, seqs: Seqs) -> Mask:
        """bool[n]: whether results are queued for a rank, or for all ranks."""
        own, all_ = self._waiting.get(key, NOTHING), self._waiting.get((*key[:2], EVERYBODY), NOTHING)
        return np.array([seq in own or seq in all_ for seq in seqs.tolist()], bool)

    def forget(self, job: int, epoch: int) -> None:
        """Drops the queued results of a job's epoch."""
        gone = {key for key in self._waiting if key[:2] == (job, epoch)}
        if gone:
            self._results = deque(each for each in self._results if each[0] not in gone)
            for key in gone:
                del self._waiting[key]

    def take(self, budget_bytes: int | None) -> list[Burst]:
        """Takes all messages, and results up to a budget. Args: budget_bytes: None: all results."""
        out = list(self._messages)
        self._messages.clear()
        left = budget_bytes
        while self._results and (left is None or left > 0):
            key, seqs, burst = self._results.popleft()
            size = burst.data.shape[1]
            count = len(seqs) if left is None else min(len(seqs), -(-left // size))
            if count < len(seqs):
                self._results.appendleft((key, seqs[count:], Burst(burst.address, burst.data[count:], burst.urgent)))
                burst = Burst(burst.address, burst.data[:count], burst.urgent)
            self._left(key, seqs[:count])
            out.append(burst)
            left = None if left is None else left - count * size
        return out

    def _left(self, key: Key, seqs: Seqs) -> None:
        waiting = self._waiting[key]
        waiting.difference_update(seqs.tolist())
        if not waiting:
            del self._waiting[key]

    @property
    def has_results(self) -> bool:
        return bool(self._results)
