"""Tunes learning rates by one rule for all policies, in virtual time.

The rule: of the rates of `GRID` that reach the plan's target accuracy in all repetitions on the simulated backend, take the
one that does so soonest, mean over repetitions. If none does, take the one with the highest final accuracy. Of equal rates,
take the smaller one.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from sa_atp.lab import policies
from sa_atp.lab.plans.plan import Plan

GRID = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8)


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a learning rate."""

    learning_rate: float
    time_to_accuracy_s: float
    """Mean over repetitions; infinite if one did not reach it."""
    accuracy: float
    """Final accuracy, mean over repetitions."""


def with_rate(plan: Plan, policy: str, rate: float) -> Plan:
    """The plan with another learning rate for a policy: the key of its own table, or else job.learning_rate."""
    kind = policies.find(policy)
    if kind.settings is None or not hasattr(kind.settings(), "learning_rate"):
        return dataclasses.replace(plan, job=dataclasses.replace(plan.job, learning_rate=rate))
    own = dataclasses.replace(kind.settings_in(plan), learning_rate=rate)
    return dataclasses.replace(plan, settings={**plan.settings, kind.table or kind.name: own})


def best(found: Iterable[Trial]) -> Trial:
    """The best trial by the rule."""
    return min(found, key=lambda t: (t.time_to_accuracy_s, -t.accuracy, t.learning_rate))
