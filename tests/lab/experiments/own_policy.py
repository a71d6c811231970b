"""A policy of a user's own, in a file of its own."""

from sa_atp.experiment import register
from sa_atp.lab.policies.policy import PlanTables, SwitchPolicy
from sa_atp.protocol.packets.message_fields import HelpGrade


class Cloned(SwitchPolicy):
    name = "cloned"
    title = "SA-ATP, cloning"
    summary = "As SA-ATP, and a helper computes a straggler's whole shard, whatever the plan's grade is."
    source = "an example"
    colour = "#225588"

    def help_grade(self, plan: PlanTables) -> HelpGrade:
        return HelpGrade.CLONE


register(Cloned)
