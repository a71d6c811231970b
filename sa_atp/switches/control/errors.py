"""Errors between a controller and a switch; each message is one line that says what and where."""

from collections.abc import Sequence
from dataclasses import dataclass

from sa_atp.basics.errors import SaAtpError


class ControlError(SaAtpError):
    """Base of all errors of the control plane."""


class Unreachable(ControlError):
    """The P4Runtime server does not answer, or is gone."""


class NotPrimary(ControlError):
    """Another client with a larger election id controls the switch."""


class WrongDevice(ControlError):
    """The server has no device with this id."""


class NoPipeline(ControlError):
    """No program has been pushed to the switch yet."""


class NotSupported(ControlError):
    """The target does not implement the request (for example registers, on BMv2)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedUpdate:
    """A refused update: its text, the server's code by name, and the reason."""

    index: int
    update: str
    code: str
    reason: str

    def __str__(self) -> str:
        return f"{self.update}: {self.code}{': ' if self.reason else ''}{self.reason}"


class UpdateRefusedError(ControlError):
    """The switch refused at least one update of a write, or a whole request."""

    def __init__(self, where: str, refused: Sequence[RefusedUpdate], total: int) -> None:
        first = str(refused[0]) if refused else "no reason given"
        counted = f"{len(refused)} of {total} updates refused; the first: " if total > 1 else ""
        super().__init__(f"{where}: {counted}{first}")
        self.where = where
        self.refused = tuple(refused)
