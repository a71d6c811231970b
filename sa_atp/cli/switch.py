"""`sa-atp switch`: the embedded P4 target as a process."""

import argparse
import contextlib
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics import terminal
from sa_atp.basics.errors import UserError
from sa_atp.cli.parts import metrics_option
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS
from sa_atp.switches import artefacts, lanes_option

if TYPE_CHECKING:
    from sa_atp.net.sockets.ports import Port
    from sa_atp.protocol.packets.datagrams import Address


LANES_WITHOUT_PORTS = 64  # where no link limits them


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "switch",
        help="run the embedded P4 switch",
        description="Runs a compiled P4 program (BMv2 JSON) between network interfaces or UDP ports.",
    )
    parser.add_argument(
        "program",
        nargs="?",
        metavar="PROGRAM",
        help="folder with the JSON and the P4Info of a program, or `none` to wait for one over P4Runtime "
        "(default: the aggregation program)",
    )
    lanes_option.add(parser, "the MTU of all its interfaces, for the aggregation program")
    parser.add_argument("--contributions", type=int, default=CONTRIBUTION_BITS, metavar="N",
                        help="least number of bits in the contribution bitmap: ranks times micro-batches "
                        "(default: %(default)s)")  # fmt: skip
    parser.add_argument("-i", "--interface", action="append", default=[], metavar="PORT@INTERFACE",
                        help="attach an interface to a port (needs CAP_NET_RAW); may be repeated")  # fmt: skip
    parser.add_argument("--udp", action="append", default=[], metavar="PORT=HOST:PORT",
                        help="make a UDP socket at this address a port; may be repeated")  # fmt: skip
    parser.add_argument("--grpc", default="127.0.0.1:9559", metavar="HOST:PORT",
                        help="where P4Runtime listens (default: %(default)s)")  # fmt: skip
    parser.add_argument("--device-id", type=int, default=0, metavar="N")
    parser.add_argument("--cpu-port", type=int, metavar="N", help="port for packet-in and packet-out")
    parser.add_argument("--cores", type=int, default=1, metavar="N",
                        help="cores that run the program, each for some ports (default: %(default)s)")  # fmt: skip
    parser.add_argument("--pcap", type=Path, metavar="DIR", help="write the packets of each port to a file")
    parser.add_argument("--impair", action="append", default=[], metavar="PORT:KEY=VALUE[,...]",
                        help="impair the link at a port in both directions: delay_us, jitter_us, and loss, duplicate, "
                        "reorder as fractions; may be repeated")  # fmt: skip
    parser.add_argument("--impair-arrivals", action="append", default=[], metavar="PORT:KEY=VALUE[,...]",
                        help="the same for arriving packets only, where the other end is a switch too")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="seed of the impairments (default: 1)")
    parser.add_argument("--no-shm", action="store_true",
                        help="give no shared memory to ranks of this user on this machine, which then send packets to "
                        "the UDP ports")  # fmt: skip
    parser.add_argument("--plain", action="store_true",
                        help="run the translated program as plain Python, slowly, to step through it")  # fmt: skip
    metrics_option.add(parser)
    parser.set_defaults(run=run)


def _own_program(
    options: argparse.Namespace, interfaces: list[tuple[int, str]], sockets: "list[tuple[int, Address]]"
) -> artefacts.CompiledProgram:
    """The build of the aggregation program. Raises: UserError: none fits, or a port does not carry its packets."""
    from sa_atp.net.sockets import mtu
    from sa_atp.protocol.packets.mtu import MOST_MTU, check_fits, most_lanes

    carried = {f"port {number}, {name},": mtu.of_interface(name) for number, name in interfaces}
    carried |= {f"port {number}, {to[0]}:{to[1]},": mtu.of_address(to[0]) for number, to in sockets}
    lanes = options.lanes
    if lanes is None and not carried and options.contributions <= CONTRIBUTION_BITS:
        lanes = LANES_WITHOUT_PORTS
    elif lanes is None:
        lanes = most_lanes(min(carried.values(), default=MOST_MTU), options.contributions)
    contributions = artefacts.wide_enough(lanes, options.contributions)
    for where, each in carried.items():
        check_fits(lanes, each, where, contributions)
    return artefacts.program(lanes, contributions)


def parse_interface(text: str) -> tuple[int, str]:
    """Parses PORT@INTERFACE. Raises: UserError."""
    number, at, name = text.partition("@")
    if not at or not number.isdigit() or not name or int(number) > 510:
        raise UserError(f"-i {text}: expected PORT@INTERFACE with a port from 0 to 510, for example 1@eth0")
    return int(number), name


def parse_udp(text: str) -> "tuple[int, Address]":
    """Parses PORT=HOST:PORT. Raises: UserError."""
    from sa_atp.net.sockets.addresses import parse_address

    match = re.fullmatch(r"(\d{1,3})=([^=\s]+:\d{1,5})", text)
    if match is None or int(match[1]) > 510:
        raise UserError(f"--udp {text}: expected PORT=HOST:PORT, for example 1=127.0.0.1:21314")
    return int(match[1]), parse_address(match[2], lowest_port=0)


def check_cores(options: argparse.Namespace, ports: int) -> None:
    """Raises: UserError: there are fewer ports than cores, or another option needs a single core."""
    if not 1 <= options.cores <= max(1, ports):
        raise UserError(
            f"--cores {options.cores}: expected 1 to {max(1, ports)}: each core needs a port, and the switch has {ports}"
        )
    single = [name for name in ("plain", "pcap", "impair", "impair_arrivals") if getattr(options, name)]
    if options.cores > 1 and single:
        raise UserError(f"--cores {options.cores}: --{single[0].replace('_', '-')} works only with --cores 1")


def impair(ports: "dict[int, Port]", options: argparse.Namespace) -> None:
    """Replaces ports by impaired ones, as the options say. Raises: UserError."""
    from sa_atp.net.switch_process.impair import ImpairedPort, Impairment

    for name, both in (("--impair", True), ("--impair-arrivals", False)):
        for text in getattr(options, name[2:].replace("-", "_")):
            number, colon, rest = text.partition(":")
            if not colon or not number.isdigit() or int(number) not in ports:
                raise UserError(f"{name} {text}: expected PORT:KEY=VALUE[,...] with one of the switch's ports")
            arrivals = Impairment.parse(rest)
            ports[int(number)] = ImpairedPort(
                ports[int(number)],
                arrivals=arrivals,
                departures=arrivals if both else None,
                seed=options.seed * 1000 + int(number),
            )


def run(options: argparse.Namespace) -> int:
    from sa_atp.basics.folders import cache_folder, make_folder
    from sa_atp.basics.waiting import announced
    from sa_atp.cli.parts import switch_loop
    from sa_atp.net.clock import now_us
    from sa_atp.net.sockets.ports import InterfacePort, Port, UdpPort
    from sa_atp.net.switch_process.process import SwitchLoop
    from sa_atp.switches.embedded.device import Device
    from sa_atp.switches.embedded.p4runtime_server.server import P4RuntimeServer
    from sa_atp.switches.p4runtime.rpc import check_address

    check_address(options.grpc, lowest_port=0)
    wanted = [parse_interface(text) for text in options.interface]
    sockets = [parse_udp(text) for text in options.udp]
    numbers = [number for number, _ in wanted] + [number for number, _ in sockets]
    numbers += [] if options.cpu_port is None else [options.cpu_port]
    for number in numbers:
        if numbers.count(number) > 1:
            raise UserError(f"port {number} is given twice")
    check_cores(options, len(wanted) + len(sockets))
    program = None
    if options.program != "none":
        program = (
            artefacts.from_folder(Path(options.program)) if options.program else _own_program(options, wanted, sockets)
        )
    if options.pcap is not None:
        make_folder(options.pcap)  # before the program is compiled
    device = Device(
        clock=now_us,
        device_id=options.device_id,
        cpu_port=options.cpu_port,
        compiled=not options.plain,
        cache=cache_folder(),
        cores=options.cores,
    )
    ports: dict[int, Port] = {}
    for number, interface in wanted:
        ports[number] = InterfacePort(interface)
    for number, address in sockets:
        ports[number] = UdpPort(address)
    udp = {n: list(p.address) for n, p in ports.items() if isinstance(p, UdpPort)}
    impair(ports, options)
    with P4RuntimeServer(device, options.grpc) as server, contextlib.ExitStack() as waits:
        if program is not None:
            name = f"{program.json_path.parent.name}/{program.json_path.name}"
            waits.enter_context(announced(f"loading {name} (compiled the first time)", "sa-atp switch"))
            server.push(program.p4info(), program.device_config(), program.cookie)
        loop = SwitchLoop(
            device,
            ports,
            options.pcap,
            say=say,
            packet_ins_dropped=lambda: server.packet_ins_dropped,
            shares=not options.no_shm,
        )
        device.clock = loop.now_us
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: loop.stop())
        say(
            f"P4Runtime on {server.address}; ports {', '.join(f'{n} ({p.describe()})' for n, p in ports.items()) or 'none'}"
        )
        switch_loop.serve(loop, server.address, udp, metrics=options.metrics, say=say)
    return 0


def say(text: str) -> None:
    terminal.say(f"sa-atp switch: {text}")
