"""Finds out what this machine has and lacks, and what would run on it. Every finding comes from a real attempt."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from sa_atp.doctor import machine, project, software
from sa_atp.doctor.commands import DEMO, NEEDS, Command, commands
from sa_atp.doctor.finding import Finding
from sa_atp.protocol.packets.spec import LANE_BUILDS

__all__ = ["DEMO", "NEEDS", "Command", "Examination", "Finding", "examine"]

MOST_AT_A_TIME = 4  # each takes up to 500 MB, and eight open files here
Probe = Callable[[], Finding | list[Finding] | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    groups: dict[str, list[Finding]]
    commands: list[Command]

    @property
    def demo_runs(self) -> bool:
        return not next(command for command in self.commands if command.name == DEMO).missing


def probes() -> dict[str, list[Probe]]:
    return {
        "Python": [software.python, *(partial(software.package, each) for each in software.PACKAGES), software.torch],
        "Programs": [partial(software.program, each) for each in software.programs()],
        "Machine": [*machine.findings()],
        "Project": [
            project.programs,
            project.artefacts_current,
            project.generated,
            project.cache,
            *(partial(project.compiled, lanes) for lanes in LANE_BUILDS),
        ],
    }


def examine(tell: Callable[[str, Finding], None] = lambda _title, _finding: None) -> Examination:
    """Takes some seconds: most of them are Python processes that import something large.

    Args: tell: called with each finding and its group's title as soon as it is known, group by group.
    """
    with ThreadPoolExecutor(max_workers=min(MOST_AT_A_TIME, max(2, len(os.sched_getaffinity(0))))) as pool:
        pending = [(title, pool.submit(probe)) for title, group in probes().items() for probe in group]
        groups: dict[str, list[Finding]] = {title: [] for title, _ in pending}
        for title, future in pending:
            for finding in _all(future.result()):
                groups[title].append(finding)
                tell(title, finding)
    return Examination(groups=groups, commands=commands(f for group in groups.values() for f in group))


def _all(found: Finding | list[Finding] | None) -> list[Finding]:
    if found is None:
        return []
    return found if isinstance(found, list) else [found]
