"""Gloo's ring all-reduce, over TCP, among the workers."""

from sa_atp.lab.policies.policy import PeerPolicy


class Gloo(PeerPolicy):
    name = "gloo"
    title = "Gloo ring"
    summary = (
        "Every worker computes its shard, PyTorch's Gloo sums all gradients in a ring of TCP connections, and all "
        "workers wait for the slowest; the update is the mean over all shards, summed in float32."
    )
    source = "Gloo, the collective communications library that PyTorch has for CPUs"
    colour = "#4477AA"
    place = 110
    backends = ("mininet",)
    modules = ("torch",)


POLICIES = (Gloo(),)
