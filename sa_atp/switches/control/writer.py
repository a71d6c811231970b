"""The few calls that jobs and routes need of a switch, over P4Runtime or in this process.

`P4RuntimeClient` is one `Writer`; `LocalWriter` another, on a pipeline of the embedded target without server or
protobuf, for the simulator and for local runs.
"""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from sa_atp.switches.control.errors import Refused, RefusedError
from sa_atp.switches.embedded.p4runtime.forwarding import Forwarding
from sa_atp.switches.embedded.p4runtime.program_schema import from_program
from sa_atp.switches.embedded.pipeline import Pipeline
from sa_atp.switches.p4runtime.entities import Entity, Update
from sa_atp.switches.p4runtime.errors import Code, Refusal
from sa_atp.switches.p4runtime.schema import Schema


@runtime_checkable
class Writer(Protocol):
    """Access to the tables, groups, counters and registers of one switch."""

    @property
    def schema(self) -> Schema:
        """What the program of the switch offers."""

    def write(self, updates: Iterable[Update]) -> None:
        """Carries out updates in order; one that is refused does not stop the others.

        Raises: RefusedError: at least one was refused; ControlError: the switch could not be asked.
        """

    def read(self, *queries: Entity) -> list[Entity]:
        """What is there, for entities whose defaults ask for everything. What does not exist is left out."""


class LocalWriter:
    """Straight onto a pipeline in this process."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._forwarding = Forwarding(pipeline, from_program(pipeline.program))

    @property
    def schema(self) -> Schema:
        return self._forwarding.schema

    def write(self, updates: Iterable[Update]) -> None:
        updates = list(updates)
        outcomes = self._forwarding.write(updates)
        refused = [
            Refused(index=i, update=str(updates[i]), code=outcome.code.name, reason=str(outcome))
            for i, outcome in enumerate(outcomes)
            if outcome is not None
        ]
        if refused:
            raise RefusedError("switch", refused, len(updates))

    def read(self, *queries: Entity) -> list[Entity]:
        found: list[Entity] = []
        for query in queries:
            try:
                found += self._forwarding.read(query)
            except Refusal as refusal:
                if refusal.code is not Code.NOT_FOUND:
                    raise RefusedError(
                        "switch",
                        [Refused(index=0, update=f"READ {query}", code=refusal.code.name, reason=str(refusal))],
                        1,
                    ) from None
        return found
