"""Runs a test on a target."""

import operator
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Protocol

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.switches.embedded.stf.compare import Received, StfFailure, check_ports
from sa_atp.switches.embedded.stf.grammar import (
    Add,
    CheckCounter,
    Direct,
    Expect,
    NoPacket,
    Packet,
    RemoveAll,
    SetDefault,
    StfError,
    Test,
    Wait,
    numbers,
)
from sa_atp.switches.embedded.stf.names import CounterName, ProgramNames
from sa_atp.switches.p4runtime.entities import TableEntry

_COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Target(Protocol):
    """A switch with the program of a test. Methods raise UserError if it does not accept or support the request."""

    def send(self, port: int, packet: bytes) -> list[tuple[int, bytes]]:
        """Sends a packet. Returns: (port, packet) of each that leaves, when no packet is left inside the switch."""

    def let_time_pass(self) -> None: ...

    def add(self, entry: TableEntry) -> Any:
        """Adds an entry. Returns: its cell for `count`."""

    def set_default(self, entry: TableEntry) -> None: ...

    def remove_all(self) -> None: ...

    def create_group(self, group: int) -> None: ...

    def create_node(self, copy: int, ports: list[int]) -> None:
        """Makes a multicast node of BMv2's: a packet that is copied to its ports carries `copy` as egress_rid.

        `update_node` and `associate` name nodes by the order in which they were made, from 0.
        """

    def update_node(self, node: int, ports: list[int]) -> None: ...

    def associate(self, group: int, node: int) -> None: ...

    def count(self, counter: CounterName, cell: Any) -> tuple[int, int]:
        """Packets and bytes of a counter's cell: an index, or the result of `add`."""

    def command(self, words: list[str]) -> str:
        """Carries out any other command of the control interface. Returns: text for the user."""


@dataclass(frozen=True, slots=True)
class StfResult:
    """The result of a test. packets: sent. received: at ports that the test names. notes: lines for the user."""

    test: str
    packets: int
    expected: int
    received: int
    failures: tuple[StfFailure, ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.failures


def run(test: Test, names: ProgramNames, target: Target) -> StfResult:
    """Runs a test. Raises: StfError: a statement cannot be carried out; the message names file and line."""
    return _Run(test, names, target).result()


class _Run:
    def __init__(self, test: Test, names: ProgramNames, target: Target) -> None:
        self.test = test
        self.names = names
        self.target = target
        self.received: dict[int, list[Received]] = defaultdict(list)
        self.failures: list[StfFailure] = []
        self.notes: list[str] = []
        self.labels: dict[str, Any] = {}
        self.last: tuple[Packet, list[tuple[int, bytes]]] | None = None

    def result(self) -> StfResult:
        for statement in self.test.statements:
            try:
                self._do(statement)
            except StfError:
                raise
            except UserError as error:
                raise StfError(f"{self.test.name}:{statement.line}: {error}") from None
        expected = [s for s in self.test.statements if isinstance(s, Expect)]
        named = self.test.ports
        for port in sorted(self.received.keys() - named):
            self.notes.append(
                f"port {port}, which the test does not name, sent {plural(len(self.received[port]), 'packet')}"
            )
        failures = self.failures + check_ports(expected, self.received, frozenset(self.received.keys() - named))
        return StfResult(
            test=self.test.name,
            packets=sum(isinstance(s, Packet) for s in self.test.statements),
            expected=len(expected),
            received=sum(len(packets) for port, packets in self.received.items() if port in named),
            failures=tuple(sorted(failures, key=lambda f: f.line)),
            notes=tuple(self.notes),
        )

    def _do(self, statement: Any) -> None:
        if isinstance(statement, Packet):
            out = self.target.send(statement.port, statement.data)
            self.last = (statement, out)
            for port, data in out:
                self.received[port].append(Received(data, statement.line))
        elif isinstance(statement, NoPacket):
            self._no_packet(statement)
        elif isinstance(statement, Wait):
            self.target.let_time_pass()
        elif isinstance(statement, Add):
            cell = self.target.add(self.names.entry(statement))
            if statement.label is not None:
                self.labels[statement.label] = cell
        elif isinstance(statement, SetDefault):
            self.target.set_default(self.names.default(statement.table, statement.call))
        elif isinstance(statement, RemoveAll):
            self.target.remove_all()
        elif isinstance(statement, CheckCounter):
            self._check_counter(statement)
        elif isinstance(statement, Direct):
            self._direct(statement)

    def _no_packet(self, statement: NoPacket) -> None:
        if self.last is None:
            raise UserError("no_packet: there is no packet before it")
        packet, out = self.last
        if out:
            ports = ", ".join(str(port) for port, _ in out)
            self.failures.append(
                StfFailure(
                    line=statement.line,
                    message=f"the packet of line {packet.line} came out of port {ports}, expected none",
                    port=out[0][0],
                    received=out[0][1].hex(),
                )
            )

    def _check_counter(self, statement: CheckCounter) -> None:
        counter = self.names.counter(statement.counter)
        cell: Any = statement.index
        if isinstance(statement.index, str):
            if statement.index not in self.labels:
                raise UserError(f"{statement.index}: no entry has this label")
            cell = self.labels[statement.index]
        elif counter.table:
            raise UserError(f"counter {counter.name} counts entries of {counter.table}: expected $LABEL of one")
        packets, octets = self.target.count(counter, cell)
        value = octets if statement.unit == "bytes" else packets
        if not _COMPARE[statement.comparison](value, statement.number):
            asked = f"{statement.unit} {statement.comparison} {statement.number}"
            self.failures.append(
                StfFailure(
                    line=statement.line,
                    message=f"counter {counter.name}({statement.index}): {value} {statement.unit}, expected {asked}",
                    expected=f"{statement.comparison} {statement.number}",
                    received=str(value),
                )
            )

    def _direct(self, statement: Direct) -> None:
        words = list(statement.arguments)
        if statement.command == "mc_mgrp_create":
            self.target.create_group(numbers(words)[0])
        elif statement.command == "mc_node_create":
            self.target.create_node(numbers(words)[0], numbers(words)[1:])
        elif statement.command == "mc_node_update":
            self.target.update_node(numbers(words)[0], numbers(words)[1:])
        elif statement.command == "mc_node_associate":
            self.target.associate(*numbers(words))
        else:
            if statement.command.startswith("counter"):
                words[0] = self.names.counter(words[0]).name
            elif statement.command.startswith("register"):
                words[0] = self.names.register(words[0])
            told = self.target.command([statement.command, *words])
            if told:
                self.notes.append(f"line {statement.line}: {told}")
