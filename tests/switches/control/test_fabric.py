"""Descriptions of switches, and keeping switches supplied with programs, routes and jobs."""

import json
from pathlib import Path
from typing import Any

import pytest

from sa_atp.basics.errors import UserError
from sa_atp.switches import artefacts
from sa_atp.switches.control import fabric
from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.control.fabric import Keeper, SwitchPlace
from sa_atp.switches.control.job_tables import Problems
from sa_atp.switches.embedded.device import Device
from sa_atp.switches.embedded.p4runtime_server.server import P4RuntimeServer

from .conftest import admission

ONE = {"grpc": "127.0.0.1:9559"}


def load(folder: Path, **keys: Any) -> SwitchPlace:
    path = folder / "switches.json"
    path.write_text(json.dumps({"switches": [{**ONE, **keys}]}))
    (place,) = fabric.load_places(path)
    return place


def test_a_tofino_gets_its_own_program_and_port(tmp_path: Path) -> None:
    place = load(tmp_path, target="tofino", packing="pi")
    assert place.attachment.loop_port == 68
    program = place.program(32)
    assert program.cookie != artefacts.program(32).cookie
    assert program.device_config()[4:10] == b"sa_atp"  # as PI has it: lengths, then what they are of
    with pytest.raises(UserError, match="lanes 64: there is no such build for tofino; there is 32"):
        place.program(64)
    assert load(tmp_path, target="tofino2").attachment.loop_port == 6
    assert load(tmp_path).program(64).cookie == artefacts.program(64).cookie


def test_the_build_on_one_switch_is_used_for_all(tmp_path: Path) -> None:
    """Also a build with a wide bitmap, which the links would not suggest."""
    device = Device(clock=lambda: 0, compiled=False)
    with P4RuntimeServer(device, "127.0.0.1:0") as server:
        places = [load(tmp_path, grpc=server.address, device_id=device.device_id)]
        assert fabric.choose_build(places, 1500) == (256, 64)
        wide = artefacts.program(256, 512)
        server.push(wide.p4info(), wide.device_config(), wide.cookie)
        assert fabric.choose_build(places, 65536) == fabric.choose_build(places, 1500, 65) == (256, 512)
        with pytest.raises(UserError, match=r"--contributions 513: .* runs a build for 512"):
            fabric.choose_build(places, 1500, 513)


def test_macs_of_real_hosts(tmp_path: Path) -> None:
    place = load(tmp_path, hosts={"10.0.0.1": 1, "10.0.0.2": 2}, macs={"10.0.0.2": "0C:42:A1:00:00:02"})
    spec = place.attachment.spec(admission(1))
    assert spec is not None
    assert [member.mac for member in spec.members] == ["02:00:0a:00:00:01", "0c:42:a1:00:00:02"]
    assert (spec.job, spec.epoch, spec.fan_in) == (1, 1, 0b11)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"target": "bmv3"}, r"switches\[0\]: target = 'bmv3': expected one of v1model, tofino, tofino2"),
        ({"packing": "zip"}, r"switches\[0\]: packing = 'zip': expected one of stratum, pi"),
        ({"macs": []}, r"switches\[0\]: macs = \[\]: expected a dict"),
        ({"macs": {"10.0.0.1": "here"}}, r"switches\[0\]: macs: 'here': expected six bytes"),
    ],
)
def test_bad_places(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(tmp_path, **keys)


class Stubborn(Keeper):
    """A switch whose calls raise an arbitrary exception once."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(SwitchPlace(grpc="nowhere", attachment=fabric.Attachment(default_port=1)), artefacts.program())
        self.problem: Exception | None = problem

    def bring_up(self) -> Problems:
        self._raise()
        return {}

    def _raise(self) -> None:
        problem, self.problem = self.problem, None
        if problem is not None:
            raise problem


def test_a_switch_that_cannot_be_put_back_is_only_reported() -> None:
    """Another controller's job may have a slot or group of ours: the check reports it, and the next check comes."""
    keeper = Stubborn(UserError("job 5: group 5 belongs to job 4: choose another one"))
    assert keeper.check() == "job 5: group 5 belongs to job 4: choose another one"
    assert "restored 0 routes" in str(keeper.check())


def test_a_job_that_the_switch_cannot_be_given_is_told_why(tmp_path: Path) -> None:
    """Another controller has taken the switch over."""
    device = Device(clock=lambda: 0, compiled=False)
    with P4RuntimeServer(device, "127.0.0.1:0") as server:
        place = load(tmp_path, grpc=server.address, device_id=device.device_id, hosts={"10.0.0.1": 1, "10.0.0.2": 2})
        keeper = Keeper(place, artefacts.program(32))
        assert keeper.bring_up() == {}
        with P4RuntimeClient(server.address, device.device_id, election_id=7):
            why = None
            while why is None:  # until the keeper's stream has brought the news
                why = keeper.check()
            problems = keeper.apply_jobs([admission(1)], [])
        assert "election id 1 is not primary, the primary's is 7" in why
        assert {number: str(problem) for number, problem in problems.items()} == {1: why}
        restored = keeper.check()  # the other one has left
        assert restored == (
            f"switch 0 at {server.address} was out of reach, or another controller's, and still has its program: "
            "restored 2 routes, 1 job"
        )
        assert keeper.check() is None
        keeper.close()
