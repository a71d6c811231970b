"""`sa-atp ps`: the parameter server as a process."""

import argparse
import ipaddress
import json
import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics import terminal
from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.cli.parts import metrics_option
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, SLOTS, UDP_PORT
from sa_atp.switches import artefacts, lanes_option

if TYPE_CHECKING:
    from sa_atp.protocol.server.job import Job
    from sa_atp.switches.control.fabric import SwitchPlace


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "ps",
        help="run a parameter server",
        description="Admits workers, tells the switch about their jobs, finishes sums that the switch could not, "
        "and keeps results for workers that missed them.",
    )
    parser.add_argument("--listen", default=f"0.0.0.0:{UDP_PORT}", metavar="HOST:PORT",
                        help="UDP address that workers connect to (default: %(default)s)")  # fmt: skip
    parser.add_argument("--grpc", metavar="HOST:PORT", help="P4Runtime address of the switch (default: no switch)")
    parser.add_argument("--device-id", type=int, default=0, metavar="N")
    parser.add_argument("--switch-address", metavar="HOST:PORT",
                        help="UDP port of the switch that workers send to; "
                        "default: the switch lies on the way to the parameter server")  # fmt: skip
    lanes_option.add(
        parser, "the switches' programs, or, where a switch has none, the MTU of the interface with --listen's address"
    )
    parser.add_argument("--contributions", type=int, metavar="N",
                        help="least number of bits in the contribution bitmap: ranks times micro-batches (default: as in "
                        f"the switches' programs, or {CONTRIBUTION_BITS})")  # fmt: skip
    parser.add_argument("--slots", type=int, default=1024, help="slots that all jobs together may use (default: 1024)")
    parser.add_argument("--slots-per-job", type=int, default=1024, help="slots that one job may use (default: 1024)")
    parser.add_argument("--port", type=int, default=1, metavar="N",
                        help="switch port of all hosts without a --host-port (default: 1)")  # fmt: skip
    parser.add_argument("--host-port", action="append", default=[], metavar="IP=PORT",
                        help="switch port of a host; may be repeated")  # fmt: skip
    parser.add_argument("--switches", type=Path, metavar="FILE.json",
                        help="several switches that aggregate in levels, instead of --grpc: where each is, and which "
                        "hosts are behind which of its ports")  # fmt: skip
    parser.add_argument("--levels", type=int, choices=(1, 2),
                        help="how many switches aggregate between a worker and the parameter server "
                        "(default: as --switches says, else 1)")  # fmt: skip
    parser.add_argument("--dead-after", type=float, default=10.0, metavar="SECONDS",
                        help="silence after which a worker counts as lost (default: 10)")  # fmt: skip
    parser.add_argument("--log", type=Path, metavar="DIR",
                        help="log decisions, a file for each job (docs/log.md)")  # fmt: skip
    parser.add_argument("--stragglers", action="store_true",
                        help="print a line of JSON about who was slow when a job is over, and at the end")  # fmt: skip
    metrics_option.add(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from sa_atp.net.sockets import mtu
    from sa_atp.net.sockets.addresses import ANY, parse_address
    from sa_atp.protocol.packets.mtu import check_fits
    from sa_atp.protocol.server.server_events import ServerSettings
    from sa_atp.switches.control import fabric

    listen = parse_address(options.listen, lowest_port=0)  # 0: any free port
    switch_address = parse_address(options.switch_address) if options.switch_address else None
    places = _places(options)
    carried = mtu.of_address(listen[0])
    if options.lanes is None:
        lanes, contributions = fabric.choose_build(places, carried, options.contributions)
    else:
        lanes = options.lanes
        wanted = CONTRIBUTION_BITS if options.contributions is None else options.contributions
        contributions = artefacts.wide_enough(lanes, wanted)
    if listen[0] != ANY:  # else ranks may be behind any interface: each path is checked when its rank joins
        check_fits(lanes, carried, f"the interface with address {listen[0]}", contributions)
    settings = ServerSettings(
        lanes=lanes,
        contribution_bits=contributions,
        switch_address=switch_address,
        aggregates=bool(places),
        levels=options.levels or fabric.levels(places),
        slots=checked_slots("--slots", options.slots),
        slots_per_job=checked_slots("--slots-per-job", options.slots_per_job),
        dead_after_us=int(checked_seconds("--dead-after", options.dead_after) * 1e6),
    )
    from sa_atp.basics.waiting import announced, nothing_waited_for
    from sa_atp.net.garbage_collection import freeze_loaded_objects
    from sa_atp.net.logs import writing
    from sa_atp.net.parameter_server.server import ServerProcess
    from sa_atp.net.watching import door, looking

    logs = None if options.log is None else writing.of_process(options.log)
    with announced("loading kernels (compiled the first time)", "sa-atp ps"):
        process = ServerProcess(settings, listen, random_bits=random.SystemRandom().getrandbits, logs=logs)
    if options.stragglers:
        process.over = _tell_stragglers
    if places:
        with announced(f"bringing up {plural(len(places), 'switch', 'switches')}", "sa-atp ps"):
            process.use_switches(places)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop())
    host, port = process.address
    say(f"{lanes} lanes; workers connect to udp://{'HOST' if host == ANY else host}:{port}")
    with (
        door.telling(process.state),
        metrics_option.serving(options.metrics, lambda: looking.put_together([process.state()])) as metrics,
    ):
        freeze_loaded_objects()
        print(
            json.dumps({"ready": True, "address": list(process.address), "lanes": lanes, "metrics": metrics}),
            flush=True,
        )
        with nothing_waited_for():
            process.run()
    return 0


def _tell_stragglers(job: "Job") -> None:
    from sa_atp.cli.parts import stragglers

    print(stragglers.as_line(job), flush=True)


def say(text: str) -> None:
    terminal.say(f"sa-atp ps: {text}")


def _places(options: argparse.Namespace) -> "list[SwitchPlace]":
    """The switches that aggregate; none if the parameter server sums alone. Raises: UserError."""
    from sa_atp.switches.control import fabric

    if options.switches is not None:
        if options.grpc is not None or options.host_port:
            raise UserError("--switches FILE says where switches and hosts are: drop --grpc and --host-port")
        return fabric.load_places(options.switches)
    if options.grpc is None:
        if options.host_port:
            raise UserError("--host-port needs --grpc, the address of the switch")
        return []
    if not 0 <= options.port < 511:
        raise UserError(f"--port {options.port}: expected 0 to 510")
    ports = dict(parse_host_port(text) for text in options.host_port)
    attachment = fabric.Attachment(default_port=options.port, ports=ports)
    return [fabric.SwitchPlace(grpc=options.grpc, device_id=options.device_id, attachment=attachment, routes=ports)]


def checked_slots(name: str, value: int) -> int:
    """Reads an option. Raises: UserError: a switch cannot have that number of slots."""
    if not 1 <= value <= SLOTS or value & (value - 1):
        raise UserError(f"{name} {value}: expected a power of two, at most {SLOTS}")
    return value


def checked_seconds(name: str, value: float) -> float:
    """Reads an option, in seconds. Raises: UserError: it is no length of time."""
    if not 0 < value < 1e9:
        raise UserError(f"{name} {value:g}: expected a positive number of seconds")
    return value


def parse_host_port(text: str) -> tuple[str, int]:
    """Parses IP=PORT. Raises: UserError."""
    ip, equals, port = text.partition("=")
    if not equals or not port.isdecimal() or not 0 <= int(port) < 511 or not _is_ip(ip):
        raise UserError(f"--host-port {text}: expected IP=PORT, for example 10.0.0.1=3, with a port from 0 to 510")
    return ip, int(port)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
