"""Messages between workers and the server of parameters, and among workers.

Arrays (parameters, updates, samples) travel beside a message as its payload: raw float32 or uint8.
"""

from typing import Annotated, NamedTuple

import msgspec

from sa_atp.basics.arrays import Values
from sa_atp.steps.parallel import MOST_TASKS

SERVER = -1  # as a sender or a receiver, beside the workers' ranks
Microseconds = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class Task(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One micro-batch of one shard in one clock, the unit of computation: each is computed exactly once."""

    clock: int
    shard: int
    micro_batch: int


Tasks = tuple[Task, ...]


class ParamsMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all messages; the type is a field of the encoding."""


# --- worker to server -------------------------------------------------------------------------------------------------


class Open(ParamsMessage, frozen=True):
    """The description of a job, with which rank 0 opens it."""

    policy: str
    plan: dict[str, object]
    values: Annotated[int, msgspec.Meta(ge=1)]
    """Number of parameters, and so of the values of a join or a push."""
    sample_bytes: Annotated[int, msgspec.Meta(ge=0)]
    """Size of the samples of one task."""


class JoinTraining(ParamsMessage, frozen=True, tag="Join"):
    """A worker joins. Rank 0 sends the initial parameters with it, float32[values]."""


class Pull(ParamsMessage, frozen=True):
    """A worker asks to begin a clock, and for parameters."""

    clock: int


class Push(ParamsMessage, frozen=True):
    """An update, float32[values]: the sum of the gradients of these tasks, each its share of a shard's mean."""

    clock: int
    """The clock of the worker that pushes."""
    tasks: Tasks


class TaskComputed(ParamsMessage, frozen=True, tag="Progress"):
    """A worker has computed a task."""

    clock: int
    left: int
    """Tasks that it has still to compute, as far as it knows."""
    took_us: Microseconds


class Gave(ParamsMessage, frozen=True):
    """The reply to GiveUp: these tasks went to the other worker."""

    order: int
    tasks: Tasks


class Arrived(ParamsMessage, frozen=True):
    """A transfer has arrived."""

    order: int


# --- server to worker -------------------------------------------------------------------------------------------------


class GoAhead(ParamsMessage, frozen=True, omit_defaults=True):
    """The reply to Pull, with the parameters, float32[values]."""

    clock: int
    version: int
    """Number of updates in these parameters."""
    tasks: Tasks
    parallel: Annotated[int, msgspec.Meta(ge=1, le=MOST_TASKS)] = 1
    """How many of them to compute at a time."""


class Applied(ParamsMessage, frozen=True):
    """The reply to Push."""

    version: int


class Over(ParamsMessage, frozen=True):
    """The job has ended; updates that are not applied yet do not count."""


class JobFailed(ParamsMessage, frozen=True, tag="Failed", omit_defaults=True):
    """The job has failed."""

    reason: str
    not_finite: bool = False
    """Whether a worker's values were NaN or infinite."""


class GiveUp(ParamsMessage, frozen=True):
    """The server orders a worker to give tasks that it has not begun to another worker."""

    order: int
    to: int
    count: int


# --- worker to worker -------------------------------------------------------------------------------------------------


class Transfer(ParamsMessage, frozen=True):
    """Tasks that move to another worker, with their samples, uint8[n]."""

    order: int
    tasks: Tasks


class Report(ParamsMessage, frozen=True):
    """The progress of a possible helper."""

    clock: int
    done: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
    """Share of the clock's tasks."""


class DoThis(ParamsMessage, frozen=True):
    """An assignment: tasks for the helper to compute after its own."""

    number: int
    tasks: Tasks


class Begun(ParamsMessage, frozen=True):
    """The helper has begun an assignment, and keeps its tasks."""

    number: int


class Cancel(ParamsMessage, frozen=True):
    """The owner takes an assignment back, if the helper has not begun it."""

    number: int


class CancelReply(ParamsMessage, frozen=True, tag="Cancelled"):
    """The reply to Cancel."""

    number: int
    returned: bool
    """Whether the tasks are the owner's again."""


ToServer = JoinTraining | Pull | Push | TaskComputed | Gave | Arrived
FromServer = GoAhead | Applied | Over | JobFailed | GiveUp
AmongWorkers = Transfer | Report | DoThis | Begun | Cancel | CancelReply
AnyMessage = ToServer | FromServer | AmongWorkers


class MessageRefused(ValueError):
    """A worker sent a message that is not allowed at this time. The text does not name the worker."""


class ValuesNotFinite(MessageRefused):
    """A worker sent values that are NaN or infinite."""


class Outgoing(NamedTuple):
    """A message to be sent, with its payload."""

    to: int
    message: AnyMessage
    values: Values | None = None
    samples_of: Tasks = ()
    """Tasks whose samples are the payload."""


_encoder = msgspec.msgpack.Encoder()


def encode(message: AnyMessage | Open) -> bytes:
    return _encoder.encode(message)


def opening_of(data: bytes) -> Open:
    """Decodes the description of a job. Raises: ValueError."""
    try:
        return msgspec.msgpack.decode(data, type=Open)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"not a message that opens a job: {error}") from None
