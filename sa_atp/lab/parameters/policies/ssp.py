"""SSP: no worker is more than a bound of clocks ahead of the slowest."""

from dataclasses import dataclass

from sa_atp.basics.tables import setting
from sa_atp.lab.parameters.rules.rules import Rules, SspRules
from sa_atp.lab.policies.policy import ParameterPolicy, PlanTables


@dataclass(frozen=True, kw_only=True, slots=True)
class SspSettings:
    """[ssp]"""

    bound: int = setting(3, between=(0, 10_000))
    """How many clocks a worker may be ahead of the slowest; 0: synchronous."""
    learning_rate: float = setting(0.05, between=(0.0, 100.0))
    """Learning rate of the server's SGD; `runs.tuning` finds one."""


class Ssp(ParameterPolicy):
    name = "ssp"
    title = "SSP"
    summary = (
        "Every worker pulls parameters, computes its shard and pushes an update, and waits when it is ssp.bound clocks "
        "ahead of the slowest; updates are added on arrival, each with its full weight."
    )
    source = "Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013"
    colour = "#6699CC"
    place = 50
    settings = SspSettings

    def rules(self, plan: PlanTables) -> Rules:
        return SspRules(self.terms(plan, bound=self.settings_in(plan).bound))


POLICIES = (Ssp(),)
