"""Mininet's node classes of this project: hosts, and switches that run a P4 program.

Both switches take the same parameters and serve P4Runtime; `sa-atp ps` or `sa-atp deploy` pushes a program to them:

    net = Mininet(switch=EmbeddedSwitch, controller=None)      # or Bmv2Switch
    s1 = net.addSwitch("s1", lanes=256, folder=Path("logs"))
    ...
    net.start()                                                # returns when the switches answer
    print(s1.grpc)                                             # their P4Runtime address
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from sa_atp.basics import needs
from sa_atp.basics.errors import SaAtpError
from sa_atp.basics.terminal import say
from sa_atp.basics.waiting import waiting
from sa_atp.lab.backends.mininet.api import Host, Switch
from sa_atp.lab.backends.mininet.cgroups import CpuGroup
from sa_atp.lab.backends.mininet.parts import BMV2
from sa_atp.lab.runs.processes import Process, Waiting
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS
from sa_atp.switches.control.connection import GrpcConnection
from sa_atp.switches.control.errors import Unreachable

NODE_TIMEOUT_S = 60.0  # for each part of a network
END_S = 5.0
READY_TIMEOUT_S = 120.0  # the first start of the embedded target compiles the program
ASK_EVERY_S = 1.0
WARNS = ": dropping "  # in a line of a switch's log, see net/drops.py


class ShellEndedError(SaAtpError):
    """The shell of a node has ended."""


@contextlib.contextmanager
def limited(what: str, nodes: Sequence["NamespaceNode"]) -> Iterator[None]:
    """Ends the shells of nodes if a block takes too long, so that it does not wait for them for ever.

    Raises: SaAtpError: it took too long.
    """
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        for node in nodes:
            if node.shell is not None:
                node.shell.kill()

    timer = threading.Timer(NODE_TIMEOUT_S, give_up)
    timer.start()
    try:
        yield
    except ShellEndedError as error:
        if is_late.is_set():
            raise SaAtpError(f"{what} was not built in {NODE_TIMEOUT_S:.0f} s") from None
        raise error
    finally:
        timer.cancel()


class NamespaceNode:
    """Base of hosts and switches. Mixed into a class of Mininet's, it keeps that from waiting for ever for its shell."""

    name: str
    pid: int
    shell: "subprocess.Popen[bytes] | None"
    slave: int
    _said = ""  # what its shell wrote last

    def inside(self) -> list[str]:
        """The prefix of a command that runs it in this node's namespace."""
        return ["mnexec", "-a", str(self.pid)]

    def run(self, *command: str) -> str:
        """Runs a command in this node's namespace. Returns: its output. Raises: SaAtpError: it fails, or does not end."""
        try:
            done = subprocess.run(
                [*NamespaceNode.inside(self), *command],
                capture_output=True, text=True, errors="replace", timeout=NODE_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SaAtpError(f"{' '.join(command)} (in {self.name}): no end in {NODE_TIMEOUT_S:.0f} s") from None
        if done.returncode != 0:
            raise SaAtpError(f"{' '.join(command)} (in {self.name}): {(done.stderr or done.stdout).strip()}")
        return done.stdout

    # --- Mininet's calls ----------------------------------------------------------------------------------------------

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802
        """Raises: SaAtpError: the shell ends, or says nothing."""
        with limited(self.name, [self]):
            try:
                super().startShell(mnopts)  # type: ignore[misc]
            except ShellEndedError:
                assert self.shell is not None
                self.shell.kill()
                self.shell.wait(END_S)  # Mininet would signal a group of processes that may not exist
                self.terminate()
                raise

    def _popen(self, command: Sequence[str], **params: Any) -> Any:
        process = super()._popen(command, **params)  # type: ignore[misc]
        if self.slave is not None and params.get("stdin") == self.slave:
            # As long as this process has the shell's end of the terminal open, too, nobody hears that the shell has ended.
            os.close(self.slave)
            self.slave = os.open(os.devnull, os.O_RDONLY)  # Mininet closes it
        return process

    def read(self, size: int = 1024) -> str:
        """Raises: ShellEndedError."""
        try:
            self._said = super().read(size)  # type: ignore[misc]
        except OSError:
            said = f": {' '.join(self._said.split())}" if self._said.strip() else ""
            raise ShellEndedError(f"the shell of {self.name} has ended{said}") from None
        return self._said

    def terminate(self) -> None:
        shell = self.shell
        self.waitExited = False  # Mininet would wait for ever for a shell that is stopped
        super().terminate()  # type: ignore[misc]
        if shell is not None:
            try:
                shell.wait(END_S)
            except subprocess.TimeoutExpired:
                shell.kill()
                shell.wait()


class P4Switch(NamespaceNode, Switch, ABC):  # type: ignore[misc]
    """A switch that runs a P4 program between its interfaces: base of EmbeddedSwitch and Bmv2Switch."""

    kind = ""
    talks = False  # whether it prints a line of JSON when it is ready

    def __init__(
        self,
        name: str,
        *,
        lanes: int = 64,
        contributions: int = CONTRIBUTION_BITS,
        bare: bool = False,
        device_id: int = 0,
        cpu_port: int | None = None,
        grpc: str | None = None,
        folder: str | Path | None = None,
        pcap: bool = False,
        options: Sequence[str] = (),
        waiting: Waiting | None = None,
        **params: Any,
    ) -> None:
        """Args:
        lanes, contributions: build of the aggregation program with which the embedded target starts; BMv2 starts
            without one.
        bare: whether the embedded target does, too.
        device_id: of P4Runtime.
        cpu_port: port number for packet-in and packet-out; default: none.
        grpc: where P4Runtime listens; default: a Unix socket, which all namespaces reach.
        folder: for its log, and for pcap files of its ports; default: a new temporary folder.
        options: more options of its command line.
        waiting: see processes.Process.
        params: of Mininet's Switch.
        """
        params["inNamespace"] = True  # against Mininet's default: two networks may have switches of the same name
        self.lanes = lanes
        self.contributions = contributions
        self.bare = bare
        self.device_id = device_id
        self.cpu_port = cpu_port
        self.folder = Path(folder) if folder is not None else Path(tempfile.mkdtemp(prefix="sa-atp-switch-"))
        self.grpc = grpc or f"unix:{self.folder.resolve()}/{name}.sock"
        self.pcap = pcap
        self.options = list(options)
        self.told_of_waiting = waiting  # not `waiting`, which is an attribute of Mininet's
        self.process: Process | None = None
        super().__init__(name, **params)

    # --- implemented by each target -----------------------------------------------------------------------------------

    @abstractmethod
    def program(self) -> Sequence[str]:
        """The executable, with its first options."""

    @abstractmethod
    def arguments(self, interfaces: Sequence[str]) -> list[str]:
        """Its options. Args: interfaces: PORT@INTERFACE of every port."""

    @abstractmethod
    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until the switch answers.

        Raises: ProcessError: it has ended, or does not answer in time; with its command and the end of its log.
        """

    # --- Mininet's calls ----------------------------------------------------------------------------------------------

    def start(self, controllers: Iterable[Any]) -> None:
        """Starts the switch, without waiting for it: `batchStartup` waits for all switches together."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.grpc.startswith("unix:"):
            Path(self.grpc.removeprefix("unix:")).unlink(missing_ok=True)
        interfaces = [f"{number}@{port.name}" for number, port in sorted(self.intfs.items()) if port.name != "lo"]
        self.process = Process(
            f"switch {self.name}",
            self.arguments(interfaces),
            self.folder / f"{self.name}.log",
            program=self.program(),
            inside=self.inside(),
            talks=self.talks,
            waiting=self.told_of_waiting,
        )

    @classmethod
    def batchStartup(cls, switches: Sequence[Self], run: object = None) -> Sequence[Self]:  # noqa: N802
        """Waits until the switches answer. Raises: ProcessError: one has ended; the message says why."""
        for switch in switches:
            # in a script of a user's own nobody else says it
            is_told = switch.told_of_waiting is not None
            said = waiting(f"waiting for switch {switch.name}, which compiles its program the first time")
            with contextlib.nullcontext() if is_told else said:
                switch.wait_ready()
        return switches

    def connected(self) -> bool:
        return self.process is not None

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803
        """Ends the switch."""
        if self.process is not None:
            self.process.end()
            self.process = None
        if self.grpc.startswith("unix:"):
            Path(self.grpc.removeprefix("unix:")).unlink(missing_ok=True)
        super().stop(deleteIntfs)


class EmbeddedSwitch(P4Switch):
    """The embedded P4 target: `sa-atp switch`."""

    kind = "embedded"
    talks = True

    def program(self) -> Sequence[str]:
        return (sys.executable, "-m", "sa_atp", "switch")

    def arguments(self, interfaces: Sequence[str]) -> list[str]:
        build = ["--lanes", str(self.lanes), "--contributions", str(self.contributions)]
        found = ["none"] if self.bare else build
        found += ["--grpc", self.grpc, "--device-id", str(self.device_id)]
        for interface in interfaces:
            found += ["-i", interface]
        if self.cpu_port is not None:
            found += ["--cpu-port", str(self.cpu_port)]
        if self.pcap:
            found += ["--pcap", str(self.folder / f"{self.name}-pcap")]
        return found + self.options

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        assert self.process is not None, "start it first"
        self.process.answer(timeout_s)
        threading.Thread(target=self._tell_warnings, args=(self.process,), name="sa-atp-warnings", daemon=True).start()

    def _tell_warnings(self, process: Process) -> None:
        """Says what the switch warns of, such as packets that it drops: nobody reads its log while hosts hang."""
        with contextlib.suppress(OSError), process.log.open(errors="replace") as log:
            while self.process is process:
                for line in log:
                    if WARNS in line:
                        say(line.rstrip().replace(":", f" {self.name}:", 1))
                time.sleep(ASK_EVERY_S)


class Bmv2Switch(P4Switch):
    """BMv2: `simple_switch_grpc`."""

    kind = "bmv2"

    def __init__(self, name: str, *, thrift_port: int = 9090, **params: Any) -> None:
        """Args: thrift_port: port of its debugging interface, in the switch's own namespace."""
        self.thrift_port = thrift_port
        super().__init__(name, **params)

    def program(self) -> Sequence[str]:
        return (str(needs.find(BMV2) or BMV2),)

    def arguments(self, interfaces: Sequence[str]) -> list[str]:
        found = ["--no-p4", "--device-id", str(self.device_id), "--thrift-port", str(self.thrift_port)]
        for interface in interfaces:
            found += ["-i", interface]
        if self.pcap:
            captures = self.folder / f"{self.name}-pcap"
            captures.mkdir(parents=True, exist_ok=True)
            found += ["--pcap", str(captures)]
        found += ["--log-console", *self.options, "--", "--grpc-server-addr", self.grpc]
        if self.cpu_port is not None:
            found += ["--cpu-port", str(self.cpu_port)]
        return found

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        assert self.process is not None, "start it first"
        deadline = time.monotonic() + timeout_s
        while True:
            self.process.check()
            connection = GrpcConnection(self.grpc, self.device_id, ASK_EVERY_S)
            try:
                connection.wait_for_server()
                return
            except Unreachable:
                if time.monotonic() > deadline:
                    raise self.process.failure(f"does not answer at {self.grpc}") from None
            finally:
                connection.close()


SWITCHES: dict[str, type[P4Switch]] = {"embedded": EmbeddedSwitch, "bmv2": Bmv2Switch}


# TCP congestion control of hosts. Machines differ in their default, and with BBR transfers that begin together end one
# after another instead of sharing a link. Every kernel has Reno, and on paths so short CUBIC behaves alike (RFC 9438,
# section 4.3).
CONGESTION_CONTROL = "reno"


class PlainHost(NamespaceNode, Host):  # type: ignore[misc]
    """A host in a namespace, without IPv6, whose background traffic would disturb, and with an optional control group."""

    def __init__(self, name: str, *, limits_cpu: bool = False, **params: Any) -> None:
        """Args: limits_cpu: whether to make a control group for its processes; `group.limit` sets their share."""
        self.group = CpuGroup(name) if limits_cpu else None
        super().__init__(name, **params)

    def inside(self) -> list[str]:
        return [*(self.group.inside() if self.group is not None else []), *super().inside()]

    def config(self, **params: Any) -> dict[str, Any]:
        result: dict[str, Any] = super().config(**params)
        said = self.cmd(
            "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip link set lo up; "
            f"echo {CONGESTION_CONTROL} > /proc/sys/net/ipv4/tcp_congestion_control"
        ).strip()
        if said:
            raise SaAtpError(f"{self.name}: {said}")
        return result

    def terminate(self) -> None:
        super().terminate()
        if self.group is not None:
            self.group.remove()
