"""Set-up of ports."""

import pytest

from sa_atp.basics.errors import UserError
from sa_atp.switches.control import tofino_ports
from sa_atp.switches.control.tofino_ports import FrontPort


def test_a_port() -> None:
    assert tofino_ports.parse("132=1/0:100G") == FrontPort(port=132, connector=1, lane=0, speed_gbps=100)
    assert tofino_ports.parse("0=33/3:25G:auto") == FrontPort(port=0, connector=33, lane=3, speed_gbps=25, fec="auto")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("132", "expected PORT=CONNECTOR/LANE:SPEED, like 132=1/0:100G"),
        ("132=1:100G", "expected PORT=CONNECTOR/LANE:SPEED"),
        ("512=1/0:100G", "port 512: expected 0 to 511"),
        ("1=0/0:100G", "place 0/0: expected a connector from 1 and a lane of 0 to 7"),
        ("1=1/8:100G", "place 1/8: expected a connector"),
        ("1=1/0:30G", "speed 30G: expected one of 10G, 25G"),
        ("1=1/0:100G:fire", "error correction fire: expected one of none, rs, auto"),
    ],
)
def test_invalid_ports(text: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        tofino_ports.parse(text)


@pytest.mark.parametrize(
    ("other", "complaint"), [("1=2/0:100G", "port 1 is given twice"), ("2=1/0:100G", "place 1/0 is given twice")]
)
def test_twice(other: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        tofino_ports.parse_all(["1=1/0:100G", other])


def test_for_stratum() -> None:
    ports = tofino_ports.parse_all(["132=1/0:100G:rs", "64=2/0:25G", "65=2/1:25G:auto"])
    assert tofino_ports.chassis_config(ports, "tofino2", 3).splitlines() == [
        'description: "SA-ATP"',
        "chassis { platform: PLT_BAREFOOT_TOFINO2 }",
        "nodes { id: 3 slot: 1 index: 1 }",
        'singleton_ports { id: 132 name: "1/0" slot: 1 port: 1 speed_bps: 100000000000 node: 3 '
        "config_params { admin_state: ADMIN_STATE_ENABLED fec_mode: FEC_MODE_ON } }",
        'singleton_ports { id: 64 name: "2/0" slot: 1 port: 2 channel: 1 speed_bps: 25000000000 node: 3 '
        "config_params { admin_state: ADMIN_STATE_ENABLED fec_mode: FEC_MODE_OFF } }",
        'singleton_ports { id: 65 name: "2/1" slot: 1 port: 2 channel: 2 speed_bps: 25000000000 node: 3 '
        "config_params { admin_state: ADMIN_STATE_ENABLED fec_mode: FEC_MODE_AUTO } }",
    ]


def test_for_bf_switchd() -> None:
    ports = tofino_ports.parse_all(["132=1/0:100G:rs", "64=2/0:25G:auto"])
    assert tofino_ports.shell_commands(ports).splitlines() == [
        "ucli", "pm", "port-add 1/0 100G RS", "port-enb 1/0", "port-add 2/0 25G NONE", "an-set 2/0 1", "port-enb 2/0",
        "show", "exit", "exit",
    ]  # fmt: skip
