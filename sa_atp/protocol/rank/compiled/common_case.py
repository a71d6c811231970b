"""The common case of contributions and results, by compiled kernels: their arguments, and the handling of their outcome.

Common is a contribution that is sent for the first time, of which all parts fit their exponent; and a result of a fragment
that is missing, of an operation with one group, at the exponent that was sent. Everything else is left to the rules beside
this, which also say what the common case means. (protocol sections 5 and 6)
"""

import sys
from dataclasses import dataclass
from functools import lru_cache
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
    limit_bits,
    target_bits,
)
from sa_atp.protocol.packets.header import WORD, first_byte, size_of, words_of
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, HEADER_BYTES, Flag, Kind
from sa_atp.protocol.rank.compiled import kernels as k
from sa_atp.protocol.rank.compiled.steady_kernels import MOST_ASKED, MOST_GAPS, Gap, State
from sa_atp.protocol.rank.recovery.asking import Asked
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.operation import UNKNOWN, Operation
from sa_atp.protocol.rank.sums.stamp import probes
from sa_atp.protocol.records import Record, table

STEADY_ROWS = 2048  # packets of one burst at most, for kernels of streams that flow
LITTLE_ENDIAN = sys.byteorder == "little"
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
    """The outcome of a stream of results: the number of new fragments, and the time when the newest was sent."""

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
        self.expected = Record(k.Expected)
        self.expected.write(
            k.Expected(first_byte(Kind.RESULT), job, epoch, Flag.CONGESTION, Flag.COLLISION, Flag.FROM_PS)
        )
        self._rows = table(k.Stream, 256)

    def find(self, packets: ByteRows) -> list[k.Stream] | None:
        """Finds streams, see kernels.streams. Returns: None if a packet is no common result, or cannot be read as words."""
        words = None if packets.shape[1] != self._size else _words(packets)
        if words is None:
            return None
        if len(self._rows) < len(packets):
            self._rows = table(k.Stream, 2 * len(packets))
        count = self._kernels.streams(words, self.expected.array, self.fan_in, self._rows)
        return None if count < 0 else [k.Stream(*row) for row in self._rows[:count].tolist()]


class CommonCase:
    """Calls kernels for one connection. A kernel that returns nothing has changed nothing."""

    def __init__(self, kernels: Kernels, membership: Membership) -> None:
        self._kernels = kernels
        self._member = membership
        self.results = ResultStreams(
            kernels, job=membership.job, epoch=membership.epoch, fan_in=membership.fan_in, lanes=membership.lanes,
            contribution_bits=membership.contribution_bits,
        )  # fmt: skip
        self._contribution, self._part = Record(k.Contribution), Record(k.Part)
        # made once: of these only what _described, _part_of and their callers set changes from call to call
        self._what = k.Contribution(
            first_byte=first_byte(Kind.DATA), job=membership.job, epoch=membership.epoch,
            slot_base=membership.slot_base, slot_count=membership.slot_count,
        )  # fmt: skip
        self._where = k.Part(
            target_bits=target_bits(membership.contributions), coarse_bits=COARSE_BITS,
            headroom_bits=HEADROOM_BITS, min_exponent=MIN_EXPONENT, max_exponent=MAX_EXPONENT,
            bitmap_words=membership.contribution_bits // BITMAP_WORD_BITS,
        )  # fmt: skip
        self._found = table(k.Found, 1)
        self._done = table(k.Complete, 16)

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
        if within < plan.scale_fragments or group.excluded or not (LITTLE_ENDIAN and group.is_aligned):
            return 0
        what = self._described(operation, attempt)
        what.data_start += group.first_fragment
        what.flags = Flag.ON_BEHALF if group.bypass_leaf else 0
        bits = _in_memory(group.bits, self._member.contribution_bits)
        words = packets.view(np.uint32)
        end = min(end, (attempt + 1) * plan.attempt_fragments)
        place = first
        for start, stop, above in plan.straight(first, end):
            what.first_seq = operation.first_seq + above
            until = stop
            for n, part in enumerate(group.read_by_kernels):
                what.add = n > 0
                self._contribution.write(what)
                until = start + self._kernels.fill(
                    words, at + start - first, start, until, self._contribution.array, bits, operation.exponent,
                    group.fits[n], part,
                )  # fmt: skip
            place = int(until)
            if until < stop:
                break
        return place - first

    # --- in -------------------------------------------------------------------------------------------------------------

    def take(self, packets: ByteRows, stream: k.Stream, operation: Operation, local: int) -> Taken | None:
        """Gives a stream to its operation. Args: local: place of its first fragment.

        Returns: None if it is not the common case.
        """
        plan = operation.plan
        if len(operation.groups) != 1 or stream.rare:
            return None
        attempt, within = divmod(local, plan.attempt_fragments)
        if within < plan.scale_fragments or within + stream.end - stream.start > plan.attempt_fragments:
            return None
        part = self._part_of(operation, attempt)
        part.local, part.exponent, part.high = local, stream.exponent, operation.groups[0].common_below
        self._part.write(part)
        if len(self._done) < plan.chunks:
            self._done = table(k.Complete, 2 * plan.chunks)
        words = packets.view(np.uint32)
        if not self._kernels.take(
            words, stream.start, stream.end, self._part.array, operation.sums, operation.groups[0].sent, self._found,
            self._done,
        ):  # fmt: skip
            return None
        last = local + stream.end - stream.start - 1
        return Taken(*operation.after_taken(last, self._found, self._done))

    def state(self, flow: NDArray[np.void], operation: Operation, group: ContributionGroup) -> State | None:
        """Makes the state of kernels for a stream that flows, of an operation and its only group; None: it is not common.

        Args: flow: Flow[1].
        """
        if not LITTLE_ENDIAN:
            return None
        plan, width = operation.plan, self._member.contribution_bits
        contribution, part = Record(k.Contribution), Record(k.Part)
        contribution.write(self._described(operation, 0))
        part.write(self._part_of(operation, 0))
        return State(
            flow=flow,
            contribution=contribution.array,
            expected=self.results.expected.array,
            part=part.array,
            found=table(k.Found, 1),
            bits=_in_memory(group.bits, width),
            fan_in=self.results.fan_in,
            rows=table(k.Stream, STEADY_ROWS),
            sums=operation.sums,
            sent=group.sent,
            fits=group.fits,
            done=table(k.Complete, plan.chunks),
            asked=table(Asked, MOST_ASKED),
            gaps=table(Gap, MOST_GAPS),
            question=probes(self._member, operation, [plan.data_start(0)], [0]).view(np.uint32)[0],
        )

    def _described(self, operation: Operation, attempt: int) -> k.Contribution:
        what, plan = self._what, operation.plan
        what.tag, what.first_seq, what.attempt = operation.tag, operation.first_seq, attempt
        what.data_start, what.chunk_fragments = plan.data_start(attempt), plan.chunk_fragments
        what.flags, what.add, what.whole = 0, False, operation.whole
        what.limit = operation.sum_limit if operation.whole else 1 << limit_bits(self._member.contributions)
        return what

    def _part_of(self, operation: Operation, attempt: int) -> k.Part:
        where, plan = self._where, operation.plan
        where.data_start, where.data_fragments, where.attempt = plan.data_start(attempt), plan.data_fragments, attempt
        where.chunk_fragments, where.local, where.exponent, where.high = plan.chunk_fragments, 0, 0, 0
        where.foretold, where.sum_limit = operation.foretold, operation.sum_limit
        return where

    def write_values(
        self, sums: Integers, exponents: Exponents, first: int, end: int, factor: float, out: Values
    ) -> bool:
        """The values that the sums of these chunks stand for, times a factor. Returns: whether it could."""
        if out.dtype != np.float32 or not (out.flags.c_contiguous and out.flags.aligned and out.flags.writeable):
            return False
        self._kernels.dequantise(sums, exponents, first, end, CHUNK_VALUES, UNKNOWN, np.float32(factor), out)
        return True


def _words(packets: ByteRows) -> NDArray[np.uint32] | None:
    """The rows as words where they lie, if they can be read as such."""
    if not packets.flags.c_contiguous or packets.shape[1] % 4 or not LITTLE_ENDIAN:
        return None
    words = packets.view(np.uint32)
    return words if words.flags.aligned else None


@lru_cache
def _in_memory(bits: int, contribution_bits: int) -> NDArray[np.uint32]:
    """A bitmap of a packet as this machine reads it, word by word. Kernels only read it."""
    return words_of(bits, contribution_bits).astype(WORD).view(np.uint32)


assert HEADER_BYTES == 4 * (k.HEADER_WORDS + CONTRIBUTION_BITS // BITMAP_WORD_BITS)
