"""Keeping a Tofino supplied, as `sa-atp ps` does: its program, jobs with its own copies of results, and checks."""

from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.server.server_events import Admit
from sa_atp.switches.control.fabric import Attachment, Keeper, SwitchPlace
from sa_atp.switches.control.job_entries import OWN_COPY

from .conftest import Serve
from .server import Kind

JOB = Admit(
    number=7,
    epoch=3,
    addresses={0: ("10.0.0.1", 5000), 1: ("10.0.0.2", 5001)},
    map=ContributionMap(2, 4),
    slot_base=8192,  # which only a Tofino has
    slot_count=8192,
    server=("10.0.0.9", 21313),
)


def keeper_of(address: str, device_id: int, packing: Kind) -> Keeper:
    attachment = Attachment(
        default_port=136, ports={"10.0.0.1": 128, "10.0.0.2": 132}, loop_port=68, macs={"10.0.0.1": "0c:42:a1:00:00:01"}
    )
    place = SwitchPlace(
        grpc=address,
        device_id=device_id,
        attachment=attachment,
        target="tofino",
        packing=packing,
        routes=attachment.ports,
    )
    return Keeper(place, place.program(32))


def test_a_switch_is_brought_up_and_kept(serve: Serve) -> None:
    server = serve(kind="stratum", chip="tofino")
    keeper = keeper_of(server.address, server.device_id, "stratum")
    keeper.bring_up()
    assert server.loaded is not None
    assert server.loaded.name == "sa_atp"
    assert keeper.apply_jobs([JOB], []) == {}
    replicas = {(r.egress_port, r.instance) for r in server.groups[7].replicas}
    assert replicas == {(128, 1), (132, 2), (136, 1000), (68, OWN_COPY)}
    assert keeper.check() is None

    held, server.config = server.config.p4_device_config, None  # as after a restart
    server.entries.clear()
    server.groups.clear()
    assert "had restarted: restored its program, 2 routes, 1 job" in str(keeper.check())
    assert server.config.p4_device_config == held
    assert set(server.groups) == {7}
    assert keeper.apply_jobs([], [7]) == {}
    assert set(server.groups) == set()
    keeper.close()
