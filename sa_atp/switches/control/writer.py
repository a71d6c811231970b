"""Access to a switch's tables for jobs and routes, over P4Runtime or in this process.

`P4RuntimeClient` is one `Writer`. `LocalWriter` is another one, for a pipeline of the embedded target in this process,
without server or protobuf, in the simulator and in local runs.
"""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from sa_atp.switches.control.errors import RefusedUpdate, UpdateRefusedError
from sa_atp.switches.embedded.p4runtime_server.forwarding import Forwarding
from sa_atp.switches.embedded.p4runtime_server.program_schema import from_program
from sa_atp.switches.embedded.pipeline import Pipeline
from sa_atp.switches.p4runtime.entities import Entity, Update
from sa_atp.switches.p4runtime.errors import Code, Refusal
from sa_atp.switches.p4runtime.schema import Schema


@runtime_checkable
class Writer(Protocol):
    """Access to the tables, groups, counters and registers of one switch."""

    @property
    def schema(self) -> Schema:
        """The schema of the switch's program."""

    def write(self, updates: Iterable[Update]) -> None:
        """Carries out updates in order; a refused update does not stop the others.

        Raises: UpdateRefusedError: at least one was refused; ControlError: the switch does not answer.
        """

    def read(self, *queries: Entity) -> list[Entity]:
        """Reads entities; a field at its default matches everything. Entities that do not exist are left out."""


class LocalWriter:
    """Writes to a pipeline in this process."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._forwarding = Forwarding(pipeline, from_program(pipeline.program))

    @property
    def schema(self) -> Schema:
        return self._forwarding.schema

    def write(self, updates: Iterable[Update]) -> None:
        updates = list(updates)
        outcomes = self._forwarding.write(updates)
        refused = [
            RefusedUpdate(index=i, update=str(updates[i]), code=outcome.code.name, reason=str(outcome))
            for i, outcome in enumerate(outcomes)
            if outcome is not None
        ]
        if refused:
            raise UpdateRefusedError("switch", refused, len(updates))

    def read(self, *queries: Entity) -> list[Entity]:
        found: list[Entity] = []
        for query in queries:
            try:
                found += self._forwarding.read(query)
            except Refusal as refusal:
                if refusal.code is not Code.NOT_FOUND:
                    raise UpdateRefusedError(
                        "switch",
                        [RefusedUpdate(index=0, update=f"READ {query}", code=refusal.code.name, reason=str(refusal))],
                        1,
                    ) from None
        return found
