"""ConSGD: SSP with updates of a constant weight."""

from dataclasses import dataclass

from sa_atp.basics.tables import setting
from sa_atp.lab.parameters.rules.rules import ConSgdRules, Rules
from sa_atp.lab.policies.policy import ParameterPolicy, PlanTables


@dataclass(frozen=True, kw_only=True, slots=True)
class ConSgdSettings:
    """[consgd]"""

    bound: int = setting(3, between=(0, 10_000))
    """How many clocks a worker may be ahead of the slowest."""
    learning_rate: float = setting(0.2, between=(0.0, 100.0))
    """Learning rate of the server's SGD; `runs.tuning` finds one."""


class ConSgd(ParameterPolicy):
    name = "consgd"
    title = "ConSGD"
    summary = "As SSP with consgd.bound; updates are added on arrival, each of M workers' with the weight 1/M."
    source = "Jiang et al., Heterogeneity-aware Distributed Parameter Servers, SIGMOD 2017"
    colour = "#AA4499"
    place = 80
    settings = ConSgdSettings

    def rules(self, plan: PlanTables) -> Rules:
        return ConSgdRules(self.terms(plan, bound=self.settings_in(plan).bound))


POLICIES = (ConSgd(),)
