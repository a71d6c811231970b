"""What the parameter server has to send: messages at once, results as fast as they leave its host. (protocol section 5.7)

Results of sums that are finished here can be more than the link carries. Who waits for one asks for it again; were they all
written to the socket, each question would make the queue before the answer longer by another copy of it. So they wait here,
where it is known of each for whom it waits, and none waits twice.
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
        """A message: it leaves with the next `take`."""
        self._messages.append(burst)

    def extend(self, bursts: Iterable[Burst]) -> None:
        self._messages.extend(bursts)

    def add_results(self, key: Key, address: Address, seqs: Seqs, packets: ByteRows) -> None:
        """Results, one in each row; those that wait already, or are here twice, once. Args: seqs: of each."""
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
        """bool[n]: whether results are about to leave to a rank, or to everybody."""
        own, all_ = self._waiting.get(key, NOTHING), self._waiting.get((*key[:2], EVERYBODY), NOTHING)
        return np.array([seq in own or seq in all_ for seq in seqs.tolist()], bool)

    def forget(self, job: int, epoch: int) -> None:
        """Nobody waits for results of this job any more."""
        gone = {key for key in self._waiting if key[:2] == (job, epoch)}
        if gone:
            self._results = deque(each for each in self._results if each[0] not in gone)
            for key in gone:
                del self._waiting[key]

    def take(self, budget_bytes: int | None) -> list[Burst]:
        """All messages, and results. Args: budget_bytes: of results; None: all of them."""
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
