"""State of the DDP communication hook: the settings of its job, and the connection once it is made.

The connection is made at the first gradient, by all ranks at once. It is never part of a checkpoint: a restarted
program joins anew, which begins a new epoch of the job, so that contents of slots from the old one do not matter.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import one_of
from sa_atp.net.communicator import Communicator
from sa_atp.net.connecting import connect
from sa_atp.net.loop.compiled import pair_kernels
from sa_atp.protocol.job.errors import RefusedError, TransportError
from sa_atp.protocol.job.terms import Value
from sa_atp.protocol.numbers.pairs import PairCodec
from sa_atp.protocol.packets.lateness_messages import JobLateness
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.train.environment import choice, has_group, place_in_job, settings_of_environment
from sa_atp.train.groups import GROUP, beliefs, job_name, ranks_of
from sa_atp.train.scalars import Seen, Writer, scalars

OLDEST_TORCH = "2.12"  # as in pyproject.toml
JOIN_AGAIN_S = 0.5  # between attempts while the parameter server has not given up an earlier run of the job
JOIN_AGAIN_FOR_S = 5.0  # of such attempts; the server gives a run up when all its ranks have been silent for 2 s
NONFINITE = ("raise", "spread")
BITS = (32, 16)


class Batches(Protocol):
    """The hook's view of balanced batches; see balanced.BalancedBatches."""

    @property
    def weight(self) -> float: ...
    @property
    def terms(self) -> Mapping[str, Value]: ...
    def check(self, communicator: Communicator) -> None: ...
    def share_measurement(self, communicator: Communicator, device: torch.device) -> None: ...


class SaAtpState:
    """State of `sa_atp_hook`, of the backend, of FSDP and of `BackupCompute`.

    One object serves one job and one process group; ranks of the group are ranks of the job. The name of the job is
    `job`; for another group than the default one, "/ranks ..." follows, with the group's ranks. When it is pickled,
    settings are kept, connection and process group are not.
    """

    stages: dict[Any, Any]
    """By device, the stages that copy tensors to the host and back (see tensor_sums.Stage)."""
    left_to_group: dict[str, int] | None
    """By type, the number of values that the process group sums (see by_group); None: the user has been told."""
    _codecs: dict[object, PairCodec]
    _lock: threading.Lock
    _communicator: Communicator | None
    _has_backup: bool
    _of_backup: Mapping[str, Value]
    _cancelled: threading.Event
    _finalizer: "weakref.finalize[Any, Any] | None"
    _seen: Seen | None
    _scattered: "SaAtpState | None"

    def __init__(
        self,
        server: str,
        *,
        job: str = "default",
        rank: int | None = None,
        world_size: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        help: str = "none",
        micro_batches: int = 1,
        join_timeout_s: float = 60.0,
        operation_timeout_s: float = 60.0,
        server_timeout_s: float = 10.0,
        answer_timeout_s: float | None = None,
        nonfinite: str = "raise",
        batches: "Batches | None" = None,
        agree: Mapping[str, Value] | None = None,
        results: str = "to all",
        bits: int = 32,
        error_feedback: bool = True,
        rounding_seed: int = 0,
    ) -> None:
        """Args:
        server: address of the parameter server, "udp://HOST[:PORT]".
        job: the job's name; the same on every rank.
        rank, world_size: default: those of the process group, else of the environment.
        process_group: the group of the DDP model; default: the default group.
        help: "none", "clone" or "steal": how leaders may help stragglers (see `BackupCompute`).
        micro_batches: equal pieces of a rank's batch, the unit of help.
        join_timeout_s: how long to wait for the parameter server and the other ranks.
        operation_timeout_s: a sum without progress for so long fails, on every rank.
        server_timeout_s: a parameter server that is silent for so long counts as lost.
        answer_timeout_s: how long to wait for the parameter server's first answer, if less than join_timeout_s.
        nonfinite: what a NaN or an infinity in a gradient does. "raise": the step fails, naming the rank. "spread": all
            ranks get NaN, as from other backends; for torch.amp.GradScaler, which skips such steps.
        batches: a BalancedBatches, if the sizes of ranks' batches are to follow their speed.
        agree: other terms that all ranks must state alike, such as {"bucket_cap_mb": 25}; see `sa_atp.connect`. The
            ranks of the process group, `nonfinite` and the settings of `batches` are compared in any case.
        results: "scattered", if the job is for reduce-scatter; see `sa_atp.connect`.
        bits: 32, or 16: `sa_atp_hook` sends gradients in half the bytes, less exactly (docs/pytorch.md). For one model.
        error_feedback: whether, with 16 bits, what rounding took from a gradient is added to the next one.
        rounding_seed: with 16 bits, gradients are rounded at random, by this seed.

        Raises: UserError.
        """
        if torch.__version__ < OLDEST_TORCH:
            raise UserError(
                f"PyTorch {torch.__version__} is too old for sa_atp.train: expected {OLDEST_TORCH} or newer"
            )
        if help not in [grade.value for grade in HelpGrade]:
            raise UserError(f"help = {help!r}: {one_of(help, [grade.value for grade in HelpGrade], str)}")
        if nonfinite not in NONFINITE:
            raise UserError(f"nonfinite = {nonfinite!r}: {one_of(nonfinite, NONFINITE, str)}")
        if bits not in BITS:
            raise UserError(f"bits = {bits!r}: expected {' or '.join(map(str, BITS))}")
        self.server = server
        self.job = job
        self.rank = rank
        self.world_size = world_size
        self.process_group = process_group
        self.help = help
        self.micro_batches = micro_batches
        self.join_timeout_s = join_timeout_s
        self.operation_timeout_s = operation_timeout_s
        self.server_timeout_s = server_timeout_s
        self.answer_timeout_s = answer_timeout_s
        self.nonfinite = nonfinite
        self.batches = batches
        self.agree = dict(agree or {})
        self.results = results
        self.bits = bits
        self.error_feedback = error_feedback
        self.rounding_seed = rounding_seed
        self._closed_because: str | None = None  # why it was closed for good
        self._forget_connection()

    @classmethod
    def from_env(cls, **settings: Any) -> Self:
        """Makes a state from the environment that `sa-atp up` prints and torchrun completes.

        Args: settings: override the environment; see the constructor.
        Raises: UserError.
        """
        server = settings.pop("server", None) or os.environ.get("SA_ATP_SERVER")
        if not server:
            raise UserError("SA_ATP_SERVER is not set: `sa-atp up` prints the environment that programs need")
        return cls(server, **settings, **settings_of_environment(settings))

    # --- the connection -----------------------------------------------------------------------------------------------

    @property
    def communicator(self) -> Communicator:
        """The connection; joins the job when it is first asked for. Raises: UserError, TransportError."""
        with self._lock:
            if self._closed_because is not None:
                raise TransportError(self._closed_because)
            if self._communicator is None:
                self._communicator = self._join()
                self._finalizer = weakref.finalize(self, _close, self._communicator, os.getpid())
            return self._communicator

    @property
    def may_scatter(self) -> bool:
        """Whether a reduce-scatter should bring each rank its own part alone, not the whole sum. All ranks have the
        same answer.

        Parts alone take less of each link. On one machine there are no links, and the whole sum is faster.
        Raises: UserError, TransportError.
        """
        how, member = choice("SA_ATP_SCATTER"), self.communicator.membership
        return member.may_scatter and how != "never" and (how == "always" or not member.is_local)

    @property
    def may_gather(self) -> bool:
        """Whether an all-gather should go through the switch. All ranks have the same answer.

        On one machine there are no links that it would spare, and two ranks send each other no more than their parts.
        Raises: UserError, TransportError.
        """
        how = choice("SA_ATP_GATHER")
        if how != "auto":
            return how == "always"
        member = self.communicator.membership
        return not member.is_local and member.world_size > 2

    @property
    def scattered(self) -> "SaAtpState":
        """The state of a second job of the same ranks, for reduce-scatter. Its job begins with the first one."""
        with self._lock:
            if self._scattered is None:
                self._scattered = SaAtpState(
                    self.server,
                    job=job_name(self.job, "scattered"),
                    rank=self.rank,
                    world_size=self.world_size,
                    process_group=self.process_group,
                    join_timeout_s=self.join_timeout_s,
                    operation_timeout_s=self.operation_timeout_s,
                    server_timeout_s=self.server_timeout_s,
                    answer_timeout_s=self.answer_timeout_s,
                    nonfinite=self.nonfinite,
                    agree=self.agree,
                    results="scattered",
                )
                self._scattered._closed_because = self._closed_because
            return self._scattered

    def stragglers(self) -> JobLateness:
        """Which ranks were slow, by how much, and at what. With the hook, the sums that are counted are steps.

        See `Communicator.stragglers`. Raises: UserError, TransportError.
        """
        return self.communicator.stragglers()

    def write_scalars(self, writer: Writer, step: int) -> None:
        """Writes what this rank did since the last call, and which ranks were late, as scalars.

        Times are shares of the time since the last call. Asks the parameter server, as `stragglers` does.

        Args: writer: a SummaryWriter of TensorBoard, or anything with its `add_scalar`; step: the program's own count.
        Raises: UserError, TransportError.
        """
        communicator = self.communicator
        seen = communicator.state(), communicator.stragglers()
        before, self._seen = self._seen, seen
        for tag, value in scalars(seen, before).items():
            writer.add_scalar(tag, value, step)

    @property
    def place(self) -> tuple[int, int]:
        """(rank, number of ranks) in the job. Raises: UserError."""
        return place_in_job(
            self.rank, self.world_size, self.process_group, self.job, is_group_stated=GROUP in self.agree
        )

    @property
    def job_name(self) -> str:
        """The job's name at the parameter server. Raises: UserError."""
        group = self.process_group
        if group is None or group == dist.group.WORLD:
            return self.job
        return job_name(self.job, ranks_of(self._group_ranks or ()))

    @property
    def terms(self) -> dict[str, Value]:
        """Terms that all ranks must state alike when they join."""
        own: dict[str, Value] = {**beliefs(self._group_ranks), "nonfinite": self.nonfinite}
        own["bits"] = self.bits
        if self.bits != 32:
            own |= {"error feedback": self.error_feedback, "rounding seed": self.rounding_seed}
        own.update({"batches": "equal"} if self.batches is None else self.batches.terms)
        return {**own, **self._of_backup, **self.agree}

    def codec_of(self, key: object, values: int) -> PairCodec | None:
        """What packs a tensor's sums; None: they travel with 32 bits. Args: key: the tensor's, of all its sums."""
        if self.bits == 32:
            return None
        if key not in self._codecs:
            self._codecs[key] = PairCodec(
                values, self.communicator.membership.world_size, seed=self.rounding_seed, key=key,
                feedback=self.error_feedback, kernels=pair_kernels(),
            )  # fmt: skip
        return self._codecs[key]

    def check_exact(self, what: str) -> None:
        """Raises: UserError: the state's sums have 16 bits. Args: what: the caller, which has sums with 32 bits only."""
        if self.bits != 32:
            raise UserError(f"bits = {self.bits} is for sa_atp_hook: expected 32 for {what}")

    def limit_operations(self, seconds: float) -> None:
        """Sets the time-out of sums without progress, also for a connection that exists already."""
        with self._lock:
            self.operation_timeout_s = seconds
            if self._communicator is not None:
                self._communicator.limit_operations(seconds)
            if self._scattered is not None:
                self._scattered.limit_operations(seconds)

    @property
    def _group_ranks(self) -> list[int] | None:
        """Global ranks of the process group; None: there is none."""
        if self.process_group is None and (self.rank is not None or not has_group()):
            return None
        return dist.get_process_group_ranks(self.process_group)

    def reserve_for_help(self, terms: Mapping[str, Value]) -> None:
        """Reserves the state for one BackupCompute: the ledger counts steps, and two would each count their own.

        Args: terms: settings that must be the same on all ranks.
        Raises: UserError: another one has it already.
        """
        with self._lock:
            if self._has_backup:
                raise UserError(
                    f"a BackupCompute uses the state of job {self.job!r} already: give each model a state of its own, "
                    f'with another name of a job: SaAtpState.from_env(help={self.help!r}, job="{self.job}, 2")'
                )
            self._has_backup, self._of_backup = True, terms

    def close(self, *, for_good: str | None = None) -> None:
        """Leaves the job, and ends joining that is under way in another thread.

        Args: for_good: a reason, with which later use fails; default: the next gradient joins again.
        """
        self._end(Communicator.close, for_good)

    def abort(self, *, for_good: str | None = None) -> None:
        """Ends everything at once: sums and joining that are under way fail. Args: as of `close`."""
        self._end(Communicator.abort, for_good)

    def _end(self, how: Callable[[Communicator], None], for_good: str | None) -> None:
        self._closed_because = self._closed_because or for_good
        self._cancelled.set()
        scattered = self._scattered
        if scattered is not None:
            scattered._end(how, for_good)
        with self._lock:
            self._cancelled.clear()
            if self._finalizer is not None:
                self._finalizer.detach()
            if self._communicator is not None:
                how(self._communicator)
            self._communicator = self._finalizer = self._seen = None
            # joining again begins a new epoch, in which the ledger knows no steps
            self._has_backup, self._of_backup = False, {}
            self.stages, self._codecs = {}, {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _join(self) -> Communicator:
        rank, world_size = self.place
        if self.bits != 32:
            pair_kernels()  # compiled before others wait for this rank
        deadline = time.monotonic() + self.join_timeout_s
        again_until = min(deadline, time.monotonic() + JOIN_AGAIN_FOR_S)
        while True:
            try:
                return connect(
                    self.server,
                    job=self.job_name,
                    rank=rank,
                    world_size=world_size,
                    micro_batches=self.micro_batches,
                    help=self.help,
                    timeout_s=max(JOIN_AGAIN_S, deadline - time.monotonic()),
                    operation_timeout_s=self.operation_timeout_s,
                    server_timeout_s=self.server_timeout_s,
                    answer_timeout_s=self.answer_timeout_s,
                    agree=self.terms,
                    results=self.results,
                    cancelled=self._cancelled.is_set,
                )
            except RefusedError:
                # After an elastic restart with another number of ranks, the parameter server may still wait for those
                # of the run before.
                if "TORCHELASTIC_RUN_ID" not in os.environ or time.monotonic() + JOIN_AGAIN_S > again_until:
                    raise
            self._cancelled.wait(JOIN_AGAIN_S)

    def _forget_connection(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self.stages, self._codecs = {}, {}
        self.left_to_group = {}
        self._communicator = None
        self._has_backup = False
        self._of_backup = {}
        self._finalizer = None
        self._scattered = None
        self._seen = None  # at the last call of write_scalars
        self._closed_because = None

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def __getstate__(self) -> Mapping[str, Any]:
        """The settings alone: rank, process group and connection belong to a run."""
        left_out = ("process_group", "rank", "world_size", "stages", "left_to_group", "batches")
        return {k: v for k, v in vars(self).items() if not k.startswith("_") and k not in left_out}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.process_group = self.rank = self.world_size = self.batches = self.answer_timeout_s = None
        self.agree = {}
        self.results, self.bits, self.error_feedback, self.rounding_seed = "to all", 32, True, 0
        vars(self).update(state)
        self._forget_connection()


def _close(communicator: Communicator, process: int) -> None:
    if os.getpid() == process:  # not in a forked child, whose copy has no thread
        communicator.close()
