"""Collects gradients during a backward pass, and reports full buckets."""

from collections import deque
from collections.abc import Callable
from typing import Any, cast

import torch

from sa_atp.steps.workloads.abandon import check, current_stop
from sa_atp.steps.workloads.layout import Layout


class Collector:
    """Collects the gradients of one backward pass. Those on a GPU are copied to the host by buckets, during the pass.

    To be made in the thread that calls the pass. Hooks may run in another one: autograd has a thread for each GPU.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.flat = torch.zeros(layout.values, pin_memory=device.type == "cuda")
        """float32[values] on the host; a bucket's part is valid when `on_full` is called, the rest after `finish`."""
        self.used: set[str] = set()
        """Parameters that have a gradient."""
        self.on_full: Callable[[int], None] = lambda segment: None
        """Called with a segment as soon as all its gradients are in `flat`."""
        self._layout = layout
        self._here = self.flat if device.type == "cpu" else torch.zeros(layout.values, device=device)
        self._stream = cast(Any, torch.cuda.Stream)(device) if device.type == "cuda" else None
        self._stop = current_stop()
        self._left = [0] * len(layout.segments)
        for segment in layout.bucket_of.values():
            self._left[segment] += 1
        self._coming: deque[tuple[int, Any]] = deque()  # (segment, event) of copies to the host that are under way

    def hook_for(self, name: str) -> Callable[[torch.Tensor], None]:
        """A hook for a parameter, to be called when its gradient is complete. It raises Cancelled once the work is
        stopped.
        """
        start, end = self._layout.gradients[name]
        segment = self._layout.bucket_of[name]

        def take(parameter: torch.Tensor) -> None:
            check(self._stop)
            gradient = parameter.grad
            assert gradient is not None
            parameter.grad = None
            if gradient.is_sparse:
                gradient = gradient.to_dense()
            self._here[start:end].copy_(gradient.reshape(-1))
            self.used.add(name)
            self._left[segment] -= 1
            if self._left[segment] == 0:
                self._copy_to_host(segment)
            self._take_copies(wait=False)

        return take

    def finish(self) -> None:
        """Ends the pass: buckets with unused parameters will not get fuller."""
        for segment, left in enumerate(self._left):
            if left:
                self._copy_to_host(segment, announce=False)
        self._take_copies(wait=True)

    def _copy_to_host(self, segment: int, *, announce: bool = True) -> None:
        if self._stream is None:
            if announce:
                self.on_full(segment)
            return
        start, end = self._layout.segments[segment].start, self._layout.segments[segment].end
        self._stream.wait_stream(torch.cuda.current_stream(self._here.device))
        arrived = cast(Any, torch.cuda.Event)(blocking=True)
        with torch.cuda.stream(self._stream):  # the pass does not wait for the copy
            self.flat[start:end].copy_(self._here[start:end], non_blocking=True)
            arrived.record()
        self._here.record_stream(self._stream)
        self._coming.append((segment if announce else -1, arrived))

    def _take_copies(self, *, wait: bool) -> None:
        while self._coming and (wait or self._coming[0][1].query()):
            check(self._stop)  # the GPU lags behind the host, so the work may still be abandoned
            segment, arrived = self._coming.popleft()
            arrived.synchronize()
            if segment >= 0:
                self.on_full(segment)
