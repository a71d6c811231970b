"""`sa-atp deploy --target tofino`."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics.errors import SaAtpError, UserError
from sa_atp.basics.words import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sa_atp.switches.control.client import P4RuntimeClient
    from sa_atp.switches.control.tofino import TofinoProgram
    from sa_atp.switches.control.tofino_ports import FrontPort

PACKINGS = ("stratum", "pi")
CHIPS = ("tofino", "tofino2")
DEFAULTS: dict[str, Any] = {"packing": "stratum", "chip": "tofino", "ports": [], "ports_out": None}


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tofino")
    group.add_argument(
        "--chip",
        choices=CHIPS,
        help="which Tofino the switch has (default: tofino, the first)",
    )
    group.add_argument(
        "--packing",
        choices=PACKINGS,
        help="form of the pipeline: stratum for stratum_bfrt, pi for bf_switchd with PI (default: stratum)",
    )
    group.add_argument(
        "--port",
        dest="ports",
        action="append",
        metavar="PORT=CONNECTOR/LANE:SPEED[:FEC]",
        help="set up a port, like 132=1/0:100G:rs; may be repeated; needs --ports-out",
    )
    group.add_argument(
        "--ports-out",
        type=Path,
        metavar="FILE",
        help="write the set-up of the ports: Stratum's chassis configuration, or commands for bfshell",
    )


def refuse_options(options: argparse.Namespace) -> None:
    """Raises: UserError: an option was given that only Tofino has."""
    for name in DEFAULTS:
        if getattr(options, name) is not None:
            flag = "--port" if name == "ports" else f"--{name.replace('_', '-')}"
            raise UserError(f"{flag} is about Tofino: drop it, or choose --target tofino")


def run(options: argparse.Namespace, client: "P4RuntimeClient", routes: "Sequence[tuple[str, int]]") -> int:
    from sa_atp.switches import artefacts
    from sa_atp.switches.control import routes as bridge
    from sa_atp.switches.control import tofino, tofino_ports

    for name, value in DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.packing == "stratum" and options.device_id == 0:
        raise UserError(
            "--device-id 0: stratum_bfrt numbers its nodes from 1; give the id of its chassis configuration"
        )
    ports = tofino_ports.parse_all(options.ports)
    if bool(ports) != (options.ports_out is not None):
        raise UserError("--port and --ports-out belong together: P4Runtime cannot set up ports, so a file is written")
    folder = options.program or artefacts.tofino_folder(options.chip, options.lanes)
    program = tofino.from_folder(folder, options.packing)
    if program.chip != options.chip:
        raise UserError(f"{folder}: the program is for {program.chip}, not for --chip {options.chip}")
    if ports:
        _write_ports(options.ports_out, ports, program, options.device_id)
    with client:
        _push(client, program)
        _verify(client, program)
        for prefix, port in routes:
            bridge.add(client, prefix, port)
        schema = client.schema
        result = {
            "target": "tofino",
            "chip": program.chip,
            "packing": program.packing,
            "grpc": options.grpc,
            "device_id": options.device_id,
            "program": str(folder),
            "lanes": program.lanes,
            "p4runtime": client.api_version(),
            "tables": len(schema.tables),
            "counters": len(schema.counters),
            "registers": len(schema.registers),
            "registers_readable": client.has_registers(),
            "routes": dict(routes),
            "ports_out": None if options.ports_out is None else str(options.ports_out),
        }
    if options.json:
        print(json.dumps(result))
        return 0
    lanes = f", {program.lanes} lanes" if program.lanes else ""
    print(
        f"{program.name}{lanes}: runs on the {program.chip} switch {options.device_id} at {options.grpc}"
        f" ({plural(len(schema.tables), 'table')}, {plural(len(routes), 'route')} set; registers"
        f" {'can' if result['registers_readable'] else 'cannot'} be read over P4Runtime {result['p4runtime']})"
    )
    if ports:
        use = "start stratum_bfrt with --chassis_config_file" if program.packing == "stratum" else "run bfshell -f"
        print(f"{options.ports_out}: set-up of {plural(len(ports), 'port')}; {use} {options.ports_out}")
    return 0


def _push(client: "P4RuntimeClient", program: "TofinoProgram") -> None:
    from sa_atp.switches.control.errors import ControlError, WrongDevice

    try:
        client.push_pipeline(program.p4info(), program.device_config(), cookie=program.cookie)
    except ControlError as error:
        # what each server answers to the other's packing
        if program.packing == "stratum" and isinstance(error, WrongDevice):
            raise WrongDevice(f"{error} and if this is bf_switchd with PI, use --packing pi") from None
        if program.packing == "pi" and "format for p4_device_config" in str(error):
            raise ControlError(f"{error}; if this is stratum_bfrt, use --packing stratum") from None
        raise


def _write_ports(path: Path, ports: "Sequence[FrontPort]", program: "TofinoProgram", device_id: int) -> None:
    from sa_atp.switches.control import tofino_ports

    if program.packing == "stratum":
        text = tofino_ports.chassis_config(ports, program.chip, device_id)
    else:
        text = tofino_ports.shell_commands(ports)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--ports-out {path}: {error.strerror}") from None


def _verify(client: "P4RuntimeClient", program: "TofinoProgram") -> None:
    """Reads the pipeline back. Some servers do not return the device configuration, but all return cookie and P4Info."""
    from sa_atp.switches.control.client import parse_p4info

    config = client.get_pipeline()
    same = config.cookie == program.cookie and config.p4info == parse_p4info(program.p4info())
    if not same or config.device_config not in (b"", program.device_config()):
        raise SaAtpError(f"{client.address}: the switch does not report the program that was pushed to it")
