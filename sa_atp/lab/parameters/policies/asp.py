"""ASP: no worker waits for another."""

from dataclasses import dataclass

from sa_atp.basics.tables import setting
from sa_atp.lab.parameters.rules.rules import Rules
from sa_atp.lab.policies.policy import ParameterPolicy, PlanTables


@dataclass(frozen=True, kw_only=True, slots=True)
class AspSettings:
    """[asp]"""

    learning_rate: float = setting(0.1, between=(0.0, 100.0))
    """Learning rate of the server's SGD; `runs.tuning` finds one."""


class Asp(ParameterPolicy):
    name = "asp"
    title = "ASP"
    summary = (
        "Every worker pulls parameters, computes its shard and pushes an update, without waiting for others; updates "
        "are added on arrival, each with its full weight."
    )
    source = (
        "asynchronous parallel, the way of Dean et al., Large Scale Distributed Deep Networks (Downpour SGD), NIPS 2012"
    )
    colour = "#117733"
    place = 60
    settings = AspSettings

    def rules(self, plan: PlanTables) -> Rules:
        return Rules(self.terms(plan))

    def expected_stretch(self, plan: PlanTables, slow: float) -> float:
        return 1.5


POLICIES = (Asp(),)
