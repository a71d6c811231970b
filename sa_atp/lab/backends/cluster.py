"""A switch and a parameter server as two processes on this machine, without root."""

from pathlib import Path
from typing import Any

from sa_atp.lab.runs.processes import Group, Process
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.header import size_of
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, Kind

READY_TIMEOUT_S = 120.0  # the first start compiles the switch program, and imports PyTorch from a cold disk
LOOPBACK = "127.0.0.1"
# Bytes in flight of a worker: more would overflow the switch's socket buffer, or the processor's caches.
UNDER_WAY_BYTES = 4 << 20
WORKERS_PORT = 1  # port of the switch for all hosts, a UDP socket


class LocalCluster:
    """The embedded switch with one UDP port, and the parameter server that controls it.

    Both start when this object is made; `ready` waits for them, so that workers can start meanwhile. A switch that ends
    later is started again: the parameter server gives it its jobs, and ranks send again what was in it.
    """

    program = "embedded"
    """The target's name in plans."""

    def __init__(
        self,
        group: Group,
        logs: Path,
        *,
        lanes: int,
        contributions: int = CONTRIBUTION_BITS,
        slots: int,
        slots_per_job: int = 0,
        listen: Address = (LOOPBACK, 0),
        captures: Path | None = None,
        dead_after_s: float = 10.0,
        log: Path | None = None,
        stragglers: bool = False,
        shares: bool = True,
    ) -> None:
        """Args:
        group: ends the processes.
        logs: an existing folder.
        contributions: width of the bitmap of the switch's program.
        slots: slots of the switch.
        slots_per_job: slots of each job; 0: all, or as many as UNDER_WAY_BYTES fill.
        listen: address of the parameter server; port 0 is any free one. The switch takes packets on the same IP address.
        captures: folder for a pcap file of the switch's port; None: no file.
        dead_after_s: silence after which a worker counts as lost.
        log: folder for the parameter server's log of decisions; None: nothing is logged.
        stragglers: the parameter server says who was slow, a line for each job; somebody has to read them.
        shares: whether ranks on this machine may share memory with the switch.
        """
        self._group = group
        self._logs = logs
        self._build = ["--lanes", str(lanes), "--contributions", str(contributions)]
        self._slots = slots
        self._slots_per_job = slots_per_job or min(slots, slots_of(lanes))
        self._listen = listen
        self._dead_after_s = dead_after_s
        self._log = [] if log is None else ["--log", str(log)]
        self._stragglers = ["--stragglers"] if stragglers else []
        self._shares = [] if shares else ["--no-shm"]
        self._captures = [] if captures is None else ["--pcap", str(captures)]
        arguments = self._switch_at((listen[0], 0), f"{LOOPBACK}:0")
        self.switch: Process = group.start("switch", arguments, logs / "switch.log", forked=())
        self.server: Process | None = None
        self.switch_address: Address = ("", 0)
        self.grpc = ""

    def _switch_at(self, address: Address, grpc: str) -> list[str]:
        """The switch's arguments. Args: address: of its UDP port; grpc: of P4Runtime."""
        at = ["--udp", "{}={}:{}".format(WORKERS_PORT, *address), "--grpc", grpc]
        return ["sa_atp", "switch", *self._build, *at, *self._shares, *self._captures]

    def ready(self) -> Address:
        """Waits until both run. Returns: the parameter server's address. Raises: ProcessError."""
        answer = self.switch.answer(READY_TIMEOUT_S)
        self.grpc = str(answer["grpc"])
        self.switch_address = _address(answer["udp"][str(WORKERS_PORT)])
        if not self._captures:  # a second switch would write over the first one's
            self.switch.may_start_again(self._switch_at(self.switch_address, self.grpc))
        self.server = self._group.start(
            "parameter server",
            [
                "sa_atp", "ps", "--listen", "{}:{}".format(*self._listen), "--grpc", self.grpc,
                "--switch-address", "{}:{}".format(*self.switch_address), *self._build,
                "--slots", str(self._slots), "--slots-per-job", str(self._slots_per_job),
                "--dead-after", str(self._dead_after_s), *self._log, *self._stragglers,
            ],
            self._logs / "ps.log",
            forked=(),
        )  # fmt: skip
        return server_address(self.server)

    @property
    def processes(self) -> list[Process]:
        """The processes that have to live while the cluster is used."""
        return [self.switch] if self.server is None else [self.switch, self.server]


def slots_of(lanes: int) -> int:
    """Slots of a job for UNDER_WAY_BYTES in flight: a power of two."""
    return 1 << (UNDER_WAY_BYTES // size_of(Kind.DATA, lanes)).bit_length() - 1


def server_address(server: Process) -> Address:
    """Waits until a parameter server runs. Returns: its address. Raises: ProcessError."""
    return _address(server.answer(READY_TIMEOUT_S)["address"])


def _address(pair: Any) -> Address:
    host, port = pair
    return str(host), int(port)
