"""The golden scenarios by the names of their files. Together they hit every row of the verdict table
(p4src/core/verdict.p4).
"""

from collections.abc import Callable
from functools import partial

from sa_atp.protocol.packets.spec import LANE_BUILDS

from . import edges, levels, slots, wide
from .scenario import Scenario

# name: scenario for so many lanes
EACH: dict[str, Callable[[int], Scenario]] = {
    "aggregate": slots.aggregate,
    "high_bits": slots.high_bits,
    "duplicates": slots.duplicates,
    "collisions": slots.collisions,
    "resends": slots.resends,
    "evictions": slots.evictions,
    "lapses": slots.lapses,
    "probes": slots.probes,
    "fan_out": levels.fan_out,
    "admission": edges.admission,
    "truncated": edges.truncated,
    "leaf": levels.leaf,
    "leaf_resends": levels.leaf_resends,
    "spine": levels.spine,
    "uneven": levels.uneven,
    "saturation": slots.saturation,
    "forwarding": edges.forwarding,
    "partials": levels.partials,
    "scattered": levels.scattered,
    "scattered_leaf": levels.scattered_leaf,
    "scattered_uneven": levels.scattered_uneven,
}
_OF_MANY = (
    "aggregate",
    "collisions",
    "resends",
    "evictions",
    "scattered_uneven",
)  # what is the same for all lanes is not repeated for 256
_OF_LARGE = ("evictions",)  # ... nor for 2048, where a packet is a long line
TOFINO_LANES = min(LANE_BUILDS)  # the build that has the packets of the programs for Tofino

# file name: scenario
ALL: dict[str, Callable[[], Scenario]] = {
    **{name: partial(make, 64) for name, make in EACH.items()},
    **{f"{name}_{TOFINO_LANES}": partial(make, TOFINO_LANES) for name, make in EACH.items()},
    **{f"{name}_256": partial(EACH[name], 256) for name in _OF_MANY},
    **{f"{make.__name__}_256_c512": make for make in (wide.wide_bits, wide.wide_slots, wide.wide_lengths)},
    **{f"{name}_{lanes}": partial(EACH[name], lanes) for name in _OF_LARGE for lanes in LANE_BUILDS if lanes > 256},
}
