"""Plans whose gradients travel in half the bytes, in the simulator: every sum is checked, integer by integer."""

import numpy as np
import pytest

from sa_atp.lab.backends import simulated
from sa_atp.lab.plans import plan_files
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun
from sa_atp.steps.workloads.comm_models import CommModel

PLAN = """
[run]
steps = 4
backend = "sim"
policies = ["atp"]
[topology]
workers = 3
link_mbps = 100
[switch]
lanes = 64
[job]
model = "resnet-50"
model_scale = 0.001
batch_size = 4
micro_batches = 4
compute_us_per_sample = 5000
bits = 16
[straggler]
pattern = "constant"
workers = [2]
slowdown = 6
"""
EXACT, HALVED = 2, 2  # steps


def simulate(*overrides: str) -> PolicyRun:
    (found,) = simulated.run(plan_files.parse(PLAN, "here", overrides), Progress())
    assert (found.sums_checked, found.sums_wrong) == (12, 0)
    return found


@pytest.mark.parametrize("policy", ["atp", "boa"])
def test_half_the_fragments_after_the_first_sums(policy: str) -> None:
    policies = f'run.policies=["{policy}"]'
    halved, whole = simulate(policies).fragments["sent"], simulate(policies, "job.bits=32").fragments["sent"]
    assert halved / whole == pytest.approx((EXACT + HALVED / 2) / (EXACT + HALVED), abs=0.03)


@pytest.mark.parametrize("overrides", [(), ("network.loss=0.02",), ("help.grade=clone",)])
def test_micro_batches_are_rounded_alike_whoever_computes_them(overrides: tuple[str, ...]) -> None:
    found = simulate('run.policies=["sa-atp"]', *overrides)
    assert found.help["helped_steps"] >= HALVED
    assert found.fragments["on_behalf"]


def test_updates_are_near_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[np.ndarray] = []
    monkeypatch.setattr(CommModel, "apply", lambda self, gradient: applied.append(gradient.copy()))
    for policy, bound in (("atp", 4e-3), ("sa-atp", 2e-2)):
        updates = []
        for bits in (16, 32):
            applied.clear()
            simulate(f"job.bits={bits}", f'run.policies=["{policy}"]')
            updates.append(np.stack(applied))
        error = np.abs(updates[0] - updates[1]).max(axis=1) / np.abs(updates[1]).max(axis=1)
        assert error[: 3 * EXACT].max() < 1e-6
        assert 1e-6 < error[3 * EXACT :].max() < bound
