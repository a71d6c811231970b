"""The embedded target for packet tests, in this process.

Time is simulated: each packet takes a microsecond, `wait` a tenth of a second. So a test of timeouts takes no time, and
always has the same result.
"""

from collections import defaultdict

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.switches.embedded.errors import EntryError, Unsupported
from sa_atp.switches.embedded.pipeline import Pipeline
from sa_atp.switches.embedded.stf.grammar import number
from sa_atp.switches.embedded.stf.names import BoundEntry, CounterName

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
        self._now_us = start_us
        self._nodes: list[tuple[int, list[int]]] = []
        self._groups: dict[int, list[int]] = defaultdict(list)

    def send(self, port: int, packet: bytes) -> list[tuple[int, bytes]]:
        self._now_us += PACKET_US
        return self._pipeline.process_one(packet, port, self._now_us)

    def let_time_pass(self) -> None:
        self._now_us += WAIT_US

    # --- tables -------------------------------------------------------------------------------------------------------

    def add(self, entry: BoundEntry) -> int:
        match = tuple((m.first, m.second) for m in entry.match)
        priority = entry.priority or 0
        self._pipeline.insert(entry.table, match, entry.action, entry.data, priority)
        return self._pipeline.tables[entry.table].entries[match, priority].number

    def set_default(self, table: str, action: str, data: tuple[int, ...]) -> None:
        self._pipeline.set_default(table, action, data)

    def remove_all(self) -> None:
        for state in self._pipeline.tables.values():
            for entry in list(state.entries.values()) if state.table.const_entries is None else ():
                state.delete(entry)
            self._pipeline.commit(state)

    # --- multicast ----------------------------------------------------------------------------------------------------

    def create_group(self, group: int) -> None:
        if group in self._groups:
            raise EntryError(f"multicast group {group} exists already")
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
            raise EntryError(f"multicast group {group} does not exist: mc_mgrp_create makes it")
        if any(node in members for members in self._groups.values()):
            raise EntryError(f"node {node} belongs to a group already")
        self._groups[group].append(node)
        self._update(group)

    def _node(self, node: int) -> tuple[int, list[int]]:
        if node >= len(self._nodes):
            raise EntryError(f"there is no node {node}: {len(self._nodes)} were made")
        return self._nodes[node]

    def _update(self, group: int) -> None:
        members = [self._nodes[node] for node in self._groups[group]]
        self._pipeline.set_group(group, [(port, copy) for copy, ports in members for port in ports])

    # --- counters and registers ---------------------------------------------------------------------------------------

    def count(self, counter: CounterName, cell: int) -> tuple[int, int]:
        if counter.table:
            cells = self._pipeline.tables[counter.table].counters
        else:
            cells = self._pipeline.counter(counter.name)
        packets, octets = cells[_checked(cell, len(cells), counter.name)].tolist()
        return packets, octets

    def command(self, words: list[str]) -> str:
        command, name, *rest = words
        if command == "counter_read":
            packets, octets = self.count(CounterName(name, ""), number(rest[0]))
            return f"{name}[{rest[0]}]: {plural(packets, 'packet')}, {plural(octets, 'byte')}"
        if command == "counter_write":
            cells = self._pipeline.counter(name)
            cells[_checked(number(rest[0]), len(cells), name)] = (number(rest[1]), number(rest[2]))
            return ""
        if command.startswith("register"):
            return self._register(command, name, [number(text) for text in rest])
        raise Unsupported("mirroring" if command.startswith("mirroring") else "a meter", command)

    def _register(self, command: str, name: str, rest: list[int]) -> str:
        cells = self._pipeline.register(name)
        if command == "register_reset":
            cells[:] = 0
            return ""
        index = _checked(rest[0], len(cells), name)
        if command == "register_read":
            return f"{name}[{index}]: {int(cells[index])}"
        bits = next(r.bits for r in self._pipeline.program.registers if r.name == name)
        if rest[1] >> bits:
            raise EntryError(f"register {name}: {rest[1]} does not fit in {bits} bits")
        cells[index] = rest[1]
        return ""


def _checked(index: int, size: int, name: str) -> int:
    if not 0 <= index < size:
        raise UserError(f"{name}[{index}]: expected an index from 0 to {size - 1}")
    return index
