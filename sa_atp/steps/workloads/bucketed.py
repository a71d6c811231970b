"""A training step's sum in segments: one operation for each segment of the layout."""

from collections.abc import Sequence

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.net.clock import now_us
from sa_atp.net.communicator import Communicator
from sa_atp.net.session import Sum
from sa_atp.protocol.help.progress import SendProgress
from sa_atp.steps.effects import HostAround
from sa_atp.steps.sum_pair import SumsTogether
from sa_atp.steps.workloads.layout import Layout


class SegmentedSum(SumsTogether):
    """The sums of all segments as one pending sum."""

    sums: Sequence[Sum]

    def __init__(self, sums: Sequence[Sum], out: Values) -> None:
        self.out = out
        """float32[values]: receives the sums."""
        self.sent: list[int] = [0] * len(sums)
        """Bitmaps, one for each segment, of the contributions that `contribute_segment` has handed over."""
        super().__init__(sums, lambda: out)

    @property
    def overtaken(self) -> bool:
        """Whether other ranks have done this rank's part of a segment, and so will do its part of the others."""
        return any(s.overtaken for s in self.sums)

    @property
    def progress(self) -> SendProgress | None:
        return None  # not computed for several sums at once

    @property
    def sending(self) -> tuple[tuple[int, int], ...]:
        return tuple(sorted(stretch for s in self.sums for stretch in s.sending))

    @property
    def sent_share(self) -> float:
        return sum(s.sent_share * s.values for s in self.sums) / sum(s.values for s in self.sums)


class BucketedHost(HostAround):
    """A communicator as the host of steps with segmented sums (see effects.Host)."""

    def __init__(self, communicator: Communicator, layout: Layout) -> None:
        super().__init__(communicator, now_us)
        self.current: SegmentedSum | None = None
        self._communicator = communicator
        self._layout = layout

    def begin(self, values: int, key: object = "backup") -> SegmentedSum:
        out = np.empty(values, np.float32)
        sums = [
            self._communicator.begin(
                segment.end - segment.start,
                key=(key, number),
                out=out[segment.start : segment.end],
                scale=1.0 / self.membership.world_size if segment.mean else 1.0,
            )
            for number, segment in enumerate(self._layout.segments)
        ]
        self.current = SegmentedSum(sums, out)
        return self.current

    def contribute(self, sum_: SegmentedSum, parts: Sequence[Values], bits: int, *, on_behalf: bool) -> None:
        """Adds contributions to all segments that do not have them already."""
        for number, segment in enumerate(self._layout.segments):
            if sum_.sent[number] & bits != bits:
                slices = [part[segment.start : segment.end] for part in parts]
                self._communicator.contribute(sum_.sums[number], slices, bits, on_behalf=on_behalf)

    def contribute_segment(self, number: int, values: Values, bit: int) -> None:
        """Adds one contribution to one segment of the current sum. Args: values: float32, all segments."""
        if self.current is None:
            return
        segment = self._layout.segments[number]
        own = bool(bit & self.membership.bits_of(self.membership.rank))
        part = values[segment.start : segment.end]
        self._communicator.contribute(self.current.sums[number], [part], bit, on_behalf=not own)
        self.current.sent[number] |= bit

    def probe(self, sum_: SegmentedSum) -> None:
        """Probes the last segment that is not complete: a rank that has contributed to it has sent everything."""
        for part in sum_.pending[-1:]:
            self._communicator.probe(part)
