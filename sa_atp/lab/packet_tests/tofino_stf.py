"""A packet test on the model of a Tofino.

The test sets the time: `wait` advances it by more than a tick of the program (p4src/tna/target.p4).
"""

import contextlib
from collections.abc import Iterator

from sa_atp.basics.errors import UserError
from sa_atp.lab.packet_tests import tofino_model
from sa_atp.lab.packet_tests.tofino_model import ModelSwitch
from sa_atp.switches.control.tofino import TofinoProgram
from sa_atp.switches.embedded.stf.names import CounterName
from sa_atp.switches.p4runtime.entities import MulticastGroup, Replica, TableEntry

START_NS = 1_000_000_000
WAIT_NS = 300_000_000


@contextlib.contextmanager
def running(program: TofinoProgram, start_ns: int = START_NS) -> Iterator["ModelTarget"]:
    """Raises: as `tofino_model.running`."""
    with tofino_model.running(program) as switch:
        yield ModelTarget(switch, start_ns)


class ModelTarget:
    def __init__(self, switch: ModelSwitch, start_ns: int) -> None:
        """Args: start_ns: the switch's clock at the beginning of the test."""
        self.schema = switch.schema
        self._switch = switch
        self._now_ns = start_ns
        self._nodes: list[tuple[int, list[int]]] = []
        self._groups: dict[int, list[int]] = {}
        self._told: set[int] = set()  # groups that the model knows
        switch.set_time(start_ns)

    def send(self, port: int, packet: bytes) -> list[tuple[int, bytes]]:
        for group in self._groups.keys() - self._told:
            nodes = [self._nodes[node] for node in self._groups[group]]
            replicas = frozenset(Replica(port, copy) for copy, ports in nodes for port in ports)
            self._switch.set_group(MulticastGroup(group=group, replicas=replicas))
            self._told.add(group)
        return self._switch.send(port, packet)

    def let_time_pass(self) -> None:
        self._now_ns += WAIT_NS
        self._switch.set_time(self._now_ns)

    # --- tables -------------------------------------------------------------------------------------------------------

    def add(self, entry: TableEntry) -> str:
        self._switch.insert(entry)
        return entry.table

    def set_default(self, entry: TableEntry) -> None:
        raise UserError("setdefault: the model keeps the default actions that the program begins with")

    def remove_all(self) -> None:
        raise UserError("remove_all: the model cannot remove an entry")

    # --- multicast ----------------------------------------------------------------------------------------------------

    def create_group(self, group: int) -> None:
        self._groups[group] = []

    def create_node(self, copy: int, ports: list[int]) -> None:
        self._nodes.append((copy, ports))

    def update_node(self, node: int, ports: list[int]) -> None:
        if any(node in self._groups[group] for group in self._told):
            raise UserError("mc_node_update: the model cannot change a group that packets have met")
        self._nodes[node] = (self._nodes[node][0], ports)

    def associate(self, group: int, node: int) -> None:
        if group in self._told:
            raise UserError("mc_node_associate: the model cannot change a group that packets have met")
        self._groups[group].append(node)

    # --- the rest -----------------------------------------------------------------------------------------------------

    def count(self, counter: CounterName, cell: int) -> tuple[int, int]:
        return self._switch.count(counter.name, cell)

    def command(self, words: list[str]) -> str:
        raise UserError(f"{words[0]}: the model's harness has no such command")
