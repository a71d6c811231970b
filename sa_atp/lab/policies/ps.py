"""A parameter server that sums synchronously, without switches."""

from sa_atp.lab.policies.policy import SwitchPolicy


class PlainServer(SwitchPolicy):
    name = "ps"
    title = "Parameter server"
    summary = (
        "Every worker computes its shard, a parameter server sums all gradients, and all workers wait for the slowest; "
        "the update is the same as ATP's."
    )
    source = "Li et al., Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014, run synchronously"
    colour = "#DDAA33"
    place = 100
    aggregates_at = "server"


POLICIES = (PlainServer(),)
