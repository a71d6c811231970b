"""`sa-atp leaf`: a leaf switch for the ranks of this host."""

import argparse
import signal
import threading
from typing import Any

from sa_atp.basics import terminal
from sa_atp.basics.errors import UserError
from sa_atp.cli.parts import metrics_option
from sa_atp.cli.ps import checked_seconds

LOOK_S = 0.5
ANSWER_S = 10.0


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "leaf",
        help="run a leaf switch for several ranks on this host",
        description="Runs an embedded switch that sums what the ranks of this host send, by memory that it shares with "
        "them, and sends one sum up to the switch above. Ranks of this user find it by themselves. Under torchrun, ranks "
        "start it where several of them share a host, and SA_ATP_LOCAL=none keeps them from it.",
    )
    parser.add_argument("--up", required=True, metavar="HOST[:PORT]",
                        help="the parameter server, as in SA_ATP_SERVER, whose switches are above")  # fmt: skip
    parser.add_argument("--host", metavar="IP",
                        help="address by which the switch above and the parameter server reach this host "
                        "(default: that of the interface towards them)")  # fmt: skip
    parser.add_argument("--port", type=int, default=0, metavar="N",
                        help="UDP port for results from above (default: any free one)")  # fmt: skip
    parser.add_argument("--grpc-port", type=int, default=0, metavar="N",
                        help="TCP port of P4Runtime, for the parameter server (default: any free one)")  # fmt: skip
    parser.add_argument("--unused-for", type=float, metavar="SECONDS",
                        help="end when no rank has used it for so long (default: stay until Ctrl-C)")  # fmt: skip
    metrics_option.add(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from sa_atp.basics.folders import cache_folder
    from sa_atp.cli.parts import switch_loop
    from sa_atp.net import job_status
    from sa_atp.net.clock import now_us
    from sa_atp.net.host_leaf.meeting import Meeting, Ports
    from sa_atp.net.sockets.addresses import ANY, ipv4_of, parse_address, source_of
    from sa_atp.net.sockets.ports import Port, UdpPort
    from sa_atp.net.switch_process.process import SwitchLoop
    from sa_atp.protocol.job.errors import ParameterServerLostError, TransportError
    from sa_atp.switches.control.fabric import LINK_UP_PORT, RANKS_PORT
    from sa_atp.switches.embedded.device import Device
    from sa_atp.switches.embedded.p4runtime_server.server import P4RuntimeServer

    above = parse_address(options.up)
    for name, value in (("--port", options.port), ("--grpc-port", options.grpc_port)):
        if not 0 <= value < 65536:
            raise UserError(f"{name} {value}: expected 0 to 65535")
    if options.unused_for is not None:
        checked_seconds("--unused-for", options.unused_for)
    source = source_of((ANY, 1), above)
    if source is None and options.host is None:
        raise UserError(f"--up {options.up}: there is no way to this address from here")
    if options.host is not None:
        host = ipv4_of(options.host, f"--host {options.host}")
    else:
        assert source is not None
        host = source[0]
    if options.unused_for is None:  # ranks that start it ask the server themselves
        try:
            job_status.ask_for_jobs(above, timeout_s=ANSWER_S)
        except ParameterServerLostError:
            raise
        except TransportError:
            pass  # it answers: it describes jobs only to ranks that are in one
    device = Device(clock=now_us, cache=cache_folder())
    ports: dict[int, Port] = {RANKS_PORT: UdpPort((host, 0)), LINK_UP_PORT: UdpPort((host, options.port))}
    ranks, up = ports[RANKS_PORT], ports[LINK_UP_PORT]
    assert isinstance(ranks, UdpPort)
    assert isinstance(up, UdpPort)
    over = threading.Event()
    with P4RuntimeServer(device, f"{host}:{options.grpc_port}") as server:
        loop = SwitchLoop(device, ports, say=say, shares=True, link_up=LINK_UP_PORT)
        device.clock = loop.now_us
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: loop.stop())
        grpc = int(server.address.rpartition(":")[2])
        meeting = Meeting(above, Ports(ranks.address, up.address, grpc))

        def watch() -> None:
            while not over.wait(LOOK_S):
                if options.unused_for is not None and meeting.unused_s() > options.unused_for:
                    loop.stop()

        watcher = threading.Thread(target=watch, name="sa-atp-leaf-unused", daemon=True)
        watcher.start()
        say("below udp://{}:{}; results come to {}:{}, P4Runtime on {}".format(*above, *up.address, server.address))
        switch_loop.serve(loop, server.address, list(up.address), metrics=options.metrics, say=say)
        over.set()
        watcher.join()
        meeting.close()
    return 0


def say(text: str) -> None:
    terminal.say(f"sa-atp leaf: {text}")
