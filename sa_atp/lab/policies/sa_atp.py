"""SA-ATP: ATP, and workers that wait help slow ones."""

from sa_atp.lab.policies.policy import PlanTables, SwitchPolicy
from sa_atp.protocol.packets.message_fields import HelpGrade


class SaAtpPolicy(SwitchPolicy):
    name = "sa-atp"
    title = "SA-ATP"
    summary = (
        "As ATP, and workers that wait compute micro-batches of slow workers (help.grade says how); the update is the "
        "same as ATP's, from the same samples."
    )
    source = "the published idea is its abstract's; docs/deviations.md says what of this is ours"
    colour = "#882255"
    place = 20

    def help_grade(self, plan: PlanTables) -> HelpGrade:
        return HelpGrade(plan.help.grade)

    def expected_stretch(self, plan: PlanTables, slow: float) -> float:
        return 1.3


POLICIES = (SaAtpPolicy(),)
