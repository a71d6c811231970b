"""The plan in use: made from what is believed of all workers, and kept while that holds. (protocol section 10.3)

A plan is exact to a share of the shortest piece's time. For a part of that, and while no worker reports to be earlier or
later by more, answers are taken from one plan, and what is handed out is counted off: leaders ask together.
"""

from collections.abc import Sequence

from sa_atp.protocol.help.plan import NEVER_US, PRECISE, Machine
from sa_atp.protocol.help.plan_in_use import PlanInUse
from sa_atp.protocol.help.price import Price
from sa_atp.protocol.help.progress import Step, Worker
from sa_atp.protocol.help.projection import Projection
from sa_atp.protocol.help.racks import Racks
from sa_atp.protocol.help.silence import Silence

KEPT = 4  # a plan is kept for this part of its precision


class Planner:
    def __init__(
        self, workers: Sequence[Worker], projection: Projection, silence: Silence, racks: Racks, price: Price
    ) -> None:
        """Args: workers: what is known of each, by rank."""
        self._ranks = range(len(workers))
        self._projection = projection
        self._silence = silence
        self._racks = racks
        self._price = price

    def plan(self, state: Step, step: int, rank: int, now_us: int, busy_until_us: int | None = None) -> PlanInUse:
        """The best plan for the rest of a step, for the answer to a worker.

        Args: busy_until_us: when the worker says that it will be free; None: it has not just said so.
        """
        kept = state.planned
        if kept is None or now_us > kept.until_us or not self._holds(kept, state, rank, now_us, busy_until_us):
            state.planned = kept = self._make(state, step, rank, now_us, busy_until_us)
        return kept

    def check(self, state: Step, rank: int, now_us: int) -> None:
        """Drops the plan if a worker's report does not agree with it."""
        if state.planned is not None and not self._holds(state.planned, state, rank, now_us, None):
            state.planned = None

    def _holds(self, kept: PlanInUse, state: Step, rank: int, now_us: int, busy_until_us: int | None) -> bool:
        machine = self._projection.machine(state, rank, now_us, 0, NEVER_US, busy_until_us)
        done_us = _done_us(machine, state.held(rank), kept.until[rank])
        return abs(done_us - kept.done_us[rank]) <= kept.precise_us

    def _make(self, state: Step, step: int, rank: int, now_us: int, busy_until_us: int | None) -> PlanInUse:
        machines = []
        for each in self._ranks:
            is_behind = self._silence.is_behind(step, each, now_us)
            spared_us = NEVER_US if is_behind else state.courses[each].left_alone_until_us or 0
            until_us = busy_until_us if each == rank else None
            copy_us, course = NEVER_US, state.courses[each]
            if not is_behind and (course.idle_us is None or course.lot):
                copy_us = max(self._silence.backup_from_us(state, each if until_us is None else rank, each))
            machines.append(self._projection.machine(state, each, now_us, spared_us, copy_us, until_us))
        # what help costs is paid once in a step
        plan = self._racks.plan(state.crossed, machines, 0.0 if state.is_helped else self._price.us)
        held = [state.held(each) for each in self._ranks]
        until = [h - m.held + own for h, m, own in zip(held, machines, plan.own, strict=True)]
        precise_us = max(1.0, min(m.piece_us for m in machines) / PRECISE)
        return PlanInUse(
            end_us=plan.end_us,
            until_us=now_us + precise_us / KEPT,
            precise_us=precise_us,
            until=until,
            parts=plan.parts or [{} for _ in machines],
            wanted=[each for each in self._ranks if until[each] < held[each]],
            spared_us=[m.spared_us for m in machines],
            done_us=[_done_us(m, h, u) for m, h, u in zip(machines, held, until, strict=True)],
        )


def _done_us(machine: Machine, held: int, until: int) -> float:
    """When a worker should be done with so many pieces of its own shard, and with its lot."""
    return machine.own_done_us(max(0, until - held + machine.held))
