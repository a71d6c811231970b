"""Limits, counters and events of a worker's connection."""

from dataclasses import dataclass, fields

from sa_atp.protocol.help.progress import SendProgress
from sa_atp.protocol.job.errors import TransportError
from sa_atp.protocol.packets.control import Reply
from sa_atp.protocol.packets.help_messages import Assignment


@dataclass(kw_only=True, slots=True)
class WorkerLimits:
    """Bounds of every wait."""

    operation_timeout_us: int = 60_000_000
    """Without any progress for so long, an operation fails."""
    server_timeout_us: int = 10_000_000
    """The parameter server counts as lost when it has not answered for so long."""


@dataclass(slots=True)
class WorkerStats:
    """Counters of one connection, since it was made."""

    fragments_sent: int = 0
    """Data and scale fragments sent for the first time."""
    retransmitted: int = 0
    resends: int = 0
    """Retransmissions that asked for a hand-over."""
    on_behalf: int = 0
    """Fragments sent for other ranks."""
    results: int = 0
    """Fragments whose sum arrived."""
    results_from_server: int = 0
    """Results of sums that the parameter server finished, because the slot was taken, or handed over."""
    results_fetched: int = 0
    """Results of which the parameter server sent a stored copy."""
    duplicates: int = 0
    congested: int = 0
    lost_by_order: int = 0
    """Fragments given up because later ones were complete."""
    lost_by_probe: int = 0
    """Fragments counted as lost because an answer of the switch showed that it did not have them."""
    probes: int = 0
    probe_replies: int = 0
    malformed: int = 0
    foreign: int = 0
    stale: int = 0
    """Packets of another epoch, and answers to what is not asked any more."""
    poisoned: int = 0
    """Fragments sent with a value that did not fit."""
    chunks_redone: int = 0

    def as_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class OperationDone:
    operation: int


@dataclass(frozen=True, slots=True)
class WaitingFor:
    """All of this worker's fragments are in, and the oldest sum lacks these contributions: it leads, others straggle."""

    operation: int
    missing_bits: int
    progress: SendProgress
    """How far our own fragments were, when the answer came."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The parameter server's to `ServerLink.ask`; None: it did not come in time."""

    number: int
    reply: Reply | None


@dataclass(frozen=True, slots=True)
class Assigned:
    """The parameter server takes work back, or has some for us, though we have not asked just now."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Failed:
    """The connection is over: every operation, open or future, fails with this."""

    error: TransportError


Event = OperationDone | WaitingFor | Answer | Assigned | Failed
