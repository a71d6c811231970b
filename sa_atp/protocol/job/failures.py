"""Failures of a job as messages: a worker's report, and the server's message to all ranks. (protocol section 7.4)"""

from collections.abc import Sequence

from msgspec.structs import replace

from sa_atp.protocol.job.errors import (
    JobRestartedError,
    MismatchError,
    NarrowPathError,
    NonFiniteError,
    OperationTimeoutError,
    TransportError,
    ValuesChangedError,
    WorkerLostError,
)
from sa_atp.protocol.packets.control import (
    Failure,
    Report,
    ReportChanged,
    ReportNarrow,
    ReportNotFinite,
    ReportTimeout,
    type_of,
)

Reportable = NonFiniteError | ValuesChangedError | OperationTimeoutError | NarrowPathError


def report(error: Reportable) -> Report | ReportNarrow:
    """The message by which a worker reports an error to the parameter server."""
    if isinstance(error, NarrowPathError):
        return ReportNarrow(needed=error.needed, mtu=error.mtu, to=error.to)
    if isinstance(error, NonFiniteError | ValuesChangedError):
        kind = ReportNotFinite if isinstance(error, NonFiniteError) else ReportChanged
        where = error.first_value, error.last_value
        return kind(operation=error.operation, ranks=list(error.ranks), values=where)
    return ReportTimeout(operation=error.operation, waited_us=int(error.waited_s * 1e6), switch=error.switch)


def verdict(reported: Report, owing: Sequence[int], unheard: str | None = None) -> Failure:
    """The failure that the parameter server sends to all ranks after a report.

    Args: owing: ranks that have not contributed to the reporter's operation. unheard: the switch, if it has answered no
        rank.
    """
    operation = reported.operation
    if isinstance(reported, ReportNotFinite | ReportChanged):
        reason = type_of(reported)
        failure = Failure(reason=reason, ranks=reported.ranks, operation=operation, values=reported.values)
    else:
        waited_us, switch = reported.waited_us, reported.switch
        ranks = list(owing) if switch is None else []
        failure = Failure(
            reason="timed_out", ranks=ranks, operation=operation, waited_us=waited_us, switch=switch,
            unheard=None if owing else unheard,
        )  # fmt: skip
    return replace(failure, detail=str(error_of(failure)))


def error_of(failure: Failure) -> TransportError:
    """The exception that a failure raises in programs."""
    match failure:
        case Failure(reason="lost"):
            return WorkerLostError(failure.ranks, failure.detail)
        case Failure(reason="restarted"):
            return JobRestartedError(
                failure.detail
                or "the job is in another epoch now, or the parameter server was restarted: connect again"
            )
        case Failure(reason="narrow"):
            return NarrowPathError(failure.detail)
        case Failure(reason="mismatch"):
            return MismatchError(failure.detail)
        case Failure(reason="not_finite", operation=int(operation), values=(first, last)):
            return NonFiniteError(operation, failure.ranks, first, last)
        case Failure(reason="changed", operation=int(operation), values=(first, last)):
            return ValuesChangedError(operation, failure.ranks, first, last)
        case Failure(reason="timed_out", operation=int(operation), waited_us=int(waited_us)):
            return OperationTimeoutError(
                operation, waited_us / 1e6, failure.ranks, switch=failure.switch, unheard=failure.unheard
            )
        case _:
            return TransportError(failure.detail or failure.reason)
