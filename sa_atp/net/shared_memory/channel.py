"""A rank's end of a channel: bursts of datagrams to and from the switch on this machine."""

import contextlib
import os
import socket
from typing import Any

import numpy as np

from sa_atp.basics.arrays import ByteRows
from sa_atp.net.shared_memory.layout import (
    DOWN_DATA,
    DOWN_HEAD,
    RANK_SLEEPS,
    RECORDS,
    RESULT_BYTES,
    RESULTS,
    SPARES,
    UP_BYTES,
    UP_DATA,
    UP_TAIL,
)
from sa_atp.net.shared_memory.region import Region
from sa_atp.net.shared_memory.ring_kernels import BELL, BROKEN, DOORBELL, HEAD, MINE, SENDER, SLEEPS, TAIL, Ring
from sa_atp.net.sockets.compiled_bursts import MESSAGES, bursts_in
from sa_atp.net.sockets.mmsg import sender_of
from sa_atp.protocol.packets.datagrams import Address, Burst


class Channel:
    """Made by `open_channel`. The arrays of received bursts are valid until the next call of `receive`."""

    def __init__(
        self,
        switch: Address,
        peer: socket.socket,
        memory: int,
        results: int,
        bell: int,
        doorbell: int,
        kernels: Any,
    ) -> None:
        """Args: peer: ends with the switch. memory, results, bell, doorbell: descriptors, which this object closes.

        Raises: OSError: there is no memory for it; then `peer`, `bell` and `doorbell` are still the caller's.
        """
        self.switch = switch
        self._peer, self.bell, self._doorbell = peer, bell, doorbell
        """`bell`: the descriptor that is readable when something has arrived while this end slept."""
        self.peer = peer.fileno()
        """The descriptor that is readable when the switch has ended."""
        self._kernels = kernels
        region = Region(RESULTS + RESULT_BYTES)
        try:
            region.put(0, RESULTS, memory)
            region.put(RESULTS, RESULT_BYTES, results, writable=False)
        finally:
            os.close(memory)
            os.close(results)
        region.keep_from_children()
        whole = region.bytes
        mine = np.zeros(MINE, np.int64)
        mine[SENDER], mine[BELL], mine[DOORBELL] = sender_of(switch), bell, doorbell
        self._data = whole[DOWN_DATA:]
        up = whole[UP_DATA : UP_DATA + UP_BYTES]
        self.ring = Ring(
            control=whole[:UP_DATA].view(np.int64), up=up, up_words=up.view(np.uint32),
            words=self._data.view(np.uint32), mine=mine, starts=np.zeros(RECORDS, np.int64),
            found=np.zeros((MESSAGES, 4), np.int64),
        )  # fmt: skip
        # Calls of compiled code are long beside a look at a number.
        self._numbers, self._mine = self.ring.control, mine

    @property
    def is_broken(self) -> bool:
        """Whether the switch has written what cannot be."""
        return bool(self.ring.mine[BROKEN])

    def is_over(self) -> bool:
        """Returns whether the switch has ended."""
        with contextlib.suppress(BlockingIOError):
            return not self._peer.recv(1)  # it never says anything else
        return False

    def spare(self, wanted: bool) -> None:
        """Has the switch leave out packets that others get as well; or not any more."""
        self.ring.control[SPARES // 8] = wanted

    def has_arrived(self) -> bool:
        return bool(self._numbers[DOWN_HEAD // 8] != self._mine[TAIL])

    def fall_asleep(self) -> bool:
        """Has the switch ring the bell from now on. Returns: False if something has arrived, and it will not."""
        return not self.has_arrived() and bool(self._kernels.fall_asleep(self.ring))

    def wake_up(self, has_rung: bool) -> None:
        """Ends what `fall_asleep` began, where it returned True. Args: has_rung: whether the bell is readable."""
        if self._mine[SLEEPS] % 2:
            self._mine[SLEEPS] += 1
            self._numbers[RANK_SLEEPS // 8] = self._mine[SLEEPS]
        if has_rung:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.bell)

    def receive(self) -> list[Burst]:
        """Takes all that has arrived."""
        return self.bursts(0, self._kernels.take(self.ring))

    def bursts(self, first: int, end: int, taken: int = 0) -> list[Burst]:
        """See compiled_bursts.bursts_in."""
        return bursts_in(self._data, self.ring.found[first:end], taken)

    def send(self, data: ByteRows, first: int = 0) -> int:
        """Writes datagrams. Returns: the index of the first for which there is no room."""
        return int(self._kernels.put(self.ring, data, first))

    def held_bytes(self) -> int:
        """Bytes that the switch has not taken yet."""
        if self._numbers[UP_TAIL // 8] == self._mine[HEAD]:
            return 0
        return int(self._kernels.held_bytes(self.ring))

    def budget_bytes(self) -> int:
        """Bytes of contributions that may be written now, so that there is room for questions as well."""
        return max(0, UP_BYTES // 2 - self.held_bytes())

    def close(self) -> None:
        self._peer.close()
        for each in (self.bell, self._doorbell):
            os.close(each)
        self.bell = self._doorbell = -1
        # the memory stays mapped as long as arrays of bursts do
