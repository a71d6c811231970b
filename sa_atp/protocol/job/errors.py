"""Errors of a job. Each message names the ranks or the part at fault, and reaches every rank."""

from collections.abc import Iterable

from sa_atp.basics.errors import SaAtpError


class TransportError(SaAtpError):
    """A collective operation, or the whole job, cannot finish."""


class WorkerLostError(TransportError):
    """Ranks have been silent for longer than the bound, or their processes have ended."""

    def __init__(self, ranks: Iterable[int], detail: str = "") -> None:
        self.ranks = tuple(sorted(ranks))
        super().__init__(f"lost {describe_ranks(self.ranks)}{': ' + detail if detail else ''}")


class OperationTimeoutError(TransportError):
    """An operation made no progress for longer than the bound."""

    def __init__(
        self,
        operation: int,
        waited_s: float,
        ranks: Iterable[int] | None,
        *,
        switch: str | None = None,
        unheard: str | None = None,
    ) -> None:
        """Args:
        ranks: ranks that owe contributions; None: not known; empty: all have contributed.
        switch: the switch's address, if its host reports that port closed.
        unheard: the switch's address, if it has answered no rank.
        """
        self.operation = operation
        self.switch = switch
        self.waited_s = waited_s
        self.ranks = None if ranks is None else tuple(sorted(ranks))
        why = "waiting for unknown contributions"
        if self.ranks is not None:
            why = "though every rank has contributed: packets are lost on the way"
            if unheard is not None:
                why = f"though every rank has contributed: {no_answer(unheard)}"
            if self.ranks:
                why = f"waiting for contributions of {describe_ranks(self.ranks)}"
        if switch is not None:
            why = f"because the switch at {switch} is gone: its process has ended"
        super().__init__(f"operation {operation} made no progress for {waited_s:.1f} s, {why}")


class NonFiniteError(TransportError):
    """A contribution holds NaN or infinity."""

    def __init__(self, operation: int, ranks: Iterable[int], first_value: int, last_value: int) -> None:
        self.operation = operation
        self.ranks = tuple(sorted(ranks))
        self.first_value, self.last_value = first_value, last_value
        super().__init__(
            f"operation {operation}: {describe_ranks(self.ranks)} contributed NaN or infinity "
            f"between values {first_value} and {last_value}"
        )


class ValuesChangedError(TransportError):
    """Values have exceeded their announced magnitude twice, so that their sum would be wrong."""

    def __init__(self, operation: int, ranks: Iterable[int], first_value: int, last_value: int) -> None:
        self.operation = operation
        self.ranks = tuple(sorted(ranks))
        self.first_value, self.last_value = first_value, last_value
        super().__init__(
            f"operation {operation}: between values {first_value} and {last_value}, contributions of "
            f"{describe_ranks(self.ranks)} are larger than announced: an array must stay as it is until "
            "its sum is done, and a helper must compute the same values"
        )


class MismatchError(TransportError):
    """Ranks disagree about what they are summing: another order of operations, another size, key or scale."""


class NarrowPathError(TransportError):
    """The MTU of a path has become smaller than the job's packets."""

    def __init__(self, text: str, *, needed: int = 0, mtu: int = 0, to: str = "") -> None:
        """Args: needed: bytes of an IP packet. mtu: of the path. to: the path's far end; set where the error is
        noticed.
        """
        self.needed, self.mtu, self.to = needed, mtu, to
        super().__init__(text)


class JobRestartedError(TransportError):
    """The job goes on in a new epoch, because a worker was restarted: connect again."""


class RefusedError(TransportError):
    """The parameter server does not admit this worker; the message says why."""


class ParameterServerLostError(TransportError):
    """The parameter server does not answer."""


def narrow_path(who: str, needed: int, to: str, mtu: int) -> str:
    """Describes a path whose MTU has become too small. Args: who: the sender. to: HOST:PORT."""
    return f"{who} cannot send packets of {needed} bytes to {to}: the way carries {mtu} now; has an MTU been lowered?"


def no_answer(switch: str) -> str:
    """Describes a switch that has answered no rank. Args: switch: its address."""
    return f"the switch at {switch} has answered no rank about it: is it running, and is that its address?"


def describe_ranks(ranks: Iterable[int]) -> str:
    ordered = sorted(ranks)
    if not ordered:
        return "unknown ranks"
    return f"rank{'' if len(ordered) == 1 else 's'} {', '.join(map(str, ordered))}"
