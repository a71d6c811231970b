"""ATP: the switch sums, and all workers wait for the slowest."""

from sa_atp.lab.policies.policy import SwitchPolicy


class Atp(SwitchPolicy):
    name = "atp"
    title = "ATP"
    summary = (
        "Every worker computes its shard, the switch sums all gradients, and all workers wait for the slowest; the "
        "update is the mean over all shards."
    )
    source = "Lao et al., ATP: In-network Aggregation for Multi-tenant Learning, NSDI 2021"
    colour = "#7A7A7A"
    place = 10


POLICIES = (Atp(),)
