"""The common case of contributions and results, by kernels: what they are given, and what follows from what they did.

Common is a contribution that is sent for the first time, of which all parts fit their exponent; and a result of a fragment
that is missing, of an operation with one group, at the exponent that was sent. Everything else is left to the rules beside
this, which also say what the common case means. (protocol sections 5 and 6)
"""

import sys
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sa_atp.basics.arrays import ByteRows, Exponents, Integers, Values
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.numbers.fragments import CHUNK_VALUES
from sa_atp.protocol.numbers.scaling import (
    COARSE_BITS,
    HEADROOM_BITS,
    MAX_EXPONENT,
    MIN_EXPONENT,
    SUM_LIMIT,
    limit_bits,
    target_bits,
)
from sa_atp.protocol.packets.header import WORD, first_byte, size_of, words_of
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, HEADER_BYTES, Flag, Kind
from sa_atp.protocol.rank.compiled import kernels as k
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.operation import UNKNOWN, Operation

Streams = NDArray[np.int64]
"""int64[streams, ROW_ITEMS], see kernels.streams."""
STEADY_ROWS = 2048  # packets of one burst at most, for kernels of streams that flow
BITMAP_WORD_BITS = 32  # kernels read packets in such words


class Kernels(Protocol):
    """The functions of kernels.py, compiled or not; see there for their arguments."""

    @property
    def fill(self) -> Any: ...
    @property
    def streams(self) -> Any: ...
    @property
    def take(self) -> Any: ...
    @property
    def dequantise(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Taken:
    """What a stream of results was: fragments that were news, and when the newest was sent, see Operation.on_results."""

    fresh: int
    newest_us: int


class ResultStreams:
    """Divides results of one job and epoch into streams."""

    def __init__(
        self,
        kernels: Kernels,
        *,
        job: int,
        epoch: int,
        fan_in: int,
        lanes: int,
        contribution_bits: int = CONTRIBUTION_BITS,
    ) -> None:
        self._kernels = kernels
        self.job, self.epoch = job, epoch
        self._size = size_of(Kind.RESULT, lanes, contribution_bits)
        self.fan_in = _in_memory(fan_in, contribution_bits)
        self.what = np.zeros(k.S_ITEMS, np.int64)
        self.what[:] = (
            first_byte(Kind.RESULT), job, epoch, Flag.CONGESTION, Flag.COLLISION, Flag.FROM_PS,
        )  # fmt: skip
        self._rows: Streams = np.zeros((256, k.ROW_ITEMS), np.int64)

    def find(self, packets: ByteRows) -> Streams | None:
        """See kernels.streams; None: there is something else among them, or they cannot be read as words."""
        words = None if packets.shape[1] != self._size else _words(packets)
        if words is None:
            return None
        if len(self._rows) < len(packets):
            self._rows = np.zeros((2 * len(packets), k.ROW_ITEMS), np.int64)
        count = self._kernels.streams(words, self.what, self.fan_in, self._rows)
        return None if count < 0 else self._rows[:count]


class CommonCase:
    """Of one connection. Where it says no, nothing has changed."""

    def __init__(self, kernels: Kernels, membership: Membership) -> None:
        self._kernels = kernels
        self._member = membership
        self.results = ResultStreams(
            kernels, job=membership.job, epoch=membership.epoch, fan_in=membership.fan_in, lanes=membership.lanes,
            contribution_bits=membership.contribution_bits,
        )  # fmt: skip
        self._contribution = np.zeros(k.F_ITEMS, np.int64)
        self._contribution[[k.F_FIRST, k.F_JOB, k.F_EPOCH, k.F_SLOT_BASE, k.F_SLOT_COUNT, k.F_LIMIT]] = (
            first_byte(Kind.DATA), membership.job, membership.epoch, membership.slot_base, membership.slot_count,
            1 << limit_bits(membership.contributions),
        )  # fmt: skip
        self._stream = np.zeros(k.T_ITEMS, np.int64)
        self._stream[k.T_SUM_LIMIT :] = (
            SUM_LIMIT, target_bits(membership.contributions), COARSE_BITS, HEADROOM_BITS, MIN_EXPONENT, MAX_EXPONENT,
            membership.contribution_bits // BITMAP_WORD_BITS,
        )  # fmt: skip
        self._found = np.zeros(k.OUT_ITEMS, np.int64)
        self._done = np.zeros((16, 2), np.int64)

    # --- out ------------------------------------------------------------------------------------------------------------

    def write(
        self, packets: ByteRows, at: int, operation: Operation, group: ContributionGroup, first: int, end: int
    ) -> int:
        """Writes as many as it can of the contributions first to end - 1, none of which has been sent before.

        Args: packets: uint8[n, size]; the first goes to row `at`.
        Returns: how many were written; 0: the next is not common.
        """
        plan = operation.plan
        attempt, within = divmod(first, plan.attempt_fragments)
        if within < plan.scale_fragments or group.excluded or not (little_endian() and group.is_aligned):
            return 0
        what = self._contribution
        what[k.F_FLAGS] = Flag.ON_BEHALF if group.bypass_leaf else 0
        what[k.F_TAG] = operation.tag
        what[k.F_SEQ] = operation.first_seq
        bits = _in_memory(group.bits, self._member.contribution_bits)
        what[k.F_DATA_START] = plan.data_start(attempt)
        what[k.F_CHUNK_FRAGMENTS] = plan.chunk_fragments
        what[k.F_ATTEMPT] = attempt
        words = packets.view(np.uint32)
        end = min(end, (attempt + 1) * plan.attempt_fragments)
        for n, part in enumerate(group.parts):
            what[k.F_ADD] = n
            written = self._kernels.fill(words, at, first, end, what, bits, operation.exponent, group.fits[n], part)
            end = first + written
        return int(end - first)

    # --- in -------------------------------------------------------------------------------------------------------------

    def take(self, packets: ByteRows, stream: list[int], operation: Operation, local: int) -> Taken | None:
        """Gives a stream to its operation. Args: stream: a row of `results.find`; local: place of its first fragment.

        Returns: None if it is not the common case.
        """
        plan = operation.plan
        if len(operation.groups) != 1 or stream[k.ROW_RARE]:
            return None
        start, end = stream[k.ROW_START], stream[k.ROW_END]
        attempt, within = divmod(local, plan.attempt_fragments)
        if within < plan.scale_fragments or within + end - start > plan.attempt_fragments:
            return None
        what = self._stream
        what[: k.T_SUM_LIMIT] = (
            local, plan.data_start(attempt), plan.data_fragments, plan.chunk_fragments, attempt,
            stream[k.ROW_EXPONENT], operation.groups[0].high,
        )  # fmt: skip
        if len(self._done) < plan.chunks:
            self._done = np.zeros((2 * plan.chunks, 2), np.int64)
        found = operation.take_stream(self._kernels, packets.view(np.uint32), start, end, what, self._found, self._done)
        return None if found is None else Taken(*found)

    def lent(self, operation: Operation, group: ContributionGroup) -> tuple[NDArray[Any], ...] | None:
        """What kernels of streams that flow are given of an operation and its only group, beside the connection's numbers:
        in the order in which steady_kernels.receive takes it apart. None: it is not common.
        """
        if not little_endian():
            return None
        plan, width = operation.plan, self._member.contribution_bits
        fill, take = self._contribution.copy(), self._stream.copy()
        fill[[k.F_FLAGS, k.F_TAG, k.F_SEQ, k.F_DATA_START, k.F_CHUNK_FRAGMENTS, k.F_ATTEMPT, k.F_ADD]] = (
            0, operation.tag, operation.first_seq, plan.data_start(0), plan.chunk_fragments, 0, 0,
        )  # fmt: skip
        take[[k.T_DATA_START, k.T_DATA_FRAGMENTS, k.T_CHUNK_FRAGMENTS, k.T_ATTEMPT]] = (
            plan.data_start(0), plan.data_fragments, plan.chunk_fragments, 0,
        )  # fmt: skip
        return (
            fill, self.results.what, take, _in_memory(group.bits, width), self.results.fan_in,
            np.zeros((STEADY_ROWS, k.ROW_ITEMS), np.int64), *operation.lent(), group.sent_us, group.order, group.tries,
            group.marked_lost, group.fits[0], np.zeros(k.OUT_ITEMS, np.int64), np.zeros((plan.chunks, 2), np.int64),
        )  # fmt: skip

    def write_values(self, sums: Integers, exponents: Exponents, first: int, end: int, out: Values) -> bool:
        """The values that the sums of these chunks stand for. Returns: whether it could."""
        if out.dtype != np.float32 or not (out.flags.c_contiguous and out.flags.aligned and out.flags.writeable):
            return False
        self._kernels.dequantise(sums, exponents, first, end, CHUNK_VALUES, UNKNOWN, out)
        return True


def _words(packets: ByteRows) -> NDArray[np.uint32] | None:
    """The rows as words where they lie, if they can be read as such."""
    if not packets.flags.c_contiguous or packets.shape[1] % 4 or not little_endian():
        return None
    words = packets.view(np.uint32)
    return words if words.flags.aligned else None


def little_endian() -> bool:
    return sys.byteorder == "little"


def _in_memory(bits: int, contribution_bits: int) -> NDArray[np.uint32]:
    """A bitmap of a packet as this machine reads it, word by word."""
    return words_of(bits, contribution_bits).astype(WORD).view(np.uint32)


assert HEADER_BYTES == 4 * (k.HEADER_WORDS + CONTRIBUTION_BITS // BITMAP_WORD_BITS)
