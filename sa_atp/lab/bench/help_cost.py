"""`sa-atp bench help --cost`: what the ledger's answers cost the parameter server, over the number of workers.

Steps run in virtual time, in the flow-level model with the ledger of real jobs; what is measured is the processor time of
its answers, on this machine. A share of a core is that time over the steps' virtual time.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from sa_atp.lab.backends import flows
from sa_atp.lab.bench.help_settings import HelpSetting
from sa_atp.lab.flow.help_groups import Answer, HelpGroups, Question
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.virtual_run import fabric_of
from sa_atp.lab.simulator.network import Clock

WORKERS = (8, 16, 32, 64)
MICRO_BATCHES, STEPS = 8, 10
STRAGGLERS = {"one slow": "constant", "random": "random"}


@dataclass(frozen=True, slots=True)
class HelpCost:
    setting: str
    step_ms: float
    """Mean time of a step, in virtual time."""
    questions: float
    """Requests of all workers to the ledger, per step."""
    answer_us: float
    """Processor time of an answer."""

    @property
    def share(self) -> float:
        """The share of a core that the ledger's answers take, if each step begins when the one before has ended."""
        return self.questions * self.answer_us / (1000 * self.step_ms)


def settings() -> list[HelpSetting]:
    """The settings that are measured: numbers of workers, and patterns of stragglers."""
    found = []
    for workers in WORKERS:
        for name, pattern in STRAGGLERS.items():
            changes = (
                f"topology.workers={workers}",
                f"job.micro_batches={MICRO_BATCHES}",
                f"run.steps={STEPS}",
                f"straggler.pattern={pattern}",
                f"straggler.workers=[{workers - 1}]",
                "sim.network=flows",
            )
            found.append(HelpSetting(f"{workers} workers, {name}", changes))
    return found


def measure(setting: HelpSetting, progress: Progress) -> HelpCost:
    """Runs the steps of a setting, and measures the ledger's answers. Raises: SaAtpError."""
    progress(setting.name)
    plan = setting.plan
    with timed_answers() as times_ns:
        ends_us = flows.step_ends_us(plan, "sa-atp", progress, fabric_of(plan, Clock()))
    answer_us = sum(times_ns) / len(times_ns) / 1000
    return HelpCost(setting.name, ends_us[-1] / 1000 / STEPS, len(times_ns) / STEPS, answer_us)


@contextlib.contextmanager
def timed_answers() -> Iterator[list[int]]:
    """Measures each answer of a ledger in the flow-level model, in nanoseconds of this thread's processor time."""
    plain, times_ns = HelpGroups.answer, list[int]()

    def answer(self: HelpGroups, rank: int, request: Question, now_us: int) -> Answer:
        began_ns = time.thread_time_ns()
        found = plain(self, rank, request, now_us)
        times_ns.append(time.thread_time_ns() - began_ns)
        return found

    setattr(HelpGroups, "answer", answer)  # noqa: B010
    try:
        yield times_ns
    finally:
        setattr(HelpGroups, "answer", plain)  # noqa: B010
