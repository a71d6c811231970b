"""The vendor's model of a Tofino as a switch: its test harness runs as a process, controlled by lines of commands.

The harness (`tofino_test_harness`, and `jbay_test_harness` for Tofino 2) comes with the model's source, which is public. It
loads the compiler's output without a driver, and reads entries, packets and times from its standard input. It needs some
commands that the public version lacks: docs/tofino.md describes them.

The model handles one packet at a time, 50 to 100 per second. Its clock advances only by command.
"""

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from sa_atp.basics import needs
from sa_atp.basics.errors import MissingPartError, UserError
from sa_atp.lab.runs.processes import Group, Process
from sa_atp.switches.control.client import parse_p4info
from sa_atp.switches.control.tofino import LOOP_PORTS, Chip, TofinoProgram
from sa_atp.switches.p4runtime.entities import Exact, Lpm, Match, MulticastGroup, TableEntry, Ternary
from sa_atp.switches.p4runtime.schema import FieldInfo, Schema, TableInfo, from_p4info

HARNESSES: Mapping[Chip, str] = {"tofino": "tofino_test_harness", "tofino2": "jbay_test_harness"}
CHIP_NUMBERS: Mapping[Chip, str] = {"tofino": "1", "tofino2": "2"}  # the value of the harness's variable TOFINO
ADDED = ("set_time", "multicast", "recirculate", "settle")
TERNARY_LEVELS = 4  # priorities 1 to 4
PACKET_NS = 100  # a packet advances the model's clock by less than this
START_TIMEOUT_S = 300.0  # loading is slow
ANSWER_TIMEOUT_S = 120.0


def require(chip: Chip) -> Path:
    """Raises: MissingPartError: says how to get it."""
    name = HARNESSES[chip]
    found = needs.find(name)
    if found is None:
        raise MissingPartError(f"{name} of the Tofino model is not on this machine: {needs.PROGRAMS[name].how}")
    return found


@contextlib.contextmanager
def running(program: TofinoProgram) -> Iterator["ModelSwitch"]:
    """Runs the model with a program. Raises: MissingPartError, ProcessError, UserError: the harness lacks commands."""
    with tempfile.TemporaryDirectory(prefix="sa_atp-model-") as scratch, Group() as group:
        yield ModelSwitch(program, Path(scratch), group)


class ModelSwitch:
    """A switch. Methods raise UserError if the harness refuses a command, ProcessError if it ends or does not answer."""

    def __init__(self, program: TofinoProgram, folder: Path, group: Group) -> None:
        """Args: folder: for its files; group: ends the process."""
        self.program = program
        self.schema: Schema = from_p4info(parse_p4info(program.p4info()))
        self._out = folder / "out"
        self._log = folder / "log"
        self._taken = 0  # bytes of the output that were read
        self._marks = 0
        self._passed_ns = -1  # the model's clock, or a little more
        self._addresses: dict[tuple[str, int], int] = {}  # by ternary table and priority: number of entries
        binary, context = folder / f"{program.chip}.bin", folder / "context.json"
        binary.write_bytes(program.binary)
        context.write_bytes(program.context)
        self._process = group.add(
            Process(
                f"the model of {program.chip}",
                ["--observation-log", str(self._out), "-L", str(folder), "-"],
                self._log,
                program=(str(require(program.chip)),),
                inside=("sh", "-c", 'exec "$@" 2>&1', "sh"),
            )
        )
        chip = self._say("$TOFINO")
        if chip != CHIP_NUMBERS[program.chip]:
            raise UserError(f"{require(program.chip)}: expected the harness for {program.chip}, not for Tofino {chip}")
        offered = {line.split()[0] for line in self.do("help") if line.split()}
        if missing := [command for command in ADDED if command not in offered]:
            raise UserError(
                f"{require(program.chip)}: this harness lacks {', '.join(missing)}: docs/tofino.md describes them"
            )
        for line in (f"load {binary}", f"load {context}", f"recirculate {LOOP_PORTS[program.chip]}"):
            self._silently(line, START_TIMEOUT_S)

    # --- packets and time ---------------------------------------------------------------------------------------------

    def set_time(self, ns: int) -> None:
        """Advances the switch's clock, in ns since its start; earlier times have no effect."""
        if ns > self._passed_ns:
            self._silently(f"set_time {ns}")
            self._passed_ns = ns

    def send(self, port: int, packet: bytes) -> list[tuple[int, bytes]]:
        """Sends a packet. Returns: (port, packet) of each that comes out, without recirculated ones."""
        self.do(f"packet {port} {packet.hex()}", "settle")
        self._passed_ns += PACKET_NS
        with self._out.open("rb") as log:
            log.seek(self._taken)
            told = log.read()
        self._taken += len(told)
        found = []
        for line in told.decode().splitlines():
            out, _, digits = line.partition(" ")
            if int(out) != LOOP_PORTS[self.program.chip]:
                found.append((int(out), bytes.fromhex(digits)))
        return found

    # --- tables, groups, counters -------------------------------------------------------------------------------------

    def insert(self, entry: TableEntry) -> None:
        """Adds an entry; the harness can neither change nor remove one."""
        table = self.schema.table(entry.table)
        words = ["add", table.name]
        in_tcam = any(info.kind in ("ternary", "lpm") for info in table.match)
        if in_tcam:
            words.append(str(self._address(table, entry)))
        for info in table.match:
            words.append(f"{info.name}:{_match(info, entry.match.get(info.name, Ternary(0, 0)), in_tcam=in_tcam)}")
        action = self.schema.table_action(table, entry.action).action
        words.append(f"{action.name}({', '.join(f'{name}:{value:#x}' for name, value in entry.params.items())})")
        self._silently(" ".join(words))

    def set_group(self, group: MulticastGroup) -> None:
        """Sets the members of a multicast group, at most once."""
        copies = " ".join(f"{each.instance}:{each.port}" for each in sorted(group.replicas))
        self._silently(f"multicast {group.group} {copies}")

    def count(self, counter: str, index: int) -> tuple[int, int]:
        """Packets and bytes of a cell."""
        name = self.schema.counter(counter).name
        said = self.do(f"check_counter {name}({index})")
        found = [re.search(r"packets=(\d+).*bytes=(\d+)|bytes=(\d+).*packets=(\d+)", line) for line in said]
        matches = [match for match in found if match]
        if not matches:
            return 0, 0  # never written
        packets, octets, octets_first, packets_last = matches[-1].groups()
        return int(packets or packets_last), int(octets or octets_first)

    def _address(self, table: TableInfo, entry: TableEntry) -> int:
        """A ternary entry's address, which is its priority in the model: the larger wins, and each is used once."""
        if table.needs_priority:
            level, levels = entry.priority - 1, TERNARY_LEVELS
        else:
            level = max((match.prefix_bits for match in entry.match.values() if isinstance(match, Lpm)), default=0)
            levels = 1 + max(info.bits for info in table.match)
        room = table.size // levels
        used = self._addresses.get((table.name, level), 0)
        if not 0 <= level < levels or used >= room:
            raise UserError(f"{entry}: the model has {room} addresses for each of {levels} priorities of this table")
        self._addresses[table.name, level] = used + 1
        return level * room + used

    # --- the harness --------------------------------------------------------------------------------------------------

    def do(self, *lines: str, timeout_s: float = ANSWER_TIMEOUT_S) -> list[str]:
        """Runs commands. Returns: the lines of their output."""
        self._marks += 1
        mark = f"mark-{self._marks}"  # an unknown command, whose error message marks the end of the earlier ones
        self._process.say("\n".join([*lines, mark]))
        said: list[str] = []
        with self._log.open("a") as log:  # for the message if it ends
            while not (line := self._process.line(timeout_s)).endswith(f"Unknown command {mark}"):
                said.append(line)
                print(line, file=log, flush=True)
        return said

    def _say(self, words: str) -> str:
        """Expands the harness's variables in a text."""
        return self.do(f"say-{words}")[-1].rpartition("say-")[2]

    def _silently(self, line: str, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        said = [each for each in self.do(line, timeout_s=timeout_s) if not each.startswith(("WARNING", "LOADED"))]
        errors = [each.partition(": ")[2] or each for each in said if re.match(r"<stdin>:\d+: ", each)]
        if errors:
            raise UserError(f"the model's harness: {line.split(maxsplit=1)[0]}: {'; '.join(errors)}")


def _match(info: FieldInfo, match: Match, *, in_tcam: bool) -> str:
    """A key in the harness's format: a number, or digits with * for any."""
    if isinstance(match, Exact):
        value, mask = match.value, (1 << info.bits) - 1
    elif isinstance(match, Lpm):
        value, mask = match.value, ((1 << match.prefix_bits) - 1) << (info.bits - match.prefix_bits)
    elif isinstance(match, Ternary):
        value, mask = match.value, match.mask
    else:
        raise UserError(f"{info.name}: the model's tables here match exactly, by prefix or by mask, not by {match}")
    if not in_tcam:
        return f"{value:#x}"
    digits = (str(value >> bit & 1) if mask >> bit & 1 else "*" for bit in reversed(range(info.bits)))
    return "0b" + "".join(digits)
