"""Small runs from the command line: their files, and that help does not change the training."""

import contextlib
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sa_atp.cli import main
from sa_atp.lab import report

pytestmark = pytest.mark.needs("torch", "sklearn")  # the demo trains

SMALL = [
    "run.steps=4", "run.policies=[\"atp\", \"sa-atp\"]", "topology.workers=3", "straggler.workers=[2]",
    "job.batch_size=16", "job.micro_batches=8", "job.compute_us_per_sample=1000", "switch.lanes=256",
]  # fmt: skip


BAD_LINKS = ("network.loss=0.01", "network.duplicate=0.01", "network.reorder=0.05")
WIDE = ("job.batch_size=32", "job.micro_batches=32")  # 96 contributions: the build with 512


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    """Returns: what the command printed."""
    command = ["run", "demo", "--out", str(folder), *(part for key in SMALL for part in ("--set", key)), *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*command, "--json"]) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


@pytest.mark.parametrize(
    ("backend", "overrides"),
    [
        ("local", ()),
        ("local", WIDE),
        ("sim", WIDE),
        ("sim", ("topology.kind=two-level", "topology.racks=2", *BAD_LINKS)),
        ("sim", ("straggler.pattern=pause", "straggler.pause_s=0.2", "straggler.every=2", "help.grade=clone")),
    ],
)
def test_help_changes_who_computes_and_never_what(tmp_path: Path, backend: str, overrides: tuple[str, ...]) -> None:
    extra = [part for key in overrides for part in ("--set", key)]
    summary = run(tmp_path, "--backend", backend, *extra)
    atp, sa_atp = summary["policies"]["atp"], summary["policies"]["sa-atp"]
    for policy in (atp, sa_atp):
        assert policy["sums_checked"] == 12
        assert policy["sums_wrong"] == 0
        assert policy["iterations"] == 4
    assert atp["help"]["micro_batches"] == 0
    assert sa_atp["help"]["micro_batches"] > 0
    assert sa_atp["final_loss"] == atp["final_loss"]
    names = {path.name for path in tmp_path.iterdir()}
    assert {"manifest.json", "iterations.csv", "summary.json", "timeline.json", "report.html", "timeline.png"} <= names
    # a row for each policy, step and worker
    assert len((tmp_path / "iterations.csv").read_text().splitlines()) == 1 + 2 * 4 * 3
    for each in report.load(tmp_path).runs:
        covered: Counter[tuple[int, int]] = Counter()
        for i in each.intervals:
            covered[i.worker, i.step] += i.end_us - i.start_us
        took = Counter({(i.worker, i.step): round(1e6 * i.iteration_s) for i in each.iterations})
        assert covered == took  # timelines have no gap in a step; one that others have done takes no time


def test_policies_side_by_side_on_real_processes(tmp_path: Path) -> None:
    """Sums in the switch, at the parameter server and of some ranks; parameters on a server."""
    names = ["atp", "ps", "sync-opt", "ssp", "asp", "flexrr", "consgd", "dynsgd", "falcon"]
    policies = f"run.policies={json.dumps(names)}"
    summary = run(tmp_path, "--backend", "local", "--set", policies, "--set", "run.steps=2")
    found = summary["policies"]
    assert list(found) == names
    for name, policy in found.items():
        assert policy["iterations"] == 2
        assert policy["sums_checked"] >= (6 if name in ("atp", "ps", "sync-opt") else 2)
        assert policy["sums_wrong"] == 0
        assert policy["final_accuracy"] is not None
    assert found["ps"]["final_loss"] == found["atp"]["final_loss"]
    assert found["ps"]["fragments"]["in_switch"] == 0
    assert found["sync-opt"]["samples_per_update"] == 2 * 16
    # one table and one figure for all
    assert [each.policy for each in report.load(tmp_path).runs] == names
    assert (tmp_path / "training.png").exists()
