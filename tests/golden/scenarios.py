"""The golden scenarios by the names of their files. Together they hit every row of the verdict table
(p4src/core/verdict.p4).
"""

from collections.abc import Callable

from . import edges, levels, slots
from .scenario import Scenario

# file name: scenario
ALL: dict[str, Callable[[], Scenario]] = {
    "aggregate": lambda: slots.aggregate(64),
    "high_bits": slots.high_bits,
    "duplicates": slots.duplicates,
    "collisions": lambda: slots.collisions(64),
    "resends": lambda: slots.resends(64),
    "evictions": lambda: slots.evictions(64),
    "probes": slots.probes,
    "fan_out": levels.fan_out,
    "admission": edges.admission,
    "leaf": levels.leaf,
    "leaf_resends": levels.leaf_resends,
    "spine": levels.spine,
    "saturation": slots.saturation,
    "forwarding": edges.forwarding,
    "partials": levels.partials,
    "aggregate_256": lambda: slots.aggregate(256),
    "collisions_256": lambda: slots.collisions(256),
    "resends_256": lambda: slots.resends(256),
    "evictions_256": lambda: slots.evictions(256),
}
