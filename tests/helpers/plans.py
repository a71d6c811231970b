"""A plan whose run takes a moment, for tests of what surrounds a run; and runs of plans in virtual time."""

import json
from pathlib import Path
from typing import Any

from sa_atp.lab.backends import simulated
from sa_atp.lab.plans import plan_files
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import RunResult

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


def policies_of(text: str, *overrides: str) -> tuple[dict[str, Any], RunResult]:
    """Runs a plan in virtual time, and looks at all its sums. Returns: the summary of each policy, and the records."""
    plan = plan_files.parse(text, "a plan", overrides)
    result = RunResult(plan, "a plan", "sim", "embedded", {}, simulated.run(plan, Progress()))
    found: dict[str, Any] = summarise(result)["policies"]
    sums = plan.run.steps * plan.topology.workers
    assert all((each["sums_checked"], each["sums_wrong"]) == (sums, 0) for each in found.values())
    return found, result


class Said(Progress):
    """Keeps what a run says of its progress."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, stage: str) -> None:
        self.lines.append(stage)

    def steps(self, done: int, of: int, unit: str = "steps") -> None:
        self.lines.append(f"{done} of {of} {unit}")
