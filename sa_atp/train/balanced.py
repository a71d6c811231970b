"""Batches of PyTorch programs whose sizes follow each rank's speed (see sa_atp.protocol.batches).

batches = BalancedBatches(dataset, batch_size=96)                # of all ranks together
loader = DataLoader(dataset, batch_sampler=batches)
model.register_comm_hook(SaAtpState.from_env(batches=batches), sa_atp_hook)

Every rank takes its part of the same global batch. The hook weights a rank's mean gradient by its share of the samples,
so the sum is the mean over the whole batch, whatever the shares. After the last bucket of a step the ranks sum their
measured times, each at a position of its own: that sum travels together with the gradients, and determines the sizes of
the next step on all ranks alike.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import UserError
from sa_atp.net.communicator import Communicator
from sa_atp.protocol.batches.orchestrator import Measured, Orchestrator
from sa_atp.protocol.job.terms import Value
from sa_atp.train.samplers import ShuffledOrder, place_of

PerRank = int | Sequence[int]


class BalancedBatches(Sampler[list[int]]):
    """A batch sampler: iterating gives this rank's part of each global batch of one epoch.

    Every epoch goes through the data set in a new order, a function of (seed, epoch). Samples that do not fill a global
    batch are left out of the epoch. The samples of a step do not depend on how they are shared.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        least: PerRank = 1,
        most: PerRank | None = None,
        multiple_of: int = 1,
        lead: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        """Args, all but `rank` the same on every rank:
        dataset: has a length, and is the same on every rank.
        batch_size: samples of a step, of all ranks together.
        least, most: bounds of a rank's part, such as its memory's; one for all ranks, or one for each.
        multiple_of: a rank's part is a multiple of this.
        lead: batches that a DataLoader draws ahead: its num_workers times prefetch_factor. Sizes are decided so many
            steps earlier.
        rank, world_size: default: of the default process group, or else of the environment (RANK, WORLD_SIZE).

        Raises: UserError.
        """
        self.rank, self.world_size = place_of(rank, world_size)
        self.dataset = dataset
        self.batch_size = batch_size
        self.epoch = 0
        length = len(dataset)  # type: ignore[arg-type]
        if not 1 <= batch_size <= length:
            raise UserError(f"batch_size = {batch_size}: expected 1 to {length}, the samples that there are")
        if lead < 0:
            raise UserError(f"lead = {lead}: expected 0 or more")
        lows = _per_rank("least", least, self.world_size)
        highs = _per_rank("most", batch_size if most is None else most, self.world_size)
        self.orchestrator = Orchestrator(
            self.world_size, batch_size, bounds=list(zip(lows, highs, strict=True)), granularity=multiple_of
        )
        settings = {
            "length": length, "batch_size": batch_size, "least": lows, "most": highs, "multiple_of": multiple_of,
            "lead": lead, "seed": seed, "shuffle": shuffle,
        }  # fmt: skip
        self.terms: Mapping[str, Value] = {f"batches.{name}": str(value) for name, value in settings.items()}
        """Terms for joining a job: settings that must be the same on all ranks."""
        self._order = ShuffledOrder(length, seed=seed, shuffle=shuffle)
        self._lead = lead
        self._drawn = 0  # batches drawn
        self._step = 0  # steps whose gradients are computed
        self._fed = 0  # steps whose measurements the orchestrator has
        self._sizes: dict[int, tuple[int, ...]] = {}
        self._exchanges: dict[int, Future[Values]] = {}
        self._clock = _Clock()

    @property
    def steps_per_epoch(self) -> int:
        return self._order.length // self.batch_size

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each rank in the next step to be computed."""
        return self._sizes.get(self._step, self.orchestrator.sizes)

    @property
    def weight(self) -> float:
        """The rank's share of the step's samples, by which the hook multiplies its mean gradient."""
        return self.sizes[self.rank] / self.batch_size

    def whole(self, step: int) -> list[int]:
        """The samples of a global batch, of which ranks have parts in order. Args: step: counted through all epochs."""
        epoch, within = divmod(step, self.steps_per_epoch)
        return list(self._order.of(epoch)[within * self.batch_size :][: self.batch_size])

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        self._drawn = self._step  # batches that an earlier iteration drew, and that were not computed, do not count
        first = self.epoch * self.steps_per_epoch
        for step in range(first, first + self.steps_per_epoch):
            sizes = self._draw()
            start = sum(sizes[: self.rank])
            part = self.whole(step)[start : start + sizes[self.rank]]
            if not self._lead:
                self._clock.start()
            yield part

    def _draw(self) -> tuple[int, ...]:
        """Sizes of the next batch, from measurements up to `lead` steps before.

        Raises: UserError, TransportError.
        """
        while self._fed < self._drawn - self._lead:
            if self._fed not in self._exchanges:
                raise UserError(
                    "a balanced batch was drawn before the gradients of the one before it: does every backward pass take "
                    "one batch, and is `lead` the DataLoader's num_workers times prefetch_factor?"
                )
            self._feed(self._exchanges.pop(self._fed).result())
        sizes = self.orchestrator.sizes
        self._sizes[self._drawn] = sizes
        self._drawn += 1
        return sizes

    def _feed(self, seconds: Values) -> None:
        """Gives a step's measurements to the orchestrator.

        Args: seconds: float32[2 * ranks]: this step's, and the last's.
        """
        of_step, of_last = seconds[: self.world_size].tolist(), seconds[self.world_size :].tolist()
        for step, found in ((self._fed - 1, of_last), (self._fed, of_step)):
            if any(found):
                sizes = self._sizes[step]
                self.orchestrator.decide([Measured(b, s) if s > 0 else None for b, s in zip(sizes, found, strict=True)])
        self._sizes.pop(self._fed - 1, None)
        self._fed += 1

    # --- called by the hook -------------------------------------------------------------------------------------------

    def check(self, communicator: Communicator) -> None:
        """Checks, before a bucket is summed, that it belongs to a batch that was drawn. Raises: UserError."""
        member = communicator.membership
        if (member.rank, member.world_size) != (self.rank, self.world_size):
            raise UserError(
                f"balanced batches of rank {self.rank} of {self.world_size} with a job in which this is rank "
                f"{member.rank} of {member.world_size}"
            )
        if self._step not in self._sizes or (not self._lead and self._drawn != self._step + 1):
            raise UserError(
                "balanced batches: a backward pass must be of one batch: gradients that are accumulated over several "
                "(no_sync) have no common weight"
            )

    def share_measurement(self, communicator: Communicator, device: torch.device) -> None:
        """Ends the step's own work, and begins the sum of all ranks' times, without waiting for it."""
        now_s, last_s = self._clock.stop(device)
        mine = np.zeros(2 * self.world_size, np.float32)
        mine[self.rank], mine[self.world_size + self.rank] = now_s, last_s
        member = communicator.membership
        sum_ = communicator.begin(mine.size, key="batch sizes", measured=False)
        communicator.contribute(sum_, [mine], member.bits_of(member.rank))
        if self._lead:
            sum_.future.add_done_callback(lambda _: self._clock.start())
        self._exchanges[self._step] = sum_.future
        self._step += 1


class _Clock:
    """Measures a step's own work: from the drawing of its batch (with `lead`, from the last sum) to its gradient.

    On a GPU a pass may not be done when its gradient is handed over, so its time is reported a step later.
    """

    def __init__(self) -> None:
        self._start_s = 0.0
        self._device: torch.device | None = None  # of the model, once it is known
        self._start: Any = None  # CUDA events
        self._last: tuple[Any, Any] | None = None

    def start(self) -> None:
        self._start_s = time.perf_counter()
        if self._device is not None and self._device.type == "cuda":
            self._start = self._event()

    def stop(self, device: torch.device) -> tuple[float, float]:
        """Returns: seconds of this step and of the one before; 0: not known, or reported before."""
        self._device = device
        if device.type != "cuda":
            started_s, self._start_s = self._start_s, 0.0
            return (time.perf_counter() - started_s if started_s else 0.0), 0.0
        last_s = 0.0
        if self._last is not None:
            start, end = self._last
            end.synchronize()  # a step ago: it is done
            last_s = start.elapsed_time(end) / 1e3
        self._last = None if self._start is None else (self._start, self._event())
        return 0.0, last_s

    def _event(self) -> Any:
        event = cast(Any, torch.cuda.Event)(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def _per_rank(name: str, given: PerRank, world_size: int) -> list[int]:
    found = [given] * world_size if isinstance(given, int) else list(given)
    if len(found) != world_size:
        raise UserError(f"{name}: {len(found)} values for {world_size} ranks: expected one for all, or one for each")
    return found
