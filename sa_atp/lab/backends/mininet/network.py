"""Builds a network from a layout with Mininet, and runs it: namespaces, links, switches, and the parameter server."""

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sa_atp.basics.errors import UserError
from sa_atp.lab.backends.mininet import cleaning, parts
from sa_atp.lab.backends.mininet.layout import NEIGHBOURS, NetworkLayout
from sa_atp.lab.runs.processes import Group, Process
from sa_atp.lab.simulator.world import PLAIN_PORT
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, UDP_PORT
from sa_atp.switches.control.fabric import mac_text

READY_TIMEOUT_S = 120.0
# Queue length of a port above which packets are marked. Processes that share cores send packets in bursts, and a threshold
# below a burst would mark every burst as congestion. BMv2 drops packets beyond 64.
MARK_ABOVE = {"embedded": 250, "bmv2": 24}
PARAMETERS_PORT = UDP_PORT + 10  # TCP port of a server of parameters


class MininetNetwork:
    """A running network. Use it as a context manager, which removes everything at its end."""

    def __init__(
        self,
        layout: NetworkLayout,
        *,
        switch: str,
        lanes: int,
        contributions: int = CONTRIBUTION_BITS,
        slots: int,
        slots_per_job: int,
        logs: Path,
        pcap: bool = False,
        seed: int = 1,
        tell: Callable[[str], None] | None = None,
        log: Path | None = None,
        bare: bool = False,
    ) -> None:
        """Args:
        switch: "embedded" or "bmv2".
        slots, slots_per_job: see `sa-atp ps`.
        logs: folder for logs, and for pcap files of switch ports.
        seed: of the links' random faults.
        tell: see processes.Group.
        log: folder for logs of decisions; None: nothing is logged.
        bare: whether switches start without a program, for one that is pushed. Hosts then know each other's MAC
            addresses, since such a program need not forward ARP.

        Raises: MissingPartError, UserError.
        """
        self.layout = layout
        self.switch = switch
        self.build = {"lanes": lanes, "contributions": contributions, "bare": bare}
        self.bare = bare
        self._ps_arguments = ["--lanes", str(lanes), "--contributions", str(contributions)]
        if log is not None:
            self._ps_arguments += ["--log", str(log.absolute())]
        self.log = None if log is None else log.absolute()
        self.slots = slots
        self.slots_per_job = slots_per_job
        self.logs = logs
        self.pcap = pcap
        self.seed = seed
        self.group = Group(tell)
        self.server: Process | None = None
        self._stack = ExitStack()
        self.streams = 0  # number of background streams
        self._net: Any = None
        layout.check("topology")
        parts.require(layout, switch=switch)
        if switch == "bmv2" and any(cable.quality.needs_emulation for cable in layout.cables) and not parts.has_netem():
            raise UserError(
                "delay, jitter, loss, duplication and reordering: BMv2 cannot emulate them, and this kernel has no netem: "
                "use --switch embedded, whose ports can, or set topology.delay_us and network.* to 0"
            )

    # --- building -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._stack.enter_context(_ended_by_sigterm())
        try:
            self._build()
        except BaseException:
            self._close()
            raise
        return self

    def limit_cpus(self, slowdowns: Mapping[str, float]) -> None:
        """Limits each host to its share of the CPU. Call it after processes have started, which is faster without limits.

        Args: slowdowns: by host: factor by which its share is smaller. Raises: SaAtpError.
        """
        for host in self.layout.hosts.values():
            if host.cpu is not None:
                self.node(host.name).group.limit(host.cpu / slowdowns.get(host.name, 1.0))

    def _build(self) -> None:
        from sa_atp.lab.backends.mininet.api import Link, Mininet
        from sa_atp.lab.backends.mininet.links import LinkPort
        from sa_atp.lab.backends.mininet.nodes import SWITCHES, PlainHost, limited

        self.logs.mkdir(parents=True, exist_ok=True)
        # paths of Unix sockets have to be short, and those of results may be long
        mark = cleaning.owner_mark()
        self.sockets = Path(tempfile.mkdtemp(prefix=f"{cleaning.FOLDER_PREFIX}{mark.replace(':', '-')}-"))
        os.environ[cleaning.OWNER] = mark  # inherited by all processes of the run, shells of nodes included
        self._stack.callback(shutil.rmtree, self.sockets, ignore_errors=True)
        net = Mininet(controller=None, link=Link, intf=LinkPort, host=PlainHost, build=False)
        self._net = net
        self._stack.callback(self._stop)
        self._stack.enter_context(self.group)
        for host in self.layout.hosts.values():
            net.addHost(
                host.name,
                ip=f"{host.ip}/{NEIGHBOURS.prefixlen}",
                mac=mac_text(host.ip),
                limits_cpu=host.cpu is not None,
            )
        for switch in self.layout.switches:
            net.addSwitch(
                switch,
                cls=SWITCHES[self.switch],
                **self.build,
                grpc=f"unix:{self.sockets}/{switch}.sock",
                folder=self.logs,
                pcap=self.pcap,
                waiting=self.group.waiting,
                **({"options": impairments(self.layout, switch, self.seed)} if self.switch == "embedded" else {}),
            )
        joins = parts.joins(self.switch)
        for cable in self.layout.cables:
            with limited(f"the link of {cable.node} and {cable.other}", [*net.hosts, *net.switches]):
                net.addLink(
                    cable.node, cable.other, port1=cable.port, port2=cable.other_port,
                    params1={"quality": cable.quality, "joins": joins},
                    params2={"quality": replace(cable.quality, own_share=1.0), "joins": joins},
                )  # fmt: skip
        with limited("the network", [*net.hosts, *net.switches]):
            net.build()
            if self.bare:
                net.staticArp()
        net.start()

    def _stop(self) -> None:
        os.environ.pop(cleaning.OWNER, None)
        for node in [*self._net.switches, *self._net.hosts]:
            node.stop()  # the links go with the namespaces
        self._net = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        with _signals_deferred():
            self._stack.close()

    # --- running ------------------------------------------------------------------------------------------------------

    def node(self, name: str) -> Any:
        """A host or switch, as Mininet's object."""
        return self._net.get(name)

    @property
    def switches(self) -> list[Process]:
        """The processes of the switches."""
        return [switch.process for switch in self._net.switches]

    @property
    def services(self) -> list[Process]:
        """The processes that workers depend on: switches, and the parameter server once it is started."""
        return self.switches if self.server is None else [*self.switches, self.server]

    def trunk_bytes(self) -> dict[str, int]:
        """Bytes sent up each link between switches, by its name ("leaf1-s1"), as the leaf's queue counts them."""
        found = {}
        for cable in self.layout.cables:
            if {cable.node, cable.other} <= self.layout.switches.keys():
                is_up = cable.other == self.layout.root.name
                low, high, port = (
                    (cable.node, cable.other, cable.port) if is_up else (cable.other, cable.node, cable.other_port)
                )
                found[f"{low}-{high}"] = _sent_bytes(self.node(low), f"{low}-eth{port}")
        return found

    def prompt(self) -> None:
        """Gives the terminal to Mininet's prompt. Returns when the user leaves it, by `exit` or the end of the input."""
        from sa_atp.lab.backends.mininet.api import CLI, log

        # Imported beside a bar, it writes through the bar, which loses lines with a carriage return, as those of hosts.
        log.lg.handlers[0].setStream(sys.stderr)
        log.lg.setLogLevel("output")  # else answers of its commands are not shown
        try:
            CLI(self._net)
        finally:
            log.lg.setLogLevel("warning")

    def start(
        self,
        host: str,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Process:
        """Starts a process on a host. Args: as those of Process; the log is named after the process."""
        log = self.logs / f"{name.replace(' ', '-')}.log"
        return self.group.start(name, arguments, log, environment, inside=self.node(host).inside(), **options)

    def start_server(self) -> str:
        """Starts the parameter server, which configures the switches. Returns: its address. Raises: ProcessError."""
        file = self.sockets / "switches.json"
        addresses = {switch.name: switch.grpc for switch in self._net.switches}
        file.write_text(json.dumps(self.layout.switch_file(addresses, MARK_ABOVE[self.switch]), indent=1))
        options = ["--switches", str(file), "--slots", str(self.slots), "--slots-per-job", str(self.slots_per_job)]
        self.server, address = self._serve("parameter server", "ps", UDP_PORT, *self._ps_arguments, *options)
        return f"udp://{address}"

    def start_plain_server(self) -> str:
        """Starts a parameter server that sums by itself. Returns: its address. Raises: ProcessError."""
        return f"udp://{self._serve('plain parameter server', 'ps', PLAIN_PORT, *self._ps_arguments)[1]}"

    def start_parameters(self) -> str:
        """Starts a server of parameters beside the parameter server. Returns: its address. Raises: ProcessError."""
        return self._serve("server of parameters", "params", PARAMETERS_PORT)[1]

    def _serve(self, name: str, command: str, port: int, *options: str) -> tuple[Process, str]:
        """Starts a server on the parameter server's host, and waits for it. Returns: it, and its address."""
        place = self.layout.server
        address = f"{place.ip}:{port}"
        process = self.start(place.name, name, ["sa_atp", command, "--listen", address, *options])
        process.answer(READY_TIMEOUT_S)
        return process, address


def _sent_bytes(node: Any, interface: str) -> int:
    """Bytes that an interface has sent, with all headers, those of the segments of super-packets included."""
    out = node.run("tc", "-statistics", "-json", "qdisc", "show", "dev", interface, "root")
    return sum(int(each["bytes"]) for each in json.loads(out) if each.get("root"))


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM end the run as Ctrl-C does; further signals wait until the network is removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defers Ctrl-C and SIGTERM until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def impairments(layout: NetworkLayout, switch: str, seed: int) -> list[str]:
    """Options that make an embedded switch emulate delay and faults of its links.

    Links to hosts are emulated at the switch in both directions, links between switches at their receiving ends.
    """
    found = ["--seed", str(seed)]
    for cable in layout.cables:
        for node, port, other in ((cable.node, cable.port, cable.other), (cable.other, cable.other_port, cable.node)):
            if node == switch and cable.quality.needs_emulation:
                option = "--impair-arrivals" if other in layout.switches else "--impair"
                q = cable.quality
                wanted = {
                    "delay_us": q.delay_us, "jitter_us": q.jitter_us, "loss": q.loss, "duplicate": q.duplicate,
                    "reorder": q.reorder,
                }  # fmt: skip
                found += [option, f"{port}:" + ",".join(f"{key}={value}" for key, value in wanted.items() if value)]
    return found
