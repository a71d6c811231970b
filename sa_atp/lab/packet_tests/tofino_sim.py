"""The model of a Tofino as the switch of a simulated cluster: its harness handles packets one at a time, and tables are
filled by the same calls as on other targets.

The harness can add entries and groups, but not change or remove them. So for a change or removal the model restarts
with the remaining entries: a switch that has lost its memory, which the protocol survives.
"""

import contextlib
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import numpy as np

from sa_atp.basics.arrays import ByteRows, Counts, Indices, Lengths
from sa_atp.basics.errors import UserError
from sa_atp.lab.packet_tests.tofino_model import ModelSwitch, running
from sa_atp.switches.control.errors import RefusedUpdate, UpdateRefusedError
from sa_atp.switches.control.tofino import TofinoProgram
from sa_atp.switches.embedded.pipeline import ROW_BYTES, Packets
from sa_atp.switches.p4runtime.entities import (
    CounterData,
    CounterEntry,
    Entity,
    MulticastGroup,
    TableEntry,
    Update,
    UpdateKind,
)
from sa_atp.switches.p4runtime.schema import Schema

Key = tuple[object, ...]


class ModelForwarder:
    """A `Forwarder` and a `Writer`; one model process, which ends with the `with` block."""

    def __init__(self, program: TofinoProgram) -> None:
        self._program = program
        self._stack = contextlib.ExitStack()
        self._switch: ModelSwitch | None = None
        self._entries: dict[Key, TableEntry] = {}
        self._groups: dict[int, MulticastGroup] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # --- Forwarder ----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Removes all entries and state."""
        self._entries.clear()
        self._groups.clear()
        self._stop()

    def process(
        self, data: ByteRows, lengths: Lengths, ports: Indices, now_us: int, depths: Counts | None = None
    ) -> Packets:
        """Processes a frame as `Pipeline.process` does, but ignores `depths`: the model sees no queues but its own."""
        switch = self._running()
        switch.set_time(now_us * 1000)
        found = [
            (i, *out)
            for i in range(len(lengths))
            for out in switch.send(int(ports[i]), data[i, : lengths[i]].tobytes())
        ]
        rows = np.zeros((len(found), ROW_BYTES), np.uint8)
        for row, (_, _, packet) in zip(rows, found, strict=True):
            row[: len(packet)] = np.frombuffer(packet, np.uint8)
        return Packets(
            data=rows,
            lengths=np.array([len(packet) for _, _, packet in found], np.int64),
            ports=np.array([port for _, port, _ in found], np.int64),
            sources=np.array([source for source, _, _ in found], np.int64),
        )

    # --- Writer -------------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        return self._running().schema

    def write(self, updates: Iterable[Update]) -> None:
        for index, update in enumerate(updates):
            try:
                self._write(update)
            except UserError as error:
                refused = RefusedUpdate(index=index, update=str(update), code="INVALID_ARGUMENT", reason=str(error))
                raise UpdateRefusedError("the model", [refused], index + 1) from None

    def read(self, *queries: Entity) -> list[Entity]:
        return [entity for query in queries for entity in self._read(query)]

    def _write(self, update: Update) -> None:
        entity = update.entity
        if isinstance(entity, MulticastGroup):
            if update.kind is UpdateKind.INSERT:
                self._running().set_group(entity)
                self._groups[entity.group] = entity
            else:
                if self._groups.pop(entity.group, None) is None:
                    raise UserError(f"{entity}: it does not exist")
                if update.kind is UpdateKind.MODIFY:
                    self._groups[entity.group] = entity
                self._stop()
        elif isinstance(entity, TableEntry) and update.kind is UpdateKind.INSERT:
            self._running().insert(entity)
            self._entries[_key(entity)] = entity
        elif isinstance(entity, TableEntry):
            if self._entries.pop(_key(entity), None) is None:
                raise UserError(f"{entity}: there is no such entry")
            if update.kind is UpdateKind.MODIFY:
                self._entries[_key(entity)] = entity
            self._stop()
        else:
            raise UserError(f"{entity}: the model's harness cannot write that")

    def _read(self, query: Entity) -> list[Entity]:
        if isinstance(query, TableEntry):
            return [entry for entry in self._entries.values() if query.table in ("", entry.table)]
        if isinstance(query, MulticastGroup):
            return [group for group in self._groups.values() if query.group in (0, group.group)]
        if isinstance(query, CounterEntry) and query.index is not None:
            packets, octets = self._running().count(query.counter, query.index)
            return [CounterEntry(counter=query.counter, index=query.index, counts=CounterData(packets, octets))]
        return []

    # --- the process --------------------------------------------------------------------------------------------------

    def _running(self) -> ModelSwitch:
        if self._switch is None:
            self._switch = self._stack.enter_context(running(self._program))
            for group in self._groups.values():
                self._switch.set_group(group)
            for entry in self._entries.values():
                self._switch.insert(entry)
        return self._switch

    def _stop(self) -> None:
        self._stack.close()
        self._switch = None


def _key(entry: TableEntry) -> Key:
    return entry.table, entry.priority, frozenset(entry.match.items())
