"""Which leaves on hosts the parameter server has installed for a job. (protocol section 4.8)"""

from collections import deque
from typing import Any

import pytest

from sa_atp.protocol.packets.control import Join, LeafPorts, Welcome
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.server.admission import Admission
from sa_atp.protocol.server.server_events import Admit, HostLeaf, ServerEvent, ServerSettings

LEAF, OTHER = LeafPorts(40001, 9559), LeafPorts(40002, 9559)


class Server:
    """The part of a parameter server that admits ranks."""

    def __init__(self, **settings: Any) -> None:
        self.events: deque[ServerEvent] = deque()
        self.failed: list[str] = []
        self.admission = Admission(
            ServerSettings(**settings), lambda bits: 0, self.events, lambda job, reason, ranks, detail: job.next_epoch()
        )

    def join(self, places: list[tuple[str, LeafPorts | None]], *, seats: int = 0) -> Admit:
        """Has ranks ask to join, each from a host and with a leaf. Returns: what is to be installed."""
        self.asked = [
            Join(
                name="job", rank=rank, world_size=len(places), micro_batches=1, help_grade=HelpGrade.NONE,
                incarnation=rank, seats=seats, leaf=leaf,
            )
            for rank, (_, leaf) in enumerate(places)
        ]  # fmt: skip
        self.addresses = [(ip, 5000 + rank) for rank, (ip, _) in enumerate(places)]
        for asked, address in zip(self.asked, self.addresses, strict=True):
            self.admission.join(asked, address, 0)
        found = self.events[-1]
        assert isinstance(found, Admit)
        return found

    def welcomes(self, event: Admit) -> list[Welcome]:
        self.admission.on_admitted(event, 0, event.leaves.values())
        found = [self.admission.join(*each, 0) for each in zip(self.asked, self.addresses, strict=True)]
        return [each for each in found if isinstance(each, Welcome)]


PLACES = [("10.0.0.1", LEAF), ("10.0.0.1", LEAF), ("10.0.0.2", LEAF), ("10.0.0.3", OTHER), ("10.0.0.3", None)]


def test_a_leaf_has_at_least_two_ranks_of_its_own_host() -> None:
    server = Server()
    event = server.join(PLACES)
    assert event.leaves == {HostLeaf("10.0.0.1", 40001, 9559): (0, 1)}
    welcomes = server.welcomes(event)
    assert [each.by_leaf for each in welcomes] == [True, True, False, False, False]
    assert [each.leaf_ranks for each in welcomes] == [0b11, 0b11, 0, 0, 0]
    assert {each.levels for each in welcomes} == {2}


@pytest.mark.parametrize(("settings", "levels"), [({"aggregates": False}, 0), ({"levels": 2}, 2), ({}, 1)])
def test_no_leaf_where_none_can_be(settings: dict[str, Any], levels: int) -> None:
    """Not without a switch above, not below leaves of a network, and not in a job with seats."""
    server = Server(**settings)
    event = server.join(PLACES, seats=0 if settings else 4)
    assert event.leaves == {}
    assert {(each.by_leaf, each.levels) for each in server.welcomes(event)} == {(False, levels)}


def test_a_leaf_that_cannot_take_a_job_is_not_used_again() -> None:
    server = Server()
    event = server.join(PLACES[:2])
    (leaf,) = event.leaves
    server.admission.on_refused(event, "no answer", leaf)
    again = server.join(PLACES[:2])
    assert again.epoch != event.epoch
    assert again.leaves == {}
