"""`sa-atp bench help --ablate`: what each rule of help is worth, by switching it off, in virtual time.

docs/help-rules.md is the committed page; `--ablate --out docs` writes it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sa_atp.basics.errors import UserError
from sa_atp.lab.backends import simulated
from sa_atp.lab.bench.help_settings import HelpSetting, table
from sa_atp.lab.report import stats
from sa_atp.lab.runs.pool import pool
from sa_atp.lab.runs.progress import Progress
from sa_atp.protocol.help.rules import RULES

LEAST = 0.02  # a smaller change of a step's time is not shown
UNLIKE = (
    "10G, pause",
    "6 workers, each pauses in 32% of its steps",
    "one pauses for 8 s, no work can be cancelled",
    "round trip of 10 micro-batches, random",
    "round trip of 20 micro-batches, one slow",
    "heterogeneous links, the one at 5M slow",
    "two racks, trunks of 20M, one slow",
)
HEAD = """# Rules of help, and what each is worth

Each rule is switched off by itself, in {count} settings of [help-table.md](help-table.md) that are unlike each other. A
number says how much longer a step takes then, in virtual time; a negative one, how much shorter. Changes below 2 % are
left out. Rules may stand in for each other, so what one is worth alone is no sum. `sa-atp bench help --ablate --out
docs` writes this page again; `sa_atp/protocol/help/rules.py` says how a rule is declared.

| rule | what it does | without it, a step takes longer by |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Worth:
    """What a rule is worth."""

    rule: str
    says: str
    changes: dict[str, float] = field(default_factory=dict)
    """By setting: how much longer a step takes without the rule, as a share; negative: shorter."""


def settings() -> list[HelpSetting]:
    """The settings in which rules are switched off."""
    return [setting for setting in table() if setting.name in UNLIKE]


def measure(chosen: Sequence[HelpSetting], jobs: int) -> Iterator[Worth]:
    """What each rule is worth, rule by rule. Raises: SaAtpError."""
    rules = sorted(RULES.values(), key=lambda rule: rule.name)
    with pool(jobs) as processes:
        names = [name for name in ("", *(rule.name for rule in rules)) for _ in chosen]
        found = processes.map(step_ms, [*chosen] * (1 + len(rules)), names)
        ms = [next(found) for _ in chosen]
        for rule in rules:
            changes = {setting.name: next(found) / base - 1 for setting, base in zip(chosen, ms, strict=True)}
            yield Worth(rule.name, rule.says, changes)


def step_ms(setting: HelpSetting, rule: str) -> float:
    """The mean time of a step with help. Args: rule: the name of the rule that is switched off; empty: none is."""
    plan = replace(setting, changes=(*setting.changes, 'run.policies=["sa-atp"]')).plan
    for each in RULES.values():
        each.is_on = each.name != rule
    try:
        (run,) = simulated.run(plan, Progress())
    finally:
        for each in RULES.values():
            each.is_on = True
    return stats.mean_step_ms(run, stats.counted_steps(run, plan.run.warm_up))


def row(worth: Worth) -> str:
    """A line of the page."""
    changes = sorted(((name, by) for name, by in worth.changes.items() if abs(by) >= LEAST), key=lambda each: -each[1])
    return f"| {worth.rule} | {worth.says} | {'; '.join(f'{by:+.0%} {name}' for name, by in changes) or 'none'} |"


def write(found: Sequence[Worth], count: int, folder: Path) -> None:
    """Writes the page. Args: count: settings. Raises: UserError."""
    try:
        (folder / "help-rules.md").write_text(HEAD.format(count=count) + "\n".join(map(row, found)) + "\n")
    except OSError as error:
        raise UserError(f"--out {folder}: {error.strerror}") from None
