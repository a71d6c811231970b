"""What workers and the server of the parameters say to each other; and workers to one another.

Arrays (parameters, updates, samples) travel beside a message, as they are: float32 or uint8, not encoded.
"""

from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from sa_atp.basics.arrays import Octets, Values

SERVER = -1  # as a sender or a receiver, beside the workers' ranks
Microseconds = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class Task(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One micro-batch of one shard in one clock: what is computed as a whole, and exactly once."""

    clock: int
    shard: int
    micro_batch: int


Tasks = tuple[Task, ...]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all messages have: a type that says which they are."""


# --- worker to server -------------------------------------------------------------------------------------------------


class Open(Message, frozen=True):
    """Rank 0's first: a job begins."""

    policy: str
    plan: dict[str, object]
    values: Annotated[int, msgspec.Meta(ge=1)]
    """Parameters. Who joins and who pushes sends so many."""
    sample_bytes: Annotated[int, msgspec.Meta(ge=0)]
    """Samples of one task."""


class Join(Message, frozen=True):
    """A worker is there. With rank 0's come the parameters that training begins with."""


class Pull(Message, frozen=True):
    """May I begin this clock, and with which parameters?"""

    clock: int


class Push(Message, frozen=True):
    """An update: beside it, float32[values], the sum of the gradients of these tasks, each its share of a shard's mean."""

    clock: int
    """The pusher's own."""
    tasks: Tasks


class Progress(Message, frozen=True):
    """A task is computed."""

    clock: int
    left: int
    """Tasks that this worker has still to compute, as far as it knows."""
    took_us: Microseconds


class Gave(Message, frozen=True):
    """Answer to GiveUp."""

    order: int
    tasks: Tasks


class Arrived(Message, frozen=True):
    """What another worker gave away is here."""

    order: int


# --- server to worker -------------------------------------------------------------------------------------------------


class GoAhead(Message, frozen=True):
    """Answer to Pull: beside it, float32[values]."""

    clock: int
    version: int
    """Updates that are in these parameters."""
    tasks: Tasks


class Applied(Message, frozen=True):
    """Answer to Push."""

    version: int


class Over(Message, frozen=True):
    """The job has all its samples: nothing that is not applied yet counts."""


class Failed(Message, frozen=True):
    """The job cannot go on."""

    reason: str


class GiveUp(Message, frozen=True):
    """Give so many of your tasks that you have not begun to another worker."""

    order: int
    to: int
    count: int


# --- worker to worker -------------------------------------------------------------------------------------------------


class Transfer(Message, frozen=True):
    """Tasks change hands: beside them, the samples, uint8[n]."""

    order: int
    tasks: Tasks


class Report(Message, frozen=True):
    """How far a possible helper is."""

    clock: int
    done: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
    """Share of the clock's tasks."""


class DoThis(Message, frozen=True):
    """Compute these when you are done with your own."""

    number: int
    tasks: Tasks


class Begun(Message, frozen=True):
    """The helper has begun an assignment: its tasks are the helper's now."""

    number: int


class Cancel(Message, frozen=True):
    """The owner wants to compute an assignment itself, if the helper has not begun it."""

    number: int


class Cancelled(Message, frozen=True):
    """Answer to Cancel."""

    number: int
    returned: bool
    """Whether the tasks are the owner's again."""


ToServer = Open | Join | Pull | Push | Progress | Gave | Arrived
FromServer = GoAhead | Applied | Over | Failed | GiveUp
AmongWorkers = Transfer | Report | DoThis | Begun | Cancel | Cancelled
Any = ToServer | FromServer | AmongWorkers


class Refused(ValueError):
    """What a worker has said is not what it may say now. The message is one line that does not name it."""


class Outgoing(NamedTuple):
    """A message to be sent, and what goes with it."""

    to: int
    message: Any
    values: Values | None = None
    samples_of: Tasks = ()
    """Tasks whose samples go with it."""


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Any)
NOTHING = np.empty(0, np.uint8)


def encode(message: Any) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> Any:
    """Raises: ValueError: it is no message."""
    return _decoder.decode(data)


def payload_bytes(values: Values | None, samples: Octets = NOTHING) -> int:
    return (values.nbytes if values is not None else 0) + samples.nbytes
