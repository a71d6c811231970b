"""A layout, built by Mininet and running: namespaces, links, switches, and the parameter server that controls them."""

import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.lab.backends.mininet import cleaning, parts
from sa_atp.lab.backends.mininet.layout import NEIGHBOURS, Layout
from sa_atp.lab.runs.processes import Group, Process
from sa_atp.lab.simulator.world import PLAIN_PORT
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, UDP_PORT
from sa_atp.switches.control.fabric import mac_text

READY_TIMEOUT_S = 120.0
# Packets that may wait at a port before others are marked. Processes that share cores take and send packets in bursts: a
# threshold below a burst would call every burst a congestion. BMv2 drops what finds 64 waiting.
MARK_ABOVE = {"embedded": 250, "bmv2": 24}
PARAMETERS_PORT = UDP_PORT + 10  # TCP, of a server of parameters


class Network:
    """Use as a context manager: everything is gone when it ends."""

    def __init__(
        self,
        layout: Layout,
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
    ) -> None:
        """Args:
        switch: "embedded" or "bmv2".
        slots, slots_per_job: see `sa-atp ps`.
        logs: folder for logs, and for pcap files of switch ports.
        seed: of what links do by chance.
        tell: see processes.Group.
        log: folder for what connections decide; None: that is not logged.

        Raises: MissingPartError, UserError.
        """
        self.layout = layout
        self.switch = switch
        self.build = {"lanes": lanes, "contributions": contributions}
        self._build_arguments = ["--lanes", str(lanes), "--contributions", str(contributions)]
        self.log = None if log is None else log.absolute()
        self._log_arguments = [] if log is None else ["--log", str(self.log)]
        self.slots = slots
        self.slots_per_job = slots_per_job
        self.logs = logs
        self.pcap = pcap
        self.seed = seed
        self.group = Group(tell)
        self.server: Process | None = None
        self._stack = ExitStack()
        self.streams = 0  # of other traffic
        self._net: Any = None
        layout.check("topology")
        parts.require(switch=switch)
        if switch == "bmv2" and any(cable.quality.needs_emulation for cable in layout.cables) and not parts.has_netem():
            raise UserError(
                "delay, jitter, loss, duplication and reordering: BMv2 cannot emulate them, and this kernel has no netem: "
                "use --switch embedded, whose ports can, or set topology.delay_us and network.* to 0"
            )

    # --- building -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._stack.enter_context(_orderly_end())
        try:
            self._build()
        except BaseException:
            self._close()
            raise
        return self

    def limit_cpus(self, slowdowns: Mapping[str, float]) -> None:
        """Gives each host its share of the CPU. Processes start faster without, so call it when they run.

        Args: slowdowns: hosts that get so many times less. Raises: SaAtpError.
        """
        for host in self.layout.hosts.values():
            if host.cpu is not None:
                self.node(host.name).group.limit(host.cpu / slowdowns.get(host.name, 1.0))

    def _build(self) -> None:
        from sa_atp.lab.backends.mininet.api import Link, Mininet
        from sa_atp.lab.backends.mininet.links import Port
        from sa_atp.lab.backends.mininet.nodes import SWITCHES, PlainHost

        self.logs.mkdir(parents=True, exist_ok=True)
        # paths of Unix sockets may not be long, and those of results are
        mark = cleaning.owner_mark()
        self.sockets = Path(tempfile.mkdtemp(prefix=f"{cleaning.FOLDER_PREFIX}{mark.replace(':', '-')}-"))
        os.environ[cleaning.OWNER] = mark  # for all processes of the run, the shells of nodes too
        self._stack.callback(shutil.rmtree, self.sockets, ignore_errors=True)
        net = Mininet(controller=None, link=Link, intf=Port, host=PlainHost, build=False)
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
        joins = self.switch == "embedded" and parts.has_super_packets()
        for cable in self.layout.cables:
            net.addLink(
                cable.node, cable.other, port1=cable.port, port2=cable.other_port,
                params1={"quality": cable.quality, "joins": joins},
                params2={"quality": replace(cable.quality, own_share=1.0), "joins": joins},
            )  # fmt: skip
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
        with _undisturbed():
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
        """What workers need: the processes of the switches, and of the parameter server, once it has been started."""
        return self.switches if self.server is None else [*self.switches, self.server]

    def trunk_bytes(self) -> dict[str, int]:
        """For each link between switches, "leaf1-s1", the bytes that have gone up it: what the leaf's queue counts."""
        found = {}
        for cable in self.layout.cables:
            if {cable.node, cable.other} <= self.layout.switches.keys():
                is_up = cable.other == self.layout.root.name
                low, high, port = (
                    (cable.node, cable.other, cable.port) if is_up else (cable.other, cable.node, cable.other_port)
                )
                found[f"{low}-{high}"] = _sent_bytes(self.node(low), f"{low}-eth{port}")
        return found

    def start(
        self,
        host: str,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Process:
        """Starts a process on a host. Args: as those of Process; the log's name follows from the process's."""
        log = self.logs / f"{name.replace(' ', '-')}.log"
        return self.group.start(name, arguments, log, environment, inside=self.node(host).inside(), **options)

    def start_server(self) -> str:
        """Starts the parameter server, which brings the switches up. Returns: its address. Raises: ProcessError."""
        file = self.sockets / "switches.json"
        addresses = {switch.name: switch.grpc for switch in self._net.switches}
        file.write_text(json.dumps(self.layout.switch_file(addresses, MARK_ABOVE[self.switch]), indent=1))
        place = self.layout.server
        address = f"{place.ip}:{UDP_PORT}"
        self.server = self.start(
            place.name, "parameter server",
            ["sa_atp", "ps", "--listen", address, "--switches", str(file), *self._build_arguments,
             "--slots", str(self.slots), "--slots-per-job", str(self.slots_per_job), *self._log_arguments],
        )  # fmt: skip
        self.server.answer(READY_TIMEOUT_S)
        return f"udp://{address}"

    def start_plain_server(self) -> str:
        """Starts a parameter server that sums everything itself. Returns: its address. Raises: ProcessError."""
        place = self.layout.server
        address = f"{place.ip}:{PLAIN_PORT}"
        process = self.start(
            place.name, "plain parameter server",
            ["sa_atp", "ps", "--listen", address, *self._build_arguments, *self._log_arguments],
        )  # fmt: skip
        process.answer(READY_TIMEOUT_S)
        return f"udp://{address}"

    def start_parameters(self) -> str:
        """Starts a server of parameters beside the parameter server. Returns: its address. Raises: ProcessError."""
        place = self.layout.server
        address = f"{place.ip}:{PARAMETERS_PORT}"
        process = self.start(place.name, "server of parameters", ["sa_atp", "params", "--listen", address])
        process.answer(READY_TIMEOUT_S)
        return address


def _sent_bytes(node: Any, interface: str) -> int:
    """What an interface has sent, with the headers of every frame: its queue counts those of super-packets, too."""
    out, err, status = node.pexec(["tc", "-statistics", "-json", "qdisc", "show", "dev", interface, "root"])
    if status != 0:
        raise SaAtpError(f"{node.name}: tc cannot tell what {interface} has sent: {err.strip()}")
    return sum(int(each["bytes"]) for each in json.loads(out) if each.get("root"))


@contextmanager
def _orderly_end() -> Iterator[None]:
    """A termination ends the run as Ctrl-C does; and while a run is taken down, further ones must wait."""
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
def _undisturbed() -> Iterator[None]:
    """Ctrl-C and termination wait until this is over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def impairments(layout: Layout, switch: str, seed: int) -> list[str]:
    """Options that make an embedded switch emulate what its links are like, apart from their rate.

    A link to a host is emulated at the switch in both directions, one between switches at its receiving ends.
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
