"""The embedded target for packet tests, in this process.

Time is simulated: each packet takes a microsecond, `wait` a tenth of a second. So a test of timeouts takes no time, and
always has the same result.
"""

from collections import defaultdict
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.switches.embedded.errors import Unsupported
from sa_atp.switches.embedded.p4runtime_server.forwarding import Forwarding
from sa_atp.switches.embedded.p4runtime_server.program_schema import from_program
from sa_atp.switches.embedded.pipeline import Pipeline
from sa_atp.switches.embedded.stf.grammar import number
from sa_atp.switches.embedded.stf.names import CounterName
from sa_atp.switches.p4runtime.entities import (
    CounterData,
    CounterEntry,
    DirectCounterEntry,
    Entity,
    RegisterEntry,
    TableEntry,
    Update,
    UpdateKind,
)

START_US = 1_000_000
PACKET_US = 1
WAIT_US = 100_000


class EmbeddedTarget:
    def __init__(self, pipeline: Pipeline, start_us: int = START_US) -> None:
        """Args:
        pipeline: has the program of the test; its state is cleared.
        start_us: the switch's time when the test begins.
        """
        pipeline.reset()
        self._pipeline = pipeline
        self._forwarding = Forwarding(pipeline, from_program(pipeline.program))
        self._now_us = start_us
        self._nodes: list[tuple[int, list[int]]] = []
        self._groups: dict[int, list[int]] = defaultdict(list)

    def send(self, port: int, packet: bytes) -> list[tuple[int, bytes]]:
        self._now_us += PACKET_US
        return self._pipeline.process_one(packet, port, self._now_us)

    def let_time_pass(self) -> None:
        self._now_us += WAIT_US

    # --- tables -------------------------------------------------------------------------------------------------------

    def add(self, entry: TableEntry) -> TableEntry:
        self._write(UpdateKind.INSERT, entry)
        return entry

    def set_default(self, entry: TableEntry) -> None:
        self._write(UpdateKind.MODIFY, entry)

    def _write(self, kind: UpdateKind, entity: Entity) -> None:
        for refusal in self._forwarding.write([Update(kind, entity)]):
            if refusal is not None:
                raise refusal

    def remove_all(self) -> None:
        for state in self._pipeline.tables.values():
            for entry in list(state.entries.values()) if state.table.const_entries is None else ():
                state.delete(entry)
            self._pipeline.commit(state)

    # --- multicast ----------------------------------------------------------------------------------------------------

    def create_group(self, group: int) -> None:
        if group in self._groups:
            raise UserError(f"multicast group {group} exists already")
        self._groups[group] = []
        self._update(group)

    def create_node(self, copy: int, ports: list[int]) -> None:
        self._nodes.append((copy, ports))

    def update_node(self, node: int, ports: list[int]) -> None:
        copy, _ = self._node(node)
        self._nodes[node] = (copy, ports)
        for group, members in self._groups.items():
            if node in members:
                self._update(group)

    def associate(self, group: int, node: int) -> None:
        self._node(node)
        if group not in self._groups:
            raise UserError(f"multicast group {group} does not exist: mc_mgrp_create makes it")
        if any(node in members for members in self._groups.values()):
            raise UserError(f"node {node} belongs to a group already")
        self._groups[group].append(node)
        self._update(group)

    def _node(self, node: int) -> tuple[int, list[int]]:
        if node >= len(self._nodes):
            raise UserError(f"there is no node {node}: {len(self._nodes)} were made")
        return self._nodes[node]

    def _update(self, group: int) -> None:
        members = [self._nodes[node] for node in self._groups[group]]
        self._pipeline.set_group(group, [(port, copy) for copy, ports in members for port in ports])

    # --- counters and registers ---------------------------------------------------------------------------------------

    def count(self, counter: CounterName, cell: Any) -> tuple[int, int]:
        query = DirectCounterEntry(entry=cell) if counter.table else CounterEntry(counter=counter.name, index=cell)
        for found in self._forwarding.read(query):
            assert isinstance(found, CounterEntry | DirectCounterEntry)
            counts = found.counts or CounterData()
        return counts.packets or 0, counts.bytes or 0

    def command(self, words: list[str]) -> str:
        command, name, *rest = words
        if not command.startswith(("counter", "register")):
            raise Unsupported("mirroring" if command.startswith("mirroring") else "a meter", command)
        if command == "register_reset":
            self._write(UpdateKind.MODIFY, RegisterEntry(register=name))
            return ""
        index, *values = (number(text) for text in rest)
        if command == "counter_read":
            packets, octets = self.count(CounterName(name, ""), index)
            return f"{name}[{index}]: {plural(packets, 'packet')}, {plural(octets, 'byte')}"
        if command == "register_read":
            [cell] = self._forwarding.read(RegisterEntry(register=name, index=index))
            assert isinstance(cell, RegisterEntry)
            return f"{name}[{index}]: {cell.value}"
        if command == "counter_write":
            self._write(UpdateKind.MODIFY, CounterEntry(counter=name, index=index, counts=CounterData(*values)))
        else:
            self._write(UpdateKind.MODIFY, RegisterEntry(register=name, index=index, value=values[0]))
        return ""
