"""`sa-atp deploy`: pushes the P4 program to a switch over P4Runtime, and reads it back."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.basics.words import plural
from sa_atp.cli.parts import deploy_tofino
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS

if TYPE_CHECKING:
    from sa_atp.switches.artefacts import CompiledProgram
    from sa_atp.switches.control.client import P4RuntimeClient

TARGETS = ("embedded", "bmv2", "tofino")


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "deploy",
        help="push the P4 program to a switch",
        description="Pushes the P4 program over P4Runtime and verifies it.",
    )
    parser.add_argument("--target", choices=TARGETS, required=True, help="what kind of switch it is")
    add_connection(parser)
    program = parser.add_mutually_exclusive_group()
    program.add_argument(
        "--lanes", type=int, help="values per packet of the build to push (default: 64; tofino: the most)"
    )
    program.add_argument(
        "--program",
        type=Path,
        metavar="DIR",
        help="folder of another compiled program: its JSON and P4Info; tofino: p4c-tofino's output and the P4Info",
    )
    parser.add_argument("--contributions", type=int, metavar="N",
                        help="least number of bits in the build's bitmap (default: 64; tofino has no other)")  # fmt: skip
    parser.add_argument(
        "--route",
        action="append",
        default=[],
        metavar="PREFIX=PORT",
        help="send ordinary traffic for an address or network to a port; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    deploy_tofino.add_options(parser)
    parser.set_defaults(run=run, waits="waiting for the switch")


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which switch a command talks to."""
    parser.add_argument(
        "--grpc",
        default="127.0.0.1:9559",
        metavar="HOST:PORT",
        help="P4Runtime server of the switch (default: %(default)s)",
    )
    parser.add_argument("--device-id", type=int, default=0, metavar="N", help="P4Runtime device id (default: 0)")
    parser.add_argument(
        "--election-id",
        type=int,
        default=1,
        metavar="N",
        help="the controller with the largest id may write (default: 1)",
    )
    parser.add_argument(
        "--timeout", type=float, default=5.0, metavar="SECONDS", help="longest wait for an answer (default: 5)"
    )


def make_client(options: argparse.Namespace, *, read_only: bool = False) -> "P4RuntimeClient":
    """Makes a client from the options of `add_connection`; it is not connected yet. Raises: UserError."""
    import socket

    from sa_atp.switches.control.client import P4RuntimeClient

    client = P4RuntimeClient(
        options.grpc,
        options.device_id,
        election_id=options.election_id,
        read_only=read_only,
        timeout_s=options.timeout,
    )
    host = options.grpc.rpartition(":")[0].strip("[]")
    try:
        if not options.grpc.startswith("unix:"):
            socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):  # the latter for "a..b"
        raise UserError(f"--grpc {options.grpc}: the host {host!r} is not known") from None
    return client


def run(options: argparse.Namespace) -> int:
    if options.target == "tofino":
        if options.contributions not in (None, CONTRIBUTION_BITS):
            raise UserError(f"--contributions {options.contributions}: Tofino's programs have {CONTRIBUTION_BITS}")
        return deploy_tofino.run(options, make_client(options), [_route(text) for text in options.route])
    deploy_tofino.refuse_options(options)
    from sa_atp.switches import artefacts
    from sa_atp.switches.control import routes

    lanes = 64 if options.lanes is None else options.lanes
    if options.program is not None and options.contributions is not None:
        raise UserError(
            "--contributions chooses one of the project's builds, --program another program: drop one of them"
        )
    needed = CONTRIBUTION_BITS if options.contributions is None else options.contributions
    program = (
        artefacts.from_folder(options.program)
        if options.program
        else artefacts.program(lanes, artefacts.wide_enough(lanes, needed))
    )
    wanted_routes = [_route(text) for text in options.route]
    with make_client(options) as client:
        client.push_pipeline(program.p4info(), program.device_config(), cookie=program.cookie)
        _verify(client, program)
        for prefix, port in wanted_routes:
            routes.add(client, prefix, port)
        schema = client.schema
        result = {
            "target": options.target,
            "grpc": options.grpc,
            "device_id": options.device_id,
            "program": str(program.json_path),
            "lanes": program.lanes,
            "contributions": program.contributions,
            "p4runtime": client.api_version(),
            "tables": len(schema.tables),
            "counters": len(schema.counters),
            "registers": len(schema.registers),
            "registers_readable": client.has_registers(),
            "routes": dict(wanted_routes),
        }
    if options.json:
        print(json.dumps(result))
    else:
        lanes = f", {program.lanes} lanes" if program.lanes else ""
        switch = f"{options.target} switch {options.device_id} at {options.grpc}"
        print(
            f"{program.json_path.name}{lanes}: runs on the {switch}"
            f" ({plural(len(schema.tables), 'table')}, {plural(len(wanted_routes), 'route')} set; registers"
            f" {'can' if result['registers_readable'] else 'cannot'} be read over P4Runtime {result['p4runtime']})"
        )
    return 0


def _verify(client: "P4RuntimeClient", program: "CompiledProgram") -> None:
    config = client.get_pipeline()
    if config.device_config != program.device_config() or config.cookie != program.cookie:
        raise SaAtpError(f"{client.address}: the switch does not report the program that was pushed to it")


def _route(text: str) -> tuple[str, int]:
    """Parses PREFIX=PORT. Raises: UserError."""
    from sa_atp.switches.control import routes

    prefix, separator, port = text.partition("=")
    if not separator or not port.isdecimal():
        raise UserError(f"--route {text}: expected PREFIX=PORT, like 10.0.0.0/24=3")
    try:
        routes.check(prefix, int(port))
    except UserError as error:
        raise UserError(f"--route {text}: {error}") from None
    return prefix, int(port)
