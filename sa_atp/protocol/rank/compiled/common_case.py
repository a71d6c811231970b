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
from sa_atp.protocol.rank.compiled.steady_kernels import MOST_ASKED, MOST_GAPS, Gap, State
from sa_atp.protocol.rank.records import table
from sa_atp.protocol.rank.recovery.asking import Asked
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.operation import UNKNOWN, Operation
from sa_atp.protocol.rank.sums.stamp import probes

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
        what = self.expected = table(k.Expected, 1)[0]
        what["first_byte"], what["job"], what["epoch"] = first_byte(Kind.RESULT), job, epoch
        what["congestion"], what["collision"], what["rare"] = Flag.CONGESTION, Flag.COLLISION, Flag.FROM_PS
        self._rows = table(k.Stream, 256)

    def find(self, packets: ByteRows) -> list[k.Stream] | None:
        """See kernels.streams; None: there is something else among them, or they cannot be read as words."""
        words = None if packets.shape[1] != self._size else _words(packets)
        if words is None:
            return None
        if len(self._rows) < len(packets):
            self._rows = table(k.Stream, 2 * len(packets))
        count = self._kernels.streams(words, self.expected, self.fan_in, self._rows)
        return None if count < 0 else [k.Stream(*row) for row in self._rows[:count].tolist()]


class CommonCase:
    """Gives kernels what one connection has. Where a kernel refuses, nothing has changed."""

    def __init__(self, kernels: Kernels, membership: Membership) -> None:
        self._kernels = kernels
        self._member = membership
        self.results = ResultStreams(
            kernels, job=membership.job, epoch=membership.epoch, fan_in=membership.fan_in, lanes=membership.lanes,
            contribution_bits=membership.contribution_bits,
        )  # fmt: skip
        what = self._contribution = table(k.Contribution, 1)[0]
        what["first_byte"], what["job"], what["epoch"] = first_byte(Kind.DATA), membership.job, membership.epoch
        what["slot_base"], what["slot_count"] = membership.slot_base, membership.slot_count
        what["limit"] = 1 << limit_bits(membership.contributions)
        part = self._part = table(k.Part, 1)[0]
        part["sum_limit"], part["target_bits"] = SUM_LIMIT, target_bits(membership.contributions)
        part["coarse_bits"], part["headroom_bits"] = COARSE_BITS, HEADROOM_BITS
        part["min_exponent"], part["max_exponent"] = MIN_EXPONENT, MAX_EXPONENT
        part["bitmap_words"] = membership.contribution_bits // BITMAP_WORD_BITS
        self._found = table(k.Found, 1)[0]
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
        if within < plan.scale_fragments or group.excluded or not (little_endian() and group.is_aligned):
            return 0
        what = self._contribution
        what["flags"] = Flag.ON_BEHALF if group.bypass_leaf else 0
        _describe(what, operation, attempt)
        bits = _in_memory(group.bits, self._member.contribution_bits)
        words = packets.view(np.uint32)
        end = min(end, (attempt + 1) * plan.attempt_fragments)
        for n, part in enumerate(group.parts):
            what["add"] = n > 0
            written = self._kernels.fill(words, at, first, end, what, bits, operation.exponent, group.fits[n], part)
            end = first + written
        return int(end - first)

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
        part = self._part
        part["local"], part["exponent"], part["high"] = local, stream.exponent, operation.groups[0].high
        part["data_start"], part["data_fragments"] = plan.data_start(attempt), plan.data_fragments
        part["chunk_fragments"], part["attempt"] = plan.chunk_fragments, attempt
        if len(self._done) < plan.chunks:
            self._done = table(k.Complete, 2 * plan.chunks)
        words = packets.view(np.uint32)
        found = operation.take_stream(self._kernels, words, stream.start, stream.end, part, self._found, self._done)
        return None if found is None else Taken(*found)

    def state(self, flow: np.void, operation: Operation, group: ContributionGroup) -> State | None:
        """Makes the state of kernels for a stream that flows, of an operation and its only group; None: it is not common.

        Args: flow: a Flow.
        """
        if not little_endian():
            return None
        plan, width = operation.plan, self._member.contribution_bits
        contribution, part = self._contribution.copy(), self._part.copy()
        contribution["flags"], contribution["add"] = 0, False
        _describe(contribution, operation, 0)
        part["data_start"], part["data_fragments"] = plan.data_start(0), plan.data_fragments
        part["chunk_fragments"], part["attempt"] = plan.chunk_fragments, 0
        return State(
            flow=flow,
            contribution=contribution,
            expected=self.results.expected,
            part=part,
            found=table(k.Found, 1)[0],
            bits=_in_memory(group.bits, width),
            fan_in=self.results.fan_in,
            rows=table(k.Stream, STEADY_ROWS),
            sums=operation.sums,
            sent=group.sent,
            fits=group.fits[0],
            done=table(k.Complete, plan.chunks),
            asked=table(Asked, MOST_ASKED),
            gaps=table(Gap, MOST_GAPS),
            question=probes(self._member, operation, [plan.data_start(0)], [0]).view(np.uint32)[0],
        )

    def write_values(self, sums: Integers, exponents: Exponents, first: int, end: int, out: Values) -> bool:
        """The values that the sums of these chunks stand for. Returns: whether it could."""
        if out.dtype != np.float32 or not (out.flags.c_contiguous and out.flags.aligned and out.flags.writeable):
            return False
        self._kernels.dequantise(sums, exponents, first, end, CHUNK_VALUES, UNKNOWN, out)
        return True


def _describe(what: np.void, operation: Operation, attempt: int) -> None:
    """Fills in the fields of a Contribution that follow from an operation."""
    what["tag"], what["first_seq"], what["attempt"] = operation.tag, operation.first_seq, attempt
    what["data_start"], what["chunk_fragments"] = operation.plan.data_start(attempt), operation.plan.chunk_fragments


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
