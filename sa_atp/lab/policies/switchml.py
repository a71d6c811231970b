"""SwitchML: another protocol for sums in a switch, with a program of its own."""

from dataclasses import dataclass

from sa_atp.basics.tables import setting
from sa_atp.lab.peers import switchml
from sa_atp.lab.policies.policy import PeerPolicy, PlanTables


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchMlPlan:
    """[switchml]"""

    slots: int = setting(128, between=(1, switchml.SLOTS))
    """Packets that a worker has under way: the window, which is fixed."""
    timeout_us: int = setting(0, between=(0, 60_000_000))
    """Microseconds without a result after which a worker sends a packet again; 0: twice what a window takes on the slowest
    link with its delay there and back, and at least 1000."""


class SwitchMl(PeerPolicy):
    name = "switchml"
    title = "SwitchML"
    summary = (
        "As ATP, in SwitchML's protocol: a fixed window of slots, packets that are sent again after a time-out, and no "
        "server that sums what the switch cannot; all workers wait for the slowest."
    )
    source = "Sapio et al., Scaling Distributed Machine Learning with In-Network Aggregation, NSDI 2021"
    colour = "#8F3B1B"
    place = 105
    settings = SwitchMlPlan
    peer = switchml.PEER

    def slots(self, plan: PlanTables) -> int:
        """See PeerPolicy."""
        return int(self.settings_in(plan).slots)

    def timeout_us(self, plan: PlanTables) -> int:
        """See PeerPolicy."""
        return int(self.settings_in(plan).timeout_us) or PeerPolicy.timeout_us(self, plan)


POLICIES = (SwitchMl(),)
