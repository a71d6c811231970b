"""Gradients in half the bytes: `PairingHost` wraps the host of a worker's steps, packs contributions and unpacks sums.

Without help a worker's micro-batches are added up first, as float32, and travel as one contribution, with error feedback.
With help each micro-batch is a contribution, which is rounded alike by its owner and by whoever computes it for the owner:
so there are more contributions that share a lane's range, and no error feedback, of which only the owner would know.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from sa_atp.basics.arrays import Integers, Values
from sa_atp.net.promise import add_inline_callback
from sa_atp.protocol.job.errors import NonFiniteError
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.numbers.pairs import Packing, PairCodec, PairKernels
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.steps.effects import Host, HostAround, PendingSum
from sa_atp.steps.sum_pair import SumPair


class WholeHost(Host, Protocol):
    """A host that sums whole numbers, too."""

    def begin(self, values: int, key: object = "gradient", *, whole: bool = False) -> PendingSum: ...


Computed = list[tuple[int, int, Values]]
"""(shard, micro-batch, gradient) of what a worker has computed; see StepRecord."""


class PackedSum:
    """A sum of gradients that travels as its codec says (see effects.PendingSum)."""

    def __init__(self, inner: Any, codec: PairCodec, packing: Packing | None, member: Membership) -> None:
        """Args: inner: the sum of what travels; packing: None: that is the gradients, with 32 bits."""
        self.inner = inner
        self.future: Future[Values] = Future()
        self._codec, self._packing, self._member = codec, packing, member
        self._sent: Integers | None = None
        add_inline_callback(inner.future, self._on_done)

    def packed(self, parts: Sequence[Values], bits: int) -> list[Any]:
        """Packs contributions as they travel. Args: see Host.contribute."""
        if self._packing is None:
            return list(parts)
        if self._member.help_grade is not HelpGrade.NONE:
            numbers = [c for c in range(bits.bit_length()) if bits >> c & 1]
            return [self._codec.pack(self._packing, part, c) for c, part in zip(numbers, parts, strict=True)]
        self._sent = self._codec.pack(self._packing, np.add.reduce(parts), self._member.rank)
        return [self._sent]

    def travelled(self, computed: Computed) -> list[tuple[int, int, Any]]:
        """The packed values that have travelled of each micro-batch, to check sums by."""
        if self._packing is None:
            return list(computed)
        if self._sent is not None:  # all of them together, which is said of the first
            nothing = np.zeros_like(self._sent)
            return [(shard, m, self._sent if k == 0 else nothing) for k, (shard, m, _) in enumerate(computed)]
        number = self._member.map.number
        return [(shard, m, self._codec.pack(self._packing, part, number(shard, m))) for shard, m, part in computed]

    def _on_done(self, future: "Future[Any]") -> None:
        try:
            values = self._unpacked(future.result())
        except Exception as error:  # whoever waits for the sum raises it
            self.future.set_exception(error)
        else:
            self.future.set_result(values)

    def _unpacked(self, sums: Any) -> Values:
        if self._packing is None:
            self._codec.after_exact(sums)
            return np.asarray(sums)
        out = np.empty(self._codec.values, np.float32)
        bad = self._codec.unpack(self._packing, sums, out)
        if bad:
            of = self._member.map.rank_of if self._member.help_grade is not HelpGrade.NONE else int
            raise NonFiniteError(self.inner.operation, map(of, bad), 0, self._codec.values - 1)
        return out

    def __getattr__(self, name: str) -> Any:
        """The rest is that of the sum of what travels: missing_bits, progress, overtaken, sending, sent_share, finished."""
        return getattr(self.inner, name)


class PairingHost(HostAround):
    """A host whose gradients travel in half the bytes. Everything else it leaves to the given host."""

    def __init__(self, host: WholeHost, kernels: PairKernels, *, seed: int, feedback: bool) -> None:
        """Args: seed, feedback: see PairCodec; there is no feedback with help."""
        super().__init__(host, host.now_us)
        self._host = host
        self._kernels = kernels
        self._seed, self._feedback = seed, feedback
        self._codec: PairCodec | None = None

    def begin(self, values: int, key: object = "gradient") -> Any:
        if key != "gradient":
            return self._host.begin(values, key)
        member = self.membership
        if self._codec is None:
            helps = member.help_grade is not HelpGrade.NONE
            self._codec = PairCodec(
                values,
                member.contributions if helps else member.world_size,
                seed=self._seed,
                feedback=self._feedback and not helps,
                kernels=self._kernels,
            )
        packing = self._codec.next_sum()
        lanes = values if packing is None else packing.lanes
        return PackedSum(self._host.begin(lanes, key, whole=packing is not None), self._codec, packing, member)

    def contribute(self, sum_: Any, parts: Sequence[Values], bits: int, *, on_behalf: bool) -> None:
        if not isinstance(sum_, PackedSum):
            self._host.contribute(sum_, parts, bits, on_behalf=on_behalf)
        elif not sum_.future.done():
            self._host.contribute(sum_.inner, sum_.packed(parts, bits), bits, on_behalf=on_behalf)

    def probe(self, sum_: Any) -> None:
        self._host.probe(sum_.inner if isinstance(sum_, PackedSum) else sum_)


def travelled(sum_: Any, computed: Computed) -> list[tuple[int, int, Any]]:
    """Returns the values that have travelled of each of a step's micro-batches, to check its sum by: float32, or int32."""
    sum_ = sum_.gradient if isinstance(sum_, SumPair) else sum_
    return sum_.travelled(computed) if isinstance(sum_, PackedSum) else list(computed)
