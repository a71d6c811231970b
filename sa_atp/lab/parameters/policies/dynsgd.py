"""DynSGD: SSP with updates weighted by their staleness."""

from dataclasses import dataclass

from sa_atp.basics.tables import setting
from sa_atp.lab.parameters.rules.rules import DynSgdRules, Rules
from sa_atp.lab.policies.policy import ParameterPolicy, PlanTables


@dataclass(frozen=True, kw_only=True, slots=True)
class DynSgdSettings:
    """[dynsgd]"""

    bound: int = setting(3, between=(0, 10_000))
    """How many clocks a worker may be ahead of the slowest."""
    learning_rate: float = setting(0.2, between=(0.0, 100.0))
    """Learning rate of the server's SGD; `runs.tuning` finds one."""


class DynSgd(ParameterPolicy):
    name = "dynsgd"
    title = "DynSGD"
    summary = (
        "As SSP with dynsgd.bound; the updates of a clock that have arrived share equal weights with sum 1, so that the "
        "parameters contain their mean."
    )
    source = "Jiang et al., Heterogeneity-aware Distributed Parameter Servers, SIGMOD 2017"
    colour = "#661100"
    place = 90
    settings = DynSgdSettings

    def rules(self, plan: PlanTables) -> Rules:
        return DynSgdRules(self.terms(plan, bound=self.settings_in(plan).bound))


POLICIES = (DynSgd(),)
