"""The project's own plans load and can be built, and their comments are right."""

import re
from pathlib import Path

import pytest

from sa_atp.lab.backends.mininet import topologies
from sa_atp.lab.plans import plan as plans
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import FIGURES, Plan
from sa_atp.lab.plans.sweep import points, seconds_left
from sa_atp.lab.report.sweep import KEYS, QUANTITIES

ROOT = Path(__file__).parents[3]
PLANS = sorted((ROOT / "topologies").glob("*.toml"))
SETTING = re.compile(r"--set\s+(?:'([^']+)'|(\S+?))(?=[\s,;:)]|$)")


def comments(path: Path) -> str:
    """The comment at the top of a plan, as one line."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def test_there_is_a_plan_for_every_topology_and_question() -> None:
    loaded = {path.stem: plan_files.load(path) for path in PLANS}
    assert {plan.topology.kind for plan in loaded.values()} == set(plans.TOPOLOGIES)
    assert {plan.job.jobs for plan in loaded.values()} >= {1, 2, 4}
    swept = [plan.sweep for plan in loaded.values() if plan.sweep.key]
    assert {sweep.figure for sweep in swept} == set(FIGURES) == set(QUANTITIES)
    assert {sweep.key for sweep in swept} <= set(KEYS)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_says_how_to_run_it_and_can_be_built(path: Path) -> None:
    text = comments(path)
    assert "Run it" in text
    commands = re.findall(r"sa-atp run (\S+)", text)
    assert f"topologies/{path.name}" in commands
    assert all((ROOT / command.rstrip(",.")).is_file() for command in commands)
    plan = plan_files.load(path)
    layout = topologies.of_plan(plan, path.parent)
    layout.check(path.name)
    assert len(layout.workers()) == plan.topology.workers
    assert plan.sweep.key or "sweep.png" not in text


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_settings_in_comments_are_valid(path: Path) -> None:
    found = [quoted or bare for quoted, bare in SETTING.findall(comments(path))]
    for setting in found:
        together = found if "micro_batches" in " ".join(found) else [setting]
        plan_files.load(path, together)


@pytest.mark.parametrize("path", [p for p in PLANS if "[sweep]" in p.read_text()], ids=lambda path: path.stem)
def test_every_point_of_a_sweep_can_be_built(path: Path) -> None:
    found = points(plan_files.load(path), path.name)
    assert len({point.folder for point in found}) == len(found) >= 3
    for point in found:
        topologies.of_plan(point.plan, path.parent).check(path.name)
        assert not point.plan.sweep.key
        assert point.plan.run.repetitions > 1


def parse(text: str) -> Plan:
    return plan_files.parse(text, "test.toml")


def test_the_estimate_of_remaining_time() -> None:
    found = points(parse('[run]\nsteps=100\n[sweep]\nkey = "straggler.slowdown"\nvalues = [1.0, 8.0]'), "test.toml")
    fast, slow = (point.plan for point in found)
    assert seconds_left([], [fast, slow]) is None
    left = seconds_left([(fast, 100.0)], [slow])
    assert left is not None
    assert left > 200.0  # a baseline eight times slower
    assert seconds_left([(fast, 100.0)], []) == 0.0
