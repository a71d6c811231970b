"""Refusals of P4Runtime requests: a canonical code and a sentence."""

from enum import IntEnum

from sa_atp.basics.errors import UserError


class Code(IntEnum):
    """The canonical codes (google/rpc/code.proto) that P4Runtime uses."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13


class Refusal(UserError):
    """A request that the switch does not carry out."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class WriteRefusal(Refusal):
    """A write of which at least one update was refused; the others have been carried out. (section 11.3)

    outcomes: for each update, in order, None or the reason of its refusal.
    """

    def __init__(self, outcomes: list[Refusal | None]) -> None:
        refused = [(i, o) for i, o in enumerate(outcomes) if o is not None]
        first, why = refused[0]
        super().__init__(Code.UNKNOWN, f"{len(refused)} of {len(outcomes)} updates refused; update {first}: {why}")
        self.outcomes = outcomes
