"""Help among the ranks of a PyTorch training: a rank that waits computes gradients that stragglers have not sent.

A training step under `BackupCompute`:

1. The rank computes the gradient of its own batch; buckets leave for the switch as the backward pass fills them.
2. Then it waits as a leader. If the switch lacks another rank's contribution, and the parameter server agrees, it
   computes that rank's batch as well, and sends the gradient on its behalf. The first copy of each fragment is in the
   sum, another one is dropped.
3. When the sums are there, the mean gradients are added to `.grad`. A straggler that is still computing stops, takes
   the sums, and begins the next step together with the others.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sa_atp.basics.errors import UserError
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.steps.device import Device
from sa_atp.steps.real_time import run_step
from sa_atp.steps.step import Stepper
from sa_atp.steps.step_record import StepRecord
from sa_atp.steps.workloads.abandon import abandonable
from sa_atp.steps.workloads.bucketed import BucketedHost
from sa_atp.steps.workloads.layout import bytes_of_megabytes, layout_of
from sa_atp.steps.workloads.module_workload import BatchOf, LossFunction, ModuleWorkload
from sa_atp.train.ddp_state import SaAtpState


@dataclass(slots=True)
class BackupStats:
    """Counters of this rank."""

    steps: int = 0
    computed: int = 0
    """Micro-batches of its own that it computed."""
    helped: int = 0
    """Micro-batches of others that it computed and sent."""
    abandoned: int = 0
    """Steps in which others finished its work."""

    def as_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


class BackupCompute:
    """Computes gradients together with the other ranks, and on behalf of those that are late.

    It takes the place of the forward and backward pass of a training loop:

        backup = BackupCompute(model, loss_fn, sampler.batch_of)
        for step in range(steps):
            optimizer.zero_grad()
            loss = backup.forward_backward(step)
            optimizer.step()
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        batch_of: BatchOf,
        *,
        state: SaAtpState | None = None,
        patience: float = 0.02,
        seed: int = 0,
        bucket_cap_mb: float = 25.0,
        running: Sequence[str] = (),
        device: Device | None = None,
    ) -> None:
        """Args:
        model: a DistributedDataParallel, or a module whose parameters are equal on all ranks.
        loss_fn: called with the model's outputs and the targets; returns a scalar. With micro-batches it must be a mean
            over samples.
        batch_of: called with (step, rank); returns (inputs, targets) of that rank's batch, the same on every rank. A
            tuple of inputs gives several arguments, a mapping named ones.
        state: used for this model alone. Default: from the environment; help is "clone" unless SA_ATP_HELP is set.
        patience: share of its own compute time that a leader waits before it offers help.
        seed: of dropout and augmentation, which are functions of (seed, step, rank).
        bucket_cap_mb: size of the parts in which gradients travel.
        running: names of buffers that the model changes when it is called, besides those of normalisation layers.
        device: an emulated device that is slower than this machine, for experiments; gradients then leave when a batch
            is done. Default: none, and each bucket leaves as soon as it is full.

        Raises: UserError: also if the state serves another BackupCompute.
        """
        if patience < 0:
            raise UserError(f"patience = {patience!r}: expected 0 or more")
        is_ddp = isinstance(model, DistributedDataParallel)
        self.module: nn.Module = cast(Any, model).module if is_ddp else model
        self.state = state or SaAtpState.from_env(help=os.environ.get("SA_ATP_HELP") or "clone")
        self.state.check_exact("BackupCompute")
        if is_ddp and self.state.process_group is None:
            self.state.process_group = cast(Any, model).process_group
        self.stats = BackupStats()
        self.last: StepRecord | None = None
        """The record of this rank's last step."""
        self.layout = layout_of(
            self.module,
            bucket_bytes=bytes_of_megabytes(bucket_cap_mb, "bucket_cap_mb"),
            unused=bool(getattr(model, "find_unused_parameters", False)),
            running=tuple(running),
            micro_batches=self.state.micro_batches,
        )
        self.state.reserve_for_help({"seed": seed, **self.layout.terms})
        self._loss_fn = loss_fn
        self._batch_of = batch_of
        self._patience = patience
        self._seed = seed
        self._next_step = 0
        self._stepper: Stepper | None = None
        self._device = device if device is not None else _ThisMachine()
        self._streams = device is None

    def forward_backward(self, step: int | None = None) -> torch.Tensor:
        """Does one step's forward and backward passes, with help; adds the mean gradient of all ranks to `.grad`.

        Args: step: its number, the same on every rank, larger than all before; default: the next one.

        Returns: the mean loss over all ranks' batches. (A straggler whose work others do has no loss of its own.)
        Raises: TransportError: the step cannot finish, because of the ranks that the error names.
        """
        if step is None:
            step = self._next_step
        if step < self._next_step:
            raise UserError(f"step = {step}: expected {self._next_step} or more, since steps up to that are over")
        self._next_step = step + 1
        stepper = self._stepper or self._start()
        workload = stepper.workload
        if not self._streams and isinstance(workload, ModuleWorkload):
            workload.find_micro_batch_size(step, stepper.rank)
        record, sum_ = run_step(stepper, self._device, workload, step)
        self.last = record
        self.stats.steps += 1
        self.stats.computed += record.micro_batches
        self.stats.helped += record.helped
        self.stats.abandoned += record.micro_batches < stepper.micro_batches
        record.computed.clear()  # the gradients
        return torch.tensor(float(sum_.out[self.layout.loss[0]]))

    def _start(self) -> Stepper:
        communicator = self.state.communicator
        host = BucketedHost(communicator, self.layout)
        workload = ModuleWorkload(
            self.module,
            self._loss_fn,
            self._batch_of,
            self.layout,
            micro_batches=communicator.membership.micro_batches,
            seed=self._seed,
            host=host,
            streams=self._streams,
        )
        helps = communicator.membership.help_grade is not HelpGrade.NONE
        self._stepper = Stepper(host, workload, helps=helps, patience=self._patience)
        return self._stepper


class _ThisMachine(Device):
    """The machine itself, without emulation."""

    def __init__(self) -> None:
        super().__init__(0)

    def run(self, samples: int, work: Any, stop: "Future[Any] | None" = None) -> Any:
        """Does `work`. Raises: Cancelled: `stop` was done first."""
        with abandonable(stop):
            return work()
