"""The settings in which both simulators are compared (docs/flow-model.md)."""

PLAN = """
[run]
backend = "sim"
policies = ["atp", "sa-atp"]
steps = 5
warm_up = 2
[topology]
workers = 4
[job]
model = "resnet-50"
model_scale = 0.0005
batch_size = 16
micro_batches = 8
compute_us_per_sample = 1000
[straggler]
pattern = "none"
"""

_SLOW = ("straggler.pattern=constant", "straggler.workers=[3]", "straggler.slowdown=4")
_SLOWER = (*_SLOW[:2], "straggler.slowdown=10")
_RANDOM = ("straggler.pattern=random",)
_PAUSE = ("straggler.pattern=pause", "straggler.workers=[2]", "straggler.pause_s=0.1", "straggler.every=3")
_EIGHT = ("topology.workers=8",)
_SIXTEEN = ("topology.workers=16", "job.micro_batches=4")
_TREE = ("topology.kind=two-level",)
_FOUR_RACKS = (*_TREE, *_SIXTEEN, "topology.racks=4")
_SLOW_LINK = ("topology.link_mbps=20",)
_UNEQUAL = ("topology.worker_mbps=[40,40,20,10]",)
# In the flow model, other workers take over the shard of the worker behind the slowest link. That worker then falls behind
# them once, by the time that a sum takes down its link. More steps keep this delay from counting as part of each step.
_LONGER = ("run.steps=18",)
_FAR = ("topology.delay_us=2000",)

SETTINGS = {
    "star of 4": (),
    "star of 4, one slow": _SLOW,
    "star of 8, one slow at random": (*_EIGHT, *_RANDOM),
    "star of 16, one slow": (*_SIXTEEN, *_SLOW),
    "star of 4, 20 Mbit/s": _SLOW_LINK,
    "star of 4, 20 Mbit/s, one much slower": (*_SLOW_LINK, *_SLOWER),
    "star of 4, unequal links": (*_UNEQUAL, *_LONGER),
    "star of 4, 2 ms a link, 16 slots": (*_FAR, "switch.slots=16"),
    "star of 4, clones": (*_SLOW, "help.grade=clone"),
    "star of 4, pauses": _PAUSE,
    "star of 4, 20 Mbit/s, one slow": (*_SLOW_LINK, *_SLOW),
    "star of 4, unequal links, one slow": (*_UNEQUAL, *_SLOW),
    "star of 4, 2 ms a link, one slow": (*_FAR, *_SLOW),
    "star of 16, 100 Mbit/s, one slow at random": (*_SIXTEEN, "topology.link_mbps=100", *_RANDOM),
    "two racks of 4": (*_TREE, *_EIGHT),
    "two racks of 4, one slow": (*_TREE, *_EIGHT, *_SLOW),
    "four racks of 4, one slow at random": (*_FOUR_RACKS, *_RANDOM),
    "two racks of 4, 20 Mbit/s": (*_TREE, *_EIGHT, *_SLOW_LINK),
    "two racks of 4, 20 Mbit/s, one much slower": (*_TREE, *_EIGHT, *_SLOW_LINK, *_SLOWER),
    "two racks of 4, 100 Mbit/s, one slow": (*_TREE, *_EIGHT, "topology.link_mbps=100", *_SLOW),
    "four racks of 4, trunks of 40 Mbit/s": (*_FOUR_RACKS, "topology.link_mbps=100", "topology.trunk_mbps=40"),
    "four racks of 4, trunks of 40 Mbit/s, one much slower": (
        *_FOUR_RACKS, "topology.link_mbps=100", "topology.trunk_mbps=40", *_SLOWER,
        *_LONGER,
    ),
}  # fmt: skip
"""By name: changes to PLAN."""
