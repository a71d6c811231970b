"""Ports of a Tofino switch. P4Runtime has no message to set them up, so this writes files for the switch's software.

    Stratum      the chassis configuration that stratum_bfrt is started with (--chassis_config_file)
    bf_switchd   commands for its shell (bfshell -f FILE)

A port has two names: its number in the chip, which tables and groups use, and its place on the front panel, connector and
lane ("1/0"). The mapping depends on the switch; `pm show` in bfshell lists it. Pure: no connection.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sa_atp.basics.errors import UserError
from sa_atp.switches.control.tofino import Chip

MOST_PORT = 511
SPEEDS_GBPS = (10, 25, 40, 50, 100, 200, 400)
FEC = {"none": ("FEC_MODE_OFF", "NONE"), "rs": ("FEC_MODE_ON", "RS"), "auto": ("FEC_MODE_AUTO", "NONE")}
_FORM = re.compile(r"(\d+)=(\d+)/(\d+):(\d+)G(?::(\w+))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontPort:
    """port: its number in the chip; connector: from 1; lane: from 0; speed_gbps; fec: a key of `FEC`."""

    port: int
    connector: int
    lane: int
    speed_gbps: int
    fec: str = "none"


def parse(text: str) -> FrontPort:
    """Parses PORT=CONNECTOR/LANE:SPEED[:FEC], such as "132=1/0:100G:rs". Raises: UserError."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise UserError(f"--port {text}: expected PORT=CONNECTOR/LANE:SPEED, like 132=1/0:100G or 132=1/0:100G:rs")
    port, connector, lane, speed = (int(group) for group in found.groups()[:4])
    fec = found[5] or "none"
    if port > MOST_PORT:
        raise UserError(f"--port {text}: port {port}: expected 0 to {MOST_PORT}")
    if connector < 1 or lane > 7:
        raise UserError(f"--port {text}: place {connector}/{lane}: expected a connector from 1 and a lane of 0 to 7")
    if speed not in SPEEDS_GBPS:
        raise UserError(f"--port {text}: speed {speed}G: expected one of {', '.join(f'{s}G' for s in SPEEDS_GBPS)}")
    if fec not in FEC:
        raise UserError(f"--port {text}: error correction {fec}: expected one of {', '.join(FEC)}")
    return FrontPort(port=port, connector=connector, lane=lane, speed_gbps=speed, fec=fec)


def parse_all(texts: Sequence[str]) -> tuple[FrontPort, ...]:
    """Parses several ports. Raises: UserError: two have the same number or place."""
    ports = tuple(parse(text) for text in texts)
    for what, names in (
        ("port {}", [p.port for p in ports]),
        ("place {0[0]}/{0[1]}", [(p.connector, p.lane) for p in ports]),
    ):
        for i, name in enumerate(names):
            if name in names[:i]:
                raise UserError(f"--port: {what.format(name)} is given twice")
    return ports


def chassis_config(ports: Sequence[FrontPort], chip: Chip, device_id: int) -> str:
    """Stratum's ChassisConfig in text form: one node, whose id is P4Runtime's device id."""
    out = [
        'description: "SA-ATP"',
        f"chassis {{ platform: PLT_BAREFOOT_{chip.upper()} }}",
        f"nodes {{ id: {device_id} slot: 1 index: 1 }}",
    ]
    shared = {p.connector for p in ports if sum(q.connector == p.connector for q in ports) > 1}
    for p in ports:
        channel = f"channel: {p.lane + 1} " if p.connector in shared or p.lane else ""
        out.append(
            f'singleton_ports {{ id: {p.port} name: "{p.connector}/{p.lane}" slot: 1 port: {p.connector} {channel}'
            f"speed_bps: {p.speed_gbps * 10**9} node: {device_id} "
            f"config_params {{ admin_state: ADMIN_STATE_ENABLED fec_mode: {FEC[p.fec][0]} }} }}"
        )
    return "\n".join(out) + "\n"


def shell_commands(ports: Sequence[FrontPort]) -> str:
    """Commands for `bfshell -f` that add the ports and turn them on."""
    out = ["ucli", "pm"]
    for p in ports:
        place = f"{p.connector}/{p.lane}"
        out += [f"port-add {place} {p.speed_gbps}G {FEC[p.fec][1]}"]
        out += [f"an-set {place} 1"] if p.fec == "auto" else []
        out += [f"port-enb {place}"]
    return "\n".join([*out, "show", "exit", "exit"]) + "\n"
