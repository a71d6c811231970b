"""A plan whose run takes a moment, for tests of what surrounds a run."""

import json
from pathlib import Path
from typing import Any

SMALL: dict[str, dict[str, Any]] = {
    "run": {"steps": 2, "warm_up": 0, "policies": ["atp"]},
    "topology": {"workers": 2},
    "switch": {"lanes": 64},
    "job": {
        "model": "resnet-50",
        "model_scale": 0.0001,
        "batch_size": 4,
        "micro_batches": 2,
        "compute_us_per_sample": 1000,
    },
    "straggler": {"pattern": "none"},
}


def small_plan(**changed: dict[str, Any]) -> str:
    """The small plan as TOML. Args: keys that are to be different, or there besides, by table."""
    tables = {name: SMALL.get(name, {}) | changed.get(name, {}) for name in [*SMALL, *changed]}
    lines = []
    for name, keys in tables.items():
        # JSON's strings, numbers and lists are TOML's as well
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"


def small_plan_file(folder: Path, **changed: dict[str, Any]) -> Path:
    """The same, in a file."""
    path = folder / "plan.toml"
    path.write_text(small_plan(**changed))
    return path
