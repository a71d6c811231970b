"""`sa-atp params`: a server of parameters as a process."""

import argparse
import json
import signal
import threading
from typing import Any

PORT = 21323


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "params",
        help="run a server of parameters",
        description="Holds the parameters of jobs whose workers pull them and push updates (policies of the family "
        "parameters), and decides what their policies decide. Workers connect by gRPC.",
    )
    parser.add_argument("--listen", default=f"127.0.0.1:{PORT}", metavar="HOST:PORT",
                        help="TCP address that workers connect to; port 0: a free one (default: %(default)s, so "
                        "workers of this machine; 0.0.0.0: all of its addresses)")  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from sa_atp.basics.terminal import say
    from sa_atp.basics.waiting import nothing_waited_for
    from sa_atp.lab.parameters.service import ParameterService
    from sa_atp.net.garbage_collection import freeze_loaded_objects
    from sa_atp.net.sockets.addresses import parse_address

    host, port = parse_address(options.listen, lowest_port=0, usual_port=PORT)
    service = ParameterService(f"{host}:{port}")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    service.start()
    freeze_loaded_objects()
    say(f"sa-atp params: workers connect to {host}:{service.address[1]}")
    print(json.dumps({"ready": True, "address": list(service.address)}), flush=True)
    with nothing_waited_for():
        stop.wait()
    service.stop()
    return 0
